//! The last step for owners in the tenant: they are scaled to zero or suspended, and what they were is recorded on them, in one patch.
//!
//! Before an owner is stopped it is listed in the status of the `TenantCluster`. A process that dies in between leaves an owner that is
//! listed and was not stopped, which the next pass removes from the list.
//!
//! Each owner is stopped for itself: one of a kind that does not answer, or answers with an error, loses its pods by eviction, and the others
//! are stopped.

use super::{
    IdleGpusContext,
    owners::{Owner, OwnerKey, PodAndOwner, TenantObjects},
    status,
    tenants::{InTenant, ObservedTenant},
    waits::ObjectError,
    warn,
};
use crate::error::{FirstError, ReconcileError};
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
    mem,
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

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

impl Stop {
    /// As the status lists it.
    fn listed(&self, now: Time) -> StoppedOwner {
        StoppedOwner {
            api_version: self.key.api_version.clone(),
            kind: self.key.kind.clone(),
            namespace: self.key.namespace.clone(),
            name: self.key.name.clone(),
            uid: self.key.uid.clone(),
            gpus: self.gpus,
            stopped_at: now,
            suspend: self.suspend.clone(),
        }
    }
}

/// Stops the owners of a workload as far as the class allows it. Returns the UIDs of the host pods whose owners were stopped; the others
/// are to be evicted, also if the tenant does not answer.
pub(super) async fn stop_owners(
    context: &IdleGpusContext,
    inside: &mut InTenant,
    tenant: &ObservedTenant,
    decision: &Decision,
) -> HashSet<String> {
    if decision.pods.len() > MAX_PODS || inside.pace.is_slow {
        return HashSet::new();
    }
    let Some(client) = context.tenants.client(&tenant.uid) else {
        return HashSet::new();
    };
    let begun = Instant::now();
    let waits = mem::take(&mut inside.waits).next_workload();
    let mut objects = TenantObjects::new(client, waits);
    let stopped = plan_and_stop(context, inside, &mut objects, tenant, decision).await;
    inside.pace.note(begun.elapsed());
    inside.pace.is_slow = objects.is_server_slow();
    inside.waits = objects.into_waits();
    stopped
}

async fn plan_and_stop(
    context: &IdleGpusContext,
    inside: &mut InTenant,
    objects: &mut TenantObjects,
    tenant: &ObservedTenant,
    decision: &Decision,
) -> HashSet<String> {
    let mut planned = plan(context, objects, tenant, decision).await;
    if objects.is_server_slow() {
        return HashSet::new();
    }
    // A request that is still there could start what is stopped now.
    if let Some(request) = &inside.request {
        let now = Time(context.clock.now());
        planned.retain(|stop| !stop.listed(now.clone()).is_named_by(request));
    }
    let planned = match list(context, inside, tenant, planned).await {
        Ok(planned) => planned,
        Err(error) => {
            tracing::warn!(tenant = tenant.id.slug(), %error, "cannot list owners as stopped; evicting their pods");
            return HashSet::new();
        }
    };
    let mut stopped = HashSet::new();
    for stop in &planned {
        if carry_out(context, objects, tenant, stop).await {
            stopped.extend(stop.pods.iter().cloned());
        }
    }
    stopped
}

/// What the class says of the kind of an owner, and its idle pods.
type PodsOfOwner<'a> = (Option<OwnerSuspend>, Vec<&'a Arc<GpuPod>>);

