//! Reconciles an object of a kind that is synced to the host: decides and acts. What the actions do is in [`create`](super::create),
//! [`update`](super::update), [`delete`](super::delete) and [`status_sync`](super::status_sync).

use super::{
    Engine, OUTDATED, Outcome,
    api::CallError,
    decide::{Action, HostFacts, TenantFacts, decide},
    lock,
    pending::Pending,
    reserve, schedule,
    status_sync::StatusWrite,
};
use berth_api::labels;
use berth_sync_rules::{
    model::{
        Cache, DeniedField, DesiredState, KindId, ToHost,
        resource::{Key, Name, host_name},
        schedule::PodSchedule,
        store::{Detail, Stored, is_origin},
    },
    translation::sizes::count_bytes,
};
use jiff::Timestamp;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Result of a reconciliation of a host object that stays for a while because another one needs it.
const NEEDED: &str = "needed on the host";
/// Time after which it is looked at again.
const NEEDED_WAIT: Duration = Duration::from_secs(5);

/// Why an object is not on the host of which nothing but the metadata is kept.
const TOO_MUCH_STRUCTURE: &str =
    "together they have more lists, maps and values than Berth reads of one object: write fewer of them";

/// One reconciliation of one object.
pub(super) struct ObjectSync<'a> {
    pub(super) engine: &'a Engine,
    pub(super) id: KindId,
    pub(super) kind: &'static dyn ToHost,
    pub(super) name: &'a Name,
    /// When the change that led here was observed.
    pub(super) observed_at: Instant,
    /// Whether both objects are compared as a whole: something besides the host object's status may have changed.
    pub(super) compares: bool,
    /// What schedules let the pod do; other kinds have none.
    pub(super) schedule: PodSchedule,
}

