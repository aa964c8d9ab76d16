//! Pod certificates: the tenant's signers issue them, and they reach its pods as if the kubelet had asked for them. The kubelet would
//! ask the host's API server, so the syncer makes the keys and the PodCertificateRequests in the tenant, once the pod has a node. Key and
//! certificates are in the Secret that carries the pod's tokens, and are replaced there when the signer says so.
//!
//! | of the projection | rule |
//! |---|---|
//! | `signerName`, `keyType`, `maxExpirationSeconds`, `userAnnotations` | of the request |
//! | `credentialBundlePath` | path of the key and the certificates, in one file |
//! | `keyPath`, `certificateChainPath` | path of each |
//!
//! A request that a signer denies, or cannot fulfil, is not made again for the same pod, as by a kubelet that goes on running.

use super::trust::certificates_in;
use crate::model::{
    Kind, json,
    resource::{Name, Resource},
    store::WatchSpec,
};
use berth_api::labels;
use jiff::{SignedDuration, Timestamp};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// PodCertificateRequests of the tenant. Versions that do not serve them have no such projections.
pub const RESOURCE: Resource = Resource::new(
    "certificates.k8s.io",
    "v1",
    "PodCertificateRequest",
    "podcertificaterequests",
);

/// The kind.
pub const REQUESTS: Kind = Kind::read_only(WatchSpec::own(RESOURCE).trimmed(trim))
    .with_tenant_rights(&[("podcertificaterequests", &["create"])]);

/// What a pod's JSON text contains if it has such a projection.
pub const MENTION: &str = "podCertificate";
/// A request that is not seen for so long is taken for deleted. As in the kubelet (`assumeDeletedThreshold`).
const ABANDONED: SignedDuration = SignedDuration::from_mins(10);
/// The least time between two certificates of a source. A signer of the tenant says when to refresh, and a time that has passed would let the syncer make one key
/// after another.
const LEAST_REFRESH: SignedDuration = SignedDuration::from_mins(10);
/// The longest time that refreshes are spread over. As in the kubelet (`jitterDuration`).
const SPREAD_SECONDS: u64 = 300;
/// Bytes of a file in JSON besides its key and content.
const AROUND: usize = 6;

fn trim(request: &mut Value) {
    let metadata = &request["metadata"];
    let field = |name: &str| metadata.get(name).cloned().unwrap_or_default();
    *request = json!({
        "metadata": {
            "name": field("name"), "namespace": field("namespace"), "uid": field("uid"),
            "resourceVersion": field("resourceVersion"),
        },
        "spec": {"podName": request["spec"]["podName"]},
        "status": request["status"],
    });
}

/// The pod of a request.
pub fn pod_of(name: &Name, request: &Value) -> Option<Name> {
    json::text(request, &["spec", "podName"]).map(|pod| Name::new(&name.namespace, pod))
}

/// A certificate that a pod asks for.
#[derive(Debug, PartialEq)]
pub struct Asked {
    /// Which source of which volume asks: `VOLUME-SOURCE`.
    pub source: String,
    /// The projection.
    pub projection: Value,
}

impl Asked {
    /// The type of the key, as Kubernetes names it, for example `ECDSAP256`.
    pub fn key_type(&self) -> &str {
        json::text(&self.projection, &["keyType"]).unwrap_or_default()
    }

    /// The signer.
    pub fn signer(&self) -> &str {
        json::text(&self.projection, &["signerName"]).unwrap_or_default()
    }

    /// What the Secret contains of a key and certificates, by its keys there.
    pub fn files(&self, key_pem: &str, chain_pem: &str) -> Map<String, Value> {
        let with_content = [
            ("credentialBundlePath", format!("{key_pem}{chain_pem}")),
            ("keyPath", key_pem.to_owned()),
            ("certificateChainPath", chain_pem.to_owned()),
        ];
        let paths = paths(&self.projection);
        with_content
            .into_iter()
            .filter(|(field, _)| paths.iter().any(|(path, _)| path == field))
            .map(|(field, content)| (secret_key(&self.source, field), content.into()))
            .collect()
    }
}

