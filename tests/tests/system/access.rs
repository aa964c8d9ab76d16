//! Classes and pools that no longer allow the namespace of a running tenant. The test has a node, a pool and a class of its own.

use berth_api::{HostNodePool, TenantClass, TenantCluster, Violation, conditions, labels};
use berth_tests::{
    objects::{apply, nodes_of_tenant, simulate_node},
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use k8s_openapi::api::core::v1::{Event, Namespace, Node};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use std::sync::Arc;

/// Name of everything in the test.
const NAME: &str = "access";

/// Allows namespaces with the label `gpus: yes`, with a grace period.
fn labelled(grace: &str) -> Value {
    json!({
        "allowedNamespaces": {"from": "Selector", "selector": {"matchLabels": {"gpus": "yes"}}},
        "enforcementGracePeriod": grace,
    })
}

fn object(kind: &str, spec: &Value) -> Value {
    json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": {"name": NAME}, "spec": spec})
}

async fn set_pool(host: &TestCluster, grace: &str) {
    let mut spec = labelled(grace);
    spec["nodeSelector"] = json!({"example.com/pool": NAME});
    spec["gpuResourceName"] = "nvidia.com/gpu".into();
    apply(&host.client, "", &object("HostNodePool", &spec)).await.unwrap();
}

async fn set_class(host: &TestCluster, spec: &Value) {
    apply(&host.client, "", &object("TenantClass", spec)).await.unwrap();
}

async fn set_label(host: &TestCluster, value: Option<&str>) {
    let namespaces: Api<Namespace> = Api::all(host.client.clone());
    let patch = json!({"metadata": {"labels": {"gpus": value}}});
    namespaces
        .patch(NAME, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
}

fn reason<'a>(cluster: &'a TenantCluster, kind: &str) -> Option<&'a str> {
    let conditions = &cluster.status.as_ref()?.conditions;
    let found = conditions.iter().find(|condition| condition.type_ == kind)?;
    Some(&found.reason)
}

/// Waits until the conditions Accepted and Compliant have these reasons; returns what is not allowed.
async fn until_reasons(host: &TestCluster, accepted: &str, compliant: &str) -> Vec<Violation> {
    let what = format!("the tenant is {accepted} and {compliant}");
    until(&what, SOON, async || {
        let cluster = host.tenants(NAME).get(NAME).await.map_err(|error| error.to_string())?;
        let found = (
            reason(&cluster, conditions::ACCEPTED),
            reason(&cluster, conditions::COMPLIANT),
        );
        if found == (Some(accepted), Some(compliant)) {
            Ok(cluster.status.unwrap_or_default().violations)
        } else {
            Err(format!("{:?}", cluster.status))
        }
    })
    .await
}

async fn until_event(host: &TestCluster, reason: &str) {
    let events: Api<Event> = Api::namespaced(host.client.clone(), NAME);
    let warnings = ListParams::default().fields(&format!("reason={reason},type=Warning"));
    until_true(&format!("there is an Event {reason}"), SOON, async || {
        events.list(&warnings).await.is_ok_and(|list| !list.items.is_empty())
    })
    .await;
}

async fn until_nodes(host: &TestCluster, tenant: &Tenant, count: usize) {
    until_true(&format!("the tenant has {count} nodes"), SOON, async || {
        nodes_of_tenant(&host.client, tenant.id.slug()).await.len() == count
    })
    .await;
}

pub(crate) async fn what_is_forbidden_later_is_withdrawn_after_its_grace_period(host: Arc<TestCluster>) {
    let node_labels = json!({"example.com/pool": NAME, "nvidia.com/gpu.product": NAME});
    simulate_node(&host.client, "gpu-l40s-01", NAME, node_labels).await;
    set_pool(&host, "1h").await;
    set_class(&host, &json!({})).await;
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAME, "labels": {"gpus": "yes"}}});
    apply(&host.client, "", &namespace).await.unwrap();
    let mut wanted = cluster(NAME, &[("train", NAME, 1)]);
    wanted.spec.class_name = Some(NAME.into());
    let tenant = Tenant::create(&host, NAME, &wanted).await;
    assert!(until_reasons(&host, "Valid", "Allowed").await.is_empty());

    // The namespace loses the label. The tenant keeps its node for the grace period, and the team is told.
    set_label(&host, None).await;
    let violations = until_reasons(&host, "PoolNotAllowed", "EnforcementPending").await;
    assert_eq!(violations.len(), 1, "{violations:?}");
    assert_eq!(violations[0].object, format!("HostNodePool/{NAME}"));
    let deadline = violations[0].deadline.as_ref().unwrap();
    assert_eq!(deadline.0.as_second() - violations[0].since.0.as_second(), 3600);
    until_event(&host, "PoolNotAllowed").await;
    assert_eq!(nodes_of_tenant(&host.client, tenant.id.slug()).await, [NAME]);

    // Allowed in time, nothing is withdrawn; forbidden once more, the grace period begins anew.
    set_label(&host, Some("yes")).await;
    let tenant = Tenant::ready(&host, NAME, &tenant.name).await;
    set_label(&host, None).await;
    until_reasons(&host, "PoolNotAllowed", "EnforcementPending").await;

    // The platform shortens the grace period: the node is released and recycled, and the control plane goes on.
    set_pool(&host, "0s").await;
    until_nodes(&host, &tenant, 0).await;
    until_event(&host, "ViolationEnforced").await;
    assert!(
        until_reasons(&host, "PoolNotAllowed", "Allowed").await.is_empty(),
        "nothing forbidden is left"
    );
    tenant.client.apiserver_version().await.unwrap();

    // Allowed again, the tenant gets its node back by itself.
    set_label(&host, Some("yes")).await;
    let tenant = Tenant::ready(&host, NAME, &tenant.name).await;
    until_nodes(&host, &tenant, 1).await;

    // A class that forbids the namespace takes all nodes, and leaves the control plane.
    set_class(
        &host,
        &json!({"allowedNamespaces": {"from": "None"}, "enforcementGracePeriod": "0s"}),
    )
    .await;
    let violations = until_reasons(&host, "ClassNotAllowed", "Enforced").await;
    assert!(violations[0].enforced, "{violations:?}");
    until_nodes(&host, &tenant, 0).await;
    tenant.client.apiserver_version().await.unwrap();

    tenant.delete(&host).await;
    let nodes: Api<Node> = Api::all(host.client.clone());
    until_true("the node is free", SOON, async || {
        let node = nodes.get(NAME).await;
        node.is_ok_and(|node| !node.labels().contains_key(labels::NODE_STATE))
    })
    .await;
    let classes: Api<TenantClass> = Api::all(host.client.clone());
    classes.delete(NAME, &DeleteParams::default()).await.unwrap();
    let pools: Api<HostNodePool> = Api::all(host.client.clone());
    pools.delete(NAME, &DeleteParams::default()).await.unwrap();
    nodes.delete(NAME, &DeleteParams::default()).await.unwrap();
}