/// Decides what to do about an object, and does it.
pub(super) async fn reconcile(
    engine: &Engine,
    (id, kind): (KindId, &'static dyn ToHost),
    name: &Name,
    observed_at: Instant,
    compares: bool,
) -> Result<Outcome, CallError> {
    let stores = &engine.cache.stores;
    let tenant = stores.tenant(id).get(name);
    let (host, tombstone) = stores.host(id).get_or_take_tombstone(name);
    let object = tenant.as_ref().map(|stored| stored.object());
    let tenant = tenant.as_deref().zip(object.as_deref());
    let pod = object.as_deref().filter(|_| id == KindId::Pod);
    let schedule = pod.map(|pod| schedule::of_pod(engine, name, pod)).unwrap_or_default();
    let tenant_facts = tenant.map(|(stored, object)| TenantFacts {
        uid: &stored.uid,
        // The tenant's object may have more time to end. It ends with the host's, see `Action::Finish`.
        deletion: stored
            .deletion
            .map(|deletion| deletion.with_grace_at_most(kind.max_grace(&engine.cache))),
        desired_state: schedule::desired_state(
            if stored.is_cut {
                desired_state_of_cut(kind)
            } else {
                kind.desired_state(&engine.cache, name, object)
            },
            &schedule,
            host.as_deref(),
        ),
    });
    let host_facts = host.as_deref().map(|stored| HostFacts {
        origin_uid: stored.origin_uid.as_deref(),
        deletion: stored.deletion,
        ends_in: match stored.deletion {
            Some(deletion) if deletion.is_in_last_step() => engine.endings.begin(&id.key(name.clone()), &stored.uid),
            _ => Duration::ZERO,
        },
        reserved: stored
            .reserved_at
            .filter(|_| stored.origin_uid.is_none())
            .map(|at| reserve::grace_left(at, Timestamp::now())),
    });
    let sync = ObjectSync {
        engine,
        id,
        kind,
        name,
        observed_at,
        compares,
        schedule,
    };
    if let Some(ended) = sync.end_at_once(tenant, host.as_deref()).await {
        return ended;
    }
    if let Some(pod) = pod.filter(|_| compares) {
        engine.regroup_places(name, pod);
    }
    let action = decide(tenant_facts, host_facts, kind.orphan_grace(), kind.finishes_deletion());
    // What is not to be created waits for no place, and needs none.
    if host.is_none() && action != Action::Create {
        sync.give_place_back();
        sync.settle_places();
    }
    let mut result = sync.act(action, tenant, host.as_deref(), tombstone.as_deref()).await;
    let is_unfinished = result.as_ref().map_or(true, |outcome| outcome.result == OUTDATED);
    if let Ok(outcome) = result
        && !is_unfinished
    {
        let last = (host.as_deref(), tombstone.as_deref());
        result = sync.follow_removal(tenant, last, outcome).await;
    }
    if let Some(tombstone) = tombstone.filter(|_| is_unfinished || result.is_err()) {
        stores.host(id).restore_tombstone(name, tombstone);
    }
    let result = sync.follow_schedule(tenant, host.as_deref(), result).await;
    // At last: the host does not wait for the tenant.
    if tenant.is_some_and(|(stored, _)| stored.is_cut) {
        sync.record_denied(&[DeniedField::new("metadata, spec and status", TOO_MUCH_STRUCTURE)])
            .await;
    }
    result
}

/// What should be on the host for an object of which only the metadata is kept: what it asks for is not known. What the host has of it must not be out of
/// the reach of rules either, but data that is gone does not come back when the object shrinks.
fn desired_state_of_cut(kind: &dyn ToHost) -> DesiredState {
    if kind.holds_data() {
        DesiredState::Leave
    } else {
        DesiredState::Absent
    }
}

impl ObjectSync<'_> {
    async fn act(
        &self,
        action: Action,
        tenant: Option<(&Stored, &Value)>,
        host: Option<&Stored>,
        tombstone: Option<&Stored>,
    ) -> Result<Outcome, CallError> {
        // The last state of a host object counts only for the tenant's object that it was made for.
        let tombstone = tombstone
            .filter(|tombstone| tenant.is_some_and(|(stored, _)| is_origin(stored, tombstone)))
            .map(Stored::object);
        match (action, tenant, host) {
            (Action::Create, Some((stored, object)), _) => self.create(stored, object).await,
            (Action::Update, Some((stored, object)), Some(host)) => self.update(stored, object, host).await,
            // A status is made of both objects: without the rest of the tenant's, what is its own would be lost, or nothing end the writes.
            (Action::SyncStatus, Some((stored, object)), Some(host)) if !stored.is_cut => {
                let closed = self.close_ending(stored, object, host).await;
                let reported = self.sync_status(stored, object, &host.object(), false, &[]).await;
                // The host's error comes before that of the tenant.
                let wait = closed?;
                let reported = reported?;
                Ok(match wait {
                    Some(wait) => reported.with_later(self.report_wait(wait).await),
                    None => reported,
                })
            }
            (Action::Delete { .. }, _, Some(_)) if self.kind.is_needed_on_host(&self.engine.cache, self.name) => {
                Ok(Outcome::requeue(NEEDED, NEEDED_WAIT))
            }
            (Action::Delete { grace_seconds, report }, tenant, Some(host)) => {
                // What the tenant deletes has no use for an allocation that is under way.
                let kept = tenant.filter(|(stored, _)| stored.deletion.is_none());
                if let Some((stored, object)) = kept
                    && let Pending::Wait(left) = self.pending(stored, object, host).await
                {
                    return Ok(Outcome::requeue("reserved", left));
                }
                let deleted = self.delete(host, grace_seconds).await;
                // After it, and whatever becomes of it: the tenant may refuse the status, or not answer.
                if let Some((stored, object)) = tenant.filter(|(stored, _)| report && !stored.is_cut) {
                    let reported = self.sync_status(stored, object, &host.object(), false, &[]).await;
                    let deleted = deleted?;
                    return reported.map(|_| deleted);
                }
                deleted
            }
            (Action::Wait(left), ..) => Ok(Outcome::requeue("reserved", left)),
            (Action::AwaitEnd(left), ..) => Ok(Outcome::requeue("ending", left)),
            (Action::Sweep, _, Some(host)) => self.sweep(host).await,
            (Action::Finish, Some((stored, object)), _) => self.finish(stored, object, tombstone.as_deref()).await,
            (Action::MarkLost, Some((stored, object)), _) => {
                let Self { engine, kind, name, .. } = self;
                let lost = kind.lost_status(&engine.cache, name, object, tombstone.as_deref(), Timestamp::now());
                let write = match lost {
                    Some(status) => self.write_status(stored, object, &status).await?,
                    None => StatusWrite::Same,
                };
                let is_outdated = write == StatusWrite::Outdated;
                Ok(Outcome::new(if is_outdated { OUTDATED } else { "lost" }))
            }
            _ => {
                if tenant.is_none() && host.is_none() {
                    lock(&self.engine.synced_versions).remove(&self.key());
                    lock(&self.engine.narrowed).remove(&self.key());
                    lock(&self.engine.foreign_fields).remove(&self.key());
                    self.engine.refusals.forget(&self.key());
                    self.engine.endings.forget(&self.key());
                    lock(&self.engine.applied_bytes).remove(&self.key());
                    self.engine.contents.forget(&self.key());
                }
                Ok(Outcome::new("nothing"))
            }
        }
    }

    pub(super) fn key(&self) -> Key {
        self.id.key(self.name.clone())
    }

    pub(super) fn host_name(&self) -> String {
        host_name(self.id, self.name)
    }

    pub(super) fn namespace(&self) -> &str {
        &self.engine.cache.tenant.workload_namespace
    }

    /// A host object with everything that says what it is and where it comes from.
    pub(super) fn with_metadata(&self, stored: &Stored, object: Value, hash: &str) -> Value {
        with_metadata(
            &self.engine.cache,
            (self.id, self.kind),
            self.name,
            Some(&stored.uid),
            object,
            hash,
        )
    }
}

