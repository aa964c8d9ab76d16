//! Real host clusters: two at a time, pods and jobs on simulated GPU nodes, killed components, and no trace afterwards.
//!
//! Needs the binaries that `make kubernetes` builds.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::Path;
use std::time::{Duration, Instant};

use berth_local::{HostCluster, HostClusterConfig, NodePlan, NodeShape, TestHost, destroy, process};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::json;

async fn eventually<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_mins(5);
    loop {
        if let Some(found) = probe().await {
            return found;
        }
        assert!(Instant::now() < deadline, "timed out waiting for {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn gpu_pod(name: &str, gpus: u32) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "initContainers": [{"name": "prepare", "image": "busybox"}],
            "containers": [{"name": "train", "image": "pytorch", "resources": {"limits": {"nvidia.com/gpu": gpus}}}],
        },
    }))
    .unwrap()
}

fn job(name: &str, exit_code: u32) -> Job {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"backoffLimit": 0, "template": {
            "metadata": {"annotations": {
                "simulation.berth.dev/run-for": "1s",
                "simulation.berth.dev/exit-code": exit_code.to_string(),
            }},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "work", "image": "busybox"}]},
        }},
    }))
    .unwrap()
}

async fn running(pods: &Api<Pod>, name: &str) -> Pod {
    eventually("a running pod", async || {
        let pod = pods.get(name).await.ok()?;
        (pod.status.as_ref()?.phase.as_deref() == Some("Running")).then_some(pod)
    })
    .await
}

fn condition(pod: &Pod, kind: &str) -> String {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions
        .into_iter()
        .find(|condition| condition.type_ == kind)
        .map_or(String::new(), |found| found.status.clone())
}

/// Ids of the processes that belong to a home.
fn processes_of(home: &Path) -> Vec<String> {
    let marker = format!("BERTH_PROCESS={}", home.display());
    let all = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    all.filter(|process| {
        std::fs::read(process.join("environ")).is_ok_and(|text| String::from_utf8_lossy(&text).contains(&marker))
    })
    .map(|process| process.display().to_string())
    .collect()
}

async fn kill(host: &HostCluster, name: &str) {
    // It may have ended by itself: a component that it needs was killed before.
    let pid = eventually("a process", async || host.supervisor().status(name)?.pid).await;
    let status = tokio::process::Command::new("kill")
        .args(["-9", &pid.to_string()])
        .status()
        .await
        .unwrap();
    assert!(status.success());
    eventually("a new process", async || {
        let now = host.supervisor().status(name)?;
        (now.pid.is_some_and(|now| now != pid)).then_some(())
    })
    .await;
}

async fn check_workloads(client: &Client) {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    pods.create(&PostParams::default(), &gpu_pod("train", 8)).await.unwrap();
    let pod = running(&pods, "train").await;
    let status = pod.status.clone().unwrap();
    assert!(
        pod.spec
            .as_ref()
            .unwrap()
            .node_name
            .as_ref()
            .unwrap()
            .starts_with("gpu-h100-")
    );
    assert_eq!(condition(&pod, "Ready"), "True");
    assert!(
        status.pod_ip.unwrap().starts_with("10.128."),
        "an address of its node's pod range"
    );
    assert!(status.host_ip.unwrap().starts_with("10.64."), "the address of its node");
    assert_eq!(status.observed_generation, pod.metadata.generation);
    assert_eq!(
        status.init_container_statuses.unwrap()[0]
            .state
            .as_ref()
            .unwrap()
            .terminated
            .as_ref()
            .unwrap()
            .exit_code,
        0
    );

    let jobs: Api<Job> = Api::default_namespaced(client.clone());
    jobs.create(&PostParams::default(), &job("succeeds", 0)).await.unwrap();
    jobs.create(&PostParams::default(), &job("fails", 3)).await.unwrap();
    let ended = |name, kind| {
        let jobs = jobs.clone();
        async move {
            eventually("the end of a job", async || {
                let status = jobs.get(name).await.ok()?.status?;
                let mut conditions = status.conditions?.into_iter();
                conditions
                    .any(|condition| condition.type_ == kind && condition.status == "True")
                    .then_some(())
            })
            .await;
        }
    };
    tokio::join!(ended("succeeds", "Complete"), ended("fails", "Failed"));

    pods.delete("train", &DeleteParams::default()).await.unwrap();
    eventually("the end of the pod", async || {
        pods.get_opt("train").await.unwrap().is_none().then_some(())
    })
    .await;
}

