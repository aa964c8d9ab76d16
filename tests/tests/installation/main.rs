//! Berth installed by Helm on a cluster of real nodes: it is upgraded and rolled back while tenants go on, is not removed
//! as long as there are tenants, and leaves nothing once there are none. Before that it gets the gateway.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail as tests do"
)]

mod gateway;
mod issuers;

use berth_api::{HostNodePool, Project, TenantCluster, labels};
use berth_control::{control_plane::CONTROLLER_MANAGER, runtime::cluster::APP_NAME};
use berth_local::{ChartInstall, TestHost};
use berth_tests::{
    files::{binary, example},
    helm::chart,
    suite::lacks_real_nodes,
    tenant::{Tenant, cluster, ensure_namespace},
    wait::{SOON, until},
};
use k8s_openapi::{
    api::{
        admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
        apps::v1::Deployment,
        batch::v1::{CronJob, Job},
        coordination::v1::Lease,
        core::v1::{
            ConfigMap, Namespace, Node, PersistentVolumeClaim, Pod, ResourceQuota, Secret, Service, ServiceAccount,
        },
        flowcontrol::v1::FlowSchema,
        rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::json;
use std::{collections::BTreeMap, fmt::Debug};

const TEAMS: &str = "teams";
const SYSTEM: &str = "berth-system";

/// Pods of the tenant's control plane and its workloads on the host, by UID, and how often their containers were restarted.
/// Restarts of the controller manager are left out: it elects a leader, and ends when the machine stands still for ten seconds.
/// When Berth changes it, it is another pod.
async fn lives(client: &Client, tenant: &Tenant) -> BTreeMap<String, i32> {
    let mut all = BTreeMap::new();
    for namespace in [tenant.id.control_plane_namespace(), tenant.id.workload_namespace()] {
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        for pod in pods.list(&ListParams::default()).await.unwrap() {
            let status = pod.status.clone().unwrap_or_default();
            let containers = status.container_statuses.unwrap_or_default();
            let counts = pod.labels().get(APP_NAME).is_none_or(|name| name != CONTROLLER_MANAGER);
            let restarts: i32 = containers.iter().map(|container| container.restart_count).sum();
            let restarts = if counts { restarts } else { 0 };
            all.insert(format!("{} {}", pod.name_any(), pod.uid().unwrap()), restarts);
        }
    }
    all
}

async fn runs(client: &Client, name: &str) -> Pod {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    until(&format!("{name} runs"), SOON, async || {
        let pod = pods.get(name).await.map_err(|error| error.to_string())?;
        match pod.status.as_ref().and_then(|status| status.phase.as_deref()) {
            Some("Running") => Ok(pod),
            _ => Err(format!("{:?}", pod.status)),
        }
    })
    .await
}

async fn create_pod(tenant: &Client, name: &str) -> Pod {
    let pod = json!({"metadata": {"name": name}, "spec": {"containers": [{
        "name": "main", "image": "registry.k8s.io/e2e-test-images/agnhost:2.59",
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }]}});
    let pods: Api<Pod> = Api::namespaced(tenant.clone(), "default");
    let pod: Pod = serde_json::from_value(pod).unwrap();
    until("pods can be made", SOON, async || {
        pods.create(&PostParams::default(), &pod).await
    })
    .await;
    runs(tenant, name).await
}

/// Replicas of control that are up.
async fn replicas(client: &Client) -> i32 {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), SYSTEM);
    let control = deployments.get("berth-control").await.unwrap();
    control
        .status
        .and_then(|status| status.available_replicas)
        .unwrap_or_default()
}

/// Waits until so many replicas of control are up: one that is slow to answer is not, for a moment.
async fn until_replicas(client: &Client, wanted: i32) {
    until(&format!("{wanted} replicas are up"), SOON, async || {
        match replicas(client).await {
            up if up == wanted => Ok(()),
            other => Err(other),
        }
    })
    .await;
}

/// Objects of a kind that are Berth's, by kind and name.
async fn named<K>(api: Api<K>, left: &mut Vec<String>)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    for object in api.list(&ListParams::default()).await.unwrap() {
        let name = object.name_any();
        if name.contains("berth") {
            left.push(format!("{} {name}", K::kind(&())));
        }
    }
}