/// A host object with everything that says what it is and where it comes from. Without the UID of a tenant object it is a
/// [reservation](reserve).
pub(super) fn with_metadata(
    cache: &Cache,
    (id, kind): (KindId, &dyn ToHost),
    name: &Name,
    origin: Option<&str>,
    mut object: Value,
    hash: &str,
) -> Value {
    let resource = kind.resource();
    let is_watched_in_full = cache.kind(id).host.is_none_or(|(_, spec)| spec.detail == Detail::Full);
    let bytes = (!is_watched_in_full).then(|| count_bytes(&object));
    let record = kind.record(cache, name, &object);
    object["apiVersion"] = resource.api_version().into();
    object["kind"] = resource.kind.into();
    object["metadata"]["name"] = host_name(id, name).into();
    object["metadata"]["namespace"] = cache.tenant.workload_namespace.as_str().into();
    for (key, value) in cache.tenant.labels(&name.namespace) {
        object["metadata"]["labels"][key] = value.into();
    }
    let annotations = &mut object["metadata"]["annotations"];
    annotations[labels::ORIGIN_NAMESPACE] = (*name.namespace).into();
    annotations[labels::ORIGIN_NAME] = (*name.name).into();
    match origin {
        Some(uid) => annotations[labels::ORIGIN_UID] = uid.into(),
        None => annotations[labels::RESERVED_AT] = Timestamp::now().as_second().to_string().into(),
    }
    annotations[labels::APPLIED_HASH] = hash.into();
    if let Some((key, value)) = record {
        annotations[key] = value.into();
    }
    if let Some(bytes) = bytes {
        annotations[labels::BYTES] = bytes.to_string().into();
    }
    object
}

#[cfg(test)]
mod tests {
    use super::super::{scripted::Scripted, test_engine::tenant};
    use super::*;
    use berth_api::SyncPolicy;
    use berth_sync_rules::model::{
        references::{References, Target},
        resource::Side,
    };
    use serde_json::json;
    use std::collections::BTreeSet;

    #[tokio::test]
    async fn what_has_too_much_structure_is_not_on_the_host() {
        let scripted = Scripted::new(tenant(SyncPolicy::default()), |_| None);
        let (engine, id) = (&scripted.engine, KindId::Service);
        for (is_on_host, name) in [(false, Name::new("team", "new")), (true, Name::new("team", "old"))] {
            let metadata =
                json!({"name": &*name.name, "namespace": "team", "uid": "tenant-uid", "resourceVersion": "7"});
            let stored = Stored::from(json!({ "metadata": metadata })).cut();
            engine.cache.stores.tenant(id).watched(name.clone(), stored);
            if is_on_host {
                scripted.put(Side::Host, id, &name, json!({"spec": {}}));
            }
            engine.reconcile(&id.key(name), Instant::now(), true).await.unwrap();
            assert_eq!(
                scripted.calls("host DELETE", "/services/old").len(),
                usize::from(is_on_host)
            );
        }
        let writes = scripted.calls("host P", "");
        assert!(writes.is_empty(), "{writes:?}");
        let events = scripted.calls("tenant PATCH /api/v1/namespaces/team/events/", "");
        assert_eq!(events.len(), 2, "{events:?}");
    }

    #[tokio::test]
    async fn a_claim_with_too_much_structure_keeps_its_data_also_when_the_syncer_starts() {
        let scripted = Scripted::new(tenant(SyncPolicy::default()), |_| None);
        let (engine, id, name) = (
            &scripted.engine,
            KindId::PersistentVolumeClaim,
            Name::new("team", "data"),
        );
        let bound = json!({"spec": {"volumeName": "pv-1"}, "status": {"phase": "Bound"}});
        scripted.put(Side::Host, id, &name, bound);
        let metadata = json!({"name": "data", "namespace": "team", "uid": "tenant-uid", "resourceVersion": "8"});
        let cut = Stored::from(json!({"metadata": metadata, "spec": {"volumeName": "pv-1"}})).cut();
        engine.cache.stores.tenant(id).watched(name.clone(), cut);
        engine.cache.update_dependents(Side::Tenant, id, &name);
        let outcome = engine.reconcile(&id.key(name), Instant::now(), true).await;
        assert_eq!(outcome.unwrap().result, "nothing");
        let host = scripted.calls("host ", "");
        assert!(host.is_empty(), "{host:?}");
        let mut tenant = scripted.calls("tenant ", "");
        tenant.retain(|call| !call.contains("/events/"));
        assert!(
            tenant.is_empty(),
            "no status is made of a part of the claim: {tenant:?}"
        );
        let volume = KindId::PersistentVolume.key(Name::new("", "pv-1"));
        assert!(engine.cache.references().is_used(&volume), "the tenant keeps it");
    }

