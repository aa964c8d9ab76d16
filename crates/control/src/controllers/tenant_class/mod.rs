//! The `TenantClass` controller: makes what a class needs on the host, and says whether the class can be used and by how
//! many tenants.
//!
//! What a class says reaches its tenants through their own reconciles, which a change of the class wakes.

mod fault;
mod kinds;
mod priorities;

pub use fault::fault;
pub use kinds::{KnownKinds, SyncerRules, Usable};

use crate::{
    apply::is_status,
    context::Context,
    controllers::tenant::class_of,
    error::{ReconcileError, api},
};
use berth_api::{
    TenantClass, TenantClassSpec, TenantClassStatus,
    conditions::{self, Finding, READY},
    labels,
};
use jiff::Timestamp;
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::reflector::ObjectRef,
};
use serde_json::json;
use std::{collections::BTreeSet, time::Duration};

/// Pause after which it is looked again whether the host serves what a class lists.
const RESYNC: Duration = Duration::from_secs(60);
/// The same for a class that lists something that is not there.
const RECHECK: Duration = Duration::from_secs(10);

/// Brings what a class needs on the host to where it should be, and writes the class's status.
///
/// # Errors
/// The host refuses or does not answer.
pub async fn reconcile(context: &Context, name: &str) -> Result<Option<Duration>, ReconcileError> {
    let Some(class) = context.stores.classes.get(&ObjectRef::new(name)) else {
        // Tenants go on with the rules they had, and their pods go on to name these.
        if !is_remembered(context, name) {
            priorities::ensure(context, name, None).await?;
        }
        return Ok(None);
    };
    let finding = if let Some(fault) = fault(&class.spec) {
        Finding::no(READY, "InvalidRules", fault)
    } else {
        let taken = priorities::ensure(context, name, class.spec.sync.pods.priority).await?;
        judge(context, &class.spec, &taken).await?
    };
    let pause = if finding.is_true() { RESYNC } else { RECHECK };
    write_status(context, &class, finding).await?;
    Ok(Some(pause))
}

/// Whether a tenant runs with the rules of a class that is gone.
fn is_remembered(context: &Context, name: &str) -> bool {
    let tenants = context.stores.tenants.state();
    tenants
        .iter()
        .any(|tenant| tenant.status.as_ref().and_then(|status| status.class_name.as_deref()) == Some(name))
}

/// What is to be said of a class whose rules are consistent.
async fn judge(context: &Context, spec: &TenantClassSpec, taken: &BTreeSet<String>) -> Result<Finding, ReconcileError> {
    if !taken.is_empty() {
        let names: Vec<&str> = taken.iter().map(String::as_str).collect();
        return Ok(Finding::no(
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
        return Ok(Finding::no(
            READY,
            "VersionsNotAvailable",
            format!(
                "none of spec.versions can be run here; add one of {}",
                available.join(", ")
            ),
        ));
    }
    for kind in &spec.sync.kinds {
        let (reason, why) = match context.kinds.usable(context, kind).await? {
            Usable::Yes => continue,
            Usable::NotServed(why) => ("KindNotServed", why),
            Usable::NotPermitted(why) => ("KindNotPermitted", why),
        };
        return Ok(Finding::no(
            READY,
            reason,
            format!(
                "spec.sync.kinds: {}.{}: {why}; tenants run without it",
                kind.kind, kind.group
            ),
        ));
    }
    Ok(Finding::yes(READY, "Ready", "tenants can use the class"))
}

/// Tenants to which the rules of a class apply.
fn tenants(context: &Context, name: &str) -> usize {
    let exists = |name: &str| context.stores.classes.get(&ObjectRef::new(name)).is_some();
    let all = context.stores.tenants.state();
    all.iter()
        .filter(|tenant| class_of(tenant, exists).as_deref() == Some(name))
        .count()
}

async fn write_status(context: &Context, class: &TenantClass, finding: Finding) -> Result<(), ReconcileError> {
    let name = class.name_any();
    let before = class.status.clone().unwrap_or_default();
    let generation = class.metadata.generation;
    let after = TenantClassStatus {
        observed_generation: generation,
        tenants: Some(u32::try_from(tenants(context, &name)).unwrap_or(u32::MAX)),
        conditions: conditions::merge(&before.conditions, &[finding], generation, Timestamp::now()),
    };
    if before == after {
        return Ok(());
    }
    let classes: Api<TenantClass> = Api::all(context.client.clone());
    let body = json!({
        "apiVersion": TenantClass::api_version(&()), "kind": TenantClass::kind(&()),
        "metadata": {"name": name, "uid": class.uid()}, "status": after,
    });
    let params = PatchParams::apply(labels::CONTROL_MANAGER).force();
    match classes.patch_status(&name, &params, &Patch::Apply(&body)).await {
        Ok(_) => Ok(()),
        Err(error) if is_status(&error, 404) || is_status(&error, 409) => Ok(()),
        Err(error) => Err(api("write the status of a class")(error)),
    }
}
