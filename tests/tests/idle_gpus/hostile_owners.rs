//! Pods whose owner is an object of a server of the team's own, which answers control with what would end or stop it. There is no owner that
//! can be trusted, or the tenant's API server does not say: the pods are evicted, and nothing else waits for them.

use crate::owners::until_running;
use berth_api::TenantCluster;
use berth_tests::{
    gpu_metrics::StandIn,
    hostile_api::{Group, HostileApi, register, unregister},
    objects::apply,
    tenant::{READY_WITHIN, Tenant},
    wait::until,
};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

/// Name of the Service that leads to the server, and its namespace.
const SERVICE: &str = "hostile-api";
const NAMESPACE: &str = "default";

/// A pod with all GPUs of the node that is controlled by an object of this group.
fn owned_pod(name: &str, group: Group) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": name, "ownerReferences": [group.controller("owner")]},
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

/// Lets a pod whose owner is of this group run until it is evicted.
async fn until_evicted(tenant: &Tenant, on_host: &Api<Pod>, idle: &StandIn, group: Group) {
    let name = format!("of-{}", group.kind().to_lowercase());
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), NAMESPACE);
    pods.create(&PostParams::default(), &owned_pod(&name, group))
        .await
        .unwrap();
    let host_name = until_running(on_host, &name).await.name_any();
    // It stays until it was looked at.
    let slow = Patch::Merge(json!({"metadata": {"annotations": {"simulation.berth.dev/stop-after": "1h"}}}));
    on_host.patch(&host_name, &PatchParams::default(), &slow).await.unwrap();
    idle.set_pod(Some((tenant.id.workload_namespace(), host_name.clone())));
    until(&format!("control evicts the pod {name}"), READY_WITHIN, async || {
        let pod = on_host.get(&host_name).await.map_err(|error| error.to_string())?;
        if is_evicted(&pod) {
            Ok(())
        } else {
            Err(format!("{:?}", pod.status))
        }
    })
    .await;
    idle.set_pod(None);
    let at_once = DeleteParams::default().grace_period(0);
    on_host.delete(&host_name, &at_once).await.unwrap();
    until(&format!("the pod {name} is gone"), READY_WITHIN, async || {
        let found = pods.get_opt(&name).await.map_err(|error| error.to_string())?;
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
        until_evicted(tenant, on_host, idle, group).await;
    }
    unregister(&tenant.client).await;
    let status = tenants.get(&tenant.name).await.unwrap().status.unwrap();
    let stopped = status.idle.map(|idle| idle.stopped_owners).unwrap_or_default();
    assert!(stopped.is_empty(), "{stopped:?}");
}
