//! Kueue: Jobs wait in the team's own queue until the team's own quota has room.

use crate::{
    chart::{Chart, Helm},
    host_objects,
    jobset::{JOBSET, training_run},
    team::{FOREVER, accepted, container, team},
};
use berth_api::labels::POD_LABELS;
use berth_tests::{
    objects::{dynamic, phase},
    tenant::{Tenant, ensure_namespace},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, PostParams, PropagationPolicy},
};
use serde_json::{Value, json};
use std::sync::Arc;

const LABEL: &str = "kueue.x-k8s.io/queue-name";

/// The operator.
const KUEUE: Chart = Chart {
    name: "kueue",
    version: "v0.15.0",
    namespace: "kueue-system",
    deployment: "kueue-controller-manager",
    pull_policy: &["controllerManager", "manager", "image", "pullPolicy"],
};

/// A queue with a quota of eight GPUs of one product.
fn queue() -> Vec<Value> {
    let object = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let quota = json!([
        {"name": "cpu", "nominalQuota": "100"},
        {"name": "memory", "nominalQuota": "1Ti"},
        {"name": "nvidia.com/gpu", "nominalQuota": "8"},
    ]);
    vec![
        object(
            "ResourceFlavor",
            "h100",
            json!({"nodeLabels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}}),
        ),
        object(
            "ClusterQueue",
            "team",
            json!({
                "namespaceSelector": {},
                "resourceGroups": [{
                    "coveredResources": ["cpu", "memory", "nvidia.com/gpu"],
                    "flavors": [{"name": "h100", "resources": quota}],
                }],
            }),
        ),
        object("LocalQueue", "train", json!({"clusterQueue": "team"})),
    ]
}

fn job(name: &str) -> Value {
    let mut container = container(3, "sleep 4");
    container["resources"]["requests"] = json!({"cpu": "100m", "memory": "64Mi"});
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "labels": {LABEL: "train"}},
        "spec": {"parallelism": 2, "completions": 2, "template": {
            "spec": {"restartPolicy": "Never", "containers": [container]},
        }},
    })
}

/// Whether a pod runs, or has already ended well: a busy machine may look too late to see it run.
fn has_run(pod: &Pod) -> bool {
    matches!(phase(pod).as_str(), "Running" | "Succeeded")
}

/// Kueue's values with plain pods among what it manages, as its documentation says.
fn pods_too(values: &Value) -> Value {
    let text = values["managerConfig"]["controllerManagerConfigYaml"].as_str().unwrap();
    let mut config: Value = serde_saphyr::from_str(text).unwrap();
    let frameworks = config["integrations"]["frameworks"].as_array_mut().unwrap();
    frameworks.push("pod".into());
    json!({"managerConfig": {"controllerManagerConfigYaml": config.to_string()}})
}

fn cluster_scoped(client: &Client, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", kind));
    Api::all_with(client.clone(), &resource)
}

