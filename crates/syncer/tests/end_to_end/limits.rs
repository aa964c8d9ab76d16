//! Limits of the tenant on the host: what is beyond them waits, and says why.

use crate::{
    objects::{both, create, events, eventually, is_phase, origin, pod},
    setup::{Clusters, Syncer, WORKLOADS},
};
use berth_api::{TenantLimits, labels::ORIGIN_NAME, names::host_name};
use berth_sync_rules::{model::HostLimits, translation::sizes::MAX_SERVICE_VARIABLE_BYTES};
use berth_syncer::metrics::SizeLabels;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Event, LimitRange, Namespace, Pod, ResourceQuota, Service},
};
use kube::{
    Api, Error, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

/// Creates a quota with these limits. Waits until the host enforces it.
pub async fn enforce(clusters: &Clusters, quotas: &Api<ResourceQuota>, mut hard: Value) {
    hard["count/leases.coordination.k8s.io"] = "0".into();
    create(
        quotas,
        json!({"metadata": {"name": "berth-limits"}, "spec": {"hard": hard}}),
    )
    .await;
    let leases: Api<Lease> = clusters.host_api();
    let lease: Lease = serde_json::from_value(json!({"metadata": {"name": "beyond"}})).unwrap();
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    // The API server's own cache of quotas may be a moment old.
    eventually("the quota is enforced", async || {
        let answer = leases.create(&dry_run, &lease).await;
        matches!(answer, Err(Error::Api(status)) if status.message.contains("exceeded quota"))
    })
    .await;
}

/// Enforces one limit of a class, as its ResourceQuota has it. Returns the quota, which is deleted to lift it.
pub async fn count_on_host(clusters: &Clusters, counted: &str, limits: &TenantLimits) -> Api<ResourceQuota> {
    let quotas: Api<ResourceQuota> = clusters.host_api();
    let hard = limits.quota(&clusters.policy.kinds);
    enforce(clusters, &quotas, json!({counted: hard[counted]})).await;
    let mut changes = 0;
    // A controller manager that has just learned of a kind counts it when the quota changes.
    eventually("the host counts the kind", async || {
        changes += 1;
        let change = json!({"spec": {"hard": {"count/leases.coordination.k8s.io": changes.to_string()}}});
        let quota = quotas
            .patch("berth-limits", &PatchParams::default(), &Patch::Merge(change))
            .await
            .unwrap();
        let used = quota.status.and_then(|status| status.used).unwrap_or_default();
        used.contains_key(counted)
    })
    .await;
    quotas
}

/// Waits until an Event about an object names a field of the limits.
pub async fn until_beyond(clusters: &Clusters, about: &str, field: &str) {
    eventually(&format!("an Event about {about} names the limit"), async || {
        let messages = events(clusters, about, "QuotaExceeded").await;
        messages.iter().any(|message| message.contains(field))
    })
    .await;
}

pub async fn objects_beyond_a_limit_wait_and_say_why(clusters: &Clusters) {
    let quotas: Api<ResourceQuota> = clusters.host_api();
    // It leaves no room, as of a tenant that has what it may have: there are two pods.
    let hard = json!({"count/pods": "1", "count/services": "0"});
    enforce(clusters, &quotas, hard).await;
    let pods = clusters.tenant_api::<Pod>();
    create(&pods, pod("beyond", &json!({}))).await;
    eventually("condition and Event name the limit", async || {
        let status = pods.get("beyond").await.unwrap().status.unwrap();
        let conditions = status.conditions.unwrap_or_default();
        let synced = conditions
            .into_iter()
            .find(|condition| condition.type_ == "berth.dev/Synced");
        let messages = events(clusters, "beyond", "QuotaExceeded").await;
        synced.is_some_and(|synced| {
            let message = synced.message.unwrap_or_default();
            synced.reason.as_deref() == Some("QuotaExceeded")
                && message.contains("spec.limits.pods")
                && !message.contains(WORKLOADS)
                && messages.contains(&message)
        })
    })
    .await;
    assert!(clusters.host_pods().await.iter().all(|pod| origin(pod) != "beyond"));

    let service = json!({"metadata": {"name": "beyond"}, "spec": {"selector": {"app": "a"}, "ports": [{"port": 80}]}});
    let service: Service = serde_json::from_value(service).unwrap();
    let services = clusters.tenant_api::<Service>();
    match services.create(&PostParams::default(), &service).await.unwrap_err() {
        Error::Api(status) => assert!(
            status.code == 403 && status.message.contains("spec.limits.services"),
            "{status:?}"
        ),
        other => panic!("{other}"),
    }

    let raised = Patch::Merge(json!({"spec": {"hard": {"count/pods": "1000", "count/services": "1000",
        "count/leases.coordination.k8s.io": "1000"}}}));
    quotas
        .patch("berth-limits", &PatchParams::default(), &raised)
        .await
        .unwrap();
    eventually("it runs once there is room", async || {
        is_phase(&pods, "beyond", "Running").await
    })
    .await;
    pods.delete("beyond", &DeleteParams::default()).await.unwrap();
    quotas.delete("berth-limits", &DeleteParams::default()).await.unwrap();
}

pub async fn requests_beyond_a_limit_wait_and_pods_without_requests_have_the_default(clusters: &Clusters) {
    let (quotas, ranges): (Api<ResourceQuota>, Api<LimitRange>) = (clusters.host_api(), clusters.host_api());
    let defaults = json!([{"type": "Container", "defaultRequest": {"cpu": "10m"}}]);
    create(
        &ranges,
        json!({"metadata": {"name": "berth-limits"}, "spec": {"limits": defaults}}),
    )
    .await;
    enforce(clusters, &quotas, json!({"requests.cpu": "1"})).await;
    let pods = clusters.tenant_api::<Pod>();
    let container = json!([{"name": "main", "image": "app:1", "resources": {"requests": {"cpu": "2"}}}]);
    create(&pods, pod("large", &json!({"containers": container}))).await;
    create(&pods, pod("small", &json!({}))).await;
    eventually("the Event names the limit", async || {
        let messages = events(clusters, "large", "QuotaExceeded").await;
        messages.iter().any(|message| message.contains("1 requested CPU"))
    })
    .await;
    eventually("a pod without requests runs", async || {
        is_phase(&pods, "small", "Running").await
    })
    .await;
    let on_host = clusters.host_pods().await;
    assert!(on_host.iter().all(|pod| origin(pod) != "large"));
    let small = on_host.into_iter().find(|pod| origin(pod) == "small").unwrap();
    let resources = small.spec.unwrap().containers[0].resources.clone().unwrap();
    assert_eq!(resources.requests.unwrap()["cpu"].0, "10m");
    for name in ["large", "small"] {
        pods.delete(name, &DeleteParams::default()).await.unwrap();
    }
    quotas.delete("berth-limits", &DeleteParams::default()).await.unwrap();
    ranges.delete("berth-limits", &DeleteParams::default()).await.unwrap();
}

pub async fn what_services_add_to_a_pod_is_limited(clusters: &Clusters) {
    const NAMESPACE: &str = "crowded";
    let namespaces: Api<Namespace> = Api::all(clusters.tenant_admin.clone());
    create(&namespaces, json!({"metadata": {"name": NAMESPACE}})).await;
    let services: Api<Service> = Api::namespaced(clusters.tenant_admin.clone(), NAMESPACE);
    let ports: Vec<Value> = (1..=100)
        .map(|port| json!({"name": format!("port-{port:0>10}"), "port": port}))
        .collect();
    for number in 0..10 {
        let name = format!("service-{number:0>50}");
        create(&services, json!({"metadata": {"name": name}, "spec": {"ports": ports}})).await;
    }
    create(
        &services,
        json!({"metadata": {"name": "small"}, "spec": {"ports": [{"port": 80}]}}),
    )
    .await;
    let pending = json!({"nodeSelector": no_node(), "containers": [
        {"name": "main", "image": "app:1"}, {"name": "other", "image": "app:1"}]});
    let pods: Api<Pod> = Api::namespaced(clusters.tenant_admin.clone(), NAMESPACE);
    create(&pods, pod("crowded", &pending)).await;
    let on_host = async || {
        clusters
            .host_pods()
            .await
            .into_iter()
            .find(|pod| origin(pod) == "crowded")
    };
    eventually("the pod is on the host", async || on_host().await.is_some()).await;
    let host_pod = on_host().await.unwrap();
    let variables: Vec<_> = host_pod
        .spec
        .unwrap()
        .containers
        .into_iter()
        .filter_map(|container| container.env)
        .collect();
    let bytes = serde_json::to_string(&variables).unwrap().len();
    assert!(bytes < MAX_SERVICE_VARIABLE_BYTES + 4096, "{bytes}");
    for variables in variables {
        assert!(variables.iter().any(|variable| variable.name == "SMALL_SERVICE_HOST"));
    }
    let events: Api<Event> = Api::namespaced(clusters.tenant_admin.clone(), NAMESPACE);
    eventually("an Event names Services that are left out", async || {
        let events = events
            .list(&ListParams::default().fields("reason=FieldIgnored"))
            .await
            .unwrap();
        let mut messages = events.into_iter().filter_map(|event| event.message);
        messages.any(|message| {
            message.contains("spec.enableServiceLinks") && message.contains(" more. Find Services by DNS")
        })
    })
    .await;
    namespaces.delete(NAMESPACE, &DeleteParams::default()).await.unwrap();
    eventually("the pod is gone from the host", async || on_host().await.is_none()).await;
}

/// Objects that wait to be written to the host and have more than 16 KiB.
fn large_writes_that_wait(syncer: &Syncer) -> i64 {
    let large = SizeLabels { size: "large" };
    syncer.metrics.host_writes.objects_waiting.get_or_create(&large).get()
}

/// A ConfigMap of 900 KB.
fn large_config_map(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"value": "x".repeat(900_000)}})
}

