//! Reconciles a pod's tokens: minted in the tenant, written to a host Secret that the host pod owns.

#[cfg(test)]
mod tests;

use super::{
    Engine, Outcome, QUOTA_EXCEEDED,
    api::CallError,
    certificates,
    host_bytes::BytesInFlight,
    lock,
    recorder::Level,
    turns::{self, Size},
};
use berth_api::labels;
use berth_sync_rules::{
    kinds::pod::{
        certificate::{self, Sizes},
        secret_size, token,
        trust::{self, Bundles},
    },
    model::{
        KindId, json,
        resource::{self, Name, Side, host_name},
        store::{Stored, is_origin},
    },
    translation::sizes::{MAX_POD_SECRET_BYTES, count_bytes},
};
use jiff::{SignedDuration, Timestamp};
use kube::api::Patch;
use serde_json::{Map, Value, json};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// Time for the host pod of a Secret to be created.
const ORPHAN_GRACE: Duration = Duration::from_mins(2);
/// Time in which the store learns what a Secret has become that has changed meanwhile.
const AFTER_CONFLICT: Duration = Duration::from_secs(1);

/// Writes the Secret of a pod before the pod is created on the host: a kubelet that finds none reports a failed mount. Returns which
/// trust bundle is missing, if one is.
pub(super) async fn prepare(engine: &Engine, name: &Name, pod: &Stored) -> Result<Option<String>, CallError> {
    let object = pod.object();
    let bundles = trust::bundles(&engine.cache, &object);
    let missing = bundles.missing.clone();
    if !needs_secret(&object, &bundles) {
        return Ok(missing);
    }
    let secret = own_secret(engine, name, pod);
    let Some(secret) = secret else {
        create(engine, name, pod, &object, None).await?;
        return Ok(missing);
    };
    let secret_object = secret.object();
    let mut changes = Changes::default();
    if !are_current(&secret_object, &object) {
        changes = mint(engine, name, pod, &object).await?;
    }
    // Its owner is an earlier host pod of the same pod: it would be deleted with that one.
    if token::is_owned(&secret_object) {
        changes.owners = Some(Value::Null);
    }
    if !has_bundles(&secret_object, &bundles) {
        changes.add_bundles(&object, bundles, &certificate::sizes(&secret_object));
    }
    if !changes.is_empty() {
        patch(engine, name, (&secret, &secret_object), changes.into_patch()).await?;
    }
    Ok(missing)
}

pub(super) async fn reconcile(engine: &Engine, name: &Name) -> Result<Outcome, CallError> {
    let stores = &engine.cache.stores;
    let (Some(pod), Some(host_pod)) = (stores.tenant(KindId::Pod).get(name), stores.host(KindId::Pod).get(name)) else {
        return remove_orphan(engine, name).await;
    };
    lock(&engine.orphaned_secrets).remove(name);
    // The Secret is deleted when its host pod is gone.
    if !is_origin(&pod, &host_pod) || pod.deletion.is_some() || host_pod.deletion.is_some() {
        return Ok(Outcome::new("nothing"));
    }
    let object = pod.object();
    let bundles = trust::bundles(&engine.cache, &object);
    if !needs_secret(&object, &bundles) {
        return Ok(Outcome::new("nothing"));
    }
    let Some(secret) = own_secret(engine, name, &pod) else {
        create(engine, name, &pod, &object, Some(&host_pod)).await?;
        return Ok(Outcome::requeue("minted", Duration::ZERO));
    };
    // Once: where many pods are created, it has been packed by now, and is unpacked each time.
    let secret_object = secret.object();
    let expected = secret_size::secret_bytes(&object, &bundles, &certificate::sizes(&secret_object));
    let bytes = u64::from(secret.bytes).max(expected as u64);
    let renews = !are_current(&secret_object, &object);
    // A running pod keeps the certificates that it has if none are selected any more, as with a kubelet, or too many.
    let differs = bundles.are_too_large || !has_bundles(&secret_object, &bundles);
    let in_flight = if differs {
        reserve_bundles(engine, name, (&secret, bytes), &bundles).await
    } else {
        None
    };
    let mut follows = in_flight.is_some();
    let is_large = Size::of(bytes) == Size::Large;
    if follows || (renews && is_large) {
        if !may_write(engine, name, bytes).await {
            // The tokens of small Secrets do not wait.
            if is_large || !renews {
                return Ok(Outcome::new(turns::WAITS));
            }
            follows = false;
        }
    } else if renews {
        engine.turns.take(bytes);
    }
    let (now, mut result) = (Timestamp::now(), "nothing");
    let mut changes = Changes::default();
    let mut own_at = None;
    if renews {
        changes = mint(engine, name, &pod, &object).await?;
        result = "minted";
    }
    if !token::is_owned_by(&secret_object, &host_pod.uid) {
        own_at = if changes.is_empty() {
            token::owned_alone_at(&object, &host_pod.object(), now)
        } else {
            None
        };
        if own_at.is_none() {
            changes.owners = Some(token::owner_references(&host_pod.name, &host_pod.uid));
            result = "owned";
        }
    }
    if follows {
        changes.add_bundles(&object, bundles, &certificate::sizes(&secret_object));
        result = "trust updated";
    }
    if !changes.is_empty() {
        patch(engine, name, (&secret, &secret_object), changes.into_patch()).await?;
    }
    drop(in_flight);
    let Some(current) = own_secret(engine, name, &pod) else {
        return Ok(Outcome::requeue("vanished", Duration::ZERO));
    };
    let current_object = if Arc::ptr_eq(&current, &secret) {
        secret_object
    } else {
        current.object()
    };
    let certificates = certificates::collect(engine, name, &pod, &object, &current_object).await?;
    if let Some(body) = &certificates.patch {
        let bytes = u64::from(current.bytes) + count_bytes(body) as u64;
        let _in_flight = engine
            .reserve_host_bytes(current.bytes.into(), bytes)
            .map_err(CallError::QuotaExceeded)?;
        if !may_write(engine, name, bytes).await {
            return Ok(Outcome::new(turns::WAITS));
        }
        patch(engine, name, (&current, &current_object), body.clone()).await?;
        certificates.written(engine, name, &pod);
        result = "certified";
    }
    let next = renew_at(&current_object)
        .into_iter()
        .chain(certificates.look_again)
        .chain(own_at);
    Ok(Outcome::requeue(
        result,
        until(now, next.min().unwrap_or(Timestamp::MAX)),
    ))
}

