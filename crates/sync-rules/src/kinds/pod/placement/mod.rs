//! Who places a pod, and whether a host pod that waits for a node has to be created again.
//!
//! | the pod names | placed by |
//! |---|---|
//! | no scheduler, the default one, or one that the class lists | the host's schedulers, unless `schedulingMode` is `Tenant` |
//! | any other scheduler | that scheduler, in the tenant: the host pod is created when it has bound the pod, and may run on that node only |
//!
//! Where a host pod may run is fixed when it is created. While it waits for a node, the tenant can cordon, taint or label its Nodes. So the
//! host pod records what it was created with, and is replaced if that would be different now.
//!
//! A pod with scheduling gates has no host pod: there it would cost the scheduler nothing, but controllers of the host as much as any other pod that waits.

use super::{scheduling, update};
use crate::{
    model::{Cache, KindId, json, resource::Name, store::Stored},
    translation::fields::FieldIssues,
};
use berth_api::{
    SchedulingMode, labels,
    sync_policy::{ANY, allows},
};
use serde_json::{Map, Value, json};

/// The reason of the condition `PodScheduled` while a pod has scheduling gates. The API server sets it when the pod is created, and it
/// stays until the scheduler tries the pod.
const GATED: &str = "SchedulingGated";

/// The scheduler of pods that name none.
pub const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// Who places a pod with this spec.
pub fn mode(cache: &Cache, spec: &Value) -> SchedulingMode {
    let hosts = &cache.tenant.policy.pods.schedulers;
    match json::text(spec, &["schedulerName"]) {
        None | Some("" | DEFAULT_SCHEDULER) => cache.tenant.scheduling,
        Some(other) if allows(hosts, other) => cache.tenant.scheduling,
        Some(_) => SchedulingMode::Tenant,
    }
}

/// The scheduler of the host that is to place or check the host pod of a pod with this spec: the default one, one that the class lists by
/// its name, or [`ANY`] for one that only [`ANY`] allows.
pub fn host_scheduler<'a>(cache: &'a Cache, spec: &Value) -> &'a str {
    match json::text(spec, &["schedulerName"]) {
        None | Some("" | DEFAULT_SCHEDULER) => DEFAULT_SCHEDULER,
        Some(_) if mode(cache, spec) == SchedulingMode::Tenant => DEFAULT_SCHEDULER,
        Some(name) => {
            let listed = &cache.tenant.policy.pods.schedulers;
            listed.iter().find(|known| *known == name).map_or(ANY, String::as_str)
        }
    }
}

/// Whether a host pod waits for a node.
pub fn waits(host: &Stored) -> bool {
    !host.has_node
}

/// Whether a pod is on the host and has a node there.
pub fn is_placed(cache: &Cache, name: &Name) -> bool {
    let host = cache.stores.host(KindId::Pod).get(name);
    host.is_some_and(|host| !waits(&host))
}

/// How far the host's scheduler is with a host pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulingStage {
    /// It has not tried the pod yet.
    Untried,
    /// It does not try the pod, which has scheduling gates of the platform, or had them until now.
    Gated,
    /// It has chosen a node for the pod, or found none.
    Tried,
}

/// How far the host's scheduler is with a host pod.
pub fn stage(host: &Stored) -> SchedulingStage {
    if !waits(host) {
        return SchedulingStage::Tried;
    }
    let pod = host.object();
    // The scheduler names the node before it waits for volumes, devices or the pod's group, and binds the pod after that.
    if json::filled(&pod, &["status", "nominatedNodeName"]).is_some() {
        return SchedulingStage::Tried;
    }
    let conditions = json::items(&pod, &["status", "conditions"]);
    match conditions.iter().find(|condition| condition["type"] == "PodScheduled") {
        None => SchedulingStage::Untried,
        Some(condition) if condition["reason"] == GATED => SchedulingStage::Gated,
        Some(_) => SchedulingStage::Tried,
    }
}

/// Whether a pod of the tenant has scheduling gates: it comes to the host when the last one is gone. None can be added to a pod.
pub fn has_gates(pod: &Value) -> bool {
    !json::items(pod, &["spec", "schedulingGates"]).is_empty()
}

/// What a pod that is created now would have on record: none if it may run on each node of the tenant.
pub fn record(cache: &Cache, name: &Name, pod: &Value) -> Option<String> {
    let mut placed = Map::new();
    scheduling::place(cache, name, &pod["spec"], &mut placed, &mut FieldIssues::default());
    let placed = Value::from(placed);
    let node_affinity = &placed["affinity"]["nodeAffinity"];
    let selector = json::strings(&placed, &["nodeSelector"]);
    let is_plain = node_affinity.is_null() && selector.keys().all(|key| key == labels::TENANT);
    (!is_plain).then(|| json::hash(&json!([selector, node_affinity])))
}

/// Whether a host pod that waits for a node would be created with something else now. Those of earlier releases may have gates of the tenant.
pub fn is_outdated(cache: &Cache, name: &Name, pod: &Value, host: &Stored) -> bool {
    let host = host.object();
    let recorded = json::text(&host, &["metadata", "annotations", labels::PLACEMENT]);
    recorded != record(cache, name, pod).as_deref() || update::has_gates_of_tenant(&host)
}

#[cfg(test)]
mod tests;