    #[tokio::test]
    async fn a_pod_with_too_much_structure_that_its_finalizers_keep_gets_no_status_again_and_again() {
        let scripted = Scripted::new(tenant(SyncPolicy::default()), |_| None);
        let (engine, id, name) = (&scripted.engine, KindId::Pod, Name::new("team", "a"));
        let metadata = json!({"name": "a", "namespace": "team", "uid": "tenant-uid", "resourceVersion": "7", "finalizers": ["example.com/a"],
            "deletionTimestamp": "2026-05-01T10:00:00Z", "deletionGracePeriodSeconds": 0});
        let stored = Stored::from(json!({ "metadata": metadata })).cut();
        engine.cache.stores.tenant(id).watched(name.clone(), stored);
        engine.reconcile(&id.key(name), Instant::now(), true).await.unwrap();
        let statuses = scripted.calls("tenant PATCH", "/status");
        assert!(statuses.is_empty(), "{statuses:?}");
    }

    #[tokio::test]
    async fn a_pod_says_that_what_it_needs_has_too_much_structure() {
        for of_metadata in [true, false] {
            let scripted = Scripted::new(tenant(SyncPolicy::default()), |_| None);
            let (engine, id, name) = (&scripted.engine, KindId::Pod, Name::new("team", "a"));
            let (map, metadata) = (
                Name::new("team", "c"),
                json!({"name": "c", "namespace": "team", "uid": "c", "resourceVersion": "5"}),
            );
            let mut needed = Stored::from(json!({ "metadata": metadata }));
            if of_metadata {
                needed = needed.cut();
            } else {
                engine
                    .contents
                    .note_too_large(KindId::ConfigMap.key(map.clone()), needed.version);
            }
            engine.cache.stores.tenant(KindId::ConfigMap).watched(map, needed);
            let volume = json!({"name": "c", "configMap": {"name": "c"}});
            let spec = json!({"containers": [{"name": "main", "image": "a:1"}], "volumes": [volume]});
            scripted.put(Side::Tenant, id, &name, json!({ "spec": spec }));
            engine.cache.update_dependents(Side::Tenant, id, &name);
            let outcome = engine.reconcile(&id.key(name), Instant::now(), true).await;
            assert_eq!(outcome.unwrap().result, "waiting");
            assert_eq!(scripted.calls("tenant PATCH", "/pods/a/status").len(), 1);
        }
    }

    #[tokio::test]
    async fn what_names_more_than_there_is_room_for_waits() {
        let scripted = Scripted::new(tenant(SyncPolicy::default()), |_| None);
        let (engine, id, name) = (&scripted.engine, KindId::Pod, Name::new("team", "a"));
        let volume = json!({"name": "c", "configMap": {"name": "missing"}});
        let spec = json!({"containers": [{"name": "main", "image": "a:1"}], "volumes": [volume]});
        scripted.put(Side::Tenant, id, &name, json!({ "spec": spec }));
        let reconcile = async || {
            let outcome = engine.reconcile(&id.key(name.clone()), Instant::now(), true).await;
            outcome.unwrap().result
        };
        let other = id.key(Name::new("team", "b"));
        let target = Target {
            kind: KindId::Secret,
            name: Name::new("team", "s"),
        };
        *engine.cache.references() = References::new(2);
        engine.cache.references().set(&other, [target].into());
        engine.cache.update_dependents(Side::Tenant, id, &name);
        assert_eq!(reconcile().await, "no room for what it names");
        assert!(engine.cache.knows_all_users(), "it uses nothing on the host");
        scripted.put(Side::Host, id, &name, json!({"spec": {}}));
        engine.cache.update_dependents(Side::Host, id, &name);
        assert!(
            !engine.cache.knows_all_users(),
            "nothing leaves the host because nobody uses it"
        );
        engine.cache.stores.host(id).forget(&name);
        engine.cache.update_dependents(Side::Host, id, &name);
        assert!(engine.cache.knows_all_users());
        let events = scripted.calls("tenant PATCH /api/v1/namespaces/team/events/", "");
        assert_eq!(events.len(), 1);
        engine.cache.references().set(&other, BTreeSet::new());
        assert_eq!(reconcile().await, "created", "its kubelet waits for what it names");
        assert!(engine.cache.knows_all_users());
    }
}