/// Objects of Berth that are left on the host, besides its empty namespace and the host's own objects there.
async fn left(client: &Client) -> Vec<String> {
    let mut left = Vec::new();
    let all = client;
    named::<CustomResourceDefinition>(Api::all(all.clone()), &mut left).await;
    named::<ValidatingAdmissionPolicy>(Api::all(all.clone()), &mut left).await;
    named::<ValidatingAdmissionPolicyBinding>(Api::all(all.clone()), &mut left).await;
    named::<ClusterRole>(Api::all(all.clone()), &mut left).await;
    named::<ClusterRoleBinding>(Api::all(all.clone()), &mut left).await;
    named::<FlowSchema>(Api::all(all.clone()), &mut left).await;
    named::<Deployment>(Api::namespaced(all.clone(), SYSTEM), &mut left).await;
    named::<Pod>(Api::namespaced(all.clone(), SYSTEM), &mut left).await;
    named::<Job>(Api::namespaced(all.clone(), SYSTEM), &mut left).await;
    named::<CronJob>(Api::namespaced(all.clone(), SYSTEM), &mut left).await;
    named::<Service>(Api::namespaced(all.clone(), SYSTEM), &mut left).await;
    named::<ServiceAccount>(Api::namespaced(all.clone(), SYSTEM), &mut left).await;
    named::<Role>(Api::namespaced(all.clone(), SYSTEM), &mut left).await;
    named::<RoleBinding>(Api::namespaced(all.clone(), SYSTEM), &mut left).await;
    named::<Secret>(Api::namespaced(all.clone(), SYSTEM), &mut left).await;
    named::<ConfigMap>(Api::namespaced(all.clone(), SYSTEM), &mut left).await;
    named::<ResourceQuota>(Api::namespaced(all.clone(), SYSTEM), &mut left).await;
    named::<Lease>(Api::namespaced(all.clone(), SYSTEM), &mut left).await;
    named::<PersistentVolumeClaim>(Api::namespaced(all.clone(), SYSTEM), &mut left).await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let of_tenants = ListParams::default().labels(labels::ROLE);
    left.extend(
        namespaces
            .list_metadata(&of_tenants)
            .await
            .unwrap()
            .iter()
            .map(ResourceExt::name_any),
    );
    let nodes: Api<Node> = Api::all(client.clone());
    for node in nodes.list(&ListParams::default()).await.unwrap() {
        let keys = node.labels().keys().chain(node.annotations().keys());
        let taints = node
            .spec
            .as_ref()
            .and_then(|spec| spec.taints.as_deref())
            .unwrap_or_default();
        let keys = keys.chain(taints.iter().map(|taint| &taint.key));
        left.extend(
            keys.filter(|key| labels::is_reserved(key))
                .map(|key| format!("{key} on {}", node.name_any())),
        );
    }
    left
}

