//! Services whose endpoints change too often have none on the host for a while, and others go on.

use super::{assert_same, denial, patch, plain};
use crate::{
    objects::{create, events, eventually, origin, pod},
    setup::{Clusters, Syncer},
};
use berth_api::labels::{ENDPOINTS, ENDPOINTS_NONE, ORIGIN_NAME};
use k8s_openapi::api::{
    core::v1::{Pod, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Services that a pod selects which changes all the time.
const BUSY: usize = 25;
/// Others that select it, without an address: with those above, nearly the 60 that may change or be made when a syncer starts, with one a second.
const HEADLESS: usize = 30;
const FIELD: &str = "spec.limits.endpointChangesPerSecond";

fn selecting(name: &str, app: &str) -> Value {
    let mut service = plain(name);
    service["spec"]["selector"] = json!({"app": app});
    service
}

/// The host's controllers leave the endpoints of a Service without a selector as they are, and a pod of another tenant may get one of these addresses. The
/// tenant's controllers do so as well, and its mirrored endpoints go to the host as long as the pod is there.
pub async fn a_service_that_loses_its_selector_has_no_endpoints(clusters: &Clusters) {
    const NAME: &str = "leaves";
    let (services, pods) = (clusters.tenant_api::<Service>(), clusters.tenant_api::<Pod>());
    create(&services, plain(NAME)).await;
    create(&pods, pod(NAME, &json!({}))).await;
    let has = async |count: usize| endpoints(clusters).await.get(NAME) == Some(&count);
    eventually("it has an endpoint", async || has(1).await).await;
    let without = json!({"spec": {"selector": null}});
    patch(clusters, NAME, without).await.unwrap();
    pods.delete(NAME, &DeleteParams::default()).await.unwrap();
    eventually("it has none any more", async || has(0).await).await;
    services.delete(NAME, &DeleteParams::default()).await.unwrap();
    eventually("it is gone", async || !endpoints(clusters).await.contains_key(NAME)).await;
}

/// Number of endpoints on the host of each Service of the tenant.
async fn endpoints(clusters: &Clusters) -> BTreeMap<String, usize> {
    let slices = clusters.host_api::<EndpointSlice>();
    let slices = slices.list(&ListParams::default()).await.unwrap();
    let mut by_service: BTreeMap<String, usize> = BTreeMap::new();
    for slice in &slices {
        let service = slice.labels().get("kubernetes.io/service-name");
        *by_service.entry(service.cloned().unwrap_or_default()).or_default() +=
            slice.endpoints.iter().flatten().count();
    }
    let services = clusters.host_api::<Service>();
    let services = services.list(&ListParams::default()).await.unwrap();
    let origin = |service: &Service| service.annotations().get(ORIGIN_NAME).cloned();
    services
        .iter()
        .filter_map(|service| {
            Some((
                origin(service)?,
                by_service.get(&service.name_any()).copied().unwrap_or_default(),
            ))
        })
        .collect()
}

/// Names in the tenant of the Services that select no pod on the host.
async fn closed(clusters: &Clusters) -> Vec<String> {
    let services = clusters.host_api::<Service>();
    let services = services.list(&ListParams::default()).await.unwrap();
    let is_closed = |service: &&Service| {
        let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        selector
            .and_then(|selector| selector.get(ENDPOINTS))
            .map(String::as_str)
            == Some(ENDPOINTS_NONE)
    };
    services
        .iter()
        .filter(is_closed)
        .map(|service| service.annotations()[ORIGIN_NAME].clone())
        .collect()
}

/// Changes the readiness of a host pod, as a kubelet does.
async fn set_ready(clusters: &Clusters, name: &str, status: &str) {
    let hosts = clusters.host_pods().await;
    let host = hosts.iter().find(|pod| origin(pod) == name).unwrap();
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
    clusters
        .host_api::<Pod>()
        .patch_status(&host.name_any(), &PatchParams::default(), &Patch::Strategic(ready))
        .await
        .unwrap();
}

/// Makes Services until one is rejected because too many were made. Returns those that were made.
async fn make_until_rejected(clusters: &Clusters) -> Vec<String> {
    let services = clusters.tenant_api::<Service>();
    let mut made = Vec::new();
    let create = async |name: &str| {
        let service: Service = serde_json::from_value(selecting(name, "nothing")).unwrap();
        services.create(&PostParams::default(), &service).await
    };
    for number in 0..1000 {
        let name = format!("more-{number}");
        let created = create(&name).await;
        if created.is_ok() {
            made.push(name);
            continue;
        }
        let (code, message) = denial(created);
        assert!(code == 429 && message.contains(FIELD), "{message}");
        let (code, message) = denial(create("quiet").await);
        assert_eq!(code, 409, "{message}");
        return made;
    }
    panic!("new Services are never rejected");
}

/// Returns the syncer that runs then.
pub async fn services_that_change_too_often_are_closed(clusters: &mut Clusters) -> Syncer {
    clusters.host_limits.endpoint_changes_per_second = 1;
    let syncer = clusters.syncer().await;
    let (services, pods) = (clusters.tenant_api::<Service>(), clusters.tenant_api::<Pod>());
    create(&services, selecting("quiet", "quiet")).await;
    for number in 0..BUSY {
        create(&services, selecting(&format!("busy-{number}"), "busy")).await;
    }
    for number in 0..HEADLESS {
        let mut headless = selecting(&format!("also-busy-{number}"), "busy");
        headless["spec"]["clusterIP"] = "None".into();
        create(&services, headless).await;
    }
    let more = make_until_rejected(clusters).await;
    for name in ["busy", "quiet"] {
        create(&pods, pod(name, &json!({}))).await;
    }
    eventually("all have an endpoint", async || {
        let endpoints = endpoints(clusters).await;
        let has_one = |name: &str| endpoints.get(name) == Some(&1);
        let have_one = |name: &str, count: usize| (0..count).all(|number| has_one(&format!("{name}-{number}")));
        has_one("quiet") && have_one("busy", BUSY) && have_one("also-busy", HEADLESS)
    })
    .await;
    eventually("Services are closed while a pod flips", async || {
        for status in ["False", "True"] {
            set_ready(clusters, "busy", status).await;
        }
        // With an address: the syncer is asked about changes of these.
        closed(clusters).await.iter().any(|name| name.starts_with("busy-"))
    })
    .await;
    eventually("they have no endpoints", async || {
        let (closed, endpoints) = (closed(clusters).await, endpoints(clusters).await);
        !closed.is_empty() && closed.iter().all(|name| endpoints[name] == 0) && syncer.metrics.closed_services.get() > 0
    })
    .await;
    let closed = closed(clusters).await;
    assert!(!closed.iter().any(|name| name == "quiet"), "{closed:?}");
    assert_eq!(endpoints(clusters).await["quiet"], 1);
    let name = closed.iter().find(|name| name.starts_with("busy-")).unwrap();
    assert_same(clusters, &services.get(name).await.unwrap()).await;
    eventually("Event and condition say why", async || {
        let messages = events(clusters, name, "FieldDenied").await;
        let status = services.get(name).await.unwrap().status.unwrap_or_default();
        let mut conditions = status.conditions.into_iter().flatten();
        let says_why = conditions.any(|condition| {
            condition.type_ == "berth.dev/Synced" && condition.status == "False" && condition.message.contains(FIELD)
        });
        says_why
            && messages
                .iter()
                .any(|message| message.contains("spec.selector") && message.contains(FIELD))
    })
    .await;
    let ports = json!({"spec": {"ports": [{"name": "http", "port": 81}]}});
    let (code, message) = denial(patch(clusters, name, ports).await);
    assert!(code == 403 && message.contains(FIELD), "{message}");
    let busy = (0..BUSY).map(|number| format!("busy-{number}"));
    let headless = (0..HEADLESS).map(|number| format!("also-busy-{number}"));
    for name in busy.chain(headless).chain(more).chain(["quiet".into()]) {
        services.delete(&name, &DeleteParams::default()).await.unwrap();
    }
    for name in ["busy", "quiet"] {
        pods.delete(name, &DeleteParams::default()).await.unwrap();
    }
    eventually("closed Services are deleted as others are", async || {
        endpoints(clusters).await.keys().all(|name| !name.contains("busy-"))
    })
    .await;
    syncer
}
