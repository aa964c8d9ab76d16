//! The command `berth explain` against a real host.

use crate::setup::Team;
use berth_tests::{files::binary, test_cluster::TestCluster};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::Value;
use std::process::Output;

/// Runs `berth explain` with these arguments.
async fn explain(host: &TestCluster, arguments: &str) -> Output {
    let mut command = tokio::process::Command::new(binary("berth"));
    command
        .arg("explain")
        .args(arguments.split(' '))
        .env_remove("BERTH_HOME");
    command.env("KUBECONFIG", host.home().admin_kubeconfig());
    command.output().await.unwrap()
}

async fn text(host: &TestCluster, arguments: &str) -> String {
    let output = explain(host, arguments).await;
    assert!(
        output.status.success(),
        "{arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// The output for programs: JSON, and the same as YAML.
async fn values(host: &TestCluster, what: &str) -> [Value; 2] {
    let json = text(host, &format!("{what} --output json")).await;
    let yaml = text(host, &format!("{what} -o yaml")).await;
    [
        serde_json::from_str(&json).unwrap(),
        serde_saphyr::from_str(&yaml).unwrap(),
    ]
}

/// Explains a tenant whose gang waits, one that has a node, and nodes.
pub(crate) async fn explains_tenants_and_nodes(host: &TestCluster, waiting: &Team, served: &Team) {
    let tenant = format!("tenant fleet/{}", waiting.name);
    let printed = text(host, &tenant).await;
    let group = waiting.group().await;
    for part in [
        format!("TenantCluster fleet/{} is ", waiting.name),
        format!("Group burst: {}", group.message),
    ] {
        assert!(printed.contains(&part), "{part:?} is missing in:\n{printed}");
    }
    for found in values(host, &tenant).await {
        assert_eq!(found["name"], waiting.name.as_str());
        assert_eq!(found["groups"][0]["name"], "burst");
        assert_eq!(found["groups"][0]["message"], group.message.as_str());
        assert_eq!(found["nodes"].as_array().map(Vec::len), Some(0), "{found}");
    }

    let nodes: Api<Node> = Api::all(host.client.clone());
    let of_pool = nodes
        .list(&ListParams::default().labels("nvidia.com/gpu.product"))
        .await
        .unwrap();
    let (own, free): (Vec<&Node>, Vec<&Node>) = of_pool
        .iter()
        .partition(|node| node.labels().get(berth_api::labels::TENANT).map(String::as_str) == Some(served.id.slug()));
    let (own, free) = (own[0].name_any(), free[0].name_any());
    let owner = format!("fleet/{}", served.name);
    let printed = text(host, &format!("node {own}")).await;
    for part in [
        format!("Node {own} is Assigned since "),
        format!("Tenant: {owner}"),
        "Group: own".into(),
    ] {
        assert!(printed.contains(&part), "{part:?} is missing in:\n{printed}");
    }
    for found in values(host, &format!("node {own}")).await {
        assert_eq!(
            (found["state"].as_str(), found["tenant"].as_str()),
            (Some("Assigned"), Some(owner.as_str()))
        );
        assert!(found["reason"].as_str().is_some_and(|why| !why.is_empty()), "{found}");
    }
    for found in values(host, &format!("node {free}")).await {
        assert_eq!(
            (found["state"].as_str(), found["tenant"].as_str()),
            (Some("Free"), None)
        );
    }
    let printed = text(host, &format!("tenant {owner}")).await;
    assert!(
        printed
            .lines()
            .any(|line| line.starts_with(&own) && line.contains("Assigned")),
        "{printed}"
    );

    for (what, says) in [
        ("node nowhere", "there is no node nowhere"),
        ("tenant fleet/nobody", "there is no TenantCluster fleet/nobody"),
        // The namespace of the context, as with kubectl.
        ("tenant nobody", "there is no TenantCluster default/nobody"),
    ] {
        let output = explain(host, what).await;
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(says), "{what}: {error}");
    }
}
