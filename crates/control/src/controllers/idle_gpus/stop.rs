//! The last step for owners in the tenant: they are scaled to zero or suspended, and what they were is recorded on them, in one patch.
//!
//! Before an owner is stopped it is listed in the status of the `TenantCluster`. A process that dies in between leaves an owner that is
//! listed and was not stopped, which the next pass removes from the list.

use super::{
    IdleGpusContext,
    inside::TENANT_LIMIT,
    owners::{OwnerKey, TenantObjects},
    status,
    tenants::{Memory, ObservedTenant},
    warn,
};
use crate::{error::ReconcileError, events::EventRecorder};
use berth_api::{MOST_STOPPED_OWNERS, OwnerKind, OwnerSuspend, StoppedOwner};
use berth_idle_reclaim::{
    owner::{self, CannotStop, OwnedPods, Switch, group_of},
    pass::Decision,
    pod::{DevicesHeld, GpuPod},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, runtime::events::EventType};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
    time::Duration,
};

/// Pods of a workload whose owners are looked for. The pods of larger ones are evicted.
const MAX_PODS: usize = 256;
/// How often an owner that changes meanwhile is read again. Its own controller writes its status whenever a pod gets ready, and its
/// annotations after those of the warning.
const TRIES: usize = 4;
/// Pause before that.
const PAUSE: Duration = Duration::from_millis(100);
/// Reason of Events about owners that were stopped.
const STOPPED: &str = "OwnerStopped";

/// An owner with the patch that stops it.
struct Stop {
    key: OwnerKey,
    switch: Switch,
    /// What the class says of its kind.
    suspend: Option<OwnerSuspend>,
    patch: Value,
    /// Its pods, which decide whether it may be stopped when it is read again.
    owned: OwnedPods,
    /// GPUs that its pods request.
    gpus: u32,
    /// UIDs of its host pods.
    pods: Vec<String>,
}

/// Stops the owners of a workload as far as the class allows it. Returns the UIDs of the host pods whose owners were stopped; the others
/// are to be evicted, also if the tenant does not answer.
pub(super) async fn stop_owners(
    context: &IdleGpusContext,
    memory: &mut Memory,
    tenant: &ObservedTenant,
    decision: &Decision,
) -> HashSet<String> {
    let inside = memory.inside(tenant);
    // A request that is still there could start what is stopped now.
    if inside.is_restore_pending || decision.pods.len() > MAX_PODS || memory.slow.contains(&tenant.uid) {
        return HashSet::new();
    }
    let Some(client) = context.tenants.client(&tenant.uid) else {
        return HashSet::new();
    };
    let mut objects = TenantObjects::new(client);
    let planned = match tokio::time::timeout(TENANT_LIMIT, plan(context, &mut objects, tenant, decision)).await {
        Ok(Ok(planned)) => planned,
        Ok(Err(error)) => {
            tracing::warn!(tenant = tenant.id.slug(), %error, "cannot find the owners of pods whose GPUs are idle; evicting the pods");
            return HashSet::new();
        }
        Err(_) => {
            memory.slow.insert(tenant.uid.clone());
            return HashSet::new();
        }
    };
    let planned = match list(context, memory, tenant, planned).await {
        Ok(planned) => planned,
        Err(error) => {
            tracing::warn!(tenant = tenant.id.slug(), %error, "cannot list owners as stopped; evicting their pods");
            return HashSet::new();
        }
    };
    let mut stopped = HashSet::new();
    let carried_out = tokio::time::timeout(TENANT_LIMIT, async {
        for stop in &planned {
            if carry_out(context, &mut objects, tenant, stop).await {
                stopped.extend(stop.pods.iter().cloned());
            }
        }
    });
    if carried_out.await.is_err() {
        memory.slow.insert(tenant.uid.clone());
    }
    stopped
}

/// The owners of the workload that may be stopped, and can be.
async fn plan(
    context: &IdleGpusContext,
    objects: &mut TenantObjects,
    tenant: &ObservedTenant,
    decision: &Decision,
) -> kube::Result<Vec<Stop>> {
    let mut owners: BTreeMap<OwnerKey, (Option<OwnerSuspend>, Vec<&Arc<GpuPod>>)> = BTreeMap::new();
    for pod in decision.pods.iter().filter(|pod| !pod.is_ending) {
        let found = objects.find_owner(pod).await?.and_then(|found| found.owner);
        let Some(owner) = found else { continue };
        if owner.is_awaited {
            tracing::info!(owner = %owner.key, "a CronJob waits until this Job ends, and a Job that is suspended does not; evicting its pods");
            continue;
        }
        let listed = tenant
            .policy
            .find_owner_kind(group_of(&owner.key.api_version), &owner.key.kind);
        let Some(OwnerKind { suspend, .. }) = listed else {
            continue;
        };
        let of_owner = owners.entry(owner.key).or_insert_with(|| (suspend.clone(), Vec::new()));
        of_owner.1.push(pod);
    }
    let resources = super::tenants::gpu_resources(&context.stores);
    let mut planned = Vec::new();
    for (key, (suspend, pods)) in owners {
        let Some(switch) = objects.switch(&key, suspend.as_ref()).await? else {
            tracing::debug!(owner = %key, "the kind of an owner has no subresource scale; evicting its pods");
            continue;
        };
        let owned = OwnedPods {
            idle: pods.len(),
            others: if switch.counts_pods() {
                0
            } else {
                count_others(context, objects, tenant, decision, &key).await?
            },
        };
        // Read again, so that only one of them is in memory at a time.
        let Some(object) = objects.get(&key).await? else {
            continue;
        };
        let class = tenant.class.as_deref();
        match owner::stop(&object, &switch, owned, class, context.clock.now()) {
            Ok(patch) => planned.push(Stop {
                gpus: pods.iter().map(|pod| pod.gpus(&resources)).fold(0, u32::saturating_add),
                pods: pods.iter().map(|pod| pod.uid.clone()).collect(),
                suspend,
                key,
                switch,
                patch,
                owned,
            }),
            Err(CannotStop::HasStopped) => {}
            Err(why) => {
                tracing::info!(owner = %key, ?why, "cannot stop the owner of idle GPUs; evicting its idle pods");
            }
        }
    }
    Ok(planned)
}