/// The owners of the workload that may be stopped, and can be.
async fn plan(
    context: &IdleGpusContext,
    objects: &mut TenantObjects,
    tenant: &ObservedTenant,
    decision: &Decision,
) -> Vec<Stop> {
    let mut failure = FirstError::<ObjectError>::default();
    let mut owners: BTreeMap<OwnerKey, PodsOfOwner<'_>> = BTreeMap::new();
    for pod in decision.pods.iter().filter(|pod| !pod.is_ending) {
        let found = find_owner(objects, pod).await;
        let Some(owner) = failure.note(found).flatten() else {
            continue;
        };
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
    let mut planned = Vec::new();
    for (key, of_owner) in owners {
        let stop = plan_owner(context, objects, tenant, decision, key, of_owner).await;
        planned.extend(failure.note(stop).flatten());
    }
    if let Err(error) = failure.into_result() {
        tracing::warn!(tenant = tenant.id.slug(), %error, "cannot look at owners of pods whose GPUs are idle; evicting their pods");
    }
    planned
}

/// The owner of a pod; none if it has none that can be trusted, or is gone.
async fn find_owner(objects: &mut TenantObjects, pod: &GpuPod) -> Result<Option<Owner>, ObjectError> {
    match objects.find_owner(pod).await? {
        Some(PodAndOwner { owner, .. }) => owner,
        None => Ok(None),
    }
}

/// How an owner of these pods is stopped; none if it cannot be.
async fn plan_owner(
    context: &IdleGpusContext,
    objects: &mut TenantObjects,
    tenant: &ObservedTenant,
    decision: &Decision,
    key: OwnerKey,
    (suspend, pods): PodsOfOwner<'_>,
) -> Result<Option<Stop>, ObjectError> {
    objects.check_changes(&key)?;
    let Some(switch) = objects.switch(&key, suspend.as_ref()).await? else {
        tracing::debug!(owner = %key, "the kind of an owner has no subresource scale; evicting its pods");
        return Ok(None);
    };
    let owned = OwnedPods {
        idle: pods.len(),
        others: if switch.counts_pods() {
            0
        } else {
            count_others(context, objects, tenant, decision, &key).await
        },
    };
    // Read again, so that only one of them is in memory at a time.
    let Some(object) = objects.get(&key).await? else {
        return Ok(None);
    };
    let class = tenant.class.as_deref();
    match owner::stop(&object, &switch, owned, class, context.clock.now()) {
        Ok(patch) => {
            let resources = super::tenants::gpu_resources(&context.stores);
            Ok(Some(Stop {
                gpus: pods.iter().map(|pod| pod.gpus(&resources)).fold(0, u32::saturating_add),
                pods: pods.iter().map(|pod| pod.uid.clone()).collect(),
                suspend,
                key,
                switch,
                patch,
                owned,
            }))
        }
        Err(CannotStop::HasStopped) => Ok(None),
        Err(why) => {
            tracing::info!(owner = %key, ?why, "cannot stop the owner of idle GPUs; evicting its idle pods");
            Ok(None)
        }
    }
}

/// How many pods with GPUs an owner has that were not judged with the idle ones: nothing in its status counts them. A pod whose owner is not
/// known may be one of them. As many as there are in the namespace, if these are too many to look at.
async fn count_others(
    context: &IdleGpusContext,
    objects: &mut TenantObjects,
    tenant: &ObservedTenant,
    decision: &Decision,
    key: &OwnerKey,
) -> usize {
    let judged: HashSet<&str> = decision.pods.iter().map(|pod| pod.uid.as_str()).collect();
    let mut pods = context.stores.gpu_pods.by_tenant();
    let mut others = pods.remove(tenant.id.slug()).unwrap_or_default();
    others.retain(|pod| {
        let has_ended = pod.is_ending || pod.devices_held == DevicesHeld::NoMore;
        pod.origin_namespace == key.namespace && !has_ended && !judged.contains(pod.uid.as_str())
    });
    if others.len() > MAX_PODS {
        return others.len();
    }
    let mut count = 0;
    for pod in others {
        let may_be_of_owner = match find_owner(objects, &pod).await {
            Ok(found) => found.is_some_and(|owner| owner.key == *key),
            Err(_) => true,
        };
        count += usize::from(may_be_of_owner);
    }
    count
}

/// Lists owners in the status as stopped. Returns those that have room there.
async fn list(
    context: &IdleGpusContext,
    inside: &mut InTenant,
    tenant: &ObservedTenant,
    mut planned: Vec<Stop>,
) -> Result<Vec<Stop>, ReconcileError> {
    let uids: BTreeSet<&str> = planned.iter().map(|stop| stop.key.uid.as_str()).collect();
    let mut stopped: Vec<StoppedOwner> = inside.stopped.clone();
    stopped.retain(|owner| !uids.contains(owner.uid.as_str()));
    planned.truncate(MOST_STOPPED_OWNERS.saturating_sub(stopped.len()));
    if planned.is_empty() {
        return Ok(planned);
    }
    let now = Time(context.clock.now());
    stopped.extend(planned.iter().map(|stop| stop.listed(now.clone())));
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
    objects.publish(&event, key).await;
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
) -> Result<bool, ObjectError> {
    let mut patch = stop.patch.clone();
    for _ in 0..TRIES {
        if let Some(after) = objects.patch(&stop.key, &patch).await? {
            return Ok(owner::is_stopped(&after, &stop.switch));
        }
        objects.pause(&stop.key, PAUSE).await?;
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