/// Bytes of the Secret that a pod needs on the host, as far as they are known before it is made; 0 if it needs none.
pub(super) fn secret_bytes(engine: &Engine, pod: &Value) -> u64 {
    let bundles = trust::bundles(&engine.cache, pod);
    if needs_secret(pod, &bundles) {
        secret_size::secret_bytes(pod, &bundles, &Sizes::new()) as u64
    } else {
        0
    }
}

/// What changes in a Secret, so that it is one write.
#[derive(Default, PartialEq)]
struct Changes {
    annotations: Map<String, Value>,
    owners: Option<Value>,
    files: Map<String, Value>,
}

impl Changes {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds the certificates that a pod selects, in a Secret with others of these sizes.
    fn add_bundles(&mut self, pod: &Value, bundles: Bundles, sizes: &Sizes) {
        self.set_bytes(pod, &bundles, sizes);
        let hash = json::hash(&json!(bundles.found));
        self.annotations.insert(labels::TRUST_HASH.into(), hash.into());
        let files = bundles.found.into_iter().map(|(key, text)| (key, text.into()));
        self.files.extend(files);
    }

    /// Records how many bytes the Secret has.
    fn set_bytes(&mut self, pod: &Value, bundles: &Bundles, sizes: &Sizes) {
        let bytes = secret_size::secret_bytes(pod, bundles, sizes).to_string();
        self.annotations.insert(labels::BYTES.into(), bytes.into());
    }

    /// As a merge patch.
    fn into_patch(self) -> Value {
        let mut patch = json!({"metadata": {"annotations": self.annotations}, "stringData": self.files});
        if let Some(owners) = self.owners {
            patch["metadata"]["ownerReferences"] = owners;
        }
        patch
    }
}

/// Whether the pod's Secret may be written now.
async fn may_write(engine: &Engine, name: &Name, bytes: u64) -> bool {
    engine.may_write(&KindId::PodToken.key(name.clone()), bytes).await
}

/// Room for the certificates that a running pod selects now in its Secret, which will have `bytes` then. None: they cannot be written, and an Event of
/// the pod says why.
async fn reserve_bundles<'a>(
    engine: &'a Engine,
    name: &Name,
    (secret, bytes): (&Stored, u64),
    bundles: &Bundles,
) -> Option<BytesInFlight<'a>> {
    let (reason, message) = if bundles.are_too_large {
        let message = format!(
            "The pod keeps the certificates that it has: those of the ClusterTrustBundles that it selects have more than \
             {MAX_POD_SECRET_BYTES} bytes."
        );
        ("TrustBundleTooLarge", message)
    } else {
        match engine.reserve_host_bytes(secret.bytes.into(), bytes) {
            Ok(in_flight) => return Some(in_flight),
            Err(exceeded) => (QUOTA_EXCEEDED, exceeded.to_string()),
        }
    };
    let pod = KindId::Pod.key(name.clone());
    engine.record_event(&pod, Level::Warning, reason, &message).await;
    None
}

