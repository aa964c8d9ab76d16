//! What `berth` does with control planes that are pods.

use crate::teams::vision;
use berth_process::binaries::{self, Binary};
use berth_tests::{command_line::CommandLine, test_cluster::TestCluster};
use std::{fs, sync::Arc};
use tokio::process::Command;

pub(crate) async fn a_tenant_is_reached_through_the_host_and_its_logs_are_read(host: Arc<TestCluster>) {
    let tenant = vision(&host).await;
    let name = format!("{}/{}", tenant.namespace, tenant.name);
    let user = CommandLine::of_administrator(&host);
    let before = user.document();

    let kubectl = binaries::find_pinned(Binary::Kubectl).unwrap().display().to_string();
    let command = [
        "connect",
        &name,
        "--forward",
        "--",
        &kubectl,
        "get",
        "nodes",
        "-o",
        "name",
    ];
    let (out, err) = user.run(&command, 0).await;
    assert!(err.contains("through the API server of the host"), "{err}");
    assert!(out.contains("node/gpu-h100-01"), "{out}");
    assert_eq!(user.document(), before);

    let logs = ["logs", &name, "--component", "kube-apiserver", "--tail", "5"];
    let (out, _) = user.run(&logs, 0).await;
    assert!(!out.trim().is_empty());

    // Calico is a process of each of these nodes and no DaemonSet, so nobody can see it. The chart installed a Deployment.
    let doctor = user.berth(&["doctor"]).await;
    let text = String::from_utf8(doctor.stdout).unwrap();
    assert!(
        text.contains("warning  network: no DaemonSet of a network plugin is known"),
        "{text}"
    );
    assert!(text.contains("0 problems"), "{text}");
    assert!(text.contains("has the lease"), "{text}");

    let bundle = user.folder().join("bundle.tar.gz").display().to_string();
    user.run(&["debug", "bundle", &name, "--output-file", &bundle], 0).await;
    let list = Command::new("tar").args(["-tzf", &bundle]).output().await.unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    let is_log = |namespace: &str, pod: &str| {
        let start = format!("berth-debug/namespaces/{namespace}/logs/{pod}");
        list.lines().any(|path| path.starts_with(&start))
    };
    assert!(is_log("berth-system", "berth-control"), "{list}");
    assert!(is_log(&tenant.id.control_plane_namespace(), "kube-apiserver"), "{list}");
    assert!(is_log(&tenant.id.control_plane_namespace(), "syncer"), "{list}");
    assert!(fs::metadata(&bundle).unwrap().len() > 0);
}
