//! The admission policies: requests with a stolen syncer credential, straight to the host's API server. The policies deny
//! everything that the class does not allow, with a message, and allow what an intact syncer writes.

mod allowed_namespaces;
mod annotations;
mod deletions;
mod empty_lists;
mod endpoint_cost;
mod events;
mod every_field;
mod gateway;
mod host_users;
mod images;
mod ingresses_and_routes;
mod kubelet_sizes;
mod kubelets;
mod network;
mod network_cost;
mod objects;
mod platform;
mod pod_security;
mod pods;
mod rbac;
mod shared_nodes;
mod sizes;
mod snapshots;
mod tenant_clusters;
mod volumes;

pub(crate) use allowed_namespaces::classes_and_pools_are_named_only_in_namespaces_that_they_allow;
pub(crate) use events::events_about_pods_of_tenants_are_small;
pub(crate) use gateway::a_stolen_gateway_token_sets_one_annotation;
pub(crate) use host_users::{
    an_agent_with_rights_on_the_status_of_pods_redirects_no_traffic, people_of_a_team_remove_no_pod_that_may_run,
    people_of_a_team_run_no_pods_on_nodes_of_tenants,
};
pub(crate) use kubelet_sizes::a_stolen_kubelet_credential_writes_no_large_objects;
pub(crate) use kubelets::{
    a_stolen_kubelet_credential_reaches_no_other_tenant, a_stolen_token_of_a_node_agent_offers_no_devices_of_others,
};
pub(crate) use platform::{
    only_the_platform_changes_assignments_of_nodes_and_namespaces, the_host_reports_no_type_errors_in_the_policies,
};
pub(crate) use tenant_clusters::{
    a_user_gives_its_tenant_no_quota, a_user_names_only_classes_and_pools_that_rbac_lets_it_use,
};
pub(crate) use volumes::a_volume_that_no_claim_has_goes_to_no_tenant;

use crate::syncer::as_syncer;
use berth_api::{HostNodePool, TenantClass, labels};
use berth_control::control_plane::SYNCER;
use berth_tests::{
    objects::apply,
    processes::Stopped,
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use k8s_openapi::{
    api::core::v1::Pod, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::sync::Arc;

fn dry_run() -> PostParams {
    PostParams {
        dry_run: true,
        ..PostParams::default()
    }
}

/// Overlays `more` onto `base`: objects are joined, everything else replaced, null removes.
fn with(base: &Value, more: &Value) -> Value {
    let (Value::Object(base), Value::Object(more)) = (base, more) else {
        return more.clone();
    };
    let mut all = base.clone();
    for (key, value) in more {
        if value.is_null() {
            all.remove(key);
        } else {
            let joined = with(all.get(key).unwrap_or(&json!({})), value);
            all.insert(key.clone(), joined);
        }
    }
    all.into()
}

/// A client with the credential of a tenant's syncer, and the tenant's workload namespace.
struct StolenCredential {
    client: Client,
    namespace: String,
    slug: String,
}

impl StolenCredential {
    /// An object as a syncer creates it.
    fn object(&self, api_version: &str, kind: &str, more: &Value) -> Value {
        let base = json!({"apiVersion": api_version, "kind": kind, "metadata": {
            "name": "stolen", "namespace": self.namespace,
            "labels": {labels::TENANT: self.slug, labels::MANAGED_BY: labels::MANAGED_BY_SYNCER},
            "annotations": {labels::ORIGIN_NAMESPACE: "default", labels::ORIGIN_NAME: "stolen"},
        }});
        with(&base, more)
    }

    /// A pod as a syncer creates it, with changes to its spec.
    fn pod(&self, spec: &Value) -> Value {
        let base = json!({
            "containers": [{"name": "c", "image": "i"}], "nodeSelector": {labels::TENANT: self.slug},
            "tolerations": [{"key": labels::TENANT, "operator": "Equal", "value": self.slug, "effect": "NoExecute"}],
            "automountServiceAccountToken": false, "enableServiceLinks": false, "dnsPolicy": "Default",
            "priorityClassName": "berth-policies-1-never",
        });
        self.object("v1", "Pod", &json!({"spec": with(&base, spec)}))
    }

    async fn create(&self, object: &Value) -> kube::Result<DynamicObject> {
        let text = |field: &str| object[field].as_str().unwrap();
        let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, text("kind")));
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &self.namespace, &resource);
        api.create(&dry_run(), &serde_json::from_value(object.clone()).unwrap())
            .await
    }

    /// Tries to create an object, which a policy must deny with this message.
    async fn expect_denied(&self, message: &str, object: &Value) {
        expect_denied(message, self.create(object).await);
    }

    async fn expect_allowed(&self, object: &Value) {
        if let Err(error) = self.create(object).await {
            panic!("a policy denies what an intact syncer writes: {error}: {object}");
        }
    }

    /// As [`Self::expect_denied`], for a change of an existing pod.
    async fn expect_pod_change_denied(&self, message: &str, subresource: Option<&str>, patch: &Value) {
        expect_denied(message, self.change_pod(subresource, patch).await);
    }

    async fn change_pod(&self, subresource: Option<&str>, patch: &Value) -> kube::Result<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let params = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        match subresource {
            None => pods.patch("allowed", &params, &Patch::Merge(patch)).await,
            Some(subresource) => {
                pods.patch_subresource(subresource, "allowed", &params, &Patch::Merge(patch))
                    .await
            }
        }
    }
}

