//! The manifests of the class in the tenant: what is there is made to match them.
//!
//! Which objects that are is recorded in a ConfigMap in the control-plane namespace on the host.

use super::{
    super::{
        build::host_objects,
        context::TenantContext,
        manifests::{
            Done, Inventory, LastPass, Manifest, ManifestMemory, ManifestsState, ObservedManifests, PASS_LIMIT, Pass,
            Problem, digest, drift_events, resolve, taken_back_event,
        },
        target::Tenant,
    },
    Accepted,
};
use crate::{
    apply::{Applier, is_too_large, optional},
    error::{ReconcileError, api},
};
use berth_api::system;
use berth_kubernetes_versions::features;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Resource, runtime::reflector::ObjectRef};
use std::time::Duration;
use tokio::time::Instant;

/// Pause after a pass that failed, or whose deletions are not complete.
const RETRY: Duration = Duration::from_secs(10);
/// Name of the ConfigMap in the control-plane namespace.
const RECORD: &str = "manifests";
/// Its one key.
const KEY: &str = "inventory.json";

/// Makes the tenant's objects match the manifests of its class. What fails is in the state: it stops nothing else.
pub(super) async fn keep_manifests(
    context: &TenantContext,
    accepted: &Accepted,
    applier: &Applier,
) -> ObservedManifests {
    let Accepted {
        tenant,
        settings,
        // Pods that the manifests make wait like all others.
        schedule: _,
        ceilings: _,
    } = accepted;
    let find = |name: &str| {
        let reference = ObjectRef::new(name).within(system::NAMESPACE);
        context.stores.manifests.get(&reference)
    };
    let manifests = resolve(&settings.manifests, find, &context.tenants.manifests);
    let mut memory = tenant.memory.manifests.lock().await;
    let digest = digest(&manifests);
    if let Some(state) = memory.current_state(&digest) {
        return ObservedManifests::Observed(state);
    }
    let before = tenant.cluster.status.as_ref();
    let before = before.map(|status| status.manifests.clone()).unwrap_or_default();
    let done = match make_match(context, accepted, applier, &manifests, &mut memory).await {
        Ok(None) => return ObservedManifests::NoManifests,
        Ok(Some(done)) => done,
        Err(error) => failed(&error),
    };
    let mut events = drift_events(&done.drift);
    events.extend(taken_back_event(&done.taken_back));
    for event in events {
        context.recorder.publish(&event, &tenant.cluster.object_ref(&())).await;
    }
    // API servers follow their APIServices a moment later.
    let is_complete = done.problems.is_empty() && !done.is_deleting && done.taken_back.is_empty();
    let state = ManifestsState::new(&manifests, done, &before, context.clock.now());
    if is_complete && state.is_applied() {
        memory.last = Some(LastPass {
            digest,
            at: Instant::now(),
            state: state.clone(),
        });
    } else {
        memory.last = None;
        context.queue.add_after(tenant.key(), RETRY);
    }
    ObservedManifests::Observed(state)
}

/// Whether nobody in the tenant can register another server for groups that API servers serve themselves: all of its API servers have the
/// policy (`control_plane::admission::own_apis`).
fn protects_own_groups(accepted: &Accepted) -> bool {
    let status = accepted.tenant.cluster.status.as_ref();
    let running = status.and_then(|status| status.version.as_deref());
    let versions = [Some(accepted.settings.version.as_str()), running];
    versions.into_iter().flatten().all(features::static_admission_policies)
}

/// A pass that could not be made.
fn failed(error: &ReconcileError) -> Done {
    let reason = match error {
        ReconcileError::Blocked { reason, .. } => *reason,
        _ => "InventoryFailed",
    };
    Done {
        problems: vec![(String::new(), Problem::new(reason, error.to_string()))],
        ..Done::default()
    }
}

/// One pass, with the record of what it applies before and after it. None: there is nothing to apply, nor to delete.
async fn make_match(
    context: &TenantContext,
    accepted: &Accepted,
    applier: &Applier,
    manifests: &[Manifest],
    memory: &mut ManifestMemory,
) -> Result<Option<Done>, ReconcileError> {
    let tenant = &accepted.tenant;
    let recorded = match memory.inventory.take() {
        Some(recorded) => recorded,
        None => load_inventory(context, tenant).await?,
    };
    if manifests.is_empty() && recorded.is_empty() {
        memory.inventory = Some(recorded);
        return Ok(None);
    }
    let planned = recorded.with(manifests);
    if planned != recorded {
        store_inventory(tenant, &planned).await?;
    }
    let protects_own = protects_own_groups(accepted);
    let pass = Pass::new(applier.client(), &mut memory.applied, planned.clone(), protects_own);
    let pass = Box::pin(pass.run(manifests));
    // One that is cut off notes no kind that was too slow, and would come no further the next time.
    let Some(done) = tenant.slot.lend_in_full(PASS_LIMIT, pass).await else {
        memory.inventory = Some(planned);
        return Err(ReconcileError::Blocked {
            reason: "APIServerSlow",
            message: format!(
                "the tenant's API server did not accept the manifests of the class within {} s; look for webhooks in the tenant that \
                 do not answer. Berth tries again",
                PASS_LIMIT.as_secs()
            ),
        });
    };
    if done.inventory != planned {
        store_inventory(tenant, &done.inventory).await?;
    }
    memory.inventory = Some(done.inventory.clone());
    Ok(Some(done))
}

/// What was recorded last.
async fn load_inventory(context: &TenantContext, tenant: &Tenant) -> Result<Inventory, ReconcileError> {
    let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), &tenant.id.control_plane_namespace());
    let map = optional(maps.get(RECORD).await).map_err(api("read which manifests were applied"))?;
    let Some(text) = map.and_then(|map| map.data?.remove(KEY)) else {
        return Ok(Inventory::default());
    };
    serde_json::from_str(&text).map_err(|error| ReconcileError::Blocked {
        reason: "InventoryInvalid",
        message: format!(
            "ConfigMap {}/{RECORD} of the host, which lists what was applied in the tenant, cannot be read: {error}; delete it, \
             and in the tenant the objects that no manifest has any more",
            tenant.id.control_plane_namespace()
        ),
    })
}

/// Records what is applied. It grows with each version of the manifests as long as something in the tenant keeps what no manifest has any more.
async fn store_inventory(tenant: &Tenant, inventory: &Inventory) -> Result<(), ReconcileError> {
    let text = serde_json::to_string(inventory).unwrap_or_default();
    let map = host_objects::config_map(&tenant.cluster, &tenant.id, RECORD, [(KEY.into(), text)].into());
    match tenant.memory.host.apply(&map).await {
        Err(error) if is_too_large(&error.source) => Err(ReconcileError::Blocked {
            reason: "InventoryTooLarge",
            message: format!(
                "ConfigMap {}/{RECORD} of the host has no room for the {} objects that were applied in the tenant: objects that no manifest \
                 has any more are listed until they are deleted. Nothing is applied meanwhile. Look in the tenant for what keeps them, such as \
                 finalizers and servers that do not delete",
                tenant.id.control_plane_namespace(),
                inventory.kept.len()
            ),
        }),
        applied => Ok(applied?),
    }
}