/// The certificates that a tenant's pod asks for.
pub fn asked(pod: &Value) -> Vec<Asked> {
    let mut found = Vec::new();
    for (volume_index, volume) in json::items(pod, &["spec", "volumes"]).iter().enumerate() {
        for (source_index, source) in json::items(volume, &["projected", "sources"]).iter().enumerate() {
            if let Some(projection) = source.get("podCertificate").filter(|value| !value.is_null()) {
                found.push(Asked {
                    source: format!("{volume_index}-{source_index}"),
                    projection: projection.clone(),
                });
            }
        }
    }
    found
}

/// The paths of a projection, by its fields.
fn paths(projection: &Value) -> Vec<(&'static str, &str)> {
    ["credentialBundlePath", "keyPath", "certificateChainPath"]
        .into_iter()
        .filter_map(|field| Some((field, json::filled(projection, &[field])?)))
        .collect()
}

/// The files of a projection: (key in the pod's token Secret, path in the volume).
pub fn items(volume: usize, source: usize, projection: &Value) -> Vec<(String, String)> {
    let id = format!("{volume}-{source}");
    let paths = paths(projection).into_iter();
    paths
        .map(|(field, path)| (secret_key(&id, field), path.to_owned()))
        .collect()
}

fn secret_key(source: &str, field: &str) -> String {
    let what = match field {
        "credentialBundlePath" => "bundle",
        "keyPath" => "key",
        _ => "chain",
    };
    format!("certificate-{source}-{what}")
}

/// Name and UID of an object.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    /// The name.
    pub name: &'a str,
    /// The UID.
    pub uid: &'a str,
}

/// The PodCertificateRequest of a pod. `pkcs10` is the certificate signing request that proves the possession of the key: DER in base64.
pub fn request(asked: &Asked, pod: Identity<'_>, account: Identity<'_>, node: Identity<'_>, pkcs10: &str) -> Value {
    let mut spec = json!({
        "signerName": asked.signer(),
        "podName": pod.name, "podUID": pod.uid,
        "serviceAccountName": account.name, "serviceAccountUID": account.uid,
        "nodeName": node.name, "nodeUID": node.uid,
        "stubPKCS10Request": pkcs10,
    });
    for (of_request, of_projection) in [
        ("maxExpirationSeconds", "maxExpirationSeconds"),
        ("unverifiedUserAnnotations", "userAnnotations"),
    ] {
        if let Some(value) = asked.projection.get(of_projection).filter(|value| !value.is_null()) {
            spec[of_request] = value.clone();
        }
    }
    json!({
        "apiVersion": RESOURCE.api_version(),
        "kind": RESOURCE.kind,
        "metadata": {
            "generateName": "req-",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}],
        },
        "spec": spec,
    })
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The signer has not answered.
    None,
    /// It issued certificates.
    Issued {
        /// PEM text of the certificates alone.
        chain_pem: String,
        /// From when on others should be requested.
        refresh_at: Timestamp,
    },
    /// It denied the request, or could not fulfil it.
    Ended(Ending),
}

/// Why a request was not fulfilled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// `Denied` or `Failed`.
    pub condition: &'static str,
    /// The signer's reason.
    pub reason: String,
    /// The signer's message.
    pub message: String,
}

/// The signer's answer to a request for a certificate of the pod with UID `pod_uid`.
pub fn answer(request: &Value, pod_uid: &str) -> Answer {
    for condition in json::items(request, &["status", "conditions"]) {
        let text = |field| json::text(condition, &[field]).unwrap_or_default();
        let ended = |condition| {
            Answer::Ended(Ending {
                condition,
                reason: text("reason").to_owned(),
                message: text("message").to_owned(),
            })
        };
        match text("type") {
            "Denied" => return ended("Denied"),
            "Failed" => return ended("Failed"),
            "Issued" => {
                let status = |field| json::text(request, &["status", field]).unwrap_or_default();
                // The API server requires a time.
                let begin: Timestamp = status("beginRefreshAt").parse().unwrap_or_else(|_| Timestamp::now());
                return Answer::Issued {
                    chain_pem: certificates_in(status("certificateChain")).concat(),
                    refresh_at: begin.checked_add(spread(pod_uid)).unwrap_or(begin),
                };
            }
            _ => {}
        }
    }
    Answer::None
}

