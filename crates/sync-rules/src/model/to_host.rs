//! Rules of kinds that are synced from the tenant to the host, and what they are made of.

use super::{
    cache::Cache,
    denied_field::DeniedField,
    references::Target,
    resource::{Name, Resource},
    store::Stored,
};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::{collections::BTreeSet, time::Duration};

/// What should happen on the host for a tenant object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DesiredState {
    /// It should be on the host: create or update it.
    Sync,
    /// It was on the host and cannot be made again: if it is gone there, report that.
    Once,
    /// Leave the host object as it is, only sync its status.
    Leave,
    /// It should not be on the host.
    Absent,
}

/// The host object for a tenant object.
#[derive(Debug)]
pub struct Translated {
    /// Labels, annotations and content. The engine adds kind, name, namespace and origin.
    pub object: Value,
    /// Fields that have no effect here although they are valid; an Event says why.
    pub ignored: Vec<DeniedField>,
    /// What is denied although the rest is synced.
    pub parts: DeniedParts,
}

/// What is denied of an object whose rest is synced nevertheless, because the tenant could not correct it in this object.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DeniedParts {
    /// What was added and cannot be removed again. The host object is made without it; an Event says why.
    pub left_out: Vec<DeniedField>,
    /// What the host object has had since it was made, and what a new one would not get. An Event says so.
    pub kept: Vec<DeniedField>,
    /// The same of what can change: kept if the host object has it, which [`ToHost::is_on_host`] says, and otherwise denied.
    pub in_doubt: Vec<DeniedField>,
}

/// What becomes of a host object when the present state of the tenant's is denied.
#[derive(Debug, PartialEq)]
pub enum WhenDenied {
    /// It stays as it was when it was last accepted.
    Keep,
    /// It is deleted: it could lead traffic to what its neighbours have become meanwhile.
    Withdraw,
    /// It becomes this, which allows or exposes less.
    Reduce(Value),
    /// It is ended as a disruption: the tenant's pod gets the condition `DisruptionTarget` with this, and then the host's is deleted with its
    /// own grace period.
    End {
        /// Reason of the condition.
        reason: &'static str,
        /// Its message.
        message: String,
    },
}

/// A write to the host that brings an object up to date.
#[derive(Debug, PartialEq)]
pub enum HostWrite {
    /// Server-side apply of the whole object.
    Apply(Value),
    /// Merge patch of what differs from the live object that was read.
    Merge(Value),
    /// Strategic merge patch of a subresource, or of the object itself.
    Patch {
        /// The subresource; empty for the object itself.
        subresource: &'static str,
        /// The patch.
        patch: Value,
    },
}

/// A write to the tenant that reports the host's state.
#[derive(Clone, Debug, PartialEq)]
pub enum TenantWrite {
    /// Bind a pod to a node.
    Bind {
        /// Name of the node.
        node: String,
    },
    /// The status as it should be.
    Status(Value),
    /// A merge patch of the object itself, for what the host decides outside of the status. Written only if it changes
    /// something.
    Patch(Value),
    /// Nothing can be written yet: reconcile again after this time.
    Later(Duration),
}

/// The end of a tenant's object whose host object the host deletes.
#[derive(Debug, PartialEq)]
pub struct Removal {
    /// Reason and message of an Event about it; none if there is one already.
    pub event: Option<(&'static str, String)>,
}

/// How a kind's host objects are created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creation {
    /// By server-side apply: the host records which fields are the syncer's, so that later applies remove exactly those.
    Apply,
    /// By a plain create, which costs the API server half as much. For kinds with many objects, which record themselves
    /// what later updates may remove.
    Post,
}

/// What `sync_status` works on.
pub struct Observation<'a> {
    /// The object in the tenant.
    pub tenant: &'a Value,
    /// The object on the host, trimmed.
    pub host: &'a Value,
    /// Whether the host has the tenant's current spec.
    pub in_sync: bool,
    /// The fields of the current spec that are denied.
    pub denied: &'a [DeniedField],
    /// Now, for conditions that flip.
    pub now: Timestamp,
}

