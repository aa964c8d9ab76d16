//! Reconciles the certificates of a pod: requested in the tenant once the pod has a node, and written to the Secret with its tokens.

use super::{Engine, api::CallError, lock, recorder::Level};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use berth_api::labels;
use berth_pki::CertificateRequest;
use berth_sync_rules::{
    kinds::pod::{
        certificate::{self, Asked, Identity, Requested, Step},
        secret_size, trust,
    },
    model::{
        KindId, json,
        resource::{self, Name},
        store::Stored,
    },
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};

/// Interval of checks whether the tenant has the Node of a pod by now, and whether another key may be made.
const POLL: SignedDuration = SignedDuration::from_secs(2);
/// Keys that are made at a time. One can take a processor for seconds, and pods choose which.
pub(super) const KEYS_AT_A_TIME: usize = 2;

/// The requests of pods that wait or have ended, by pod and source.
#[derive(Default)]
pub(super) struct Requests(HashMap<Name, OfPod>);

/// The requests of one pod.
struct OfPod {
    uid: Box<str>,
    by_source: BTreeMap<String, Requested>,
}

impl Requests {
    fn get(&self, name: &Name, uid: &str, source: &str) -> Option<Requested> {
        let of_pod = self.0.get(name).filter(|of_pod| &*of_pod.uid == uid)?;
        of_pod.by_source.get(source).cloned()
    }

    /// Keeps a request, or forgets it. Those of an earlier pod of this name are dropped.
    fn set(&mut self, name: &Name, uid: &str, source: &str, requested: Option<Requested>) {
        let empty = || OfPod {
            uid: uid.into(),
            by_source: BTreeMap::new(),
        };
        let of_pod = self.0.entry(name.clone()).or_insert_with(empty);
        if &*of_pod.uid != uid {
            *of_pod = empty();
        }
        match requested {
            Some(requested) => of_pod.by_source.insert(source.to_owned(), requested),
            None => of_pod.by_source.remove(source),
        };
        if of_pod.by_source.is_empty() {
            self.0.remove(name);
        }
    }

    /// Forgets what a pod asked for, because it is gone.
    pub(super) fn forget(&mut self, name: &Name) {
        self.0.remove(name);
    }
}

/// What follows for the pod's Secret.
pub(super) struct Certificates {
    /// What to write to the Secret; none if nothing changes.
    pub patch: Option<Value>,
    /// When to look again, if nothing changes before.
    pub look_again: Option<Timestamp>,
    /// Sources whose requests end once the patch is written.
    stored: Vec<String>,
}

impl Certificates {
    /// The Secret has them: the requests are done.
    pub(super) fn written(&self, engine: &Engine, name: &Name, pod: &Stored) {
        for source in &self.stored {
            lock(&engine.certificates).set(name, &pod.uid, source, None);
        }
    }
}

