//! Reconciles a pod's tokens: minted in the tenant, written to a host Secret that the host pod owns.

use super::{Engine, Outcome, api::CallError, lock};
use berth_api::labels;
use berth_sync_rules::{
    kinds::pod::token,
    model::{
        KindId, json,
        resource::{self, Name, Side, host_name},
        store::{Stored, is_origin},
    },
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};
use std::time::Duration;

pub(super) async fn reconcile(engine: &Engine, name: &Name) -> Result<Outcome, CallError> {
    let stores = &engine.cache.stores;
    let (Some(pod), Some(host_pod)) = (stores.tenant(KindId::Pod).get(name), stores.host(KindId::Pod).get(name)) else {
        return remove_orphan(engine, name).await;
    };
    // The Secret is deleted with its host pod.
    if !is_origin(&pod, &host_pod) || pod.deletion.is_some() || host_pod.deletion.is_some() {
        return Ok(Outcome::new("nothing"));
    }
    let asked = token::asked(&pod.object());
    if asked.is_empty() {
        return Ok(Outcome::new("nothing"));
    }
    let now = Timestamp::now();
    let secret = stores
        .host(KindId::PodToken)
        .get(name)
        .filter(|secret| is_origin(&pod, secret));
    if let Some(renew_at) = secret.as_deref().and_then(renew_at)
        && renew_at > now
    {
        return Ok(Outcome::requeue("nothing", until(now, renew_at)));
    }
    let mut data = Map::new();
    let mut expiries = Vec::new();
    let object = pod.object();
    let account = json::text(&object, &["spec", "serviceAccountName"]).unwrap_or("default");
    for asked in asked {
        let request = token::request(&asked, &name.name, &pod.uid);
        let minted = engine
            .tenant
            .create_sub(resource::SERVICE_ACCOUNT, &name.namespace, account, "token", &request)
            .await?;
        let text = json::text(&minted, &["status", "token"]).unwrap_or_default().to_owned();
        let expiry = json::text(&minted, &["status", "expirationTimestamp"]).and_then(|text| text.parse().ok());
        expiries.push(expiry.unwrap_or_else(|| now + SignedDuration::from_secs(asked.seconds)));
        data.insert(asked.key, text.into());
    }
    let renew_at = token::renew_at(now, &expiries).unwrap_or(now);
    let secret = secret_object(engine, name, &pod, &host_pod, &data, renew_at);
    let namespace = &engine.cache.tenant.workload_namespace;
    let host_name = host_name(KindId::PodToken, name);
    engine.start_host_watch(KindId::PodToken);
    let written = match engine.host.create(resource::SECRET, namespace, &secret).await {
        // An earlier Secret, of this pod or of one of the same name.
        Err(CallError::Conflict(_)) => {
            engine
                .host
                .apply(resource::SECRET, namespace, &host_name, &secret)
                .await?
        }
        result => result?,
    };
    engine.store_written(Side::Host, KindId::PodToken, name, written);
    Ok(Outcome::requeue("minted", until(now, renew_at)))
}

fn until(now: Timestamp, then: Timestamp) -> Duration {
    Duration::try_from(then.duration_since(now)).unwrap_or_default()
}

fn renew_at(secret: &Stored) -> Option<Timestamp> {
    json::text(&secret.object(), &["metadata", "annotations", labels::TOKEN_RENEW_AT])?
        .parse()
        .ok()
}

fn secret_object(
    engine: &Engine,
    name: &Name,
    pod: &Stored,
    host_pod: &Stored,
    tokens: &Map<String, Value>,
    renew_at: Timestamp,
) -> Value {
    let mut labels: Map<String, Value> = engine
        .cache
        .tenant
        .labels(&name.namespace)
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.into()))
        .collect();
    labels.insert(token::LABEL.into(), "true".into());
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": host_name(KindId::PodToken, name),
            "namespace": engine.cache.tenant.workload_namespace,
            "labels": labels,
            "annotations": {
                labels::ORIGIN_NAMESPACE: &*name.namespace,
                labels::ORIGIN_NAME: &*name.name,
                labels::ORIGIN_UID: &*pod.uid,
                labels::TOKEN_RENEW_AT: renew_at.to_string(),
            },
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": host_pod.name, "uid": host_pod.uid}],
        },
        "type": "Opaque",
        "stringData": tokens,
    })
}

/// The host's garbage collector removes the Secret with its pod. This is for a Secret that was created after its pod
/// was gone.
async fn remove_orphan(engine: &Engine, name: &Name) -> Result<Outcome, CallError> {
    const ORPHAN_GRACE: Duration = Duration::from_mins(2);
    let stores = &engine.cache.stores;
    let Some(secret) = stores.host(KindId::PodToken).get(name) else {
        return Ok(Outcome::new("nothing"));
    };
    if stores.host(KindId::Pod).contains(name) {
        return Ok(Outcome::new("nothing"));
    }
    let key = KindId::PodToken.key(name.clone());
    let waited = lock(&engine.synced_versions).insert(key.clone(), (secret.version, 0)) == Some((secret.version, 0));
    if !waited {
        return Ok(Outcome::requeue("waiting", ORPHAN_GRACE));
    }
    lock(&engine.synced_versions).remove(&key);
    let how = super::api::Delete {
        uid: &secret.uid,
        grace_seconds: None,
    };
    engine
        .host
        .delete(
            resource::SECRET,
            &engine.cache.tenant.workload_namespace,
            &secret.name,
            how,
        )
        .await?;
    Ok(Outcome::new("deleted"))
}
