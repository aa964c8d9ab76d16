//! The platform's own programs that use GPUs of a node, such as NVIDIA's device plugin and DCGM: DaemonSets, which select nodes by labels. A GPU that a
//! program has open cannot be reset. So these labels are changed before the scrub, and restored by whatever ends it.

use super::{Observation, POLL, Transition, drain::name_some, quarantine};
use crate::{
    Assignment, demand::NodeRules, evicted_pods::may_run_between_tenants, platform_pods::stays_with_every_tenant,
};
use berth_api::{HostNodePoolSpec, Sharing, labels::PAUSED_FOR_SCRUB};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube_core::ResourceExt;
use std::collections::{BTreeMap, BTreeSet};

/// How values of labels begin while others keep such programs from a node: NVIDIA's MIG manager while it changes a layout, and its driver manager while it
/// updates the driver.
const PAUSED: &str = "paused-for-";

/// Changes the labels, and waits until the programs are gone; none once that is so.
pub(super) fn await_no_gpu_clients(observation: &Observation<'_>, limit: i64) -> Option<Transition> {
    let Observation { assignment, now, .. } = observation;
    let wait = |why: String| {
        if assignment.elapsed(*now) >= limit {
            quarantine(observation, &why)
        } else {
            Transition::CheckAfter(POLL)
        }
    };
    if let Some((key, value)) = find_pause_of_others(observation) {
        // They would restore what they know, in the middle of the scrub.
        return Some(wait(format!(
            "the label {key} is {value} after {limit} s: something else works on the GPUs"
        )));
    }
    let paused = find_labels_to_pause(observation.node, observation.pool);
    if !paused.is_empty() {
        let changed = paused
            .keys()
            .map(|key| (key.clone(), Some(PAUSED_FOR_SCRUB.to_owned())));
        let labels = changed.collect();
        let mut remembered = (*assignment).clone();
        remembered.paused_labels.extend(paused);
        remembered
            .paused_images
            .extend(observation.client_images.iter().cloned());
        return Some(Transition::SetAssignment(Box::new(remembered), labels));
    }
    if observation.gpu_clients.is_empty() {
        return None;
    }
    Some(wait(format!(
        "pods that use GPUs did not leave the node within {limit} s, although labels that they select nodes by are {PAUSED_FOR_SCRUB}: {}",
        name_some(observation.gpu_clients)
    )))
}

/// A label by which somebody else keeps programs from the node.
fn find_pause_of_others<'a>(observation: &'a Observation<'_>) -> Option<(&'a str, &'a str)> {
    let labels = observation.node.labels();
    let wanted = observation.pool.labels_to_pause();
    wanted.into_iter().find_map(|(key, enabled)| {
        let value = labels.get(key).filter(|_| enabled.is_some())?;
        (value.starts_with(PAUSED) && value != PAUSED_FOR_SCRUB).then_some((key, value.as_str()))
    })
}

/// The labels to change, with their present values; empty: the node does not have the label.
fn find_labels_to_pause(node: &Node, pool: &HostNodePoolSpec) -> BTreeMap<String, String> {
    let labels = node.labels();
    let wanted = pool.labels_to_pause().into_iter();
    wanted
        .filter(|(key, enabled)| labels.get(*key).map(String::as_str) == *enabled)
        .map(|(key, enabled)| (key.to_owned(), enabled.unwrap_or_default().to_owned()))
        .collect()
}

/// The paused labels whose record is lost, with the values that they had.
pub(super) fn find_unrecorded_labels(observation: &Observation<'_>) -> BTreeMap<String, String> {
    let labels = observation.node.labels();
    let recorded = &observation.assignment.paused_labels;
    let wanted = observation.pool.labels_to_pause().into_iter();
    wanted
        .filter(|(key, _)| {
            labels.get(*key).is_some_and(|value| value == PAUSED_FOR_SCRUB) && !recorded.contains_key(*key)
        })
        .map(|(key, enabled)| (key.to_owned(), enabled.unwrap_or_default().to_owned()))
        .collect()
}