fn expect_denied<T>(message: &str, result: kube::Result<T>) {
    match result {
        Err(kube::Error::Api(status)) => {
            assert!(
                status.code == 403 && status.message.contains("ValidatingAdmissionPolicy 'berth-"),
                "{message}: denied by something else: {}",
                status.message
            );
            assert!(
                status.message.contains(message),
                "{message}: another message: {}",
                status.message
            );
        }
        Err(error) => panic!("{message}: {error}"),
        Ok(_) => panic!("{message}: was allowed"),
    }
}

pub(crate) fn class() -> TenantClass {
    let sync = json!({
        "pods": {"images": ["docker.io/library/*", "registry.example.com/{namespace}/{tenant}/*", "registry.example.com/base/cuda", "localhost:5000/*"],
            "deviceVariables": ["NVIDIA_GDS"], "capabilities": ["IPC_LOCK"], "runtimeClasses": ["gvisor"], "schedulers": ["gangs"], "priority": {"lowest": 0, "highest": 100},
            "annotations": ["example.com/note", "tools.example.com/*"], "labels": ["example.com/tier", "teams.example.com/*"]},
        "storage": {"classes": ["fast"], "snapshotClasses": ["daily"], "inlineDrivers": ["scratch.example.com"]},
        "services": {"nodePorts": true, "annotations": ["metallb.io/address-pool"], "labels": ["pool"]},
        "ingress": {"classes": ["nginx"], "hostnames": ["*.policies.example.com", "*.{tenant}.{namespace}.example.org"], "annotations": ["traefik.io/*"],
            "gateways": [{"namespace": "edge", "name": "public"}]},
        "devices": {"classes": ["gpu"], "configDrivers": ["gpu.example.com"]},
        "sharedNodes": {"pools": ["policies-cpu", "policies-other"], "userNamespaces": true},
        "serviceAccounts": [{"namespace": "ml", "name": "train", "hostName": "s3-reader",
            "audiences": ["sts.example.com", "https://vault.example.com:8200"]},
            {"namespace": "ml", "name": "serve", "hostName": "no-tokens"}],
    });
    serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": "policies"}, "spec": {"sync": sync, "network": {
            "blockedCIDRs": ["10.20.7.0/24"], "endpointCIDRs": ["0.0.0.0/0"],
            "egress": {"default": [{"cidr": "10.20.0.0/16"}, {"cidr": "192.0.2.0/24"}]},
            "ingress": {"default": [{"namespace": "ingress-nginx"}, {"cidr": "198.51.100.0/24"}]},
        }},
    }))
    .unwrap()
}