/// Rules of a kind that goes from the tenant to the host.
pub trait ToHost: Sync {
    /// The API resource, the same on both sides.
    fn resource(&self) -> Resource;

    /// What should happen on the host for a tenant object. `object` is what the store keeps.
    fn desired_state(&self, cache: &Cache, name: &Name, object: &Value) -> DesiredState;

    /// Objects of the tenant that this one names and that are synced to the host because of it: ConfigMaps, Secrets and
    /// objects of other kinds whose `desired_state` reads [`Cache::references`]. They need not exist.
    fn references(&self, _cache: &Cache, _name: &Name, _object: &Value) -> BTreeSet<Target> {
        BTreeSet::new()
    }

    /// Whether an object of [`ToHost::references`] must be on the host before this one is created.
    fn is_prerequisite(&self, _target: &Target) -> bool {
        true
    }

    /// Objects that must be on the host before this one is created.
    fn prerequisites(&self, cache: &Cache, name: &Name, object: &Value) -> Vec<crate::model::resource::Key> {
        // A reference to something that does not exist does not block: what uses it on the host waits and reports that.
        self.references(cache, name, object)
            .into_iter()
            .filter(|target| self.is_prerequisite(target))
            .filter(|target| cache.stores.tenant(target.kind).contains(&target.name))
            .map(|target| target.kind.key(target.name))
            .collect()
    }

    /// The host object for a tenant object.
    ///
    /// # Errors
    /// The denied fields.
    fn translate(&self, cache: &Cache, name: &Name, object: &Value) -> Result<Translated, Vec<DeniedField>>;

    /// The host object as it is created for a tenant object: some fields can only be added afterwards, others are on record only of
    /// what was true at creation. One call makes both the object and the record, so that they cannot be of different moments.
    ///
    /// # Errors
    /// The denied fields.
    fn translate_new(&self, cache: &Cache, name: &Name, object: &Value) -> Result<Translated, Vec<DeniedField>> {
        self.translate(cache, name, object)
    }

    /// An annotation of the host object that says what its spec does not say, whenever `object` is written. It is in no hash: nothing is written because of it.
    fn record(&self, _cache: &Cache, _name: &Name, _object: &Value) -> Option<(&'static str, &'static str)> {
        None
    }

    /// How host objects are created.
    fn creation(&self) -> Creation {
        Creation::Apply
    }

    /// The part of a host object that may still change once it exists. Its hash decides whether there is anything to
    /// write.
    fn mutable_part(&self, desired: &Value) -> Value {
        desired.clone()
    }

    /// How many requests controllers of the host make because a host object becomes `desired`, or what else that costs all tenants, as a number of these. They
    /// make a few a second for all tenants together, so writes wait if they are too many. `is_new` says whether the object is made, or one that exists is changed.
    fn controller_requests(&self, _desired: &Value, _is_new: bool) -> u64 {
        0
    }

    /// Whether a field that is ignored is one that others set later, such as a scheduler. It is reported although nothing of the host
    /// object changes.
    fn is_decided_later(&self, _field: &str) -> bool {
        false
    }

    /// Whether the host object `live` has a field of `desired` that is [in doubt](DeniedParts::in_doubt).
    fn is_on_host(&self, _field: &str, _desired: &Value, _live: &Value) -> bool {
        false
    }

    /// Whether [`ToHost::update`] needs the live host object.
    fn update_needs_live(&self) -> bool {
        false
    }

    /// Writes that bring the host object up to date; the engine adds hash and preconditions. `live` is null unless
    /// [`ToHost::update_needs_live`].
    fn update(&self, desired: Value, _live: &Value) -> Vec<HostWrite> {
        vec![HostWrite::Apply(desired)]
    }

