//! Service-account tokens: the tenant's, minted for the pod, kept in one Secret on the host that lives as long as the
//! host pod. The syncer deletes it then; the host pod owns it, so that it goes as well while no syncer runs.
//!
//! | of the tenant's pod | of the token |
//! |---|---|
//! | `projected.sources[].serviceAccountToken.audience` | audience |
//! | `….expirationSeconds` | life; renewed in place before 80 % of it has passed |
//! | `….path` | path in the volume |
//! | name and UID | bound to: the token ends with the pod |
//! | `nodeName` | named in the token, once the pod has a node: then tokens that were minted before are minted again |

use super::{certificate, trust, volumes::token_key};
use crate::model::{
    Cache, Dependency, Direction, HostNamespace, HostWatch, Kind, KindId, QueuePriority, json,
    kind::WRITE,
    resource::{self, Name},
    store::{Stored, WatchSpec},
};
use berth_api::labels;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

/// Time for a host pod to be bound to a node, and the tenant's pod with it.
const OWNED_ALONE_AFTER: SignedDuration = SignedDuration::from_secs(30);

/// The kind.
pub const KIND: Kind = Kind::new(Direction::Tokens)
    .watch_host(
        HostNamespace::Workloads,
        WatchSpec::synced(resource::SECRET)
            .labelled("berth.dev/managed-by=syncer,berth.dev/pod-token")
            .metadata_only()
            .trimmed(trim),
    )
    .watch_host_when(HostWatch::OnDemand)
    .with_tenant_rights(&[("serviceaccounts/token", &["create"]), ("serviceaccounts", &["get"])])
    .with_host_rights(&[("secrets", WRITE)])
    .with_priority(QueuePriority::High)
    .essential()
    // The tokens are minted before the host pod is created. It becomes their owner once it exists; a timer renews them. Without a
    // node they name none, so they are minted again when the pod has one.
    .depends_on(&[
        Dependency::on_host(KindId::Pod, |cache, pod| {
            let concerns = concerns_secret(cache, pod);
            concerns
                .then(|| KindId::PodToken.key(pod.clone()))
                .into_iter()
                .collect()
        }),
        // The engine lets the pods follow them, at a bounded pace.
        Dependency::on_tenant(KindId::ClusterTrustBundle, |cache, _bundle| {
            cache.trust_followers().has_changed = true;
            Vec::new()
        }),
        Dependency::on_tenant(KindId::Pod, |cache, pod| {
            trust::note_pod(cache, pod);
            Vec::new()
        }),
        Dependency::on_tenant(KindId::Pod, |cache, pod| {
            let concerns = waits_for_node(cache, pod) || is_left_over(cache, pod);
            concerns
                .then(|| KindId::PodToken.key(pod.clone()))
                .into_iter()
                .collect()
        }),
        Dependency::on_tenant(KindId::PodCertificateRequest, |cache, name| {
            let request = cache.stores.tenant(KindId::PodCertificateRequest).get(name);
            let pod = request.and_then(|request| certificate::pod_of(name, &request.object()));
            pod.map(|pod| KindId::PodToken.key(pod)).into_iter().collect()
        }),
    ]);

/// Whether something follows for a pod's Secret from a change of its host pod: the Secret is missing, has no owner or another one, or its
/// host pod is gone.
fn concerns_secret(cache: &Cache, name: &Name) -> bool {
    let stores = &cache.stores;
    let (Some(secret), Some(host)) = (
        stores.host(KindId::PodToken).get(name),
        stores.host(KindId::Pod).get(name),
    ) else {
        return true;
    };
    if is_owned_by(&secret.object(), &host.uid) {
        return false;
    }
    // With its node it gets tokens that name the node, and its owner in the same write. Until then there is nothing to do.
    let waits_for_binding = || stores.tenant(KindId::Pod).get(name).is_some_and(|pod| !pod.has_node);
    !host.has_node || !waits_for_binding()
}

/// Whether a Secret has no host pod, and will get none: its pod is gone in the tenant, or goes.
fn is_left_over(cache: &Cache, name: &Name) -> bool {
    let stores = &cache.stores;
    let pod = stores.tenant(KindId::Pod).get(name);
    pod.is_none_or(|pod| pod.deletion.is_some())
        && stores.host(KindId::PodToken).contains(name)
        && !stores.host(KindId::Pod).contains(name)
}

