//! Pods whose owner is an object of a server of the team's own, which answers control with what would end or stop it. There is no owner that
//! can be trusted, or the tenant's API server does not say: the pods are evicted, and nothing else waits for them. And pods whose owner does not
//! end them, and is started again as often as it is stopped.

use crate::owners::until_running;
use berth_api::{TenantCluster, labels};
use berth_control::clock::Clock;
use berth_tests::{
    gpu_metrics::StandIn,
    hostile_api::{Group, HostileApi, register, unregister},
    objects::apply,
    tenant::{READY_WITHIN, Tenant},
    wait::until,
};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Pod, ServiceAccount},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

/// Name of the Service that leads to the server, and its namespace.
const SERVICE: &str = "hostile-api";
const NAMESPACE: &str = "default";

/// Name of a Deployment that ends none of its pods.
const FAKE: &str = "fake";

/// A pod with all GPUs of the node that this owner controls.
fn owned_pod(name: &str, controller: &Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": name, "ownerReferences": [controller]},
        "spec": {"terminationGracePeriodSeconds": 1, "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "containers": [{"name": "main", "image": "serve:1", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]},
    }))
    .unwrap()
}

/// Registers the server in the tenant, whose class lists its address, and waits until pods can be created.
async fn prepare(tenant: &Tenant, server: &HostileApi) {
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVICE},
        "spec": {"type": "ExternalName", "externalName": server.address.ip().to_string()}});
    apply(&tenant.client, NAMESPACE, &service).await.unwrap();
    register(&tenant.client, NAMESPACE, SERVICE, server.address.port()).await;
    let accounts: Api<ServiceAccount> = Api::namespaced(tenant.client.clone(), NAMESPACE);
    until("the namespace has its account", READY_WITHIN, async || {
        accounts.get("default").await
    })
    .await;
}

/// Whether the pod was evicted on the host, which nobody but control does, and is still there.
fn is_evicted(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut reasons = conditions
        .filter(|condition| condition.type_ == "DisruptionTarget")
        .map(|condition| condition.reason.as_deref());
    pod.metadata.deletion_timestamp.is_some() && reasons.any(|reason| reason == Some("EvictionByEvictionAPI"))
}

/// Lets a pod of this owner run with idle GPUs. Returns its name on the host.
async fn run_idle(tenant: &Tenant, on_host: &Api<Pod>, idle: &StandIn, name: &str, controller: &Value) -> String {
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), NAMESPACE);
    pods.create(&PostParams::default(), &owned_pod(name, controller))
        .await
        .unwrap();
    let host_name = until_running(on_host, name).await.name_any();
    // It stays until it was looked at.
    let slow = Patch::Merge(json!({"metadata": {"annotations": {"simulation.berth.dev/stop-after": "1h"}}}));
    on_host.patch(&host_name, &PatchParams::default(), &slow).await.unwrap();
    idle.set_pod(Some((tenant.id.workload_namespace(), host_name.clone())));
    host_name
}

/// Whether the pod was evicted.
async fn check_evicted(on_host: &Api<Pod>, host_name: &str) -> Result<(), String> {
    let pod = on_host.get(host_name).await.map_err(|error| error.to_string())?;
    if is_evicted(&pod) {
        Ok(())
    } else {
        Err(format!("{:?}", pod.status))
    }
}

/// Ends a pod that was evicted.
async fn remove(tenant: &Tenant, on_host: &Api<Pod>, idle: &StandIn, name: &str, host_name: &str) {
    idle.set_pod(None);
    let at_once = DeleteParams::default().grace_period(0);
    on_host.delete(host_name, &at_once).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), NAMESPACE);
    until(&format!("the pod {name} is gone"), READY_WITHIN, async || {
        let found = pods.get_opt(name).await.map_err(|error| error.to_string())?;
        found.map_or(Ok(()), |pod| Err(format!("{:?}", pod.status)))
    })
    .await;
}

/// Checks it for an owner of each kind of the server, by a clock for which pods have run for longer than the window.
pub(crate) async fn pods_are_evicted(
    tenants: &Api<TenantCluster>,
    tenant: &Tenant,
    on_host: &Api<Pod>,
    idle: &StandIn,
    server: &HostileApi,
) {
    prepare(tenant, server).await;
    for group in Group::ALL {
        let name = format!("of-{}", group.kind().to_lowercase());
        let host_name = run_idle(tenant, on_host, idle, &name, &group.controller("owner")).await;
        until(&format!("control evicts the pod {name}"), READY_WITHIN, async || {
            check_evicted(on_host, &host_name).await
        })
        .await;
        remove(tenant, on_host, idle, &name, &host_name).await;
    }
    unregister(&tenant.client).await;
    let status = tenants.get(&tenant.name).await.unwrap().status.unwrap();
    let stopped = status.idle.map(|idle| idle.stopped_owners).unwrap_or_default();
    assert!(stopped.is_empty(), "{stopped:?}");
}

/// Checks it for an owner that is a Deployment and makes no pods, because it is paused. The team restores it as often as control stops it.
/// A minute later, by the clock of control, which is `ahead` by so many seconds, the pod is evicted.
pub(crate) async fn a_pod_of_a_fake_owner_is_evicted(
    tenants: &Api<TenantCluster>,
    tenant: &Tenant,
    on_host: &Api<Pod>,
    idle: &StandIn,
    (clock, ahead): (&Clock, i64),
) {
    let deployments: Api<Deployment> = Api::namespaced(tenant.client.clone(), NAMESPACE);
    let fake = json!({"metadata": {"name": FAKE}, "spec": {"paused": true, "replicas": 1, "selector": {"matchLabels": {"app": FAKE}},
        "template": {"metadata": {"labels": {"app": FAKE}}, "spec": {"containers": [{"name": "main", "image": "serve:1"}]}}}});
    let fake: Deployment = serde_json::from_value(fake).unwrap();
    let uid = deployments
        .create(&PostParams::default(), &fake)
        .await
        .unwrap()
        .metadata
        .uid;
    let controller =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": FAKE, "uid": uid, "controller": true});
    let host_name = run_idle(tenant, on_host, idle, "of-fake", &controller).await;
    until("control stops the fake owner", READY_WITHIN, async || {
        let found = deployments.get(FAKE).await.map_err(|error| error.to_string())?;
        let is_stopped = found.annotations().contains_key(labels::STOPPED);
        is_stopped
            .then_some(())
            .ok_or_else(|| format!("{:?}", found.annotations()))
    })
    .await;
    clock.set_ahead(ahead + 60);
    let restore = json!({"metadata": {"annotations": {labels::RESTORE: labels::RESTORE_WANTED}}});
    until("control evicts the pod of the fake owner", READY_WITHIN, async || {
        let patch = Patch::Merge(&restore);
        let restored = deployments.patch(FAKE, &PatchParams::default(), &patch).await;
        restored.map_err(|error| error.to_string())?;
        check_evicted(on_host, &host_name).await
    })
    .await;
    remove(tenant, on_host, idle, "of-fake", &host_name).await;
    deployments.delete(FAKE, &DeleteParams::default()).await.unwrap();
    until("no owner is listed as stopped", READY_WITHIN, async || {
        let cluster = tenants.get(&tenant.name).await.map_err(|error| error.to_string())?;
        let idle = cluster.status.and_then(|status| status.idle);
        let stopped = idle.map(|idle| idle.stopped_owners).unwrap_or_default();
        if stopped.is_empty() {
            Ok(())
        } else {
            Err(format!("{stopped:?}"))
        }
    })
    .await;
}
