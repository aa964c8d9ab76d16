//! What keeps the platform's own programs from the GPUs of a node while it is scrubbed.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Labels by which NVIDIA's GPU Operator decides which of its DaemonSets run on a node, if they have the value [`DEPLOYED`]: those whose programs use
/// GPUs. Its driver stays, and with it the persistence daemon and Fabric Manager: without the driver there is no reset, and on some systems none without
/// Fabric Manager. The MIG manager uses GPUs only while it changes a layout.
const GPU_OPERATOR: [&str; 9] = [
    "nvidia.com/gpu.deploy.device-plugin",
    "nvidia.com/gpu.deploy.gpu-feature-discovery",
    "nvidia.com/gpu.deploy.dcgm",
    "nvidia.com/gpu.deploy.dcgm-exporter",
    "nvidia.com/gpu.deploy.node-status-exporter",
    "nvidia.com/gpu.deploy.nvsm",
    // DaemonSets that are not the operator's own, from version 26.7 on.
    "nvidia.com/gpu.deploy.client",
    // With its driver for dynamic resource allocation.
    "nvidia.com/gpu.deploy.dcgm-dra",
    "nvidia.com/gpu.deploy.dcgm-exporter-dra",
];
/// Their value on nodes where the DaemonSets run.
const DEPLOYED: &str = "true";

/// Labels that Berth changes on a node before its scrub, so that DaemonSets whose programs use GPUs leave it. Berth restores them after the scrub.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("(!has(self.labels) || self.labels.all(k, !k.startsWith('berth.dev/'))) && (!has(self.addLabels) || self.addLabels.all(k, !k.startsWith('berth.dev/')))")
    .message("labels under berth.dev/ are set by Berth itself"))]
pub struct PauseSpec {
    /// Labels by which DaemonSets select nodes, besides those of NVIDIA's GPU Operator, and the value that they have where the DaemonSets run. A label that
    /// a node does not have, or that has another value there, stays as it is.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub labels: BTreeMap<String, String>,
    /// Labels that keep DaemonSets from a node. Berth adds those that the node does not have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(min = 1, max = 317)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub add_labels: Vec<String>,
}

/// The labels to change on a node before its scrub, each with the value that it must have for that; none: the node must not have the label.
/// `uses_gpus`: whether the scrub uses NVIDIA GPUs.
pub(super) fn labels(pause: Option<&PauseSpec>, uses_gpus: bool) -> BTreeMap<&str, Option<&str>> {
    let operator = GPU_OPERATOR.into_iter().filter(|_| uses_gpus);
    let mut all: BTreeMap<&str, Option<&str>> = operator.map(|key| (key, Some(DEPLOYED))).collect();
    if let Some(PauseSpec { labels, add_labels }) = pause {
        all.extend(labels.iter().map(|(key, value)| (key.as_str(), Some(value.as_str()))));
        all.extend(add_labels.iter().map(|key| (key.as_str(), None)));
    }
    all
}

#[cfg(test)]
mod tests {
    use crate::HostNodePoolSpec;
    use serde_json::{Value, json};

    fn pool(scrub: &Value) -> HostNodePoolSpec {
        let spec = json!({"nodeSelector": {"pool": "h100"}, "gpuResourceName": "nvidia.com/gpu", "scrub": scrub});
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn labels_of_the_gpu_operator_are_changed_where_gpus_are_scrubbed() {
        const PLUGIN: &str = "nvidia.com/gpu.deploy.device-plugin";
        assert_eq!(pool(&json!({})).labels_to_pause()[PLUGIN], Some("true"));
        for step in ["MPS", "MIG", "GPUReset"] {
            assert!(
                pool(&json!({"steps": [step]})).labels_to_pause().contains_key(PLUGIN),
                "{step}"
            );
        }
        for scrub in [json!({"steps": ["Processes", "Images"]}), json!({"policy": "None"})] {
            assert!(pool(&scrub).labels_to_pause().is_empty(), "{scrub}");
        }
    }

    #[test]
    fn a_pool_can_name_further_labels() {
        let pause = json!({"labels": {"example.com/gpu-agent": "on"}, "addLabels": ["example.com/no-gpu-agent"]});
        for (scrub, expected) in [
            (json!({"steps": ["GPUReset"], "pause": pause}), 11),
            (json!({"steps": ["Images"], "pause": pause}), 2),
        ] {
            let pool = pool(&scrub);
            let labels = pool.labels_to_pause();
            assert_eq!(labels.len(), expected, "{scrub}");
            assert_eq!(labels["example.com/gpu-agent"], Some("on"), "{scrub}");
            assert_eq!(labels["example.com/no-gpu-agent"], None, "{scrub}");
        }
    }

    #[test]
    fn a_label_that_selects_the_nodes_of_the_pool_stays() {
        let spec = json!({
            "nodeSelector": {"nvidia.com/gpu.deploy.device-plugin": "true"}, "gpuResourceName": "nvidia.com/gpu",
        });
        let pool: HostNodePoolSpec = serde_json::from_value(spec).unwrap();
        assert_eq!(pool.labels_to_pause().len(), 8);
    }
}
