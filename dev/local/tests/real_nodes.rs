//! Real kubelets on this machine: they come up, and leave nothing.
#![expect(clippy::unwrap_used, reason = "helpers of a test panic as the test does")]

use std::process::Command;
use std::time::Duration;

use berth_local::{TestHost, obstacle_to_real_nodes};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use kube::runtime::wait::await_condition;

fn output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// What a cluster leaves on the machine: namespaces, links, routes, files and processes.
fn traces(id: &str) -> Vec<String> {
    let all = [
        output("ip", &["netns", "list"]),
        output("ip", &["-brief", "link"]),
        output("ip", &["route", "show"]),
        output(
            "find",
            &[
                "/run/berth",
                "/sys/fs/cgroup",
                "-maxdepth",
                "2",
                "-name",
                &format!("*{id}*"),
            ],
        ),
        output("ps", &["-eo", "args"]),
    ];
    let lines = all.iter().flat_map(|text| text.lines());
    lines.filter(|line| line.contains(id)).map(str::to_owned).collect()
}

#[tokio::test]
async fn real_nodes_come_up_and_leave_nothing() {
    // Without root there are no real nodes; `berth dev up` says so, too.
    if let Some(why) = obstacle_to_real_nodes() {
        assert!(std::env::var_os("CI").is_none(), "{why}");
        eprintln!("not run: {why}");
        return;
    }
    let host = TestHost::start_with(|config| {
        config.nodes = "cpu=1,h100=1".parse().unwrap();
        config.real_nodes = true;
    });
    let host = host.await.unwrap();
    let nodes: Api<Node> = Api::all(host.client().await.unwrap());
    let is_complete = |node: &Node| {
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        let gpus = allocatable
            .and_then(|resources| resources.get("nvidia.com/gpu"))
            .map(|count| count.0.as_str());
        node.name_any() == "cpu-01" || gpus == Some("8")
    };
    while !nodes
        .list(&ListParams::default())
        .await
        .unwrap()
        .iter()
        .all(is_complete)
    {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let deployments: Api<Deployment> = Api::namespaced(host.client().await.unwrap(), "kube-system");
    for name in ["kube-dns", "metrics-server"] {
        let available = |found: Option<&Deployment>| {
            let status = found.and_then(|found| found.status.as_ref());
            status.is_some_and(|status| status.available_replicas == Some(1))
        };
        await_condition(deployments.clone(), name, available).await.unwrap();
    }
    for node in nodes.list(&ListParams::default()).await.unwrap() {
        let status = node.status.unwrap();
        let runtime = status.node_info.unwrap().container_runtime_version;
        assert!(runtime.starts_with("containerd://2."), "{runtime}");
        assert!(node.spec.unwrap().pod_cidr.is_some());
    }
    let network = std::fs::read_to_string(host.home().run().join("network.config")).unwrap();
    let network: serde_json::Value = serde_json::from_str(&network).unwrap();
    let id = format!("berth-{}", network["id"].as_str().unwrap());
    let namespaces = traces(&id);
    assert!(
        namespaces.iter().any(|line| line.starts_with(&format!("{id}-1"))),
        "{namespaces:?}"
    );
    drop(host);
    assert_eq!(traces(&id), Vec::<String>::new());
}
