//! Creating the host object.
//!
//! What a pod needs before that, it asks for in one order. Pods keep what comes first while they wait for what comes later, and never the other way round.
//! So no two pods wait for each other.
//!
//! | asks for | here, because |
//! |---|---|
//! | a place of its [user](super::user_waits) | one user would fill the lines after it |
//! | room for its [claims of devices](super::device_claims) | it comes when work ends, which can take hours. With a place in the waiting room, a pod would keep others from the host that need no claims, or lose the place again and again. Only gangs keep it while they wait for what follows |
//! | a place in the [room of pods with devices](super::device_room), if it has any | these places are few, and a pod that waits for one takes none of the next |
//! | a place in the [waiting room](super::room_waits) | what follows takes minutes |
//! | [bytes](super::host_bytes) on the host | there is no line for them: the pod keeps its places and tries again |
//! | its turn, because of [Events](super::turns), for requests and for bytes | they come at a rate. A pod that waits for Events or requests lends its place in the waiting room |
//! | a place in the [scheduling window](super::window) | it is had for seconds, and used at once |

use super::to_host::ObjectSync;
use super::{
    Outcome, QUOTA_EXCEEDED, admit,
    api::{CallError, Delete},
    controller_requests::Wait,
    dropped::dropped,
    recorder::Level,
    tokens, turns,
};
use berth_api::{labels, most_references};
use berth_sync_rules::{
    model::{
        Cache, Creation, DeniedField, KindId, Translated, json,
        resource::{Key, Side},
        store::{Stored, is_origin},
    },
    translation::sizes::count_bytes,
};
use jiff::Timestamp;
use serde_json::Value;
use std::time::Duration;

/// A resource version that no object has: as a precondition of an apply it says that nothing may exist yet.
pub(super) const NOTHING_YET: &str = "1";
/// How long to wait for something that should be announced by a watch.
const SAFETY: Duration = Duration::from_secs(5);
/// The same for something that the tenant may never make.
const LONG_SAFETY: Duration = Duration::from_mins(1);