pub(crate) async fn jobs_wait_for_their_queue(host: Arc<TestCluster>) {
    let tenant = team(&host).await;
    let helm = Helm::new(tenant);
    helm.install(&host, &JOBSET).await;
    helm.install_with(&host, &KUEUE, pods_too).await;
    ensure_namespace(&tenant.client, "team").await;
    for object in queue() {
        accepted(tenant, &object).await;
    }

    let first = accepted(tenant, &job("first")).await;
    assert_eq!(
        first.data["spec"]["suspend"], true,
        "the webhook suspends Jobs of a queue"
    );
    let jobs: Api<Job> = Api::namespaced(tenant.client.clone(), "team");
    let suspended = async |name: &str| jobs.get(name).await.unwrap().spec.unwrap().suspend.unwrap_or_default();
    until_true("the first Job is admitted", SOON, async || !suspended("first").await).await;
    accepted(tenant, &job("second")).await;
    let pods = until("the first Job runs on the host, or did", SOON, async || {
        let mut pods = host_objects::pods(&host, tenant, "team").await;
        pods.retain(|name, pod| name.starts_with("first-") && has_run(pod));
        if pods.len() == 2 { Ok(pods) } else { Err(pods.len()) }
    })
    .await;
    for pod in pods.values() {
        let selector = pod.spec.clone().unwrap().node_selector.unwrap();
        assert_eq!(
            selector["nvidia.com/gpu.product"], "NVIDIA-H100-80GB-HBM3",
            "the flavor chose the nodes"
        );
        let keys: Vec<&String> = pod.labels().keys().chain(pod.annotations().keys()).collect();
        assert!(
            !keys
                .iter()
                .any(|key| key.contains("kueue") && !key.starts_with(POD_LABELS)),
            "queues of the host are the platform's: {keys:?}"
        );
    }
    // Six of eight GPUs are in use: the second Job has to wait until the first has ended.
    for name in ["first", "second"] {
        until_true(&format!("the {name} Job is complete"), SOON, async || {
            jobs.get(name)
                .await
                .is_ok_and(|job| job.status.is_some_and(|status| status.succeeded == Some(2)))
        })
        .await;
    }
    let started = async |name: &str| jobs.get(name).await.unwrap().status.unwrap().start_time.unwrap();
    let ended = jobs
        .get("first")
        .await
        .unwrap()
        .status
        .unwrap()
        .completion_time
        .unwrap();
    assert!(started("second").await >= ended, "one after the other");

    // A JobSet waits in the same queue, as a whole: five GPUs in three Jobs.
    let mut run = training_run("run", "sleep 8");
    run["metadata"]["labels"] = json!({LABEL: "train"});
    run["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]["containers"][0]["resources"] =
        json!({"limits": {"nvidia.com/gpu": "1"}});
    let made = accepted(tenant, &run).await;
    assert_eq!(
        made.data["spec"]["suspend"], true,
        "the webhook suspends JobSets of a queue"
    );
    let runs = dynamic(&tenant.client, "jobset.x-k8s.io", "v1alpha2", "JobSet", "team");
    until_true("the run is complete", SOON, async || {
        runs.get("run")
            .await
            .is_ok_and(|run| run.data["status"]["terminalState"] == "Completed")
    })
    .await;

    pods_wait_too(&host, tenant).await;
    delete_all(&tenant.client).await;
    helm.uninstall(&KUEUE).await;
    helm.uninstall(&JOBSET).await;
}

/// Pods wait behind a scheduling gate, in the tenant alone, and keep Kueue's finalizer until Kueue removes it.
async fn pods_wait_too(host: &TestCluster, tenant: &Tenant) {
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "team");
    let create = async |name: &str| {
        let pod = json!({"metadata": {"name": name, "labels": {LABEL: "train"}},
            "spec": {"containers": [container(5, FOREVER)], "terminationGracePeriodSeconds": 1}});
        let pod = serde_json::from_value(pod).unwrap();
        // Kueue's webhook is called for every pod of the namespace.
        until("the pod is accepted", SOON, async || {
            match pods.create(&PostParams::default(), &pod).await {
                Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
                other => other.map(drop),
            }
        })
        .await;
    };
    let on_host = async |name: &str| host_objects::pods(host, tenant, "team").await.remove(name);
    let runs = async |name: &str| on_host(name).await.is_some_and(|pod| phase(&pod) == "Running");
    create("solo").await;
    until_true("the first pod runs", SOON, async || runs("solo").await).await;
    create("later").await;
    let later = pods.get("later").await.unwrap().spec.unwrap();
    assert!(later.scheduling_gates.is_some_and(|gates| !gates.is_empty()));
    assert!(on_host("later").await.is_none(), "it waits in the tenant");
    pods.delete("solo", &DeleteParams::default()).await.unwrap();
    until_true("the second pod runs", SOON, async || runs("later").await).await;
    let selector = on_host("later").await.unwrap().spec.unwrap().node_selector.unwrap();
    assert_eq!(
        selector["nvidia.com/gpu.product"], "NVIDIA-H100-80GB-HBM3",
        "chosen while it waited"
    );
    pods.delete("later", &DeleteParams::default()).await.unwrap();
    for name in ["solo", "later"] {
        until_true(&format!("{name} is gone"), SOON, async || {
            pods.get_opt(name).await.is_ok_and(|pod| pod.is_none())
        })
        .await;
    }
}

/// Deletes what the test made, as long as the operator still runs: its objects have finalizers.
async fn delete_all(client: &Client) {
    let params = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Foreground),
        ..DeleteParams::default()
    };
    let runs = dynamic(client, "jobset.x-k8s.io", "v1alpha2", "JobSet", "team");
    let jobs: Api<Job> = Api::namespaced(client.clone(), "team");
    runs.delete("run", &params).await.unwrap();
    for name in ["first", "second"] {
        jobs.delete(name, &params).await.unwrap();
    }
    dynamic(client, "kueue.x-k8s.io", "v1beta2", "LocalQueue", "team")
        .delete("train", &params)
        .await
        .unwrap();
    for (kind, name) in [("ClusterQueue", "team"), ("ResourceFlavor", "h100")] {
        let api = cluster_scoped(client, kind);
        until_true(&format!("the {kind} is gone"), SOON, async || {
            let _ = api.delete(name, &params).await;
            api.get_opt(name).await.is_ok_and(|object| object.is_none())
        })
        .await;
    }
}