/// How many pods with GPUs an owner has that were not judged with the idle ones: nothing in its status counts them. As many as there are in
/// the namespace, if these are too many to look at.
async fn count_others(
    context: &IdleGpusContext,
    objects: &mut TenantObjects,
    tenant: &ObservedTenant,
    decision: &Decision,
    key: &OwnerKey,
) -> kube::Result<usize> {
    let judged: HashSet<&str> = decision.pods.iter().map(|pod| pod.uid.as_str()).collect();
    let mut pods = context.stores.gpu_pods.by_tenant();
    let mut others = pods.remove(tenant.id.slug()).unwrap_or_default();
    others.retain(|pod| {
        let has_ended = pod.is_ending || pod.devices_held == DevicesHeld::NoMore;
        pod.origin_namespace == key.namespace && !has_ended && !judged.contains(pod.uid.as_str())
    });
    if others.len() > MAX_PODS {
        return Ok(others.len());
    }
    let mut count = 0;
    for pod in others {
        let found = objects.find_owner(&pod).await?.and_then(|found| found.owner);
        count += usize::from(found.is_some_and(|owner| owner.key == *key));
    }
    Ok(count)
}

/// Lists owners in the status as stopped. Returns those that have room there.
async fn list(
    context: &IdleGpusContext,
    memory: &mut Memory,
    tenant: &ObservedTenant,
    mut planned: Vec<Stop>,
) -> Result<Vec<Stop>, ReconcileError> {
    let inside = memory.inside(tenant);
    let uids: BTreeSet<&str> = planned.iter().map(|stop| stop.key.uid.as_str()).collect();
    let mut stopped: Vec<StoppedOwner> = inside.stopped.clone();
    stopped.retain(|owner| !uids.contains(owner.uid.as_str()));
    planned.truncate(MOST_STOPPED_OWNERS.saturating_sub(stopped.len()));
    if planned.is_empty() {
        return Ok(planned);
    }
    let now = Time(context.clock.now());
    stopped.extend(planned.iter().map(|stop| StoppedOwner {
        api_version: stop.key.api_version.clone(),
        kind: stop.key.kind.clone(),
        namespace: stop.key.namespace.clone(),
        name: stop.key.name.clone(),
        uid: stop.key.uid.clone(),
        gpus: stop.gpus,
        stopped_at: now.clone(),
        suspend: stop.suspend.clone(),
    }));
    inside.stopped.clone_from(&stopped);
    inside.report.stopped_owners = stopped;
    let report = inside.report.clone();
    if !status::write_always(context, tenant, Some(&report)).await? {
        planned.clear();
    }
    Ok(planned)
}

/// Stops an owner. Returns whether it is stopped, by this patch.
async fn carry_out(
    context: &IdleGpusContext,
    objects: &mut TenantObjects,
    tenant: &ObservedTenant,
    stop: &Stop,
) -> bool {
    let Stop { key, gpus, .. } = stop;
    match patch_owner(context, objects, tenant, stop).await {
        Ok(true) => {}
        // The next pass sees what it is now.
        Ok(false) => {
            tracing::info!(owner = %key, "an owner of idle GPUs was changed while it was stopped; evicting its pods");
            return false;
        }
        Err(error) => {
            tracing::info!(owner = %key, %error, "cannot stop the owner of idle GPUs; evicting its pods");
            return false;
        }
    }
    let message = format!(
        "Berth stopped {key}: its {gpus} GPUs did nothing. To start it again as it was, set its annotation \
         berth.dev/restore to \"true\", or start it yourself"
    );
    let event = warn::idle_event(EventType::Warning, STOPPED, &message);
    let recorder = EventRecorder::new(objects.client().clone());
    recorder.publish(&event, &key.reference()).await;
    let event = warn::idle_event(EventType::Normal, STOPPED, &message);
    context.recorder.publish(&event, &tenant.cluster.object_ref(&())).await;
    true
}

/// Patches an owner so that it is stopped, also if it changes meanwhile, as long as it may be stopped. Returns whether it is.
async fn patch_owner(
    context: &IdleGpusContext,
    objects: &mut TenantObjects,
    tenant: &ObservedTenant,
    stop: &Stop,
) -> kube::Result<bool> {
    let mut patch = stop.patch.clone();
    for _ in 0..TRIES {
        if let Some(after) = objects.patch(&stop.key, &patch).await? {
            return Ok(owner::is_stopped(&after, &stop.switch));
        }
        tokio::time::sleep(PAUSE).await;
        let Some(object) = objects.get(&stop.key).await? else {
            return Ok(false);
        };
        let class = tenant.class.as_deref();
        match owner::stop(&object, &stop.switch, stop.owned, class, context.clock.now()) {
            Ok(again) => patch = again,
            Err(why) => {
                tracing::info!(owner = %stop.key, ?why, "the owner of idle GPUs cannot be stopped any more");
                return Ok(false);
            }
        }
    }
    Ok(false)
}