/// How long after the signer's time a pod asks for its next certificate, so that pods that started together do not all ask at once.
fn spread(pod_uid: &str) -> SignedDuration {
    // FNV-1a: the same for each run of the syncer.
    let hash = pod_uid.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    SignedDuration::from_secs(i64::try_from(hash % SPREAD_SECONDS).unwrap_or_default())
}

/// A request that was made and has not been answered, or that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requested {
    /// It waits for its signer.
    Waiting {
        /// Name of the PodCertificateRequest.
        name: String,
        /// The private key, PEM. Secret.
        key_pem: String,
        /// When it was made.
        at: Timestamp,
    },
    /// It was denied or failed.
    Ended,
}

/// What to do about a certificate that a pod asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Request it.
    Request,
    /// Look again at this time, if nothing changes before. None: nothing is left to do.
    Wait(Option<Timestamp>),
    /// Write it to the Secret.
    Store {
        /// The private key, PEM.
        key_pem: String,
        /// The certificates, PEM.
        chain_pem: String,
        /// When to request the next.
        refresh_at: Timestamp,
    },
    /// Tell the pod's owner that there will be none.
    Report(Ending),
}

/// Decides about one certificate. `refresh_at` is that of the certificate in the Secret, `answer` that to the request, none if the
/// request is not seen.
pub fn decide(
    now: Timestamp,
    refresh_at: Option<Timestamp>,
    requested: Option<&Requested>,
    answer: Option<Answer>,
) -> Step {
    match (requested, answer) {
        (Some(Requested::Waiting { key_pem, .. }), Some(Answer::Issued { chain_pem, refresh_at })) => Step::Store {
            key_pem: key_pem.clone(),
            chain_pem,
            refresh_at: refresh_at.max(now.checked_add(LEAST_REFRESH).unwrap_or(Timestamp::MAX)),
        },
        (Some(Requested::Waiting { .. }), Some(Answer::Ended(ending))) => Step::Report(ending),
        (Some(Requested::Ended), _) | (Some(Requested::Waiting { .. }), Some(Answer::None)) => Step::Wait(None),
        (Some(Requested::Waiting { at, .. }), None) => {
            let abandoned = at.checked_add(ABANDONED).unwrap_or(Timestamp::MAX);
            if now < abandoned {
                Step::Wait(Some(abandoned))
            } else {
                Step::Request
            }
        }
        (None, _) => match refresh_at {
            Some(refresh_at) if now < refresh_at => Step::Wait(Some(refresh_at)),
            _ => Step::Request,
        },
    }
}

/// When the certificates in a pod's Secret must be refreshed, by source.
pub fn refresh_times(secret: &Value) -> BTreeMap<String, Timestamp> {
    noted(secret, labels::CERTIFICATES)
}

/// Bytes of certificates in a pod's Secret, by source.
pub type Sizes = BTreeMap<String, usize>;

/// The sizes of the certificates in a pod's Secret, of those that are on record.
pub fn sizes(secret: &Value) -> Sizes {
    noted(secret, labels::CERTIFICATE_BYTES)
}

/// Bytes that files have in a Secret, which is JSON: in base64, with their keys.
pub fn bytes_of(files: &Map<String, Value>) -> usize {
    let texts = files.iter().filter_map(|(key, text)| Some((key, text.as_str()?)));
    texts
        .map(|(key, text)| key.len() + text.len().div_ceil(3) * 4 + AROUND)
        .sum()
}

fn noted<T: DeserializeOwned + Default>(secret: &Value, annotation: &str) -> T {
    json::text(secret, &["metadata", "annotations", annotation])
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
