//! The platform's own programs leave the GPUs of a node while it is scrubbed, whichever call fails.

use super::{Fixture, NODES, api::Failing, state_of};
use crate::testing::merge;
use berth_api::{HostNodePoolSpec, labels};
use berth_node_lifecycle::assignment::AssignmentState::Scrubbing;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const LABEL: &str = "nvidia.com/gpu.deploy.dcgm";
const IMAGE: &str = "nvcr.io/nvidia/cloud-native/dcgm:4";
const POD: &str = "/api/v1/namespaces/gpu-operator/pods/nvidia-dcgm-x";

/// A node that is about to be scrubbed, on which the GPU Operator has a DaemonSet.
fn fixture() -> Fixture {
    let spec = HostNodePoolSpec {
        gpu_resource_name: Some("nvidia.com/gpu".into()),
        ..HostNodePoolSpec::default()
    };
    let fixture = Fixture {
        pools: BTreeMap::from([("h100".to_owned(), spec)]),
        ..Fixture::new(&["a"])
    };
    fixture.put_in_state("a", Scrubbing);
    let operator = json!({"metadata": {"labels": {LABEL: "true"}}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}});
    merge(fixture.api().objects.get_mut(&format!("{NODES}/a")).unwrap(), &operator);
    follow_the_label(&fixture);
    fixture
}

/// The value of the label on the node.
fn label(fixture: &Fixture) -> Value {
    fixture.api().objects[&format!("{NODES}/a")]["metadata"]["labels"][LABEL].clone()
}

/// What the DaemonSet controller and the kubelet do: the pod is on the node as long as the label has its value.
fn follow_the_label(fixture: &Fixture) {
    let is_selected = label(fixture) == "true";
    let mut api = fixture.api();
    api.objects.remove(POD);
    if is_selected {
        let pod = json!({
            "metadata": {
                "name": "nvidia-dcgm-x", "namespace": "gpu-operator", "uid": "uid-dcgm",
                "ownerReferences": [
                    {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "nvidia-dcgm", "uid": "u", "controller": true},
                ],
            },
            "spec": {
                "nodeName": "a", "nodeSelector": {LABEL: "true"}, "tolerations": [{"key": labels::TENANT, "operator": "Exists"}],
                "containers": [{"name": "main", "image": IMAGE}],
            },
        });
        api.objects.insert(POD.to_owned(), pod);
    }
}

/// The Jobs that there are succeed. Returns whether one of them scrubs. It leaves the image of the program on the node.
fn finish_jobs(fixture: &Fixture) -> bool {
    let mut api = fixture.api();
    let mut is_scrubbed = false;
    for (path, job) in &mut api.objects {
        if path.contains("/jobs/") {
            if path.contains("/scrub-") {
                is_scrubbed = true;
                let keeps = format!("--keep-image={IMAGE}");
                assert!(job.to_string().contains(&keeps), "{job}");
            }
            job["status"] = json!({"conditions": [{"type": "Complete", "status": "True"}]});
        }
    }
    is_scrubbed
}

#[tokio::test]
async fn programs_leave_the_gpus_of_a_node_and_return_whichever_call_fails() {
    const PASSES: usize = 7;
    let failing = (0..5).flat_map(|pass| (1..=9).map(move |call| (pass, call)));
    for (failing_pass, failing_call) in failing {
        let fixture = fixture();
        let mut was_scrubbed = false;
        for pass in 0..PASSES {
            let failing = if pass == failing_pass {
                Failing::Call(failing_call)
            } else {
                Failing::Nothing
            };
            // What fails is tried again in the next pass.
            let _ = fixture.execute(&[], failing).await;
            let case = format!("call {failing_call} of pass {failing_pass} fails");
            if !was_scrubbed && finish_jobs(&fixture) {
                was_scrubbed = true;
                assert!(
                    !fixture.api().objects.contains_key(POD),
                    "{case}: it is scrubbed while a program uses GPUs"
                );
                assert_eq!(label(&fixture), labels::PAUSED_FOR_SCRUB, "{case}");
            }
            finish_jobs(&fixture);
            follow_the_label(&fixture);
        }
        let case = format!("call {failing_call} of pass {failing_pass} fails");
        assert!(was_scrubbed, "{case}");
        assert_eq!(
            (state_of(&fixture, "a"), label(&fixture)),
            (None, json!("true")),
            "{case}"
        );
        let node = fixture.api().objects[&format!("{NODES}/a")].clone();
        assert!(
            !node["metadata"]["annotations"].to_string().contains("berth.dev"),
            "{case}: {node}"
        );
    }
}