/// Definitions of kinds that the host does not have and policies validate.
fn definitions() -> [CustomResourceDefinition; 4] {
    [
        ("gateway.networking.k8s.io", "v1", "HTTPRoute", "httproutes"),
        ("gateway.networking.k8s.io", "v1", "GRPCRoute", "grpcroutes"),
        // As before Gateway API 1.5.
        ("gateway.networking.k8s.io", "v1alpha2", "TLSRoute", "tlsroutes"),
        ("snapshot.storage.k8s.io", "v1", "VolumeSnapshot", "volumesnapshots"),
    ]
    .map(|(group, version, kind, plural)| {
        serde_json::from_value(json!({
            "metadata": {"name": format!("{plural}.{group}"), "annotations": {
                "api-approved.kubernetes.io": "unapproved, for a test"}},
            "spec": {"group": group, "scope": "Namespaced", "names": {"kind": kind, "plural": plural},
                "versions": [{"name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]},
        }))
        .unwrap()
    })
}

pub(crate) async fn a_stolen_syncer_credential_creates_only_what_the_class_allows(host: Arc<TestCluster>) {
    let admin = &host.client;
    let classes: Api<TenantClass> = Api::all(admin.clone());
    classes.create(&PostParams::default(), &class()).await.unwrap();
    let mut wanted = cluster("policies", &[]);
    wanted.spec.class_name = Some("policies".into());
    let pools: Api<HostNodePool> = Api::all(admin.clone());
    for pool in shared_nodes::pools() {
        pools.create(&PostParams::default(), &pool).await.unwrap();
    }
    wanted.spec.node_groups = vec![shared_nodes::group()];
    let tenant = Tenant::create(&host, "adv-policies", &wanted).await;
    let crds: Api<CustomResourceDefinition> = Api::all(admin.clone());
    for definition in definitions() {
        crds.create(&PostParams::default(), &definition).await.unwrap();
    }
    let namespace = tenant.id.workload_namespace();
    for object in [
        json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "gvisor"}, "handler": "runsc"}),
        json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "kata"}, "handler": "kata"}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "s3-reader"}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "no-tokens"}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "powerful"}}),
    ] {
        apply(admin, &namespace, &object).await.unwrap();
    }
    let credential = StolenCredential {
        client: as_syncer(&host, &tenant).await,
        namespace,
        slug: tenant.id.slug().into(),
    };
    // What the tenant does not know it would delete.
    let syncer = Stopped::new(&host.tenant_records(), &format!("{}.{SYNCER}", tenant.id.slug()));
    pods::new(&credential).await;
    pods::devices_by_class(&credential).await;
    pods::pods_of_other_namespaces(&credential).await;
    pods::device_variables(&credential).await;
    pod_security::baseline_with_a_capability(&credential, admin).await;
    shared_nodes::pods(&credential, admin).await;
    shared_nodes::capabilities(&credential).await;
    pods::changes(&credential, admin).await;
    images::of_pods(&credential, admin).await;
    annotations::validate(&credential).await;
    objects::metadata_and_secrets(&credential).await;
    objects::services_and_endpoints(&credential, admin).await;
    endpoint_cost::largest_slice(&credential, admin).await;
    objects::sources_of_variables(&credential).await;
    objects::storage_and_devices(&credential).await;
    objects::sources_of_claims(&credential).await;
    objects::groups_of_pods(&credential, admin).await;
    snapshots::class_of_one_that_waits(&credential).await;
    objects::annotations_of_claims(&credential, admin).await;
    objects::classes_of_claims(&credential, admin).await;
    objects::nodes_of_claims(&credential, admin).await;
    ingresses_and_routes::validate(&credential).await;
    every_field::of_each_kind(&credential).await;
    deletions::objects_of_the_platform(&credential, admin).await;
    network::policies(&credential).await;
    network_cost::largest_policies(&credential, admin).await;
    sizes::validate(&credential, admin).await;
    empty_lists::names_that_are_left_out(&credential, admin).await;
    snapshots::class_that_is_withdrawn(&credential).await;

    syncer.resume().await;
    for definition in definitions() {
        let name = definition.metadata.name.unwrap();
        crds.delete(&name, &DeleteParams::default()).await.unwrap();
    }
    for name in ["gvisor", "kata"] {
        let api: Api<k8s_openapi::api::node::v1::RuntimeClass> = Api::all(admin.clone());
        api.delete(name, &DeleteParams::default()).await.unwrap();
    }
    tenant.delete(&host).await;
    classes.delete("policies", &DeleteParams::default()).await.unwrap();
    for pool in shared_nodes::pools() {
        let name = pool.metadata.name.unwrap();
        pools.delete(&name, &DeleteParams::default()).await.unwrap();
    }
}

/// Waits until the host serves a new kind.
async fn wait_until_served(credential: &StolenCredential, object: &Value) {
    until("the host serves the kind", SOON, async || {
        credential.create(object).await
    })
    .await;
}
