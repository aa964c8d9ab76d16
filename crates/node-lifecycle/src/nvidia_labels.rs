//! The labels by which NVIDIA's software chooses its configuration on a node: that of the device plugin, and the MIG layout. Berth sets them on nodes of
//! pools that name a configuration. They stay between two tenants, and become what they were before once the node is free and in no such pool.

use berth_api::{
    HostNodePoolSpec,
    labels::{CHANGED_DEVICE_PLUGIN_CONFIG, CHANGED_MIG_CONFIG},
    qualified_name::is_label_value,
};
use k8s_openapi::api::core::v1::Node;
use kube_core::ResourceExt;
use serde_json::{Map, Value, json};

/// NVIDIA's label that chooses a configuration of the device plugin.
pub const DEVICE_PLUGIN_CONFIG: &str = "nvidia.com/device-plugin.config";
/// NVIDIA's label that requests a MIG layout.
pub const MIG_CONFIG: &str = "nvidia.com/mig.config";
/// NVIDIA's label that shows the progress of that request.
pub const MIG_STATE: &str = "nvidia.com/mig.config.state";

/// A label that Berth changes.
struct Changed {
    label: &'static str,
    /// The annotation that says what Berth wrote into the label, and what it was before.
    annotation: &'static str,
    /// The value that a pool names, if any.
    of_pool: fn(&HostNodePoolSpec) -> Option<&str>,
    /// A label with the progress of the request, which goes with it.
    state: Option<&'static str>,
}

const DEVICE_PLUGIN: Changed = Changed {
    label: DEVICE_PLUGIN_CONFIG,
    annotation: CHANGED_DEVICE_PLUGIN_CONFIG,
    of_pool: HostNodePoolSpec::device_plugin_config,
    state: None,
};
const MIG: Changed = Changed {
    label: MIG_CONFIG,
    annotation: CHANGED_MIG_CONFIG,
    of_pool: HostNodePoolSpec::mig_config,
    state: Some(MIG_STATE),
};
const ALL: [Changed; 2] = [DEVICE_PLUGIN, MIG];

impl Changed {
    /// What Berth wrote into the label, and what it was before. Empty: no label. Values of labels have no `=`.
    fn read_change<'a>(&self, node: &'a Node) -> Option<(&'a str, &'a str)> {
        let change = node.annotations().get(self.annotation)?.split_once('=');
        // People can write anything into the annotation.
        change.filter(|(_, former)| is_label_value(former))
    }

    /// The value of the label; empty without it.
    fn read_label<'a>(&self, node: &'a Node) -> &'a str {
        let label = node.labels().get(self.label);
        label.map_or("", String::as_str)
    }

    fn is_changed(&self, node: &Node) -> bool {
        node.annotations().contains_key(self.annotation)
    }

    /// Whether a free node gets back the label that it had. `pool`: the spec of its pool, if it is in one.
    fn is_to_be_restored(&self, node: &Node, pool: Option<&HostNodePoolSpec>) -> bool {
        self.is_changed(node) && pool.is_none_or(|pool| (self.of_pool)(pool).is_none())
    }
}

/// Records in the annotations of a patch what labels were, if the patch has them among its labels. The value that the platform has set meanwhile counts as
/// its own, but not one that came while a tenant had the node (`is_used`): its kubelet may have written it.
pub(crate) fn record_changes(
    node: &Node,
    is_used: bool,
    labels: &[(String, Option<String>)],
    annotations: &mut Map<String, Value>,
) {
    for changed in &ALL {
        let Some((_, written)) = labels.iter().find(|(key, _)| key == changed.label) else {
            continue;
        };
        let (written, current) = (written.as_deref().unwrap_or_default(), changed.read_label(node));
        let former = match changed.read_change(node) {
            Some((earlier, former)) if is_used || earlier == current => former,
            _ => current,
        };
        // A request that is taken back to be made again after a tenant is still one.
        let is_taken_back = is_used && changed.is_changed(node);
        let is_recorded = !written.is_empty() || !former.is_empty() || is_taken_back;
        let record = is_recorded.then(|| format!("{written}={former}"));
        annotations.insert(changed.annotation.into(), json!(record));
    }
}

/// Whether Berth has changed a label of a node.
pub fn is_changed(node: &Node) -> bool {
    ALL.iter().any(|changed| changed.is_changed(node))
}

/// Whether a node may have a MIG layout that Berth has requested: its pool names one, or did.
pub(crate) fn may_have_mig(node: &Node, pool: &HostNodePoolSpec) -> bool {
    pool.mig_config().is_some() || MIG.is_changed(node)
}

/// The metadata that gives a free node back the labels that it had; none if there are none to give back. What somebody else has written since stays. `pool`: the
/// spec of its pool, if it is in one.
pub fn restored_metadata(node: &Node, pool: Option<&HostNodePoolSpec>) -> Option<Value> {
    let (mut labels, mut annotations) = (Map::new(), Map::new());
    for changed in ALL.iter().filter(|changed| changed.is_to_be_restored(node, pool)) {
        annotations.insert(changed.annotation.into(), Value::Null);
        if let Some((written, former)) = changed.read_change(node)
            && written == changed.read_label(node)
        {
            let former = (!former.is_empty()).then_some(former);
            labels.insert(changed.label.into(), json!(former));
            // That of what was requested by Berth.
            labels.extend(changed.state.map(|state| (state.to_owned(), Value::Null)));
        }
    }
    if annotations.is_empty() {
        return None;
    }
    let mut metadata = json!({ "annotations": annotations });
    if !labels.is_empty() {
        metadata["labels"] = Value::Object(labels);
    }
    Some(metadata)
}
