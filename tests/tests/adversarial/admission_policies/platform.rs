//! Nodes, namespaces and their assignment to tenants; and the host's type check of the policies.

use super::{dry_run, expect_denied, rbac};
use crate::shared::attacker;
use berth_admission_policies::all_policies;
use berth_api::{labels, names::TenantId};
use berth_tests::{
    objects::nodes_of_tenant,
    tenant::patient,
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use k8s_openapi::api::{
    admissionregistration::v1::ValidatingAdmissionPolicy,
    core::v1::{Namespace, Node},
};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use std::{collections::BTreeMap, sync::Arc};

/// Rights on nodes and namespaces are common: kubelets, operators, and teams that create namespaces have them.
pub(crate) async fn only_the_platform_changes_assignments_of_nodes_and_namespaces(host: Arc<TestCluster>) {
    let tenant = attacker(&host).await;
    let rules = json!([
        {"apiGroups": [""], "resources": ["nodes", "nodes/status", "namespaces", "namespaces/status"], "verbs": ["*"]},
        {"apiGroups": ["berth.dev"], "resources": ["tenantnodes", "tenantnodes/status", "tenantschedules"], "verbs": ["*"]},
    ]);
    rbac::grant(&host.client, "", "intruder", &rbac::user("intruder"), &rules).await;
    let kubeconfig = host.kubeconfig_for("intruder", &[]).unwrap();
    let client = patient(&kubeconfig).await;
    let node = nodes_of_tenant(&host.client, tenant.id.slug()).await.remove(0);
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let nodes: Api<Node> = Api::all(client.clone());
    until("the intruder has rights", SOON, async || {
        let harmless = json!({"metadata": {"labels": {"rack": "7"}}, "spec": {"unschedulable": true}});
        nodes.patch(&node, &params, &Patch::Merge(harmless)).await
    })
    .await;
    for patch in [
        json!({"metadata": {"labels": {labels::TENANT: "other"}}}),
        json!({"metadata": {"labels": {labels::NODE_STATE: null}}}),
        json!({"metadata": {"annotations": {labels::OWNER_UID: "other"}}}),
        json!({"spec": {"taints": null}}),
    ] {
        expect_denied("on nodes", nodes.patch(&node, &params, &Patch::Merge(&patch)).await);
        if patch.get("metadata").is_some() {
            expect_denied(
                "on nodes",
                nodes.patch_status(&node, &params, &Patch::Merge(&patch)).await,
            );
        }
    }
    owners_of_nodes(&nodes, &node, &params).await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let own = tenant.id.workload_namespace();
    for (message, patch) in [
        ("on namespaces", json!({"metadata": {"labels": {labels::ROLE: null}}})),
        (
            "on namespaces",
            json!({"metadata": {"labels": {labels::TENANT: "other"}}}),
        ),
        (
            "on namespaces",
            json!({"metadata": {"annotations": {"allow.berth.dev/runtime-classes": "*"}}}),
        ),
        (
            "Pod Security",
            json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}}),
        ),
        (
            "Pod Security",
            json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": null}}}),
        ),
        // The garbage collector would delete the namespace.
        (
            "the owners of a tenant's namespace",
            json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "none", "uid": "6f2c"}]}}),
        ),
    ] {
        expect_denied(message, namespaces.patch(&own, &params, &Patch::Merge(&patch)).await);
        expect_denied(
            message,
            namespaces.patch_status(&own, &params, &Patch::Merge(&patch)).await,
        );
    }
    the_collector_changes_owners(&host, &own, &params).await;
    let many: BTreeMap<String, &str> = (0..1001).map(|number| (format!("n{number}"), "")).collect();
    for field in ["labels", "annotations"] {
        let patch = Patch::Merge(json!({"metadata": {field: many}}));
        let denied = "at most 1,000 labels and 1,000 annotations";
        expect_denied(denied, nodes.patch(&node, &params, &patch).await);
        expect_denied(denied, namespaces.patch(&own, &params, &patch).await);
    }
    let plain = json!({"metadata": {"labels": {"team": "a"}}});
    namespaces.patch(&own, &params, &Patch::Merge(&plain)).await.unwrap();
    // Network policies of the platform select namespaces by these labels.
    let mine: Namespace =
        serde_json::from_value(json!({"metadata": {"name": "mine", "labels": {labels::TENANT: tenant.id.slug()}}}))
            .unwrap();
    expect_denied("on namespaces", namespaces.create(&dry_run(), &mine).await);
    // Control would take them for those of a tenant that it creates later, and who creates a namespace often has rights in it.
    let create = async |name: &str| {
        let early: Namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        namespaces.create(&dry_run(), &early).await
    };
    let later = TenantId::new("later", "6f2c");
    for name in [later.workload_namespace(), later.control_plane_namespace()] {
        expect_denied("names like those of tenants", create(name.as_str()).await);
    }
    create("berth-later").await.unwrap();
    let home = tenant.id.control_plane_namespace();
    let made_up: berth_api::TenantNode = serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantNode", "metadata": {"name": "x"},
        "spec": {"nodeName": "gpu-l40s-01", "poolName": "l40s", "nodeGroupName": "a"},
    }))
    .unwrap();
    let tenant_nodes: Api<berth_api::TenantNode> = Api::namespaced(client, &home);
    expect_denied("which nodes", tenant_nodes.create(&dry_run(), &made_up).await);
}

/// The garbage collector deletes a node with an owner that does not exist, and agents of every node may write the status of all.
async fn owners_of_nodes(nodes: &Api<Node>, node: &str, params: &PatchParams) {
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "none", "uid": "6f2c"});
    let patch = Patch::Merge(json!({"metadata": {"ownerReferences": [owner]}}));
    expect_denied("owners of a node", nodes.patch_status(node, params, &patch).await);
    // As controllers that create nodes do.
    nodes.patch(node, params, &patch).await.unwrap();
}

/// The garbage collector removes owners that do not exist beside others. An owner that it may not remove would keep what it waits for from being deleted.
async fn the_collector_changes_owners(host: &TestCluster, namespace: &str, params: &PatchParams) {
    let collector = "system:serviceaccount:kube-system:generic-garbage-collector";
    let client = patient(&host.kubeconfig_for(collector, &[]).unwrap()).await;
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "none", "uid": "6f2c"});
    let patch = Patch::Merge(json!({"metadata": {"ownerReferences": [owner]}}));
    let namespaces: Api<Namespace> = Api::all(client);
    namespaces.patch(namespace, params, &patch).await.unwrap();
}

/// The host checks expressions against the schemas of the objects that they validate, and reports warnings in the status.
pub(crate) async fn the_host_reports_no_type_errors_in_the_policies(host: Arc<TestCluster>) {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(host.client.clone());
    for expected in all_policies() {
        let policy = until("the policy's types are checked", SOON, async || {
            let policy = policies.get(expected.name).await.map_err(|error| error.to_string())?;
            let status = policy.status.clone().unwrap_or_default();
            if status.observed_generation == policy.metadata.generation {
                Ok(policy)
            } else {
                Err(format!("{status:?}"))
            }
        })
        .await;
        let warnings = policy
            .status
            .and_then(|status| status.type_checking?.expression_warnings);
        assert_eq!(warnings.unwrap_or_default(), [], "{}", expected.name);
    }
}