/// Whether there is anything that a pod needs a Secret for.
fn needs_secret(pod: &Value, bundles: &Bundles) -> bool {
    !token::asked(pod).is_empty() || *bundles != Bundles::default() || !certificate::asked(pod).is_empty()
}

/// Whether a Secret has these certificates.
fn has_bundles(secret: &Value, bundles: &Bundles) -> bool {
    let known = json::text(secret, &["metadata", "annotations", labels::TRUST_HASH]);
    bundles.found.is_empty() || known == Some(&json::hash(&json!(bundles.found)))
}

/// The Secret with the tokens of this very pod.
fn own_secret(engine: &Engine, name: &Name, pod: &Stored) -> Option<Arc<Stored>> {
    let secret = engine.cache.stores.host(KindId::PodToken).get(name);
    secret.filter(|secret| is_origin(pod, secret))
}

/// Whether the tokens in a Secret need not be minted again now: they live long enough, and name the pod's node if it has one.
fn are_current(secret: &Value, pod: &Value) -> bool {
    let names_node = token::node_of(pod).is_none() || token::names_node(secret);
    names_node && renew_at(secret).is_some_and(|renew_at| renew_at > Timestamp::now())
}

/// Mints the tokens of a pod, whose tree is `object`.
async fn mint(engine: &Engine, name: &Name, pod: &Stored, object: &Value) -> Result<Changes, CallError> {
    let now = Timestamp::now();
    let account = json::text(object, &["spec", "serviceAccountName"]).unwrap_or("default");
    let mut changes = Changes::default();
    let mut expiries = Vec::new();
    for asked in token::asked(object) {
        let request = token::request(&asked, &name.name, &pod.uid);
        let minted = engine
            .tenant
            .create_sub(resource::SERVICE_ACCOUNT, &name.namespace, account, "token", &request)
            .await?;
        let text = json::text(&minted, &["status", "token"]).unwrap_or_default().to_owned();
        let expiry = json::text(&minted, &["status", "expirationTimestamp"]).and_then(|text| text.parse().ok());
        expiries.push(expiry.unwrap_or_else(|| now + SignedDuration::from_secs(asked.seconds)));
        changes.files.insert(asked.key, text.into());
    }
    // Without tokens there is nothing to renew.
    let renew_at = token::renew_at(now, &expiries).unwrap_or(Timestamp::MAX);
    let renew_at = renew_at.to_string().into();
    changes.annotations.insert(labels::TOKEN_RENEW_AT.into(), renew_at);
    if let Some(node) = token::node_of(object) {
        changes.annotations.insert(labels::TOKEN_NODE.into(), node.into());
    }
    Ok(changes)
}

/// Creates the Secret of a pod, whose tree is `object`. `host_pod` is none if it does not exist yet.
async fn create(
    engine: &Engine,
    name: &Name,
    pod: &Stored,
    object: &Value,
    host_pod: Option<&Stored>,
) -> Result<(), CallError> {
    let mut content = mint(engine, name, pod, object).await?;
    let bundles = trust::bundles(&engine.cache, object);
    if bundles.found.is_empty() {
        content.set_bytes(object, &bundles, &Sizes::new());
    } else {
        content.add_bundles(object, bundles, &Sizes::new());
    }
    let secret = secret_object(engine, name, pod, host_pod, content);
    engine.start_host_watch(KindId::PodToken);
    let written = write(engine, name, &pod.uid, &secret).await?;
    engine.store_created(Side::Host, KindId::PodToken, name, written);
    // If its pod is never created, it is to be deleted.
    engine.add(KindId::PodToken.key(name.clone()));
    Ok(())
}

/// Creates or replaces the Secret. One of an earlier pod of this name is deleted: with that pod as its owner, the garbage collector
/// would delete it later.
async fn write(engine: &Engine, name: &Name, pod_uid: &str, secret: &Value) -> Result<Value, CallError> {
    let namespace = &engine.cache.tenant.workload_namespace;
    let host_name = host_name(KindId::PodToken, name);
    let host = &engine.host;
    match host.create(resource::SECRET, namespace, secret).await {
        Err(CallError::Conflict(_)) => {}
        result => return result,
    }
    if let Some(found) = CallError::found(host.get(resource::SECRET, namespace, &host_name).await)? {
        if json::text(&found, &["metadata", "annotations", labels::ORIGIN_UID]) == Some(pod_uid) {
            return host.apply(resource::SECRET, namespace, &host_name, secret).await;
        }
        let how = super::api::Delete {
            uid: json::text(&found, &["metadata", "uid"]).unwrap_or_default(),
            version: None,
            grace_seconds: None,
        };
        host.delete(resource::SECRET, namespace, &host_name, how).await?;
    }
    host.create(resource::SECRET, namespace, secret).await
}