#[tokio::test(flavor = "multi_thread")]
async fn berth_is_installed_upgraded_rolled_back_and_removed() {
    if lacks_real_nodes() {
        return;
    }
    berth_runtime::install_crypto();
    let host = TestHost::start_with(|config| {
        config.nodes = "cpu=1,h100=1".parse().unwrap();
        config.real_nodes = true;
    });
    let host = host.await.unwrap();
    let client = host.client().await.unwrap();
    let before = left(&client).await;
    let programs = binary("berth-control").parent().unwrap().to_owned();
    let mut install = ChartInstall::new(chart(), programs);
    install.versions.truncate(1);
    // Nothing is to be left at the end, not even the definitions.
    install.values = json!({"crds": {"keep": false}});
    host.install_chart(&install).await.unwrap();
    host.helm(&["test", "berth", "--timeout", "3m"]).await.unwrap();
    until_requests_have_levels(&client).await;

    let pools: Api<HostNodePool> = Api::all(client.clone());
    for pool in example::<HostNodePool>("pools/gpu.yaml") {
        pools.create(&PostParams::default(), &pool).await.unwrap();
    }
    ensure_namespace(&client, TEAMS).await;
    let tenants: Api<TenantCluster> = Api::namespaced(client.clone(), TEAMS);
    let wanted = cluster("vision", &[("train", "h100", 1)]);
    tenants.create(&PostParams::default(), &wanted).await.unwrap();
    let vision = Tenant::ready_on(&client, TEAMS, "vision").await;
    create_pod(&vision.client, "work").await;
    let at_first = lives(&client, &vision).await;

    // An upgrade: two replicas, of which one works. Tenants go on; none of their pods is restarted.
    install.replicas = 2;
    install.values = json!({"control": {"logLevel": "debug"}, "crds": {"keep": false}});
    host.install_chart(&install).await.unwrap();
    until_replicas(&client, 2).await;
    create_pod(&vision.client, "after-the-upgrade").await;
    let after = lives(&client, &vision).await;
    assert!(
        at_first.iter().all(|life| after.get(life.0) == Some(life.1)),
        "{at_first:?} {after:?}"
    );

    // And back.
    host.helm(&["rollback", "berth", "1", "--wait", "--timeout", "4m"])
        .await
        .unwrap();
    until_replicas(&client, 1).await;
    tenants
        .create(&PostParams::default(), &cluster("speech", &[]))
        .await
        .unwrap();
    let speech = Tenant::ready_on(&client, TEAMS, "speech").await;
    let after = lives(&client, &vision).await;
    assert!(
        at_first.iter().all(|life| after.get(life.0) == Some(life.1)),
        "{at_first:?} {after:?}"
    );

    gateway::a_team_works_through_it(&host, &install, &vision, "work").await;

    issuers::a_broken_issuer_keeps_no_change_of_the_class_from_being_rolled_out(&client, &speech).await;

    // The finalizer of Projects with tenants must not hold up the uninstallation.
    create_project(&client).await;

    // While there are tenants, it is not removed, and the message says why.
    let uninstall = ["uninstall", "berth", "--wait", "--timeout", "4m"];
    let refusal = host.helm(&uninstall).await.unwrap_err().to_string();
    assert!(
        refusal.contains("2 TenantClusters: teams/speech, teams/vision"),
        "{refusal}"
    );
    until_replicas(&client, 2).await;
    assert!(speech.client.apiserver_version().await.is_ok());

    for name in ["vision", "speech"] {
        tenants.delete(name, &DeleteParams::default()).await.unwrap();
    }
    until("the tenants are gone", SOON, async || {
        let left = tenants
            .list(&ListParams::default())
            .await
            .map_err(|error| error.to_string())?;
        if left.items.is_empty() {
            Ok(())
        } else {
            Err(format!("{:?}", left.items[0].status))
        }
    })
    .await;
    // As long as nodes are cleaned it stays as well.
    until_nodes_are_clean(&client).await;
    host.helm(&uninstall).await.unwrap();
    until("nothing of Berth is left", SOON, async || {
        let mut left = left(&client).await;
        left.retain(|one| !before.contains(one));
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
}

async fn until_nodes_are_clean(client: &Client) {
    let nodes: Api<Node> = Api::all(client.clone());
    until("nodes are clean", SOON, async || {
        let returning = ListParams::default().labels(labels::NODE_STATE);
        let list = nodes.list(&returning).await.map_err(|error| error.to_string())?;
        if list.items.is_empty() {
            Ok(())
        } else {
            Err(list.items.len().to_string())
        }
    })
    .await;
}

/// Waits until the host has found the priority levels that the FlowSchemas of control's requests name.
async fn until_requests_have_levels(client: &Client) {
    let schemas: Api<FlowSchema> = Api::all(client.clone());
    for name in ["berth-leader-election", "berth-control"] {
        until(&format!("{name} has its level"), SOON, async || {
            let schema = schemas.get(name).await.map_err(|error| error.to_string())?;
            let conditions = schema.status.and_then(|status| status.conditions).unwrap_or_default();
            let is_found = conditions
                .iter()
                .any(|condition| condition.type_ == "Dangling" && condition.status.as_deref() == Some("False"));
            if is_found {
                Ok(())
            } else {
                Err(format!("{conditions:?}"))
            }
        })
        .await;
    }
}

/// Creates a Project with the tenants, and waits until it has the finalizer.
async fn create_project(client: &Client) {
    let projects: Api<Project> = Api::all(client.clone());
    let spec = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Project", "metadata": {"name": "teams"},
        "spec": {"namespaces": [TEAMS]}});
    let project: Project = serde_json::from_value(spec).unwrap();
    projects.create(&PostParams::default(), &project).await.unwrap();
    until("the Project has its finalizer", SOON, async || {
        let project = projects.get("teams").await.map_err(|error| error.to_string())?;
        let finalizers = project.finalizers().to_vec();
        if finalizers.iter().any(|name| name == labels::QUOTA_FINALIZER) {
            Ok(())
        } else {
            Err(format!("{finalizers:?}"))
        }
    })
    .await;
}