/// What no node has, so that a pod never starts.
fn no_node() -> Value {
    json!({"example.com/none": "x"})
}

/// A pod that uses ConfigMaps, and never starts.
fn pending_pod_with(name: &str, config_maps: &[String]) -> Value {
    let sources: Vec<Value> = config_maps
        .iter()
        .map(|name| json!({"configMapRef": {"name": name}}))
        .collect();
    pod(
        name,
        &json!({"nodeSelector": no_node(), "containers": [{"name": "main", "image": "app:1", "envFrom": sources}]}),
    )
}

/// Writes to the host have a pace, and what is there a size.
pub async fn bytes_on_the_host_are_limited(clusters: &mut Clusters) {
    clusters.host_limits.write_bytes_per_second = 1024;
    let syncer = clusters.syncer().await;
    let bytes = Box::pin(large_writes_wait_and_small_ones_do_not(clusters, &syncer)).await;
    syncer.stop().await;
    clusters.host_limits = HostLimits {
        bytes: bytes + 500_000,
        ..HostLimits::default()
    };
    let syncer = clusters.syncer().await;
    Box::pin(what_has_no_room_says_why(clusters)).await;
    let policy = make_policy(clusters).await;
    syncer.stop().await;
    // Nothing may grow.
    clusters.host_limits.bytes = 1;
    let syncer = clusters.syncer().await;
    Box::pin(what_a_policy_loses_needs_no_room(clusters, &policy)).await;
    syncer.stop().await;
    clusters.host_limits = HostLimits::default();
}

