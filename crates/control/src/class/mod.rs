//! The `TenantClass` controller: says whether a class can be used and by how many tenants.
//!
//! What a class says reaches its tenants through their own reconciles, which a change of the class wakes.

mod fault;

pub use fault::fault;

use crate::{
    apply::is_status,
    context::Context,
    error::{ReconcileError, api},
    tenant::class_of,
};
use berth_api::{
    TenantClass, TenantClassStatus,
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
use std::time::Duration;

/// Brings what a class needs on the host to where it should be, and writes the class's status.
///
/// # Errors
/// The host refuses or does not answer.
pub async fn reconcile(context: &Context, name: &str) -> Result<Option<Duration>, ReconcileError> {
    let Some(class) = context.stores.classes.get(&ObjectRef::new(name)) else {
        return Ok(None);
    };
    let finding = judge(&class);
    write_status(context, &class, finding).await?;
    Ok(None)
}

fn judge(class: &TenantClass) -> Finding {
    match fault(&class.spec) {
        Some(fault) => Finding::no(READY, "InvalidRules", fault),
        None => Finding::yes(READY, "Ready", "tenants can use the class"),
    }
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