async fn check_readiness_gate(client: &Client) {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let mut pod = gpu_pod("gated", 1);
    pod.spec.as_mut().unwrap().readiness_gates =
        Some(serde_json::from_value(json!([{"conditionType": "example.com/open"}])).unwrap());
    pods.create(&PostParams::default(), &pod).await.unwrap();
    assert_eq!(condition(&running(&pods, "gated").await, "Ready"), "False");
    for wanted in ["True", "False"] {
        let gate = json!({"status": {"conditions": [{"type": "example.com/open", "status": wanted}]}});
        pods.patch_status("gated", &PatchParams::default(), &Patch::Strategic(gate))
            .await
            .unwrap();
        eventually("readiness to follow its gate", async || {
            (condition(&pods.get("gated").await.ok()?, "Ready") == wanted).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hosts_live_side_by_side_and_leave_nothing() {
    let plan = || NodePlan::of([(NodeShape::H100, 1), (NodeShape::Cpu, 1)]);
    let begin = Instant::now();
    let (one, two) = tokio::join!(TestHost::start(plan()), TestHost::start(plan()));
    let (one, two) = (one.unwrap(), two.unwrap());
    eprintln!("two hosts are ready after {:?}", begin.elapsed());
    assert_ne!(one.server(), two.server());

    let clients = (one.client().await.unwrap(), two.client().await.unwrap());
    tokio::join!(check_workloads(&clients.0), check_workloads(&clients.1));
    check_readiness_gate(&clients.0).await;

    let home = one.home().root().to_owned();
    assert_eq!(processes_of(&home).len(), 6);
    one.cluster().clone().destroy().await.unwrap();
    assert_eq!(processes_of(&home), Vec::<String>::new());
    assert!(!home.exists());
    // The other cluster is not affected.
    clients.1.apiserver_version().await.unwrap();
    let home = two.home().root().to_owned();
    drop(two);
    assert_eq!(processes_of(&home), Vec::<String>::new());
    assert!(!home.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_components_heal_and_data_survives() {
    let host = TestHost::start(NodePlan::of([(NodeShape::L40s, 1)])).await.unwrap();
    let client = host.client().await.unwrap();
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    pods.create(&PostParams::default(), &gpu_pod("before", 1))
        .await
        .unwrap();
    running(&pods, "before").await;
    for name in [process::ETCD, process::APISERVER, process::KWOK] {
        kill(&host, name).await;
    }
    let created = gpu_pod("after", 1);
    eventually("the API server", async || {
        pods.create(&PostParams::default(), &created).await.ok()
    })
    .await;
    running(&pods, "after").await;
    running(&pods, "before").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_start_adopts_the_first_and_adds_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = HostClusterConfig::new(dir.path().join("home"));
    config.die_with_parent = true;
    config.fsync = false;
    config.nodes = NodePlan::of([(NodeShape::L40s, 1)]);
    let first = HostCluster::start(config.clone(), |_| {}).await.unwrap();
    let pids = |host: &HostCluster| {
        host.supervisor()
            .list()
            .into_iter()
            .map(|status| status.pid)
            .collect::<Vec<_>>()
    };
    let before = pids(&first);
    first.supervisor().release();
    drop(first);

    config.nodes = NodePlan::of([(NodeShape::L40s, 2)]);
    let second = HostCluster::start(config.clone(), |_| {}).await.unwrap();
    assert_eq!(pids(&second), before);
    let nodes: Api<Node> = Api::all(second.client().await.unwrap());
    let names: Vec<_> = nodes
        .list(&kube::api::ListParams::default())
        .await
        .unwrap()
        .iter()
        .map(Node::name_any)
        .collect();
    assert_eq!(names, ["gpu-l40s-01", "gpu-l40s-02"]);

    second.stop().await.unwrap();
    assert_eq!(second.supervisor().list(), []);
    drop(second);
    let third = HostCluster::start(config.clone(), |_| {}).await.unwrap();
    let nodes: Api<Node> = Api::all(third.client().await.unwrap());
    assert_eq!(
        nodes.list(&kube::api::ListParams::default()).await.unwrap().items.len(),
        2
    );
    drop(third);
    tokio::task::spawn_blocking(move || destroy(&config.home))
        .await
        .unwrap()
        .unwrap();
    assert!(!dir.path().join("home").exists());
}
