//! An engine between two API servers in memory, for unit tests: what they are asked is recorded, and a script says what they do not do.

use super::{Engine, api::Api, lock};
use crate::metrics::Metrics;
use berth_sync_rules::{
    model::{
        KindId, Tenant,
        resource::{Name, Side},
        store::Stored,
    },
    registry,
};
use http::{Request, Response, StatusCode};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{task::JoinHandle, time::Instant};

/// What becomes of a request that an API server does not carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// It is refused with this code.
    Refused(u16),
    /// It is refused with this code after so many seconds.
    RefusedLate(u16, u64),
    /// It is never answered.
    Silence,
}

/// Which requests fail: of texts such as `tenant PATCH /api/v1/namespaces/team/pods/a/status`.
type Script = Arc<dyn Fn(&str) -> Option<Failure> + Send + Sync>;

/// What API servers in memory keep.
#[derive(Default)]
struct Kept {
    /// What they were asked, with what was sent.
    calls: Vec<(String, Value)>,
    /// Objects of the host that they answer with, by the ends of their paths.
    objects: Vec<(&'static str, Value)>,
    /// Fields of the spec that host objects have besides what is applied, by the ends of their paths.
    foreign: Vec<(String, &'static str)>,
}

/// An engine, and what its API servers were asked.
pub(super) struct Scripted {
    pub(super) engine: Arc<Engine>,
    kept: Arc<Mutex<Kept>>,
}

impl Scripted {
    /// API servers that carry out every request for which `script` has no failure. They answer with what was sent to them.
    pub(super) fn new(tenant: Tenant, script: impl Fn(&str) -> Option<Failure> + Send + Sync + 'static) -> Self {
        let script: Script = Arc::new(script);
        let (kept, metrics) = (Arc::default(), Metrics::default());
        let api = |side| Api::new(client(side, &script, &kept), side, metrics.clone());
        let (tenant_api, host_api) = (api(Side::Tenant), api(Side::Host));
        Self {
            engine: Engine::new(registry::new_cache(tenant), tenant_api, host_api, metrics),
            kept,
        }
    }

    /// The host has this object from now on, for those who read it: at a path that ends like that.
    pub(super) fn serve(&self, path_end: &'static str, object: Value) {
        let mut kept = lock(&self.kept);
        kept.objects.retain(|(end, _)| *end != path_end);
        kept.objects.push((path_end, object));
    }

    /// Somebody else has set this field of the spec of a host object, at a path that ends like that.
    pub(super) fn add_foreign_field(&self, path_end: &str, field: &'static str) {
        lock(&self.kept).foreign.push((path_end.to_owned(), field));
    }

    /// Puts an object into a store, as a watch does. The host's was made for the tenant's.
    pub(super) fn put(&self, side: Side, id: KindId, name: &Name, mut object: Value) -> Arc<Stored> {
        let metadata = &mut object["metadata"];
        metadata["name"] = (*name.name).into();
        metadata["namespace"] = (*name.namespace).into();
        metadata["resourceVersion"] = "7".into();
        metadata["uid"] = format!("{}-uid", side.name()).into();
        if side == Side::Host {
            metadata["annotations"] = json!({"berth.dev/origin-namespace": &*name.namespace, "berth.dev/origin-name": &*name.name,
                "berth.dev/origin-uid": "tenant-uid"});
        }
        let store = self.engine.cache.stores.of(side, id);
        store.watched(name.clone(), Stored::from(object));
        store.get(name).unwrap()
    }

    /// Works on objects of a kind in a thousand namespaces, none of which is on the host, until the tenant's API server is known to take long for
    /// them, and goes on.
    pub(super) async fn flood(&self, id: KindId, object: &Value) -> JoinHandle<()> {
        let engine = &self.engine;
        for number in 0..1000 {
            let name = Name::new(&format!("flood-{number}"), "a");
            self.put(Side::Tenant, id, &name, object.clone());
            engine.add(id.key(name));
        }
        let working = tokio::spawn(Arc::clone(engine).run_queue(engine.cache.kind(id).priority));
        tokio::time::sleep(Duration::from_mins(1)).await;
        let other = id.key(Name::new("other", "a"));
        assert!(engine.is_slow(&other) && engine.waiting() > 900, "{}", engine.waiting());
        working
    }

    /// Waits for a call that begins and ends like that.
    pub(super) async fn expect_soon(&self, begin: &str, end: &str) {
        let start = Instant::now();
        while self.first(begin, end).is_none() {
            assert!(start.elapsed() < Duration::from_secs(10), "{begin} {end}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// The calls that begin and end like that.
    pub(super) fn calls(&self, begin: &str, end: &str) -> Vec<String> {
        let kept = lock(&self.kept);
        let calls = kept.calls.iter().map(|(call, _)| call);
        let found = calls.filter(|call| call.starts_with(begin) && call.ends_with(end));
        found.cloned().collect()
    }

    /// What was sent with the calls that begin and end like that.
    pub(super) fn sent(&self, begin: &str, end: &str) -> Vec<Value> {
        let kept = lock(&self.kept);
        let found = { kept.calls.iter() }.filter(|(call, _)| call.starts_with(begin) && call.ends_with(end));
        found.map(|(_, body)| body.clone()).collect()
    }

    /// The number of the first call that begins and ends like that.
    pub(super) fn first(&self, begin: &str, end: &str) -> Option<usize> {
        let kept = lock(&self.kept);
        let mut calls = kept.calls.iter();
        calls.position(|(call, _)| call.starts_with(begin) && call.ends_with(end))
    }
}

fn client(side: Side, script: &Script, kept: &Arc<Mutex<Kept>>) -> Client {
    let (script, kept) = (Arc::clone(script), Arc::clone(kept));
    let service = tower::service_fn(move |request: Request<Body>| {
        let call = format!("{} {} {}", side.name(), request.method(), request.uri().path());
        let failure = script(&call);
        let number = {
            let mut kept = lock(&kept);
            kept.calls.push((call, Value::Null));
            kept.calls.len() - 1
        };
        let kept = Arc::clone(&kept);
        async move {
            Ok::<_, Infallible>(match failure {
                Some(Failure::Silence) => std::future::pending().await,
                Some(Failure::Refused(code)) => refuse(code),
                Some(Failure::RefusedLate(code, seconds)) => {
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                    refuse(code)
                }
                None => accept(request.into_body(), number, &kept).await,
            })
        }
    });
    Client::new(service, "default")
}

fn refuse(code: u16) -> Response<Body> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "the script says so", "code": code});
    let mut response = Response::new(Body::from(status.to_string().into_bytes()));
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    response
}

async fn accept(body: Body, number: usize, kept: &Mutex<Kept>) -> Response<Body> {
    let bytes = body.collect_bytes().await.unwrap_or_default();
    let mut object: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    {
        let mut kept = lock(kept);
        let call = kept.calls[number].0.clone();
        let mut objects = kept.objects.iter();
        if call.starts_with("host GET ")
            && let Some((_, served)) = objects.find(|(end, _)| call.ends_with(end))
        {
            object = served.clone();
        } else {
            kept.calls[number].1 = object.clone();
        }
        let foreign = kept.foreign.iter().filter(|(end, _)| call.ends_with(end.as_str()));
        for (_, field) in foreign.filter(|_| call.starts_with("host PATCH ")) {
            object["spec"][*field] = json!([{}]);
        }
    }
    object["metadata"]["resourceVersion"] = "100".into();
    Response::new(Body::from(object.to_string().into_bytes()))
}