const POLICY: &str = "narrowed";

/// A rule for pods of these apps.
fn rule(apps: impl Iterator<Item = String>) -> Value {
    let peers: Vec<Value> = apps
        .map(|app| json!({"podSelector": {"matchLabels": {"app": app}}}))
        .collect();
    json!({ "from": peers })
}

/// A policy with two rules, which is on the host. Returns its name there.
async fn make_policy(clusters: &Clusters) -> String {
    let (tenant, host) = both(clusters, "networking.k8s.io", "v1", "NetworkPolicy");
    let rules = ["kept", "lost"].map(|app| rule(std::iter::once(app.to_owned())));
    let spec = json!({"podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Ingress"], "ingress": rules});
    tenant.create(json!({"metadata": {"name": POLICY}, "spec": spec})).await;
    let name = host_name("NetworkPolicy", "default", POLICY);
    host.until(&name, "it is on the host", |_| true).await;
    name
}

/// An edit takes a rule away and adds another that has no room.
async fn what_a_policy_loses_needs_no_room(clusters: &Clusters, name: &str) {
    let (tenant, host) = both(clusters, "networking.k8s.io", "v1", "NetworkPolicy");
    let before = host.get(name).await.unwrap()["spec"].clone();
    assert_eq!(before["ingress"].as_array().unwrap().len(), 2);
    let more = rule((0..100).map(|number| format!("more-{number}")));
    let ingress = [rule(std::iter::once("kept".to_owned())), more];
    tenant.patch(POLICY, json!({"spec": {"ingress": ingress}})).await;
    let kept = json!([before["ingress"][0]]);
    host.until(name, "it has lost the rule, and has no other", |policy| {
        policy["spec"]["ingress"] == kept
    })
    .await;
    eventually("the Event names the limit", async || {
        let messages = events(clusters, POLICY, "QuotaExceeded").await;
        messages.iter().any(|message| message.contains("spec.limits.hostBytes"))
    })
    .await;
    tenant.delete(POLICY).await;
    host.gone(name).await;
}

