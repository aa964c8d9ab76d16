//! What goes from the watches into the planner, and what of the plan concerns tenants.

use super::{
    demand::Needs,
    fleet::{Input, TenantInput, build},
    idle,
};
use crate::{
    apply::is_status,
    context::{Context, Key},
    controllers::{tenant::Validator, tenant_class::class_of},
    error::{ReconcileError, api},
    nodes::requests,
};
use berth_planner::{Fleet, NodeState, Plan};
use futures::{TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::reflector::ObjectRef,
};

/// How many nodes are written at once.
const AT_ONCE: usize = 16;

/// The fleet as the watches know it, and what stands behind its demand.
pub fn fleet(context: &Context, now: Timestamp) -> (Fleet, Needs) {
    let stores = &context.stores;
    let validator = Validator::new(stores, context.runtime.as_ref(), &context.network_config);
    let tenants = stores.tenants.state().into_iter().map(|cluster| TenantInput {
        accepted: validator.accepts(&cluster),
        gone: cluster.meta().deletion_timestamp.is_some()
            && cluster.uid().is_some_and(|uid| context.tenants.workloads_gone(&uid)),
        class: class_of(&cluster, |name| stores.classes.get(&ObjectRef::new(name)).is_some()),
        cluster,
    });
    let platform = |node: &str| {
        let mut used = requests::Requests::new();
        for of_pod in stores.usage.of(node).values() {
            requests::add(&mut used, of_pod);
        }
        used
    };
    build(&Input {
        now,
        nodes: stores.nodes.state(),
        pools: stores.pools.state(),
        classes: stores.classes.state(),
        tenants: tenants.collect(),
        workloads: stores.workloads.all(),
        platform: &platform,
        devices: &stores.devices,
        idle: &context.idle,
        refusals: &context.refusals,
    })
}

/// Keeps what the plan says of each tenant, and has those told of whom it says something new.
pub fn tell(context: &Context, plan: &Plan) {
    let changed = context.tenants.set_node_group_plans(&plan.node_groups);
    if changed.is_empty() {
        return;
    }
    for cluster in context.stores.tenants.state() {
        if cluster.uid().is_some_and(|uid| changed.contains(&uid)) {
            context.queue.add(Key::Tenant {
                namespace: cluster.namespace().unwrap_or_default(),
                name: cluster.name_any(),
            });
        }
    }
}

/// Writes on nodes since when they are idle, where that changed.
///
/// # Errors
/// The host's API server refuses or does not answer.
pub async fn write_idle(context: &Context, fleet: &Fleet) -> Result<(), ReconcileError> {
    let nodes: Api<Node> = Api::all(context.client.clone());
    let changed = fleet.nodes.iter().filter_map(|planned| {
        if !matches!(planned.state, NodeState::Owned(_)) {
            return None;
        }
        let node = context.stores.nodes.get(&ObjectRef::new(&planned.name))?;
        Some((&planned.name, idle::patch(&node, planned.idle_since)?))
    });
    // The next plan is not made before this is done.
    stream::iter(changed.map(Ok))
        .try_for_each_concurrent(AT_ONCE, async |(name, body)| {
            match nodes.patch(name, &PatchParams::default(), &Patch::Merge(&body)).await {
                Ok(_) => Ok(()),
                // It changed meanwhile: the next plan writes it.
                Err(error) if is_status(&error, 409) || is_status(&error, 404) => Ok(()),
                Err(error) => match api("write since when a node is idle")(error) {
                    // It is counted in memory all the same.
                    error if error.refusal().is_some() => {
                        tracing::debug!(node = name, %error, "not written");
                        Ok(())
                    }
                    error => Err(error),
                },
            }
        })
        .await
}