/// Why the programs of a scrubbed node do not work again: a label is not what it was, or no GPU is advertised. Nothing is known of nodes of which no label
/// was changed, and of those whose devices are in ResourceSlices.
pub(super) fn find_absent_clients(observation: &Observation<'_>) -> Option<String> {
    let Observation {
        assignment, node, pool, ..
    } = observation;
    let is_paused = |key: &&String| {
        node.labels()
            .get(*key)
            .is_some_and(|value| value.contains(PAUSED_FOR_SCRUB))
    };
    if let Some(key) = assignment.paused_labels.keys().find(is_paused) {
        return Some(format!("the label {key} is {}", node.labels()[key]));
    }
    if assignment.paused_labels.is_empty() || pool.sharing == Sharing::Dra {
        return None;
    }
    let resource = pool.gpu_resource_name.as_deref()?;
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let mut allocatable = allocatable.into_iter().flatten();
    let is_advertised = allocatable.any(|(key, amount)| is_of_gpus(key, resource) && amount.0 != "0");
    (!is_advertised).then(|| format!("no {resource} is advertised: the device plugin does not run again"))
}

/// Whether a resource is one of GPUs in a pool with this resource of GPUs. Without a MIG layout, which only an assigned node has, they can have another one of
/// the same vendor. NVIDIA has resources for other devices as well, such as `nvidia.com/hostdev` for those of networks.
fn is_of_gpus(key: &str, resource: &str) -> bool {
    const NVIDIA: &str = "nvidia.com";
    const GPUS: [&str; 2] = ["gpu", "mig-"];
    if key == resource {
        return true;
    }
    let (Some((vendor, name)), Some((expected, _))) = (key.split_once('/'), resource.split_once('/')) else {
        return false;
    };
    vendor == expected && (vendor != NVIDIA || GPUS.iter().any(|begin| name.starts_with(begin)))
}

/// Images of the programs that leave a node when its labels are paused, and come back. `daemons`: pods of DaemonSets on the node. One that leaves
/// anyway, or would not stay with every tenant, does not count: a pod of people with few rights could name images of a tenant, which the scrub
/// would leave on the node.
pub fn list_client_images<'a>(
    node: &Node,
    pool: &HostNodePoolSpec,
    daemons: impl IntoIterator<Item = &'a Pod>,
) -> BTreeSet<String> {
    let (name, paused) = (node.name_any(), find_labels_to_pause(node, pool));
    let label = |key: &str| {
        if paused.contains_key(key) {
            Some(PAUSED_FOR_SCRUB)
        } else {
            node.labels().get(key).map(String::as_str)
        }
    };
    let is_client = |pod: &&Pod| {
        let rules = NodeRules::of_pod(pod, "");
        pod.metadata.deletion_timestamp.is_none()
            && stays_with_every_tenant(pod)
            && paused.keys().any(|key| rules.mentions(key))
            && !rules.allow(&name, label)
    };
    let pods = daemons.into_iter().filter(is_client);
    let containers = pods.filter_map(|pod| pod.spec.as_ref()).flat_map(|spec| {
        let first = spec.init_containers.iter().flatten();
        first.chain(&spec.containers)
    });
    containers.filter_map(|container| container.image.clone()).collect()
}

/// Pods that paused labels keep from the node and that have not left it, as `namespace/name`. `daemons`: pods of DaemonSets on the node, which
/// leave nodes that their rules do not allow. One that has ended, or that the kubelet does not start, uses no GPU: a finalizer may hold it for ever.
pub fn list_paused_pods<'a>(
    node: &Node,
    assignment: &Assignment,
    daemons: impl IntoIterator<Item = &'a Pod>,
) -> Vec<String> {
    let name = node.name_any();
    let label = |key: &str| node.labels().get(key).map(String::as_str);
    let paused: Vec<&String> = assignment.paused_labels.keys().collect();
    let is_kept_off = |pod: &&Pod| {
        let rules = NodeRules::of_pod(pod, "");
        may_run_between_tenants(pod) && paused.iter().any(|key| rules.mentions(key)) && !rules.allow(&name, label)
    };
    let pods = daemons.into_iter().filter(is_kept_off);
    pods.map(|pod| format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any()))
        .collect()
}
