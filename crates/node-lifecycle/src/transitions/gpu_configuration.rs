//! MIG layouts and device plugin configurations that NVIDIA's operator applies to a node: requesting them and waiting for them.

use super::{Observation, POLL, Transition, quarantine};
use crate::nvidia_labels::{DEVICE_PLUGIN_CONFIG, MIG_CONFIG, MIG_STATE};
use berth_api::{HostNodePoolSpec, Sharing};
use k8s_openapi::api::core::v1::Node;
use kube_core::ResourceExt;

/// Label in which GPU Feature Discovery reports how GPUs are shared.
const SHARING_STRATEGY: &str = "nvidia.com/gpu.sharing-strategy";
/// Its value for the multi-process service.
const MPS: &str = "mps";
/// Label by which NVIDIA's DaemonSet selects nodes for the daemon of the multi-process service. GPU Feature Discovery sets it.
const MPS_CAPABLE: &str = "nvidia.com/mps.capable";
/// The MIG layout without MIG, of NVIDIA's default configuration.
pub(super) const NO_MIG: &str = "all-disabled";

/// The labels that request the pool's MIG layout and device plugin configuration. `is_in_use`: pods are about to leave the node, which may have
/// GPUs open. The MIG manager would fail, and the node with it, so the layout is requested when they are gone ([`await_mig`]).
pub(super) fn gpu_configuration_labels(pool: &HostNodePoolSpec, is_in_use: bool) -> Vec<(String, Option<String>)> {
    let mut labels = Vec::new();
    if let Some(config) = pool.device_plugin_config() {
        labels.push((DEVICE_PLUGIN_CONFIG.to_owned(), Some(config.to_owned())));
    }
    match pool.mig_config() {
        Some(_) if is_in_use => labels.extend(clear_mig_labels()),
        Some(config) => labels.extend(mig_labels(config)),
        None => {}
    }
    labels
}

/// Requests a MIG layout. The state of the previous request is removed, so that it is not mistaken for that of this one.
fn mig_labels(config: &str) -> [(String, Option<String>); 2] {
    [
        (MIG_CONFIG.to_owned(), Some(config.to_owned())),
        (MIG_STATE.to_owned(), None),
    ]
}

/// Removes the request for a MIG layout, so that it can be made again.
pub(super) fn clear_mig_labels() -> Vec<(String, Option<String>)> {
    vec![(MIG_CONFIG.to_owned(), None), (MIG_STATE.to_owned(), None)]
}

enum MigProgress {
    Done,
    Pending(String),
    Failed,
    NotAsked,
}

fn read_mig_progress(node: &Node, config: &str) -> MigProgress {
    let label = |key: &str| node.labels().get(key).map(String::as_str);
    if label(MIG_CONFIG) != Some(config) {
        return MigProgress::NotAsked;
    }
    match label(MIG_STATE) {
        Some("success") => MigProgress::Done,
        Some("failed") => MigProgress::Failed,
        state => MigProgress::Pending(state.unwrap_or("not begun").to_owned()),
    }
}

/// Waits for a MIG layout; none once it is applied.
pub(super) fn await_mig(observation: &Observation<'_>, config: &str, limit: i64) -> Option<Transition> {
    let Observation { assignment, now, .. } = observation;
    match read_mig_progress(observation.node, config) {
        MigProgress::Done => None,
        MigProgress::NotAsked => Some(Transition::SetAssignment(
            Box::new((*assignment).clone()),
            mig_labels(config).into(),
        )),
        MigProgress::Failed => Some(quarantine(
            observation,
            &format!("the MIG manager could not set the layout {config}: see its log on the node"),
        )),
        MigProgress::Pending(state) if assignment.elapsed(*now) >= limit => Some(quarantine(
            observation,
            &format!("the MIG manager has not set the layout {config} within {limit} s ({MIG_STATE}: {state})"),
        )),
        MigProgress::Pending(_) => Some(Transition::CheckAfter((limit - assignment.elapsed(*now)).max(POLL))),
    }
}

/// Waits until GPU Feature Discovery reports the sharing that the pool's device plugin configuration sets up; none once it does.
/// No label says which configuration is active. If a node does not report its sharing, nothing is awaited.
pub(super) fn await_sharing(observation: &Observation<'_>, limit: i64) -> Option<Transition> {
    let Observation {
        assignment, now, pool, ..
    } = observation;
    let config = pool.device_plugin_config()?;
    let wanted = match pool.sharing {
        Sharing::TimeSlicing => "time-slicing",
        Sharing::Mps => MPS,
        Sharing::Exclusive | Sharing::Mig | Sharing::Dra => return None,
    };
    let found = observation.node.labels().get(SHARING_STRATEGY)?;
    if found == wanted {
        return None;
    }
    if assignment.elapsed(*now) >= limit {
        return Some(quarantine(
            observation,
            &format!(
                "the device plugin did not apply configuration {config} within {limit} s \
                 ({SHARING_STRATEGY}: {found}, not {wanted})"
            ),
        ));
    }
    Some(Transition::CheckAfter((limit - assignment.elapsed(*now)).max(POLL)))
}

/// Takes the device plugin configuration away from a node with MPS, and waits until GPU Feature Discovery reports MPS no more; none once
/// that is so. NVIDIA's DaemonSet ends its daemon then. Every container that used a GPU could write what the daemon has on the node, and a
/// daemon that goes on would mount the same into containers of the next tenant.
///
/// The node decides, besides the pool: the pool may have got another `sharing` meanwhile.
pub(super) fn await_no_mps(observation: &Observation<'_>, limit: i64) -> Option<Transition> {
    let Observation {
        assignment,
        now,
        node,
        pool,
        ..
    } = observation;
    let label = |key: &str| node.labels().get(key).map(String::as_str);
    let reported = [(SHARING_STRATEGY, MPS), (MPS_CAPABLE, "true")]
        .into_iter()
        .find(|(key, value)| label(key) == Some(*value));
    if reported.is_none() && pool.sharing != Sharing::Mps {
        return None;
    }
    if label(DEVICE_PLUGIN_CONFIG).is_some() {
        return Some(Transition::SetAssignment(
            Box::new((*assignment).clone()),
            vec![(DEVICE_PLUGIN_CONFIG.to_owned(), None)],
        ));
    }
    let (key, value) = reported?;
    if assignment.elapsed(*now) >= limit {
        return Some(quarantine(
            observation,
            &format!(
                "MPS did not end within {limit} s without the label {DEVICE_PLUGIN_CONFIG} ({key}: {value}): the default \
                 configuration of the device plugin must not share GPUs by MPS"
            ),
        ));
    }
    Some(Transition::CheckAfter((limit - assignment.elapsed(*now)).max(POLL)))
}