/// Whether something in a pod's Secret can be made only now that the pod has a node: tokens that name it, and certificates.
fn waits_for_node(cache: &Cache, pod: &Name) -> bool {
    let stores = &cache.stores;
    let (Some(secret), Some(pod)) = (
        stores.host(KindId::PodToken).get(pod),
        stores.tenant(KindId::Pod).get(pod),
    ) else {
        return false;
    };
    pod.has_node && (!names_node(&secret.object()) || requests_certificates(&pod))
}

/// Whether a pod requests certificates, or may do so: it is not unpacked to know that.
fn requests_certificates(pod: &Stored) -> bool {
    match pod.fresh_object() {
        Some(pod) => !certificate::asked(&pod).is_empty(),
        None => pod.mentions(certificate::MENTION),
    }
}

/// The node of a tenant's pod.
pub fn node_of(pod: &Value) -> Option<&str> {
    json::filled(pod, &["spec", "nodeName"])
}

/// Whether the tokens in a Secret were minted when the pod had a node, so that they name it.
pub fn names_node(secret: &Value) -> bool {
    json::text(secret, &["metadata", "annotations", labels::TOKEN_NODE]).is_some()
}

fn trim(secret: &mut Value) {
    let annotation = |key: &str| json::text(secret, &["metadata", "annotations", key]).map(ToOwned::to_owned);
    let annotations = json!({
        labels::ORIGIN_UID: annotation(labels::ORIGIN_UID),
        labels::TOKEN_RENEW_AT: annotation(labels::TOKEN_RENEW_AT),
        labels::TOKEN_NODE: annotation(labels::TOKEN_NODE),
        labels::TRUST_HASH: annotation(labels::TRUST_HASH),
        labels::CERTIFICATES: annotation(labels::CERTIFICATES),
        labels::CERTIFICATE_BYTES: annotation(labels::CERTIFICATE_BYTES),
        labels::BYTES: annotation(labels::BYTES),
    });
    let mut meta = |key: &str| secret["metadata"].get_mut(key).map(Value::take).unwrap_or_default();
    let metadata = json::object([
        ("name", meta("name")),
        ("uid", meta("uid")),
        ("resourceVersion", meta("resourceVersion")),
        ("ownerReferences", meta("ownerReferences")),
        ("annotations", annotations),
    ]);
    *secret = json::object([("metadata", metadata)]);
}

/// The owner of a host pod's Secret.
pub fn owner_references(pod: &str, uid: &str) -> Value {
    json!([{"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid}])
}

/// When a Secret gets its host pod as its owner although nothing else of it changes; none if now. A pod that has no node yet is about to
/// get tokens that name its node, and one write is less work than two. Until then only the syncer deletes the Secret of a pod that is gone.
///
/// The store keeps no creation time of host pods that run. Such a pod has a node, and the binding in the tenant is the next that is written there.
pub fn owned_alone_at(pod: &Value, host_pod: &Value, now: Timestamp) -> Option<Timestamp> {
    if node_of(pod).is_some() {
        return None;
    }
    let created = json::text(host_pod, &["metadata", "creationTimestamp"]);
    let created: Timestamp = created.and_then(|time| time.parse().ok()).unwrap_or(now);
    let at = created.checked_add(OWNED_ALONE_AFTER).ok()?;
    // The host's clock may be ahead of this one.
    let latest = now.checked_add(OWNED_ALONE_AFTER).ok()?;
    (now < at).then(|| at.min(latest))
}

/// Whether a Secret belongs to any host pod.
pub fn is_owned(secret: &Value) -> bool {
    !json::items(secret, &["metadata", "ownerReferences"]).is_empty()
}

/// Whether a Secret belongs to a host pod.
pub fn is_owned_by(secret: &Value, uid: &str) -> bool {
    json::items(secret, &["metadata", "ownerReferences"])
        .iter()
        .any(|owner| json::text(owner, &["uid"]) == Some(uid))
}

/// A token that a pod asks for.
#[derive(Debug, PartialEq, Eq)]
pub struct Asked {
    /// Key in the host Secret.
    pub key: String,
    /// Audience, or empty for the API server itself.
    pub audience: String,
    /// Life in seconds.
    pub seconds: i64,
}

/// The tokens that a tenant's pod asks for.
pub fn asked(pod: &Value) -> Vec<Asked> {
    let mut found = Vec::new();
    for (volume_index, volume) in json::items(pod, &["spec", "volumes"]).iter().enumerate() {
        for (source_index, source) in json::items(volume, &["projected", "sources"]).iter().enumerate() {
            if let Some(token) = source.get("serviceAccountToken") {
                found.push(Asked {
                    key: token_key(volume_index, source_index),
                    audience: json::text(token, &["audience"]).unwrap_or_default().to_owned(),
                    seconds: token.get("expirationSeconds").and_then(Value::as_i64).unwrap_or(3600),
                });
            }
        }
    }
    found
}

/// The body of a TokenRequest.
pub fn request(asked: &Asked, pod_name: &str, pod_uid: &str) -> Value {
    let audiences: Vec<&str> = if asked.audience.is_empty() {
        Vec::new()
    } else {
        vec![&asked.audience]
    };
    json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "audiences": audiences,
            "expirationSeconds": asked.seconds,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod_name, "uid": pod_uid},
        },
    })
}

