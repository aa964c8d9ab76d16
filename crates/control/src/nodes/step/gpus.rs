//! What NVIDIA's operator is asked for at a hand-over, and how far it is: MIG layouts and configurations of the device
//! plugin.

use super::{Facts, Next, POLL, quarantine};
use berth_api::{HostNodePoolSpec, Sharing};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

/// NVIDIA's label by which a MIG layout is asked for.
pub const MIG_CONFIG: &str = "nvidia.com/mig.config";
/// NVIDIA's label that says how far that is.
pub const MIG_STATE: &str = "nvidia.com/mig.config.state";
/// NVIDIA's label that chooses a configuration of the device plugin.
pub const DEVICE_PLUGIN_CONFIG: &str = "nvidia.com/device-plugin.config";
/// Label by which GPU Feature Discovery says how GPUs are shared.
const SHARING_STRATEGY: &str = "nvidia.com/gpu.sharing-strategy";
/// The MIG layout without MIG, of NVIDIA's default configuration.
pub(super) const NO_MIG: &str = "all-disabled";

/// The labels by which the pool's MIG layout and device plugin configuration are asked for.
pub(super) fn wanted_labels(pool: &HostNodePoolSpec) -> Vec<(String, Option<String>)> {
    let mut labels = Vec::new();
    if let Some(config) = pool.device_plugin_config() {
        labels.push((DEVICE_PLUGIN_CONFIG.to_owned(), Some(config.to_owned())));
    }
    if let Some(config) = pool.mig_config() {
        labels.extend(mig_labels(config));
    }
    labels
}

/// Asks for a MIG layout. What was reported of an earlier one is taken off, so that it is not taken for this one's.
fn mig_labels(config: &str) -> [(String, Option<String>); 2] {
    [
        (MIG_CONFIG.to_owned(), Some(config.to_owned())),
        (MIG_STATE.to_owned(), None),
    ]
}

/// Takes back what was asked for, so that it can be asked for anew.
pub(super) fn forget_mig() -> Vec<(String, Option<String>)> {
    vec![(MIG_CONFIG.to_owned(), None), (MIG_STATE.to_owned(), None)]
}

/// How far NVIDIA's MIG manager is with a layout.
enum Mig {
    Done,
    Pending(String),
    Failed,
    NotAsked,
}

fn mig(node: &Node, config: &str) -> Mig {
    let label = |key: &str| node.labels().get(key).map(String::as_str);
    if label(MIG_CONFIG) != Some(config) {
        return Mig::NotAsked;
    }
    match label(MIG_STATE) {
        Some("success") => Mig::Done,
        Some("failed") => Mig::Failed,
        state => Mig::Pending(state.unwrap_or("not begun").to_owned()),
    }
}

/// Waits for a MIG layout; none once it is there.
pub(super) fn await_mig(facts: &Facts<'_>, config: &str, limit: i64) -> Option<Next> {
    let Facts { record, now, .. } = facts;
    match mig(facts.node, config) {
        Mig::Done => None,
        Mig::NotAsked => Some(Next::Become(Box::new((*record).clone()), mig_labels(config).into())),
        Mig::Failed => Some(quarantine(
            facts,
            &format!("the MIG manager could not set the layout {config}: see its log on the node"),
        )),
        Mig::Pending(state) if record.elapsed(*now) >= limit => Some(quarantine(
            facts,
            &format!("the MIG manager has not set the layout {config} within {limit} s ({MIG_STATE}: {state})"),
        )),
        Mig::Pending(_) => Some(Next::Look((limit - record.elapsed(*now)).max(POLL))),
    }
}

/// Waits until GPU Feature Discovery tells of the sharing that the pool's configuration of the device plugin is for; none once
/// it does. That is all that is told: no label says which configuration is in force. A node on which it tells nothing at all of
/// sharing is taken as it is.
pub(super) fn await_sharing(facts: &Facts<'_>, limit: i64) -> Option<Next> {
    let Facts { record, now, pool, .. } = facts;
    let config = pool.device_plugin_config()?;
    let wanted = match pool.sharing {
        Sharing::TimeSlicing => "time-slicing",
        Sharing::Mps => "mps",
        Sharing::Exclusive | Sharing::Mig | Sharing::Dra => return None,
    };
    let found = facts.node.labels().get(SHARING_STRATEGY)?;
    if found == wanted {
        return None;
    }
    if record.elapsed(*now) >= limit {
        return Some(quarantine(
            facts,
            &format!(
                "the device plugin does not share GPUs as the configuration {config} should say within {limit} s \
                 ({SHARING_STRATEGY}: {found}, not {wanted})"
            ),
        ));
    }
    Some(Next::Look((limit - record.elapsed(*now)).max(POLL)))
}
