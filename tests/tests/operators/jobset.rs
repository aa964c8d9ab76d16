//! JobSet: a training run of several Jobs, each on a node of its own.

use crate::{
    chart::{Chart, Helm},
    host_objects,
    team::{accepted, container, refused, team},
};
use berth_api::pod_labels::host_key;
use berth_tests::{
    kubectl::Kubectl,
    objects::{dynamic, phase},
    tenant::{Tenant, ensure_namespace},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use kube::api::{DeleteParams, PropagationPolicy};
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc};

/// The operator.
pub const JOBSET: Chart = Chart {
    name: "jobset",
    version: "v0.10.1",
    namespace: "jobset-system",
    deployment: "jobset-controller",
    pull_policy: &["image", "pullPolicy"],
};

/// A run with a coordinator and two groups of workers, each of which has a node to itself; all run the same shell script.
pub fn training_run(name: &str, script: &str) -> Value {
    let pod = |gpus| json!({"spec": {"restartPolicy": "Never", "containers": [container(gpus, script)]}});
    json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": [
            {"name": "coordinator", "template": {"spec": {"template": pod(1)}}},
            {"name": "workers", "replicas": 2, "template": {
                "metadata": {"annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "kubernetes.io/hostname"}},
                "spec": {"parallelism": 2, "completions": 2, "template": pod(3)},
            }},
        ]},
    })
}

/// A script that runs until [`end`].
const UNTIL_ENDED: &str = "until [ -e /tmp/end ]; do sleep 0.2; done";

/// Ends a pod that runs [`UNTIL_ENDED`].
async fn end(host: &TestCluster, tenant: &Tenant, name: &str) {
    let kubectl = Kubectl::of(tenant);
    until(&format!("{name} gets the file that ends it"), SOON, async || {
        let said = kubectl
            .run(&["exec", "-n", "team", name, "--", "touch", "/tmp/end"])
            .await;
        // It may be gone before the command is known to have ended.
        let pods = host_objects::pods(host, tenant, "team").await;
        if said.success || pods.get(name).is_some_and(|pod| phase(pod) == "Succeeded") {
            Ok(())
        } else {
            Err(said)
        }
    })
    .await;
}

pub(crate) async fn replicated_jobs_of_a_training_run(host: Arc<TestCluster>) {
    let tenant = team(&host).await;
    let helm = Helm::new(tenant);
    helm.install(&host, &JOBSET).await;
    ensure_namespace(&tenant.client, "team").await;

    let mut wrong = training_run("wrong", UNTIL_ENDED);
    wrong["spec"]["replicatedJobs"][0]["dependsOn"] = json!([{"name": "workers", "status": "Ready"}]);
    refused(tenant, &wrong, "DependsOn can't be set for the first ReplicatedJob").await;

    let made = accepted(tenant, &training_run("run", UNTIL_ENDED)).await;
    let jobs = &made.data["spec"]["replicatedJobs"];
    assert_eq!(
        made.data["spec"]["network"]["enableDNSHostnames"], true,
        "the webhook sets defaults"
    );
    assert_eq!(jobs[1]["template"]["spec"]["completionMode"], "Indexed");

    // All at the same time: otherwise their nodes would prove nothing.
    let pods = until("all pods run on the host", SOON, async || {
        let pods = host_objects::pods(&host, tenant, "team").await;
        if pods.values().filter(|pod| phase(pod) == "Running").count() == 5 {
            Ok(pods)
        } else {
            Err(pods.into_keys().collect::<Vec<_>>())
        }
    })
    .await;
    let mut nodes_of_groups = [BTreeSet::new(), BTreeSet::new()];
    for (name, pod) in &pods {
        let spec = pod.spec.clone().unwrap();
        // The names that the members of a run find each other by: <job>-<index>.<subdomain>.
        let (expected, _) = name.rsplit_once('-').unwrap();
        assert_eq!(spec.hostname.as_deref(), Some(expected));
        assert_eq!(spec.subdomain.as_deref(), Some("run"));
        for (group, nodes) in nodes_of_groups.iter_mut().enumerate() {
            if name.starts_with(&format!("run-workers-{group}-")) {
                nodes.insert(spec.node_name.clone().unwrap());
            }
        }
    }
    let [first, second] = &nodes_of_groups;
    assert_eq!(
        (first.len(), second.len()),
        (1, 1),
        "a group has one node: {nodes_of_groups:?}"
    );
    assert_ne!(first, second, "and has it to itself");
    let service = host_objects::service(&host, tenant, "team", "run").await.spec.unwrap();
    assert_eq!(
        service.cluster_ip.as_deref(),
        Some("None"),
        "the names are those of a headless Service"
    );
    assert_eq!(
        service.selector.unwrap()[&host_key("jobset.sigs.k8s.io/jobset-name")],
        "run"
    );

    for name in pods.keys() {
        end(&host, tenant, name).await;
    }
    let runs = dynamic(&tenant.client, "jobset.x-k8s.io", "v1alpha2", "JobSet", "team");
    until_true("the run is complete", SOON, async || {
        runs.get("run")
            .await
            .is_ok_and(|run| run.data["status"]["terminalState"] == "Completed")
    })
    .await;
    // One pod fails: the run is started again as a whole, once.
    let mut broken = training_run("broken", "sleep 8");
    broken["spec"]["failurePolicy"] = json!({"maxRestarts": 1});
    let coordinator = &mut broken["spec"]["replicatedJobs"][0]["template"]["spec"];
    coordinator["backoffLimit"] = 0.into();
    coordinator["template"]["spec"]["containers"][0] = container(1, "exit 1");
    accepted(tenant, &broken).await;
    until("the run has failed", SOON, async || {
        let status = runs.get("broken").await.unwrap().data["status"].clone();
        if status["terminalState"] == "Failed" && status["restarts"] == 1 {
            Ok(())
        } else {
            Err(status)
        }
    })
    .await;

    let params = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Foreground),
        ..DeleteParams::default()
    };
    for name in ["run", "broken"] {
        runs.delete(name, &params).await.unwrap();
        until_true("the run is gone", SOON, async || {
            runs.get_opt(name).await.is_ok_and(|run| run.is_none())
        })
        .await;
    }

    helm.uninstall(&JOBSET).await;
}
