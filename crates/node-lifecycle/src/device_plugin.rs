//! The label by which NVIDIA's device plugin chooses its configuration. Berth sets it on nodes of pools that name a configuration. It stays between two
//! tenants, and becomes what it was before once the node is free and in no such pool.

use berth_api::{HostNodePoolSpec, labels::CHANGED_DEVICE_PLUGIN_CONFIG, qualified_name::is_label_value};
use k8s_openapi::api::core::v1::Node;
use kube_core::ResourceExt;
use serde_json::{Map, Value, json};

/// NVIDIA's label that chooses a configuration of the device plugin.
pub const DEVICE_PLUGIN_CONFIG: &str = "nvidia.com/device-plugin.config";

/// What Berth wrote into the label, and what it was before. Empty: no label. Values of labels have no `=`.
fn read_change(node: &Node) -> Option<(&str, &str)> {
    let change = node.annotations().get(CHANGED_DEVICE_PLUGIN_CONFIG)?.split_once('=');
    // People can write anything into the annotation.
    change.filter(|(_, former)| is_label_value(former))
}

/// The value of the label; empty without it.
fn read_label(node: &Node) -> &str {
    let label = node.labels().get(DEVICE_PLUGIN_CONFIG);
    label.map_or("", String::as_str)
}

/// Records in the annotations of a patch what the label was, if the patch has it among its labels. The value that the platform has set meanwhile counts as
/// its own, but not one that came while a tenant had the node (`is_used`): its kubelet may have written it.
pub(crate) fn record_change(
    node: &Node,
    is_used: bool,
    labels: &[(String, Option<String>)],
    annotations: &mut Map<String, Value>,
) {
    let Some((_, written)) = labels.iter().find(|(key, _)| key == DEVICE_PLUGIN_CONFIG) else {
        return;
    };
    let (written, current) = (written.as_deref().unwrap_or_default(), read_label(node));
    let former = match read_change(node) {
        Some((earlier, former)) if is_used || earlier == current => former,
        _ => current,
    };
    let is_recorded = !written.is_empty() || !former.is_empty();
    let record = is_recorded.then(|| format!("{written}={former}"));
    annotations.insert(CHANGED_DEVICE_PLUGIN_CONFIG.into(), json!(record));
}

/// Whether Berth has changed the label of a node.
pub fn is_changed(node: &Node) -> bool {
    node.annotations().contains_key(CHANGED_DEVICE_PLUGIN_CONFIG)
}

/// Whether a free node gets back the label that it had. `pool`: the spec of its pool, if it is in one.
pub fn is_to_be_restored(node: &Node, pool: Option<&HostNodePoolSpec>) -> bool {
    is_changed(node) && pool.is_none_or(|pool| pool.device_plugin_config().is_none())
}

/// The metadata that gives a node back the label that it had; none if Berth has not changed it. What somebody else has written since stays.
pub fn restored_metadata(node: &Node) -> Option<Value> {
    if !is_changed(node) {
        return None;
    }
    let mut metadata = json!({"annotations": {CHANGED_DEVICE_PLUGIN_CONFIG: null}});
    if let Some((written, former)) = read_change(node)
        && written == read_label(node)
    {
        let former = (!former.is_empty()).then_some(former);
        metadata["labels"] = json!({DEVICE_PLUGIN_CONFIG: former});
    }
    Some(metadata)
}