    /// Fields of the spec that are the syncer's alone: what somebody else has set of them, under another field manager, is removed whenever the host object
    /// is written, and the first time that it is compared after a start. API servers and controllers of the host set none of them. Only of kinds that are applied.
    fn exclusive_fields(&self) -> &'static [&'static str] {
        &[]
    }

    /// A merge patch that removes what somebody else has set of [these fields](Self::exclusive_fields) from the host object, which is like `written` after
    /// `desired` was applied. `None` if there is nothing.
    fn without_foreign_fields(&self, desired: &Value, written: &Value) -> Option<Value> {
        let is_set = |object: &Value, field: &str| object["spec"].get(field).is_some_and(|value| !value.is_null());
        let fields = self.exclusive_fields().iter();
        let foreign = fields.filter(|field| is_set(written, field) && !is_set(desired, field));
        let removed: Map<String, Value> = foreign.map(|field| ((*field).to_owned(), Value::Null)).collect();
        (!removed.is_empty()).then(|| json!({ "spec": removed }))
    }

    /// Whether the host object can never become what it should be, as `refusal`, the host's answer to an update, says. It is deleted then, and created again.
    fn must_replace_after(&self, _refusal: &str) -> bool {
        false
    }

    /// A merge patch of the host object `live` with what [`ToHost::update`] writes after subresources, for a host that refuses one of these; `None` if
    /// there is nothing. It does not say that `desired` was applied.
    fn rest_of_update(&self, _desired: &Value, _live: &Value) -> Option<Value> {
        None
    }

    /// A merge patch of the host object `live` with the part of `desired` that must reach it although the host refuses the rest or has no room for it;
    /// `None` if there is none. Only of kinds with [`ToHost::update_needs_live`].
    fn closing_patch(&self, _desired: &Value, _live: &Value) -> Option<Value> {
        None
    }

    /// The part of [`ToHost::closing_patch`] that does not wait for its turn to be written: it can only be needed again after something else was
    /// written that did wait.
    fn isolating_patch(&self, _desired: &Value, _live: &Value) -> Option<Value> {
        None
    }

    /// What of `desired` decides about [`ToHost::isolating_patch`]: while it is the same, so is the patch of the same host object.
    fn isolation(&self, _desired: &Value) -> Value {
        Value::Null
    }

    /// What [`ToHost::closing_patch`] and [`ToHost::isolating_patch`] take for `desired` while the host object is being deleted, whatever of the tenant's
    /// object is denied by now. Nothing else of it is updated then. `host` is what the store keeps of it. `None` of kinds that nothing closes.
    fn closed_while_ending(&self, _cache: &Cache, _name: &Name, _object: &Value, _host: &Value) -> Option<Value> {
        None
    }

    /// Whether changes of objects of this kind can take something away that must not stay until it is their turn to be written, or although they are
    /// refused: see [`ToHost::narrowed`]. Only of kinds that are applied.
    fn narrows_at_once(&self) -> bool {
        false
    }

    /// What is written at once of a change from the host object `live` to `desired`: `live` without what `desired` has not, if there is such a
    /// thing, and nothing that `live` has not, because no limit applies. Annotations are left out, or stay as they are in `live` where they may close
    /// something. It can only be needed again after something was added, by a write that did wait.
    fn narrowed(&self, _desired: &Value, _live: &Value) -> Option<Value> {
        None
    }

    /// What is reserved of `desired`: the host object before the tenant's object is stored. The tenant's API server may still reject that object,
    /// so a reservation has no effect besides what it allocates. `live` is the host object of the same object of the tenant, if there is one.
    fn reserved(&self, desired: Value, _live: Option<&Value>) -> Value {
        desired
    }

    /// Whether a host object has no effect because it is only reserved, or taken back for a while.
    fn is_inert(&self, _host: &Stored) -> bool {
        false
    }

    /// What an API server has allocated to an object, if objects of this kind are reserved on the host before the
    /// tenant's object is stored.
    fn allocated(&self, _object: &Value) -> Value {
        Value::Null
    }

    /// Whether the host object `live` must be replaced, because it cannot be updated to the desired one.
    fn must_replace(&self, _desired: &Value, _live: &Value) -> bool {
        false
    }

    /// Writes to the host object's status, for what the tenant decides there.
    fn host_status(&self, _tenant: &Value, _host: &Value) -> Option<Value> {
        None
    }

    /// Writes to the tenant that report the host object's state.
    fn sync_status(&self, _cache: &Cache, _name: &Name, _observation: &Observation<'_>) -> Vec<TenantWrite> {
        Vec::new()
    }

    /// What becomes of the host object if the rules here deny the present state of the tenant's. `host` is what the store keeps of it.
    fn when_denied(&self, _cache: &Cache, _name: &Name, _object: &Value, _host: &Value) -> WhenDenied {
        WhenDenied::Keep
    }

    /// The same if the host refuses what the rules here allow.
    fn when_refused(&self, cache: &Cache, name: &Name, object: &Value, host: &Value) -> WhenDenied {
        self.when_denied(cache, name, object, host)
    }

    /// Whether the host object becomes `reduced`, to which [`ToHost::when_denied`] reduces it, without waiting for its turn to be written. Only if it loses
    /// something by that which comes back by a write that waits, or seldom: a team may change what is denied all the time.
    fn reduces_at_once(&self, _cache: &Cache, _name: &Name, _reduced: &Value) -> bool {
        false
    }

    /// Status of a tenant object whose spec is denied and which is not on the host; `None` if the kind has no place
    /// to say so.
    fn denied_status(
        &self,
        _cache: &Cache,
        _name: &Name,
        _object: &Value,
        _denied: &[DeniedField],
        _now: Timestamp,
    ) -> Option<Value> {
        None
    }

    /// Status of a tenant object that is not on the host for another reason than its spec; `None` if the kind has no place
    /// to say so.
    fn not_synced_status(&self, _object: &Value, _reason: &str, _message: &str, _now: Timestamp) -> Option<Value> {
        None
    }

    /// Status of a tenant object whose host object is gone for good; `tombstone` is its last state, if it was observed.
    fn lost_status(
        &self,
        _cache: &Cache,
        _name: &Name,
        _object: &Value,
        _tombstone: Option<&Value>,
        _now: Timestamp,
    ) -> Option<Value> {
        None
    }

    /// Whether the status of a tenant object says that the host deletes its own object, so that the tenant's is deleted as well; `None` if it does
    /// not, or if the tenant deletes its object already.
    fn removal(&self, _object: &Value) -> Option<Removal> {
        None
    }

    /// Grace period for host objects whose tenant object is gone or was replaced; `None` for kinds without grace.
    fn orphan_grace(&self) -> Option<u32> {
        None
    }

    /// Longest grace period on the host, whatever a deletion in the tenant says; `None` for kinds without grace.
    fn max_grace(&self, _cache: &Cache) -> Option<u32> {
        None
    }

    /// Whether what may change in the host object depends on the status of either object, or on the node in its spec. If not, it is not
    /// translated again when nothing else has changed.
    fn follows_own_status(&self) -> bool {
        true
    }

    /// Whether a host object must be deleted only if it is still as it was seen.
    fn deletes_only_this_version(&self, _host: &Stored) -> bool {
        false
    }

    /// Whether the host object must not be deleted yet, whatever becomes of the tenant's: another one on the host needs it.
    fn is_needed_on_host(&self, _cache: &Cache, _name: &Name) -> bool {
        false
    }

    /// Whether data is lost with the host object, so that it stays while it is not known what the tenant's object asks for: see [`Stored::is_cut`]. One that the
    /// syncer has not made stays as well. Only of kinds whose host objects stay if the tenant's are denied.
    fn holds_data(&self) -> bool {
        false
    }

    /// Whether a deletion in the tenant waits for the syncer, as a pod's waits for its kubelet.
    fn finishes_deletion(&self) -> bool {
        false
    }
}
