//! A tenant's border in the network as objects: policies are there before the first pod, follow the spec, are restored, and
//! outlast the pods. That packets obey them is shown on real nodes.

use berth_api::{
    Phase, conditions, labels,
    names::{TenantId, host_name},
};
use berth_control::control_plane::SYNCER;
use berth_tests::{
    objects::{apply, gpu_pod, names},
    tenant::{Tenant, cluster, until_gone},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use k8s_openapi::api::{
    core::v1::{Namespace, Pod},
    networking::v1::NetworkPolicy,
    rbac::v1::RoleBinding,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::sync::Arc;

const OF_WORKLOADS: [&str; 5] = [
    "berth-api-server",
    "berth-baseline",
    "berth-dns",
    "berth-open-egress",
    "berth-open-ingress",
];

fn policies(host: &TestCluster, id: &TenantId) -> Api<NetworkPolicy> {
    Api::namespaced(host.client.clone(), &id.workload_namespace())
}

/// The resource version with which an unchanged object was created.
fn made(object: &impl ResourceExt) -> u64 {
    object.resource_version().unwrap().parse().unwrap()
}

/// Ranges that pods without policies of the tenant may reach, besides the servers of its control plane, which are processes of
/// this machine.
async fn declared(policies: &Api<NetworkPolicy>) -> Vec<String> {
    let policy = policies.get("berth-open-egress").await.unwrap();
    let rules = policy.spec.unwrap().egress.unwrap_or_default();
    let peers = rules.into_iter().flat_map(|rule| rule.to.unwrap_or_default());
    let ranges = peers.filter_map(|peer| Some(peer.ip_block?.cidr));
    ranges.filter(|range| range != "127.0.0.1/32").collect()
}

async fn patch(host: &TestCluster, tenant: &Tenant, network: Value) {
    let spec = json!({ "network": network });
    host.patch_tenant(&tenant.namespace, &tenant.name, &spec).await;
}

/// What is not declared any more is gone, also if somebody else owns the annotation as well, by an apply of what is there.
async fn rules_end_whoever_owns_them(host: &TestCluster, tenant: &Tenant) {
    const RULE: &str = "allow.berth.dev/egress-cidrs";
    let namespaces: Api<Namespace> = Api::all(host.client.clone());
    let name = tenant.id.workload_namespace();
    let same = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "annotations": {(RULE): "10.20.0.0/16"}}});
    let params = PatchParams::apply("other");
    namespaces.patch(&name, &params, &Patch::Apply(&same)).await.unwrap();
    patch(host, tenant, json!({"egress": {"allow": []}})).await;
    until_true("the rule is gone", SOON, async || {
        !namespaces.get(&name).await.unwrap().annotations().contains_key(RULE)
    })
    .await;
}