/// Requests certificates of a pod, whose tree is `object`, and collects what was issued. `secret` has the pod's tokens.
pub(super) async fn collect(
    engine: &Engine,
    name: &Name,
    pod: &Stored,
    object: &Value,
    secret: &Value,
) -> Result<Certificates, CallError> {
    let now = Timestamp::now();
    let mut refresh_times = certificate::refresh_times(secret);
    let before = certificate::sizes(secret);
    let mut sizes = before.clone();
    let mut found = Certificates {
        patch: None,
        look_again: None,
        stored: Vec::new(),
    };
    let mut files = Map::new();
    for asked in certificate::asked(object) {
        let source = &asked.source;
        let requested = lock(&engine.certificates).get(name, &pod.uid, source);
        let answer = requested
            .as_ref()
            .and_then(|requested| answer(engine, name, pod, requested));
        match certificate::decide(now, refresh_times.get(source).copied(), requested.as_ref(), answer) {
            Step::Wait(until) => found.look_again = found.look_again.into_iter().chain(until).min(),
            Step::Request => {
                let Some(node_name) = json::text(object, &["spec", "nodeName"]) else {
                    continue;
                };
                let nodes = engine.cache.stores.tenant(KindId::Node);
                let node = nodes.get(&Name::new("", node_name));
                let (Some(node), Ok(_turn)) = (node, engine.key_turns.try_acquire()) else {
                    let soon = now.checked_add(POLL).unwrap_or(now);
                    found.look_again = found.look_again.into_iter().chain([soon]).min();
                    continue;
                };
                let node = Identity {
                    name: node_name,
                    uid: &node.uid,
                };
                let requested = request(engine, name, pod, node, object, &asked).await?;
                lock(&engine.certificates).set(name, &pod.uid, source, Some(requested));
            }
            Step::Store {
                key_pem,
                chain_pem,
                refresh_at,
            } => {
                let issued = asked.files(&key_pem, &chain_pem);
                sizes.insert(source.clone(), certificate::bytes_of(&issued));
                files.extend(issued);
                refresh_times.insert(source.clone(), refresh_at);
                found.look_again = found.look_again.into_iter().chain([refresh_at]).min();
                found.stored.push(source.clone());
            }
            Step::Report(ending) => {
                lock(&engine.certificates).set(name, &pod.uid, source, Some(Requested::Ended));
                let message = format!(
                    "The request of a certificate by {} has the condition {}: {} {}",
                    asked.signer(),
                    ending.condition,
                    ending.reason,
                    ending.message
                );
                let reason = match ending.condition {
                    "Denied" => "CertificateDenied",
                    _ => "CertificateFailed",
                };
                engine
                    .record_event(&KindId::Pod.key(name.clone()), Level::Warning, reason, message.trim())
                    .await;
            }
        }
    }
    if !files.is_empty() {
        let bytes = json::text(secret, &["metadata", "annotations", labels::BYTES]);
        let bytes = bytes.and_then(|bytes| bytes.parse().ok());
        let bytes =
            bytes.unwrap_or_else(|| secret_size::secret_bytes(object, &trust::bundles(&engine.cache, object), &before));
        let annotations = json!({
            labels::CERTIFICATES: json!(refresh_times).to_string(),
            labels::CERTIFICATE_BYTES: json!(sizes).to_string(),
            labels::BYTES: secret_size::bytes_with(bytes, &before, &sizes).to_string(),
        });
        found.patch = Some(json!({"metadata": {"annotations": annotations}, "stringData": files}));
    }
    Ok(found)
}

fn answer(engine: &Engine, pod_name: &Name, pod: &Stored, requested: &Requested) -> Option<certificate::Answer> {
    let Requested::Waiting { name, .. } = requested else {
        return None;
    };
    let requests = engine.cache.stores.tenant(KindId::PodCertificateRequest);
    let request = requests.get(&Name::new(&pod_name.namespace, name))?;
    Some(certificate::answer(&request.object(), &pod.uid))
}

/// Makes a key and a request for it.
async fn request(
    engine: &Engine,
    name: &Name,
    pod: &Stored,
    node: Identity<'_>,
    object: &Value,
    asked: &Asked,
) -> Result<Requested, CallError> {
    let account_name = json::text(object, &["spec", "serviceAccountName"]).unwrap_or("default");
    let account = engine
        .tenant
        .get(resource::SERVICE_ACCOUNT, &name.namespace, account_name)
        .await?;
    let key_type = asked.key_type().to_owned();
    // An RSA key takes up to seconds.
    let made = tokio::task::spawn_blocking(move || CertificateRequest::create(&key_type)).await;
    let made = made
        .map_err(|error| CallError::Unavailable(error.to_string()))?
        .map_err(|error| CallError::Rejected(error.to_string()))?;
    let body = certificate::request(
        asked,
        Identity {
            name: &name.name,
            uid: &pod.uid,
        },
        Identity {
            name: account_name,
            uid: json::text(&account, &["metadata", "uid"]).unwrap_or_default(),
        },
        node,
        &BASE64_STANDARD.encode(&made.request_der),
    );
    let created = engine
        .tenant
        .create(certificate::RESOURCE, &name.namespace, &body)
        .await?;
    Ok(Requested::Waiting {
        name: json::text(&created, &["metadata", "name"])
            .unwrap_or_default()
            .to_owned(),
        key_pem: made.key_pem,
        at: Timestamp::now(),
    })
}

#[cfg(test)]
mod tests;
