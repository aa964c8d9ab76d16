//! An API server in memory for the executor, which fails chosen calls.

use super::NODES;
use crate::testing::{self, merge};
use berth_node_lifecycle::{Assignment, AssignmentState};
use berth_runtime::locks::lock;
use http::{Method, Request, Response, StatusCode, Uri};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{Client, ResourceExt, client::Body};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};
use tower::service_fn;

/// Objects by path, and which calls fail.
#[derive(Default)]
pub(super) struct Api {
    pub(super) objects: BTreeMap<String, Value>,
    /// Calls so far, Events not counted.
    pub(super) calls: usize,
    pub(super) failing: Failing,
    /// The time, for deletions of pods.
    pub(super) now: i64,
    /// Grace periods of the deletions of pods, in order.
    pub(super) graces: Vec<u64>,
    /// Reasons of Events, in order.
    pub(super) events: Vec<String>,
    /// Calls so far, Events not counted, in order.
    pub(super) log: Vec<String>,
    /// Appears once a node was read.
    pub(super) inserted_after_read: Option<(String, Value)>,
    /// How somebody else changes a node before its next patch.
    pub(super) changed_before_patch: Option<Value>,
}

#[derive(Clone, Copy, Default)]
pub(super) enum Failing {
    #[default]
    Nothing,
    /// The call of this number.
    Call(usize),
    Everything,
}

fn status(code: StatusCode) -> (StatusCode, Value) {
    let reason = if code == StatusCode::NOT_FOUND { "NotFound" } else { "" };
    let status =
        json!({"kind": "Status", "status": "Failure", "code": code.as_u16(), "message": "scripted", "reason": reason});
    (code, status)
}

/// Whether an object has the label of a selector, which is `key`, `key=value` or empty.
fn has_labels(object: &Value, selector: &str) -> bool {
    let labels = &object["metadata"]["labels"];
    match selector.split_once('=') {
        Some((key, value)) => labels[key] == value,
        None => selector.is_empty() || !labels[selector].is_null(),
    }
}

impl Api {
    fn answer(&mut self, method: &Method, uri: &Uri, body: &Value) -> (StatusCode, Value) {
        let path = uri.path();
        if path.ends_with("/events") {
            self.events.push(body["reason"].as_str().unwrap_or_default().to_owned());
            return (StatusCode::CREATED, body.clone());
        }
        self.calls += 1;
        self.log.push(format!("{method} {path}"));
        let fails = match self.failing {
            Failing::Nothing => false,
            Failing::Call(number) => number == self.calls,
            Failing::Everything => true,
        };
        if fails {
            return status(StatusCode::INTERNAL_SERVER_ERROR);
        }
        let is_collection = ["/nodes", "/pods", "/configmaps", "/jobs"]
            .iter()
            .any(|kind| path.ends_with(kind));
        match *method {
            // Kubelets here do not end any pod, and a budget allows no eviction.
            Method::POST if path.ends_with("/eviction") => status(StatusCode::TOO_MANY_REQUESTS),
            Method::DELETE if path.contains("/pods/") => self.delete_pod(path, body),
            Method::GET if path == "/api/v1/pods" => {
                let pods = self.objects.iter().filter(|(key, _)| key.contains("/pods/"));
                let pods: Vec<&Value> = pods.map(|(_, object)| object).collect();
                (StatusCode::OK, json!({"metadata": {}, "items": pods}))
            }
            Method::GET if is_collection => {
                let prefix = format!("{path}/");
                let selector = uri.query().and_then(|query| query.split("labelSelector=").nth(1));
                let selector = selector.and_then(|rest| rest.split('&').next()).unwrap_or_default();
                let selector = selector.replace("%2F", "/").replace("%3D", "=");
                let items = { self.objects.iter() }
                    .filter(|(key, object)| key.starts_with(&prefix) && has_labels(object, &selector));
                let items: Vec<&Value> = items.map(|(_, object)| object).collect();
                (StatusCode::OK, json!({"metadata": {}, "items": items}))
            }
            Method::POST => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default();
                let key = format!("{path}/{name}");
                if self.objects.contains_key(&key) {
                    return status(StatusCode::CONFLICT);
                }
                let mut object = body.clone();
                object["metadata"]["uid"] = format!("uid-{key}").into();
                object["metadata"]["resourceVersion"] = "1".into();
                self.objects.insert(key, object.clone());
                (StatusCode::CREATED, object)
            }
            _ => {
                let Some(object) = self.objects.get_mut(path) else {
                    return status(StatusCode::NOT_FOUND);
                };
                if *method == Method::PATCH
                    && path.starts_with(NODES)
                    && let Some(change) = self.changed_before_patch.take()
                {
                    merge(object, &change);
                }
                let expected = match *method {
                    Method::PATCH => &body["metadata"]["resourceVersion"],
                    _ => &body["preconditions"]["resourceVersion"],
                };
                if !expected.is_null() && *expected != object["metadata"]["resourceVersion"] {
                    return status(StatusCode::CONFLICT);
                }
                match *method {
                    Method::GET if path.starts_with(NODES) => {
                        let node = object.clone();
                        self.objects.extend(self.inserted_after_read.take());
                        return (StatusCode::OK, node);
                    }
                    Method::PATCH => {
                        let version: u64 = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
                        merge(object, body);
                        object["metadata"]["resourceVersion"] = (version + 1).to_string().into();
                    }
                    Method::DELETE => return (StatusCode::OK, self.objects.remove(path).unwrap()),
                    _ => {}
                }
                (StatusCode::OK, object.clone())
            }
        }
    }

    /// Begins or shortens the deletion of a pod; without a grace period and finalizers it is gone.
    fn delete_pod(&mut self, path: &str, options: &Value) -> (StatusCode, Value) {
        let grace = options["gracePeriodSeconds"].as_u64().unwrap();
        self.graces.push(grace);
        let is_held = self.objects[path]["metadata"].get("finalizers").is_some();
        if grace == 0 && !is_held {
            return (StatusCode::OK, self.objects.remove(path).unwrap());
        }
        let ends_at = Timestamp::from_second(self.now + i64::try_from(grace).unwrap()).unwrap();
        let pod = self.objects.get_mut(path).unwrap();
        pod["metadata"]["deletionTimestamp"] = ends_at.to_string().into();
        pod["metadata"]["deletionGracePeriodSeconds"] = grace.into();
        (StatusCode::OK, pod.clone())
    }

    /// Nodes by name in a state.
    pub(super) fn nodes_in(&self, state: AssignmentState) -> BTreeSet<String> {
        let nodes = self.objects.iter().filter(|(path, _)| path.starts_with(NODES));
        nodes
            .map(|(_, node)| serde_json::from_value::<Node>(node.clone()).unwrap())
            .filter(|node| Assignment::read(node).is_some_and(|assignment| assignment.state == state))
            .map(|node| node.name_any())
            .collect()
    }
}

/// A client of the server.
pub(super) fn client_of(api: &Arc<Mutex<Api>>) -> Client {
    let answering = Arc::clone(api);
    let service = service_fn(move |request: Request<Body>| {
        let api = Arc::clone(&answering);
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let (code, answer) = lock(&api).answer(&head.method, &head.uri, &body);
            let answer = Body::from(serde_json::to_vec(&answer).unwrap());
            Ok::<_, kube::Error>(Response::builder().status(code).body(answer).unwrap())
        }
    });
    testing::client_of(service)
}
