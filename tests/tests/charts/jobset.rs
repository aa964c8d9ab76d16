//! JobSet: a training run of several Jobs, each on a node of its own.

use crate::{
    chart::{Chart, Helm},
    host,
    team::{container, team},
};
use berth_tests::{
    objects::{apply, dynamic, phase},
    tenant::ensure_namespace,
    wait::{until, until_true},
    world::World,
};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PropagationPolicy};
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

const SOON: Duration = Duration::from_secs(90);

/// The operator.
pub const JOBSET: Chart = Chart {
    name: "jobset",
    version: "v0.10.1",
    namespace: "jobset-system",
    deployment: "jobset-controller",
    pull_policy: &["image", "pullPolicy"],
};

/// A run with a coordinator and two groups of workers, of which each has a node to itself.
pub fn training_run(name: &str) -> Value {
    let pod = |gpus| json!({"spec": {"restartPolicy": "Never", "containers": [container(gpus, "sleep 8")]}});
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

/// Whether a pod runs, or has already ended well: a busy machine may look too late to see it run.
pub fn has_run(pod: &Pod) -> bool {
    matches!(phase(pod).as_str(), "Running" | "Succeeded")
}

pub(crate) async fn replicated_jobs_of_a_training_run(world: Arc<World>) {
    let tenant = team(&world).await;
    let helm = Helm::new(tenant);
    helm.install(&world, &JOBSET).await;
    ensure_namespace(&tenant.client, "team").await;

    let mut wrong = training_run("wrong");
    wrong["spec"]["replicatedJobs"][0]["dependsOn"] = json!([{"name": "workers", "status": "Ready"}]);
    let refused = apply(&tenant.client, "team", &wrong).await.unwrap_err().to_string();
    assert!(
        refused.contains("DependsOn can't be set for the first ReplicatedJob"),
        "{refused}"
    );

    let made = apply(&tenant.client, "team", &training_run("run")).await.unwrap();
    let jobs = &made.data["spec"]["replicatedJobs"];
    assert_eq!(
        made.data["spec"]["network"]["enableDNSHostnames"], true,
        "the webhook sets defaults"
    );
    assert_eq!(jobs[1]["template"]["spec"]["completionMode"], "Indexed");

    let pods = until("all pods run on the host, or did", SOON, async || {
        let pods = host::pods(&world, tenant, "team").await;
        if pods.values().filter(|pod| has_run(pod)).count() == 5 {
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
    let service = host::service(&world, tenant, "team", "run")
        .await
        .unwrap()
        .spec
        .unwrap();
    assert_eq!(
        service.cluster_ip.as_deref(),
        Some("None"),
        "the names are those of a headless Service"
    );
    assert_eq!(service.selector.unwrap()["jobset.sigs.k8s.io/jobset-name"], "run");

    let runs = dynamic(&tenant.client, "jobset.x-k8s.io", "v1alpha2", "JobSet", "team");
    until_true("the run is complete", SOON, async || {
        runs.get("run")
            .await
            .is_ok_and(|run| run.data["status"]["terminalState"] == "Completed")
    })
    .await;
    // One pod fails: the run is started again as a whole, once.
    let mut broken = training_run("broken");
    broken["spec"]["failurePolicy"] = json!({"maxRestarts": 1});
    let coordinator = &mut broken["spec"]["replicatedJobs"][0]["template"]["spec"];
    coordinator["backoffLimit"] = 0.into();
    coordinator["template"]["spec"]["containers"][0] = container(1, "exit 1");
    apply(&tenant.client, "team", &broken).await.unwrap();
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