/// Patches a Secret, with its tree as it was before.
async fn patch(
    engine: &Engine,
    name: &Name,
    (secret, before): (&Stored, &Value),
    mut body: Value,
) -> Result<(), CallError> {
    body["metadata"]["uid"] = (*secret.uid).into();
    let namespace = &engine.cache.tenant.workload_namespace;
    let written = engine
        .host
        .patch(resource::SECRET, namespace, &secret.name, "", &Patch::Merge(&body))
        .await?;
    // The store has no content. What follows from the metadata is decided after this.
    let metadata = json::object([("metadata", body["metadata"].take())]);
    engine.store_patched(Side::Host, KindId::PodToken, name, (before, metadata), written);
    Ok(())
}

/// The time until then, or the longest that a key may wait.
fn until(now: Timestamp, then: Timestamp) -> Duration {
    const LONGEST: Duration = Duration::from_hours(24);
    let time = Duration::try_from(then.duration_since(now)).unwrap_or_default();
    time.min(LONGEST)
}

fn renew_at(secret: &Value) -> Option<Timestamp> {
    json::text(secret, &["metadata", "annotations", labels::TOKEN_RENEW_AT])?
        .parse()
        .ok()
}

fn secret_object(engine: &Engine, name: &Name, pod: &Stored, host_pod: Option<&Stored>, content: Changes) -> Value {
    let mut annotations = content.annotations;
    for (key, value) in [
        (labels::ORIGIN_NAMESPACE, &*name.namespace),
        (labels::ORIGIN_NAME, &*name.name),
        (labels::ORIGIN_UID, &*pod.uid),
    ] {
        annotations.insert(key.into(), value.into());
    }
    let mut labels: Map<String, Value> = engine
        .cache
        .tenant
        .labels(&name.namespace)
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.into()))
        .collect();
    labels.insert(labels::POD_TOKEN.into(), "true".into());
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": host_name(KindId::PodToken, name),
            "namespace": engine.cache.tenant.workload_namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": host_pod.map_or_else(|| json!([]), |pod| token::owner_references(&pod.name, &pod.uid)),
        },
        "type": "Opaque",
        "stringData": content.files,
    })
}

/// Whether a Secret without a pod is kept for now, in case its pod is on its way.
pub(super) fn waits_for_its_pod(engine: &Engine, name: &Name) -> bool {
    let orphaned = lock(&engine.orphaned_secrets);
    orphaned.get(name).is_some_and(|since| since.elapsed() < ORPHAN_GRACE)
}

/// Deletes a Secret whose host pod is gone. The host's garbage collector would do that as well, by its owner, and does while no syncer runs. But it
/// makes a few requests a second for all tenants: what it finds deleted already costs it one instead of three.
///
/// A Secret is created before its host pod, so the syncer gives a pod of the tenant time to get to the host.
async fn remove_orphan(engine: &Engine, name: &Name) -> Result<Outcome, CallError> {
    lock(&engine.certificates).forget(name);
    let stores = &engine.cache.stores;
    let secret = stores.host(KindId::PodToken).get(name);
    let key = KindId::PodToken.key(name.clone());
    let Some(secret) = secret.filter(|_| !stores.host(KindId::Pod).contains(name)) else {
        lock(&engine.orphaned_secrets).remove(name);
        engine.endings.forget(&key);
        return Ok(Outcome::new("nothing"));
    };
    if let Some(left) = engine.endings.left(&key, &secret.uid) {
        return Ok(Outcome::requeue("ending", left));
    }
    let since = *lock(&engine.orphaned_secrets)
        .entry(name.clone())
        .or_insert_with(Instant::now);
    let pod = stores.tenant(KindId::Pod).get(name);
    if pod.is_some_and(|pod| is_origin(&pod, &secret) && pod.deletion.is_none()) {
        let left = ORPHAN_GRACE.saturating_sub(since.elapsed());
        if !left.is_zero() {
            return Ok(Outcome::requeue("waiting", left));
        }
    }
    // If it was written since it was seen, it may be for another host pod by now.
    let how = super::api::Delete {
        uid: &secret.uid,
        version: Some(secret.version),
        grace_seconds: None,
    };
    let namespace = &engine.cache.tenant.workload_namespace;
    match engine.host.delete(resource::SECRET, namespace, &secret.name, how).await {
        Ok(_) => {
            engine.endings.forget(&key);
            engine.endings.begin(&key, &secret.uid);
            Ok(Outcome::new("deleted"))
        }
        Err(CallError::Conflict(_)) => Ok(Outcome::requeue("vanished", AFTER_CONFLICT)),
        Err(error) => Err(error),
    }
}