/// Returns the bytes that are left on the host.
async fn large_writes_wait_and_small_ones_do_not(clusters: &Clusters, syncer: &Syncer) -> u64 {
    let (pods, maps) = (clusters.tenant_api::<Pod>(), clusters.tenant_api::<ConfigMap>());
    // 36 MB: more than may be written at once.
    let names: Vec<String> = (0..40).map(|number| format!("heavy-{number}")).collect();
    for name in &names {
        create(&maps, large_config_map(name)).await;
    }
    create(&pods, pending_pod_with("heavy", &names)).await;
    eventually("large objects wait", async || large_writes_that_wait(syncer) > 1).await;
    eventually("one of them says why", async || {
        for name in &names {
            let messages = events(clusters, name, "WriteDelayed").await;
            if messages
                .iter()
                .any(|message| message.contains("spec.limits.hostWriteBytesPerSecond"))
            {
                return true;
            }
        }
        false
    })
    .await;
    create(&pods, pod("light", &json!({}))).await;
    eventually("a small pod runs meanwhile", async || {
        is_phase(&pods, "light", "Running").await
    })
    .await;
    assert!(large_writes_that_wait(syncer) > 0);
    for name in ["heavy", "light"] {
        pods.delete(name, &DeleteParams::default()).await.unwrap();
    }
    let on_host = async || {
        let maps = clusters
            .host_api::<ConfigMap>()
            .list(&ListParams::default())
            .await
            .unwrap();
        let origin = |map: &ConfigMap| map.annotations().get(ORIGIN_NAME).cloned().unwrap_or_default();
        maps.iter().filter(|map| origin(map).starts_with("heavy-")).count()
    };
    eventually("deletions do not wait", async || on_host().await == 0).await;
    eventually("nothing waits any more", async || large_writes_that_wait(syncer) == 0).await;
    let bytes = || u64::try_from(syncer.metrics.host_bytes.get()).unwrap();
    // None of the large ones is counted any more: what follows needs to know what is left.
    eventually("the rest is small", async || bytes() < 200_000).await;
    for name in &names {
        maps.delete(name, &DeleteParams::default()).await.unwrap();
    }
    bytes()
}

async fn what_has_no_room_says_why(clusters: &Clusters) {
    let (pods, maps) = (clusters.tenant_api::<Pod>(), clusters.tenant_api::<ConfigMap>());
    create(&maps, large_config_map("no-room")).await;
    create(&pods, pending_pod_with("large", &["no-room".to_owned()])).await;
    eventually("the Event names the limit", async || {
        let messages = events(clusters, "no-room", "QuotaExceeded").await;
        messages.iter().any(|message| message.contains("spec.limits.hostBytes"))
    })
    .await;
    create(&pods, pod("small", &json!({}))).await;
    eventually("a small pod runs", async || is_phase(&pods, "small", "Running").await).await;
    for name in ["large", "small"] {
        pods.delete(name, &DeleteParams::default()).await.unwrap();
    }
    maps.delete("no-room", &DeleteParams::default()).await.unwrap();
}

/// A pod that costs eight requests and never starts: none of the four claims that it names exists.
fn pod_with_claims(name: &str) -> Value {
    let volumes: Vec<Value> = (0..4)
        .map(|number| json!({"name": format!("data-{number}"), "persistentVolumeClaim": {"claimName": format!("missing-{number}")}}))
        .collect();
    pod(name, &json!({"volumes": volumes}))
}

/// What makes controllers of the host work has a pace of its own, and delays nothing else.
pub async fn pods_with_many_claims_wait_for_their_turn(clusters: &mut Clusters) {
    clusters.host_limits.controller_requests_per_second = 1;
    Box::pin(pods_with_many_claims_wait(clusters)).await;
    clusters.host_limits = HostLimits::default();
}

async fn pods_with_many_claims_wait(clusters: &Clusters) {
    let syncer = clusters.syncer().await;
    let pods = clusters.tenant_api::<Pod>();
    let names: Vec<String> = (0..100).map(|number| format!("claims-{number}")).collect();
    for name in &names {
        create(&pods, pod_with_claims(name)).await;
    }
    let on_host = async || {
        let all = clusters.host_pods().await;
        all.iter().filter(|pod| origin(pod).starts_with("claims-")).count()
    };
    // A syncer starts with 60 requests, and a pod takes 8.
    eventually("those whose turn it is are on the host", async || on_host().await >= 7).await;
    eventually("one that waits says why", async || {
        for name in &names {
            let messages = events(clusters, name, "WriteDelayed").await;
            let mut messages = messages.iter();
            if messages.any(|message| message.contains("spec.limits.controllerRequestsPerSecond")) {
                return true;
            }
        }
        false
    })
    .await;
    create(&pods, pod("light", &json!({}))).await;
    eventually("a pod without claims runs meanwhile", async || {
        is_phase(&pods, "light", "Running").await
    })
    .await;
    // The figure is published now and then.
    eventually("the metric shows that pods wait", async || {
        syncer.metrics.host_writes.controller_requests_waiting.get() > 0
    })
    .await;
    assert!(on_host().await < names.len());
    syncer.stop().await;
    let before = on_host().await;
    // What is on the host takes nothing from what a syncer starts with, and that is not enough for all others.
    let syncer = clusters.syncer().await;
    eventually("some more are on the host", async || on_host().await >= before + 7).await;
    assert!(on_host().await < names.len());
    for name in names.iter().map(String::as_str).chain(["light"]) {
        pods.delete(name, &DeleteParams::default()).await.unwrap();
    }
    eventually("all are gone from the host", async || on_host().await == 0).await;
    syncer.stop().await;
}