/// When tokens that were made at `now` and expire at `expiries` must be renewed: after 75 % of the shortest life, which
/// leaves time for the kubelet to bring them into the pod.
pub fn renew_at(now: Timestamp, expiries: &[Timestamp]) -> Option<Timestamp> {
    let shortest = expiries.iter().min()?.duration_since(now);
    now.checked_add(SignedDuration::from_secs(shortest.as_secs() * 3 / 4))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::resource::Side;

    #[test]
    fn a_secret_is_owned_with_the_tokens_that_name_the_node() {
        let now: Timestamp = "2026-05-01T10:00:00Z".parse().unwrap();
        let seconds = |seconds| now + SignedDuration::from_secs(seconds);
        let alone_at = |pod: Value, created: Timestamp| {
            let host_pod = json!({"metadata": {"creationTimestamp": created.to_string()}});
            owned_alone_at(&pod, &host_pod, now)
        };
        assert_eq!(alone_at(json!({}), now), Some(seconds(30)));
        assert_eq!(alone_at(json!({}), seconds(-4)), Some(seconds(26)));
        assert_eq!(alone_at(json!({}), seconds(-30)), None, "it may wait for long");
        assert_eq!(
            alone_at(json!({}), seconds(3600)),
            Some(seconds(30)),
            "the host's clock is wrong"
        );
        assert_eq!(
            alone_at(json!({"spec": {"nodeName": "n"}}), now),
            None,
            "its tokens are written now"
        );
    }

    #[test]
    fn a_secret_waits_for_the_binding_in_the_tenant() {
        let cache = crate::registry::new_cache(crate::model::tenant::test_tenant());
        let name = Name::new("team", "train");
        let version = std::cell::Cell::new(0);
        let put = |side: Side, kind: KindId, mut object: Value| {
            version.set(version.get() + 1);
            object["metadata"]["resourceVersion"] = version.get().to_string().into();
            cache.stores.of(side, kind).watched(name.clone(), Stored::from(object));
        };
        let pod = |node: Option<&str>| json!({"metadata": {"name": "train", "uid": "h"}, "spec": {"nodeName": node}});
        let secret = |owners: Value| json!({"metadata": {"name": "train", "uid": "s", "ownerReferences": owners}});
        put(Side::Tenant, KindId::Pod, pod(None));
        put(Side::Host, KindId::Pod, pod(None));
        assert!(concerns_secret(&cache, &name), "it is missing");
        put(Side::Host, KindId::PodToken, secret(json!([])));
        assert!(concerns_secret(&cache, &name), "the host pod is new");
        put(Side::Host, KindId::Pod, pod(Some("gpu-1")));
        assert!(!concerns_secret(&cache, &name), "the binding follows");
        put(Side::Tenant, KindId::Pod, pod(Some("gpu-1")));
        assert!(concerns_secret(&cache, &name), "it has no owner");
        put(Side::Host, KindId::PodToken, secret(owner_references("train", "h")));
        assert!(!concerns_secret(&cache, &name));
        put(
            Side::Host,
            KindId::PodToken,
            secret(owner_references("train", "earlier")),
        );
        assert!(concerns_secret(&cache, &name), "its owner is an earlier host pod");
        cache.stores.host(KindId::Pod).forget(&name);
        assert!(concerns_secret(&cache, &name), "the host pod is gone");
    }

    #[test]
    fn a_secret_without_a_host_pod_is_looked_at_when_its_pod_goes() {
        let cache = crate::registry::new_cache(crate::model::tenant::test_tenant());
        let name = Name::new("team", "train");
        let put = |side: Side, kind: KindId, metadata: Value| {
            let object = json!({ "metadata": metadata });
            cache.stores.of(side, kind).watched(name.clone(), Stored::from(object));
        };
        let is_looked_at = || {
            let keys = cache.update_dependents(Side::Tenant, KindId::Pod, &name);
            keys.contains(&KindId::PodToken.key(name.clone()))
        };
        assert!(!is_looked_at(), "there is none");
        put(
            Side::Host,
            KindId::PodToken,
            json!({"name": "h", "uid": "s", "resourceVersion": "1"}),
        );
        let mut pod = json!({"name": "train", "uid": "p", "resourceVersion": "2"});
        put(Side::Tenant, KindId::Pod, pod.clone());
        assert!(!is_looked_at(), "its host pod may be on its way");
        pod["resourceVersion"] = "3".into();
        pod["deletionTimestamp"] = "2026-05-01T10:00:00Z".into();
        put(Side::Tenant, KindId::Pod, pod);
        assert!(is_looked_at());
        put(
            Side::Host,
            KindId::Pod,
            json!({"name": "h", "uid": "h", "resourceVersion": "4"}),
        );
        assert!(!is_looked_at(), "it has its host pod");
        cache.stores.host(KindId::Pod).forget(&name);
        cache.stores.tenant(KindId::Pod).forget(&name);
        assert!(is_looked_at());
    }

    #[test]
    fn a_host_pod_that_runs_before_its_pod_has_a_node_is_no_reason_for_a_write() {
        for phase in ["Pending", "Running"] {
            let mut host_pod = json!({
                "metadata": {"name": "h", "creationTimestamp": "2026-05-01T10:00:00Z"},
                "spec": {"nodeName": "n"},
                "status": {"phase": phase},
            });
            super::super::trim_host(&mut host_pod);
            let now: Timestamp = "2026-05-01T10:00:01Z".parse().unwrap();
            assert!(owned_alone_at(&json!({}), &host_pod, now).is_some(), "{phase}");
        }
    }

    #[test]
    fn tokens_are_asked_for_as_the_pod_says() {
        let pod = json!({"spec": {"volumes": [
            {"name": "config", "configMap": {"name": "c"}},
            {"name": "api", "projected": {"sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                {"configMap": {"name": "kube-root-ca.crt"}},
                {"serviceAccountToken": {"path": "vault", "audience": "vault", "expirationSeconds": 600}}]}}]}});
        assert_eq!(
            asked(&pod),
            [
                Asked {
                    key: "token-1-0".into(),
                    audience: String::new(),
                    seconds: 3607
                },
                Asked {
                    key: "token-1-2".into(),
                    audience: "vault".into(),
                    seconds: 600
                },
            ]
        );
        let request = request(&asked(&pod)[1], "p", "u");
        assert_eq!(request["spec"]["audiences"], json!(["vault"]));
        assert_eq!(request["spec"]["boundObjectRef"]["uid"], "u");
    }

    #[test]
    fn the_shortest_life_decides_about_renewal() {
        let now = Timestamp::from_second(1000).unwrap();
        let expiries = [
            Timestamp::from_second(4600).unwrap(),
            Timestamp::from_second(1600).unwrap(),
        ];
        assert_eq!(renew_at(now, &expiries), Some(Timestamp::from_second(1450).unwrap()));
        assert_eq!(renew_at(now, &[]), None);
    }
}