impl ObjectSync<'_> {
    /// Creates the host object, unless the tenant has as many of its kind as it may have.
    pub(super) async fn create(&self, stored: &Stored, object: &Value) -> Result<Outcome, CallError> {
        let refused = &self.engine.refused_kinds;
        let refusal = refused.refusal(self.id).or_else(|| self.engine.refuse_if_full());
        let exceeded = match refusal {
            Some(exceeded) => {
                // Others must not wait for claims of a pod that does not come: the tenant's own need no pod.
                self.settle_claims_after(&Err(CallError::QuotaExceeded(exceeded.clone())));
                if let Some(waits) = self.stay_in_line() {
                    return Ok(waits);
                }
                // It keeps its other places, which no other pod could use.
                self.give_place_back();
                exceeded
            }
            None => match self.create_if_admitted(stored, object).await {
                Err(CallError::QuotaExceeded(exceeded)) => {
                    if let Some(held) = self.hold_refused(stored, object).await? {
                        return Ok(held);
                    }
                    refused.refuse(self.id, &exceeded);
                    exceeded
                }
                result => return result,
            },
        };
        let (message, now) = (exceeded.to_string(), Timestamp::now());
        if let Some(status) = self.kind.not_synced_status(object, QUOTA_EXCEEDED, &message, now) {
            self.write_status(stored, object, &status).await?;
        }
        Err(CallError::QuotaExceeded(exceeded))
    }

    /// Creates the host object. A place in the scheduling window is given back if that fails.
    async fn create_if_admitted(&self, stored: &Stored, object: &Value) -> Result<Outcome, CallError> {
        let result = self.create_on_host(stored, object).await;
        // Between the answer and now, a pod that waits may have got a place.
        if !matches!(&result, Ok(outcome) if outcome.result == admit::NO_PLACE) {
            self.give_place_back();
        }
        if !matches!(&result, Ok(outcome) if outcome.waits_for_turn()) {
            self.settle_places_after(&result);
        }
        self.settle_claims_after(&result);
        result
    }

    async fn create_on_host(&self, stored: &Stored, object: &Value) -> Result<Outcome, CallError> {
        let Self {
            engine, id, kind, name, ..
        } = self;
        if let Some(waits) = self.wait_for_references().await {
            return Ok(waits);
        }
        if let Some(waits) = self.wait_for_prerequisites(stored, object).await? {
            return Ok(waits);
        }
        let content = match self.content(stored, object).await? {
            Ok(content) => content,
            Err(outcome) => return Ok(outcome),
        };
        let translated = match kind.translate_new(&engine.cache, name, &content) {
            Ok(translated) => translated,
            Err(denied) => {
                drop(content);
                self.deny(stored, object, &denied).await?;
                return Ok(Outcome::new("denied"));
            }
        };
        let Translated {
            object: desired,
            mut ignored,
            parts,
        } = translated;
        // What is denied is not held back, and needs no place.
        if let Some(held) = self.hold(stored, object).await? {
            return Ok(held);
        }
        if let Some(waits) = self.wait_for_user(stored, object).await {
            return Ok(waits);
        }
        let claims = engine
            .reserve_device_claims(*id, name, object)
            .map_err(CallError::QuotaExceeded)?;
        let Some(claims) = claims else {
            return Ok(Outcome::requeue("waiting for its gang", SAFETY));
        };
        if let Some(waits) = self.ask_for_room(object) {
            // Others may have them, unless they are kept for its gang. To say why it waits can take long.
            drop(claims);
            return Ok(self.wait_for_room(stored, object, waits).await);
        }
        let bytes = self.bytes_on_host(object, &desired);
        let in_flight = engine.reserve_growth(0, bytes).map_err(CallError::QuotaExceeded)?;
        if let Some(waits) = self.wait_to_make_endpoints(&desired).await {
            return Ok(waits);
        }
        let granted = engine.turns.granted(&self.key());
        if let Some(wait) = self.ask_to_write(&desired, true, bytes) {
            if matches!(wait, Wait::Requests(_) | Wait::Events(_)) {
                self.lend_room();
            }
            return Ok(self.report_wait(wait).await);
        }
        if let Some(waits) = self.wait_for_place(object).await {
            engine.turns.keep(&self.key(), bytes, granted);
            return Ok(waits);
        }
        self.prepare_tokens(stored).await?;
        let mutable = kind.mutable_part(&desired);
        let mut desired = self.with_metadata(stored, desired, &engine.cache.tenant.applied_hash(&mutable));
        let created = match self.write_new(&mut desired).await {
            Ok(created) => created,
            Err(CallError::Conflict(_)) => return self.taken(stored).await,
            Err(error) => return Err(error),
        };
        self.count_requests();
        engine.set_applied(self.key(), &mutable);
        ignored.extend(dropped(&desired, &created));
        engine.store_created(Side::Host, *id, name, created);
        // From now on the store has it. The tenant's API server may take long for what follows.
        drop((in_flight, claims, content, desired, mutable));
        self.record_ignored(&ignored).await;
        self.record_parts(&parts).await;
        let requeue_after = match engine.cache.stores.host(*id).get(name) {
            Some(host) => {
                let outcome = self.sync_status(stored, object, &host.object(), true, &[]).await?;
                outcome.requeue_after
            }
            None => None,
        };
        Ok(Outcome {
            requeue_after,
            compares_again: requeue_after.is_some(),
            ..Outcome::new("created")
        })
    }

    /// What to do if there was no room for the names of the objects that this one uses: they would not come to the host for it.
    async fn wait_for_references(&self) -> Option<Outcome> {
        let Self { engine, id, name, .. } = self;
        let (cache, key) = (&engine.cache, self.key());
        if !cache.references().is_left_out(&key) {
            return None;
        }
        // Others may be gone since then.
        for dependent in cache.update_dependents(Side::Tenant, *id, name) {
            engine.add(dependent);
        }
        if !cache.references().is_left_out(&key) {
            return None;
        }
        let most = most_references(cache.tenant.host_limits.bytes);
        let message = format!(
            "there is no room for the names of other objects, such as ConfigMaps and Secrets, in this object: spec.limits.hostBytes of the class of this \
             cluster has room for {most}, of which the objects of one namespace leave a part to others. The object is not on the host until they name fewer"
        );
        engine
            .record_event(&key, Level::Warning, QUOTA_EXCEEDED, &message)
            .await;
        Some(Outcome::requeue("no room for what it names", LONG_SAFETY))
    }

    /// What to do if objects that must be on the host before this one are not there yet.
    async fn wait_for_prerequisites(&self, stored: &Stored, object: &Value) -> Result<Option<Outcome>, CallError> {
        let Self { engine, kind, name, .. } = self;
        let mut missing = kind.prerequisites(&engine.cache, name, object);
        missing.retain(|key| !is_on_host(&engine.cache, key));
        if missing.is_empty() {
            return Ok(None);
        }
        let denied: Vec<_> = missing.iter().filter_map(|key| self.denial_of(key)).collect();
        if !denied.is_empty() {
            self.deny(stored, object, &denied).await?;
        }
        let is_absent = |key: &&Key| !engine.cache.stores.tenant(key.kind).contains(&key.name);
        let mut templates = missing.iter().filter(|key| key.kind == KindId::ResourceClaimTemplate);
        if let Some(absent) = templates.find(is_absent) {
            let message = format!(
                "resource claim template \"{}\" not found: the pod waits for it.",
                absent.name.name
            );
            engine
                .record_event(&self.key(), Level::Warning, "FailedResourceClaimCreation", &message)
                .await;
        }
        // Nobody says when there will be one, and then all pods that name it are reconciled.
        let may_never_be = |key: &Key| key.kind == KindId::ResourceClaimTemplate && is_absent(&key);
        let wait = if missing.iter().all(may_never_be) {
            LONG_SAFETY
        } else {
            SAFETY
        };
        for key in missing {
            engine.add(key);
        }
        Ok(Some(Outcome::requeue("waiting", wait)))
    }

    /// Bytes of the host object, and of the Secret with the tokens of a pod.
    fn bytes_on_host(&self, object: &Value, desired: &Value) -> u64 {
        let secret = if self.id == KindId::Pod {
            tokens::secret_bytes(self.engine, object)
        } else {
            0
        };
        count_bytes(desired) as u64 + secret
    }

    /// Asks whether it is the turn of a write of `bytes`. Returns what to do if it is not.
    pub(super) async fn wait_for_turn(&self, bytes: u64) -> Option<Outcome> {
        let may_write = self.engine.may_write(&self.key(), bytes).await;
        (!may_write).then(|| Outcome::new(turns::WAITS).comparing_again())
    }

    /// Writes the Secret with the tokens of a pod, and says which certificates it will wait for.
    async fn prepare_tokens(&self, stored: &Stored) -> Result<(), CallError> {
        let Self { engine, id, name, .. } = self;
        if *id == KindId::Pod
            && let Some(missing) = tokens::prepare(engine, name, stored).await?
        {
            let message = format!("The pod does not start before there is a certificate: none is in {missing}.");
            engine
                .record_event(&self.key(), Level::Warning, "TrustBundleMissing", &message)
                .await;
        }
        Ok(())
    }

    /// Writes the host object; a conflict if there is one of its name.
    async fn write_new(&self, desired: &mut Value) -> Result<Value, CallError> {
        let Self { engine, id, kind, .. } = self;
        let (resource, host) = (kind.resource(), &engine.host);
        engine.start_host_watch(*id);
        let created = match kind.creation() {
            Creation::Apply => {
                desired["metadata"]["resourceVersion"] = NOTHING_YET.into();
                host.apply(resource, self.namespace(), &self.host_name(), desired)
                    .await?
            }
            Creation::Post => host.create(resource, self.namespace(), desired).await?,
        };
        engine
            .metrics
            .sync_to_host
            .observe(self.observed_at.elapsed().as_secs_f64());
        Ok(created)
    }

    /// Why a prerequisite of this object cannot be synced, or not now.
    fn denial_of(&self, key: &Key) -> Option<DeniedField> {
        let engine = self.engine;
        let needed = engine.cache.stores.tenant(key.kind).get(&key.name)?;
        let rules = engine.cache.rules_to_host(key.kind)?;
        let is_too_large = needed.is_cut || engine.contents.is_too_large(key, needed.version);
        let is_denied = || is_too_large || rules.translate(&engine.cache, &key.name, &needed.object()).is_err();
        // A kind that is not listed yet is waited for.
        let unavailable = engine.find_unavailable_side(key.kind);
        let is_off = unavailable.is_some_and(|(_, why)| !why.is_unlisted());
        let what = format!("{} {}", rules.resource().kind, key.name.name);
        if let Some(exceeded) = engine.refused_kinds.refusal(key.kind) {
            return Some(DeniedField::new("spec", format!("it needs the {what}: {exceeded}")));
        }
        (is_off || is_denied()).then(|| {
            DeniedField::new(
                "spec",
                format!("it needs the {what}, which is denied: see the Events of that object"),
            )
        })
    }

    /// An object with the host name exists already.
    async fn taken(&self, stored: &Stored) -> Result<Outcome, CallError> {
        let Self {
            engine, id, kind, name, ..
        } = self;
        let found = engine
            .host
            .get(kind.resource(), self.namespace(), &self.host_name())
            .await;
        let Some(found) = CallError::found(found)? else {
            return Ok(Outcome::requeue("vanished", Duration::ZERO));
        };
        if json::text(&found, &["metadata", "labels", labels::MANAGED_BY]) != Some(labels::MANAGED_BY_SYNCER) {
            return Err(CallError::Rejected(
                "an object with this name that does not belong to the tenant exists on the host".into(),
            ));
        }
        let origin = json::text(&found, &["metadata", "annotations", labels::ORIGIN_UID]);
        if origin == Some(&*stored.uid) {
            engine.store_written(Side::Host, *id, name, found);
            return Ok(Outcome::requeue("adopted", Duration::ZERO));
        }
        let uid = json::text(&found, &["metadata", "uid"]).unwrap_or_default();
        let how = Delete {
            uid,
            version: None,
            grace_seconds: kind.orphan_grace(),
        };
        engine
            .host
            .delete(kind.resource(), self.namespace(), &self.host_name(), how)
            .await?;
        Ok(Outcome::requeue("replacing", Duration::from_millis(200)))
    }
}
/// Whether the host has what another object needs. Of a claim of devices that the tenant has deleted and made again it must be the new one: a
/// host pod with the one before would be replaced again and again. So must a template of claims: the one before is about to go. So must a PodGroup: pods that
/// name it would keep the one before on the host, by its finalizer, and wait for as many pods as that one has.
fn is_on_host(cache: &Cache, key: &Key) -> bool {
    let tenant = cache.stores.tenant(key.kind).get(&key.name);
    let is_this = |host: &Stored| {
        let must_be_new = matches!(
            key.kind,
            KindId::ResourceClaim | KindId::ResourceClaimTemplate | KindId::Custom(_)
        );
        !must_be_new || tenant.as_ref().is_none_or(|tenant| is_origin(tenant, host))
    };
    cache
        .stores
        .host(key.kind)
        .get(&key.name)
        .is_some_and(|host| is_this(&host))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::test_engine::{engine_of, tenant};
    use berth_api::sync_policy::{SyncPolicy, SyncedKind};
    use berth_sync_rules::model::resource::Name;
    use serde_json::json;

    #[tokio::test]
    async fn pods_wait_for_the_group_that_was_made_again() {
        let policy = SyncPolicy {
            kinds: vec![SyncedKind {
                group: "scheduling.k8s.io".into(),
                version: "v1beta1".into(),
                kind: "PodGroup".into(),
                resource: "podgroups".into(),
                ..SyncedKind::default()
            }],
            ..SyncPolicy::default()
        };
        let engine = engine_of(tenant(policy));
        let kind = engine.cache.find_kind_by_name("PodGroup.scheduling.k8s.io").unwrap();
        let key = kind.key(Name::new("team", "ring"));
        let stores = &engine.cache.stores;
        let in_tenant = |uid: &str, version: &str| {
            let group = json!({"metadata": {"name": "ring", "uid": uid, "resourceVersion": version}});
            stores.tenant(kind).watched(key.name.clone(), Stored::new(&group));
        };
        in_tenant("first", "1");
        assert!(!is_on_host(&engine.cache, &key));
        let on_host = json!({"metadata": {"name": "x", "uid": "h", "resourceVersion": "2",
            "annotations": {labels::ORIGIN_UID: "first"}}});
        stores.host(kind).watched(key.name.clone(), Stored::new(&on_host));
        assert!(is_on_host(&engine.cache, &key));
        in_tenant("second", "3");
        assert!(!is_on_host(&engine.cache, &key), "the one before is about to go");
    }
}
