//! The objects that the platform applies in tenants: `spec.manifests` of a class.
//!
//! [`desired`] are the manifests with their objects, [`inventory`] is what was applied, [`apply`] is a pass over the tenant, and
//! [`state`] what the status says of it. The objects of a manifest in mode Keep carry a label by which the tenant's API server knows them
//! (`control_plane::platform_objects`).

mod altered;
mod apply;
mod desired;
mod inventory;
mod objects;
mod state;

pub(super) use desired::ParsedManifests;
pub(super) use state::{ManifestsState, ObservedManifests};

use super::{apply::Accepted, context::TenantContext, target::Tenant};
use crate::{apply::Applier, error::ReconcileError};
use apply::{AppliedObjects, Done, Pass};
use berth_api::system;
use desired::{Manifest, Problem};
use inventory::Inventory;
use kube::{Resource, runtime::reflector::ObjectRef};
use std::time::Duration;
use tokio::time::Instant;

/// Age of a pass after which the tenant is looked at again, although nothing changed on the host.
const PERIOD: Duration = Duration::from_secs(60);
/// Pause after a pass that failed, or whose deletions are not complete.
const RETRY: Duration = Duration::from_secs(10);
/// Time for a pass. A tenant's webhooks may answer late; the next pass does the rest.
const PASS_LIMIT: Duration = Duration::from_secs(20);

/// What is remembered of a tenant between passes.
#[derive(Default)]
pub(super) struct ManifestMemory {
    /// As it is recorded; none until it was read.
    inventory: Option<Inventory>,
    applied: AppliedObjects,
    /// The last pass that did everything.
    last: Option<LastPass>,
}

struct LastPass {
    digest: String,
    at: Instant,
    state: ManifestsState,
}

impl ManifestMemory {
    /// The state after the last pass, if another would not differ.
    fn current_state(&self, digest: &str) -> Option<ManifestsState> {
        let last = self.last.as_ref()?;
        (last.digest == digest && last.at.elapsed() < PERIOD).then(|| last.state.clone())
    }
}

/// Makes the tenant's objects match the manifests of its class. What fails is in the state: it stops nothing else.
pub(super) async fn keep_manifests(
    context: &TenantContext,
    accepted: &Accepted,
    applier: &Applier,
) -> ObservedManifests {
    let Accepted { tenant, settings } = accepted;
    let find = |name: &str| {
        let reference = ObjectRef::new(name).within(system::NAMESPACE);
        context.stores.manifests.get(&reference)
    };
    let manifests = desired::resolve(&settings.manifests, find, &context.tenants.manifests);
    let mut memory = tenant.memory.manifests.lock().await;
    let digest = desired::digest(&manifests);
    if let Some(state) = memory.current_state(&digest) {
        return ObservedManifests::Observed(state);
    }
    let before = tenant.cluster.status.as_ref();
    let before = before.map(|status| status.manifests.clone()).unwrap_or_default();
    let done = match make_match(context, tenant, applier, &manifests, &mut memory).await {
        Ok(None) => return ObservedManifests::NoManifests,
        Ok(Some(done)) => done,
        Err(error) => failed(&error),
    };
    for event in state::drift_events(&done.drift) {
        context.recorder.publish(&event, &tenant.cluster.object_ref(&())).await;
    }
    let is_complete = done.problems.is_empty() && !done.is_deleting;
    let state = ManifestsState::new(&manifests, done, &before, jiff::Timestamp::now());
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
    tenant: &Tenant,
    applier: &Applier,
    manifests: &[Manifest],
    memory: &mut ManifestMemory,
) -> Result<Option<Done>, ReconcileError> {
    let recorded = match memory.inventory.take() {
        Some(recorded) => recorded,
        None => inventory::load(context, tenant).await?,
    };
    if manifests.is_empty() && recorded.is_empty() {
        memory.inventory = Some(recorded);
        return Ok(None);
    }
    let planned = recorded.with(manifests);
    if planned != recorded {
        inventory::store(tenant, &planned).await?;
    }
    let pass = Pass::new(applier.client(), &mut memory.applied, planned.clone()).run(manifests);
    let Some(done) = tenant.slot.lend(PASS_LIMIT, pass).await else {
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
        inventory::store(tenant, &done.inventory).await?;
    }
    memory.inventory = Some(done.inventory.clone());
    Ok(Some(done))
}