pub(crate) async fn policies_follow_the_spec_and_drift_is_corrected(host: Arc<TestCluster>) {
    let class = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": "bordered"}, "spec": {
        "network": {"egress": {"allowedCIDRs": ["10.0.0.0/8"], "default": [{"cidr": "10.30.0.0/16"}]}}}});
    apply(&host.client, "", &class).await.unwrap();
    let mut cluster = cluster("bordered", &[]);
    cluster.spec.class_name = Some("bordered".into());
    let tenant = Tenant::create(&host, "net-follow", &cluster).await;
    let policies = policies(&host, &tenant.id);
    assert_eq!(names(&policies, &ListParams::default()).await, OF_WORKLOADS);
    assert_eq!(declared(&policies).await, ["10.30.0.0/16"], "the default of the class");

    // They exist before the syncer has the right to create a pod.
    let bindings: Api<RoleBinding> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
    let binding = made(&bindings.get(SYNCER).await.unwrap());
    for name in OF_WORKLOADS {
        assert!(made(&policies.get(name).await.unwrap()) < binding, "{name} came late");
    }

    // The declared ranges: in the policies, in what the syncer allows, and in what the admission policy reads.
    patch(
        &host,
        &tenant,
        json!({"egress": {"allow": [{"cidr": "10.20.0.0/16", "ports": [443]}]}}),
    )
    .await;
    until("the policies follow", SOON, async || match declared(&policies).await {
        list if list == ["10.20.0.0/16"] => Ok(()),
        list => Err(list),
    })
    .await;
    let namespaces: Api<Namespace> = Api::all(host.client.clone());
    let namespace = namespaces.get(&tenant.id.workload_namespace()).await.unwrap();
    assert_eq!(namespace.annotations()["allow.berth.dev/egress-cidrs"], "10.20.0.0/16");
    let everything = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "everything"},
        "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}]}});
    apply(&tenant.client, "default", &everything).await.unwrap();
    let on_host = host_name("NetworkPolicy", "default", "everything");
    until("the syncer opens what is declared and no more", SOON, async || {
        let policy = policies.get(&on_host).await.map_err(|error| error.to_string())?;
        let rules = serde_json::to_value(policy.spec.unwrap().egress).unwrap();
        // A block of all addresses opens the tenant's own pods, and outside what is declared.
        let outside =
            json!({"to": [{"ipBlock": {"cidr": "10.20.0.0/16"}}], "ports": [{"port": 443, "protocol": "TCP"}]});
        let own_pods = &rules[0]["to"];
        let names_pods = |peer: &Value| peer["podSelector"].is_object() && peer.get("ipBlock").is_none();
        if own_pods.as_array().is_some_and(|peers| peers.iter().all(names_pods))
            && rules == json!([{"to": own_pods}, outside])
        {
            Ok(())
        } else {
            Err(rules.to_string())
        }
    })
    .await;

    // A range that the class does not allow is reported, and changes nothing.
    patch(&host, &tenant, json!({"egress": {"allow": [{"cidr": "192.0.2.0/24"}]}})).await;
    let tenants = host.tenants("net-follow");
    until("the condition names the range", SOON, async || {
        let cluster = tenants.get("bordered").await.map_err(|error| error.to_string())?;
        let conditions = cluster.status.unwrap_or_default().conditions;
        let accepted = conditions.iter().find(|c| c.type_ == conditions::ACCEPTED);
        let message = "spec.network.egress.allow[0]: the class does not allow 192.0.2.0/24; use a range in 10.0.0.0/8";
        match accepted {
            Some(found) if found.reason == "NetworkNotAllowed" && found.message == message => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert_eq!(declared(&policies).await, ["10.20.0.0/16"]);
    rules_end_whoever_owns_them(&host, &tenant).await;
    patch(&host, &tenant, json!({"egress": null})).await;

    // A policy that is deleted or changed by hand is restored.
    let before = policies.get("berth-baseline").await.unwrap();
    policies
        .delete("berth-baseline", &DeleteParams::default())
        .await
        .unwrap();
    until_true("the policy is back", SOON, async || {
        policies.get_opt("berth-baseline").await.unwrap().is_some()
    })
    .await;
    assert_eq!(policies.get("berth-baseline").await.unwrap().spec, before.spec);
    let opened = Patch::Merge(json!({"spec": {"ingress": [{}]}}));
    policies
        .patch("berth-baseline", &PatchParams::default(), &opened)
        .await
        .unwrap();
    until_true("the policy is as it was", SOON, async || {
        policies.get("berth-baseline").await.unwrap().spec == before.spec
    })
    .await;
    // A policy that control does not create any more is deleted.
    let mut stale = before.clone();
    stale.metadata = kube::api::ObjectMeta {
        name: Some("berth-earlier".into()),
        labels: before.metadata.labels.clone(),
        ..Default::default()
    };
    policies.create(&PostParams::default(), &stale).await.unwrap();
    until_true("the stale policy is gone", SOON, async || {
        policies.get_opt("berth-earlier").await.unwrap().is_none()
    })
    .await;
    tenant.delete(&host).await;
}

pub(crate) async fn policies_outlast_pods(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, "net-last", &cluster("last", &[("train", "h100", 1)])).await;
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    pods.create(&PostParams::default(), &gpu_pod("a", 1)).await.unwrap();
    let on_host: Api<Pod> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
    let name = until("the pod is on the host", SOON, async || {
        let list = on_host
            .list(&ListParams::default())
            .await
            .map_err(|error| error.to_string())?;
        list.items.first().map(ResourceExt::name_any).ok_or("none".to_owned())
    })
    .await;
    // A pod that takes its time to end.
    let held = |finalizers: Value| Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    let params = PatchParams::default();
    on_host
        .patch(&name, &params, &held(json!(["example.com/held"])))
        .await
        .unwrap();
    let tenants = host.tenants("net-last");
    tenants.delete("last", &DeleteParams::default()).await.unwrap();
    until("the tenant waits for its pods", SOON, async || {
        let cluster = tenants.get("last").await.map_err(|error| error.to_string())?;
        let status = cluster.status.unwrap_or_default();
        let found = status.conditions.into_iter().find(|c| c.type_ == conditions::DELETING);
        match (status.phase, found) {
            (Some(Phase::Deleting), Some(found)) if found.message.starts_with("the pods in namespace") => Ok(()),
            (_, other) => Err(format!("{other:?}")),
        }
    })
    .await;
    let policies = policies(&host, &tenant.id);
    assert_eq!(names(&policies, &ListParams::default()).await, OF_WORKLOADS);
    let namespaces: Api<Namespace> = Api::all(host.client.clone());
    let namespace = namespaces.get(&tenant.id.workload_namespace()).await.unwrap();
    assert!(
        namespace.metadata.deletion_timestamp.is_none(),
        "{:?}",
        namespace.status
    );
    assert_eq!(namespace.labels()[labels::ROLE], labels::ROLE_WORKLOADS);
    on_host.patch(&name, &params, &held(Value::Null)).await.unwrap();
    until_gone(&host, "net-last", "last").await;
    assert!(names(&policies, &ListParams::default()).await.is_empty());
}
