//! Claims that cost the host's scheduler much time.

use crate::{
    dra::driver::{CLASS, delete_pods, gone, running, with_claim},
    objects::{create, events, eventually, origin, pod, settled},
    setup::Clusters,
};
use k8s_openapi::api::{core::v1::Pod, resource::v1::ResourceClaim};
use kube::{Api, api::DeleteParams};
use serde_json::{Value, json};

/// Pods that all ask for the same devices, and how many of them may be on the host.
const PODS: usize = 40;
const ON_HOST: usize = 32;
/// Namespace of the host that is no tenant's.
const OTHERS: &str = "default";

/// So many requests, each of one device, of which the last fits none: the scheduler tries the others in all orders.
fn devices(requests: usize, selectors: usize) -> Value {
    let request = |index: usize| {
        let expression = if index + 1 == requests { "false" } else { "true" };
        let selectors = vec![json!({"cel": {"expression": expression}}); selectors];
        json!({"name": format!("gpu-{index}"), "exactly": {"deviceClassName": CLASS, "selectors": selectors}})
    };
    json!({"requests": (0..requests).map(request).collect::<Vec<_>>()})
}

/// The host's scheduler is for all tenants. Pods of one whose claims fit no node are few there, and it starts those of others.
pub async fn pods_that_no_device_fits_keep_the_scheduler_from_nobody(clusters: &Clusters) {
    let claims = clusters.tenant_api::<ResourceClaim>();
    let pods = clusters.tenant_api::<Pod>();
    for (name, devices) in [("never", devices(4, 1)), ("many", devices(5, 13))] {
        create(
            &claims,
            json!({"metadata": {"name": name}, "spec": {"devices": devices}}),
        )
        .await;
    }
    eventually("too many expressions are denied", async || {
        let messages = events(clusters, "many", "FieldDenied").await;
        messages
            .iter()
            .any(|message| message.contains("spec.devices.requests: expressions"))
    })
    .await;
    let names: Vec<String> = (0..PODS).map(|index| format!("stuck-{index}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for name in &names {
        create(&pods, with_claim(name, &json!({"resourceClaimName": "never"}))).await;
    }
    let count_on_host = async || {
        let on_host = clusters.host_pods().await;
        on_host.iter().filter(|pod| origin(pod).starts_with("stuck-")).count()
    };
    eventually("some are on the host", async || count_on_host().await >= ON_HOST).await;
    settled("no more come", async || count_on_host().await).await;
    assert_eq!(count_on_host().await, ON_HOST);
    // Of the tenant's other pods none waits for them, nor do pods of others.
    create(&pods, pod("unhindered", &json!({}))).await;
    running(clusters, "unhindered").await;
    let of_others: Api<Pod> = Api::namespaced(clusters.host_admin.clone(), OTHERS);
    create(&of_others, pod("of-others", &json!({}))).await;
    eventually("a pod of others is tried", async || {
        let status = of_others.get("of-others").await.unwrap().status.unwrap_or_default();
        let mut conditions = status.conditions.into_iter().flatten();
        conditions.any(|condition| condition.type_ == "PodScheduled")
    })
    .await;
    of_others
        .delete("of-others", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    delete_pods(clusters, &names).await;
    delete_pods(clusters, &["unhindered"]).await;
    for claim in ["never", "many"] {
        claims.delete(claim, &DeleteParams::default()).await.unwrap();
    }
    gone(clusters, "every claim that fits no device").await;
}
