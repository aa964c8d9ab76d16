//! The status of a `TenantClass`.

use super::{TenantClassContext, TenantClassError, Usable, hostnames, images};
use crate::{
    apply::is_status,
    error::api,
    status_write::{StatusTarget, write_status},
};
use berth_api::{
    TenantClass, TenantClassSpec, TenantClassStatus,
    conditions::{self, ConditionUpdate, READY},
    crd,
};
use kube::{
    Resource, ResourceExt,
    runtime::{
        events::{Event, EventType},
        reflector::ObjectRef,
    },
};
use std::{collections::BTreeSet, sync::LazyLock};

/// All fields of the status.
static FIELDS: LazyLock<BTreeSet<String>> = LazyLock::new(crd::status_fields::<TenantClass>);

/// The reason of Ready for a class with a schedule of snapshots, and no place for these.
const NO_SNAPSHOT_STORE: &str = "NoSnapshotStore";

/// Ready, for a class whose rules contradict each other.
pub(super) fn invalid_rules(message: String) -> ConditionUpdate {
    ConditionUpdate::mark_false(READY, "InvalidRules", message)
}

/// Ready, for a class whose rules are valid. `taken` are names of PriorityClasses that others use.
pub(super) async fn usability(
    context: &TenantClassContext,
    spec: &TenantClassSpec,
    taken: &BTreeSet<String>,
) -> Result<ConditionUpdate, TenantClassError> {
    if !taken.is_empty() {
        let names: Vec<&str> = taken.iter().map(String::as_str).collect();
        return Ok(ConditionUpdate::mark_false(
            READY,
            "NameTaken",
            format!(
                "PriorityClasses of these names exist and are not Berth's: {}; delete them, or give the class another \
                 name",
                names.join(", ")
            ),
        ));
    }
    let available = context.runtime.versions();
    if !spec.versions.is_empty() && !spec.versions.iter().any(|version| available.contains(version)) {
        return Ok(ConditionUpdate::mark_false(
            READY,
            "VersionsNotAvailable",
            format!(
                "none of spec.versions can be run here; add one of {}",
                available.join(", ")
            ),
        ));
    }
    let default = spec.default_version.as_ref();
    if let Some(version) = default.filter(|version| !available.contains(version)) {
        let mut usable = available;
        usable.retain(|version| spec.allows_version(version));
        return Ok(ConditionUpdate::mark_false(
            READY,
            "DefaultVersionNotAvailable",
            format!(
                "spec.defaultVersion: Kubernetes {version} cannot be run here, so that new tenants without spec.version are not accepted; set it to one \
                 of {}",
                usable.join(", ")
            ),
        ));
    }
    if !context.has_admission_policies && !spec.sync.pods.capabilities.is_empty() {
        return Ok(ConditionUpdate::mark_false(
            READY,
            "CapabilitiesNotGiven",
            "spec.sync.pods.capabilities: Berth's admission policies are not installed, which would enforce the rest of the Pod Security \
             level baseline; tenants run without the capabilities. Set admissionPolicies.enabled=true in the values of the chart, or remove the field",
        ));
    }
    for kind in &spec.sync.kinds {
        let usable = context
            .kinds
            .usable(kind)
            .await
            .map_err(TenantClassError::SyncedKinds)?;
        let (reason, why) = match usable {
            Usable::Yes => continue,
            Usable::NotServed(why) => ("KindNotServed", why),
            Usable::NotPermitted(why) => ("KindNotPermitted", why),
        };
        return Ok(ConditionUpdate::mark_false(
            READY,
            reason,
            format!(
                "spec.sync.kinds: {}.{}: {why}; tenants run without it",
                kind.kind, kind.group
            ),
        ));
    }
    if !context.has_snapshot_store && spec.snapshots.schedule.is_some() {
        return Ok(ConditionUpdate::mark_false(
            READY,
            NO_SNAPSHOT_STORE,
            "spec.snapshots.schedule: Berth has no object store for snapshots, so that no tenant of the class gets any; set snapshots.url in the values of \
             the chart, or remove the schedule. Tenants run without snapshots",
        ));
    }
    Ok(ConditionUpdate::mark_true(READY, "Ready", "tenants can use the class"))
}

/// Writes the status if it differs from the one there is.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn write(
    context: &TenantClassContext,
    class: &TenantClass,
    ready: ConditionUpdate,
) -> Result<(), TenantClassError> {
    let name = class.name_any();
    let before = class.status.clone().unwrap_or_default();
    let generation = class.metadata.generation;
    let exists = |name: &str| context.stores.classes.get(&ObjectRef::new(name)).is_some();
    let all = context.stores.tenants.state();
    let tenants = hostnames::tenants_of(all.iter().map(AsRef::as_ref), &name, exists);
    let sync = &class.spec.sync;
    let hostnames = hostnames::exclusiveness(&sync.ingress.hostnames, &tenants);
    let images = images::exclusiveness(sync.pods.images.as_deref(), &tenants);
    let after = TenantClassStatus {
        observed_generation: generation,
        tenants: Some(u32::try_from(tenants.len()).unwrap_or(u32::MAX)),
        conditions: conditions::merge(
            &before.conditions,
            &[ready, hostnames, images],
            generation,
            context.clock.now(),
        ),
    };
    if before == after {
        return Ok(());
    }
    let target = StatusTarget::of(class);
    match write_status::<TenantClass>(&context.client, target, &FIELDS, &after).await {
        Ok(()) => {
            if let Some(event) = find_event(&before, &after) {
                context.recorder.publish(&event, &class.object_ref(&())).await;
            }
            Ok(())
        }
        Err(error) if is_status(&error, 404) || is_status(&error, 409) => Ok(()),
        Err(error) => Err(TenantClassError::Status(api("write the status of a class")(error))),
    }
}

/// The Event about snapshots that are missing from now on: nothing fails, and who does not look at the class would notice it when a snapshot is needed.
fn find_event(before: &TenantClassStatus, after: &TenantClassStatus) -> Option<Event> {
    let without_store = |status: &TenantClassStatus| {
        let mut conditions = status.conditions.iter();
        let found = conditions.find(|condition| condition.type_ == READY && condition.reason == NO_SNAPSHOT_STORE);
        found.map(|condition| condition.message.clone())
    };
    if without_store(before).is_some() {
        return None;
    }
    Some(Event {
        type_: EventType::Warning,
        reason: NO_SNAPSHOT_STORE.into(),
        note: Some(without_store(after)?),
        action: "CheckClass".into(),
        secondary: None,
    })
}
