//! Services: one address inside and outside, whatever verb creates or changes them.

mod endpoints;
mod failures;

use crate::{
    objects::{create, eventually},
    setup::{Clusters, Setup, WORKLOADS},
};
use berth_api::{
    SyncPolicy,
    labels::{ENDPOINTS, ENDPOINTS_NONE, ORIGIN_UID, RESERVED_AT},
    sync_policy::ServicePolicy,
};
use berth_sync_rules::admission::configuration;
use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration,
    core::v1::{Namespace, ResourceQuota, Service},
};
use kube::{
    Api, Error, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Both families on both sides.
const RANGES: &str = "10.96.0.0/16,fd00:10:96::/108";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_have_one_address() {
    let policy = SyncPolicy {
        services: ServicePolicy {
            node_ports: true,
            load_balancers: true,
            ..ServicePolicy::default()
        },
        ..SyncPolicy::default()
    };
    let setup = Setup {
        policy,
        service_ranges: Some(RANGES),
        ..Setup::default()
    };
    let mut clusters = Clusters::start_as(setup).await;
    let syncer = clusters.syncer().await;
    every_way_to_create(&clusters).await;
    names_that_are_taken(&clusters).await;
    a_dry_run_leaves_nothing(&clusters).await;
    addresses_by_hand(&clusters).await;
    fields_that_are_not_offered_are_denied(&clusters).await;
    changes_of_type(&clusters).await;
    a_load_balancer(&clusters).await;
    both_families(&clusters).await;
    endpoints::a_service_that_loses_its_selector_has_no_endpoints(&clusters).await;
    failures::reservations_of_rejected_services_are_deleted(&clusters).await;
    failures::an_update_that_the_tenant_rejects_is_undone_soon(&clusters).await;
    failures::the_configuration_comes_back(&clusters).await;
    assert_eq!(
        syncer
            .metrics
            .orphans
            .get_or_create(&berth_syncer::metrics::KindLabels { kind: "Service" })
            .get(),
        0
    );
    syncer.stop().await;
    let syncer = endpoints::services_that_change_too_often_are_closed(&mut clusters).await;
    syncer.kill().await;
    failures::without_a_syncer(&clusters).await;
}

/// A Service that needs no permission of a class.
pub async fn a_service_has_one_address(clusters: &Clusters) {
    let created = create(&clusters.tenant_api::<Service>(), plain("web")).await;
    assert_same(clusters, &created).await;
    let mut node_port = plain("door");
    node_port["spec"]["type"] = "NodePort".into();
    let node_port: Service = serde_json::from_value(node_port).unwrap();
    let services = clusters.tenant_api::<Service>();
    let (code, message) = denial(services.create(&PostParams::default(), &node_port).await);
    assert!(
        code == 403 && message.contains("spec.type: NodePort is not offered"),
        "{message}"
    );
}

fn spec(service: &Service) -> Value {
    serde_json::to_value(service.spec.as_ref().unwrap()).unwrap()
}

fn plain(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": 80}]}})
}

/// The host's Service for a tenant's Service in `default`.
async fn on_host(clusters: &Clusters, name: &str) -> Option<Service> {
    let name = berth_api::names::host_name("Service", "default", name);
    clusters.host_api::<Service>().get_opt(&name).await.unwrap()
}

/// Both sides agree about everything that is allocated. At once, not some time later.
async fn assert_same(clusters: &Clusters, service: &Service) {
    let host = on_host(clusters, &service.name_any()).await.expect("the host has it");
    let given = |service: &Service| {
        let spec = spec(service);
        let ports: Vec<Value> = spec["ports"]
            .as_array()
            .unwrap()
            .iter()
            .map(|port| port["nodePort"].clone())
            .collect();
        let fields = [
            "type",
            "clusterIP",
            "clusterIPs",
            "ipFamilies",
            "ipFamilyPolicy",
            "healthCheckNodePort",
        ];
        (fields.map(|field| spec[field].clone()), ports)
    };
    assert_eq!(given(service), given(&host));
    assert!(!spec(service)["clusterIP"].as_str().unwrap().is_empty());
}

async fn patch(clusters: &Clusters, name: &str, patch: Value) -> Result<Service, Error> {
    let services = clusters.tenant_api::<Service>();
    services
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
}

fn denial(result: Result<Service, Error>) -> (u16, String) {
    match result.unwrap_err() {
        Error::Api(status) => (status.code, status.message.clone()),
        other => panic!("{other}"),
    }
}

async fn every_way_to_create(clusters: &Clusters) {
    let services = clusters.tenant_api::<Service>();
    let created = create(&services, plain("created")).await;
    assert_same(clusters, &created).await;
    eventually("it belongs to the tenant's object", async || {
        let host = on_host(clusters, "created").await.unwrap();
        let annotations = host.annotations();
        annotations.get(ORIGIN_UID) == created.metadata.uid.as_ref() && !annotations.contains_key(RESERVED_AT)
    })
    .await;
    let host = spec(&on_host(clusters, "created").await.unwrap());
    assert_eq!(host["selector"]["berth.dev/namespace"], "default");

    let apply = PatchParams::apply("a-team");
    let applied = services
        .patch("applied", &apply, &Patch::Apply(plain("applied")))
        .await
        .unwrap();
    assert_same(clusters, &applied).await;
    let again = services
        .patch("applied", &apply, &Patch::Apply(plain("applied")))
        .await
        .unwrap();
    assert_eq!(again.metadata.resource_version, applied.metadata.resource_version);

    let mut generated = plain("x");
    generated["metadata"] = json!({"generateName": "generated-"});
    let generated = create(&services, generated).await;
    assert!(generated.name_any().starts_with("generated-") && generated.name_any().len() == 15);
    assert_same(clusters, &generated).await;

    // A PUT without the address keeps it, and other changes are synced.
    let mut replacement: Service = serde_json::from_value(plain("created")).unwrap();
    replacement.spec.as_mut().unwrap().ports.as_mut().unwrap()[0].port = 81;
    let replaced = services
        .replace("created", &PostParams::default(), &replacement)
        .await
        .unwrap();
    assert_eq!(spec(&replaced)["clusterIP"], spec(&created)["clusterIP"]);
    eventually("the port arrives", async || {
        spec(&on_host(clusters, "created").await.unwrap())["ports"][0]["port"] == 81
    })
    .await;

    let external =
        json!({"metadata": {"name": "external"}, "spec": {"type": "ExternalName", "externalName": "example.com"}});
    create(&services, external).await;
    let headless = json!({"metadata": {"name": "headless"}, "spec": {"clusterIP": "None", "selector": {"a": "b"}, "ports": [{"port": 1}]}});
    create(&services, headless).await;
    eventually("that without an address arrives", async || {
        on_host(clusters, "headless").await.is_some()
    })
    .await;
    assert!(
        on_host(clusters, "external").await.is_none(),
        "only the tenant's DNS answers for it"
    );
    let (code, _) = denial(
        patch(
            clusters,
            "headless",
            json!({"spec": {"clusterIP": "10.96.5.5", "clusterIPs": ["10.96.5.5"]}}),
        )
        .await,
    );
    assert_eq!(code, 422, "headless stays headless");
}

async fn names_that_are_taken(clusters: &Clusters) {
    let services = clusters.tenant_api::<Service>();
    let service: Service = serde_json::from_value(plain("created")).unwrap();
    let (code, message) = denial(services.create(&PostParams::default(), &service).await);
    assert!(code == 409 && message.contains("already exists"), "{message}");

    let contested: Service = serde_json::from_value(plain("contested")).unwrap();
    let params = PostParams::default();
    let attempts = futures::future::join_all((0..6).map(|_| services.create(&params, &contested))).await;
    let (won, lost): (Vec<_>, Vec<_>) = attempts.into_iter().partition(Result::is_ok);
    assert_eq!(won.len(), 1, "{lost:?}");
    for result in lost {
        assert_eq!(denial(result).0, 409);
    }
    assert_same(clusters, &services.get("contested").await.unwrap()).await;

    // Recreated at once, before the host's is gone.
    for _ in 0..3 {
        services.delete("contested", &DeleteParams::default()).await.unwrap();
        let again = services.create(&params, &contested).await.unwrap();
        assert_same(clusters, &again).await;
    }
}

async fn host_names(clusters: &Clusters) -> BTreeSet<String> {
    let services = clusters
        .host_api::<Service>()
        .list(&ListParams::default())
        .await
        .unwrap();
    services.iter().map(ResourceExt::name_any).collect()
}

async fn a_dry_run_leaves_nothing(clusters: &Clusters) {
    let services = clusters.tenant_api::<Service>();
    let before = host_names(clusters).await;
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let service: Service = serde_json::from_value(plain("dry")).unwrap();
    let answer = services.create(&dry, &service).await.unwrap();
    assert!(spec(&answer)["clusterIP"].as_str().unwrap().starts_with("10.96."));
    let mut outside = plain("dry");
    outside["spec"]["clusterIP"] = "10.97.0.1".into();
    let outside: Service = serde_json::from_value(outside).unwrap();
    assert_eq!(
        denial(services.create(&dry, &outside).await).0,
        422,
        "the host is asked as well"
    );
    let params = PatchParams::default().dry_run();
    let change = Patch::Merge(json!({"spec": {"type": "NodePort"}}));
    let answer = services.patch("applied", &params, &change).await.unwrap();
    assert!(spec(&answer)["ports"][0]["nodePort"].as_u64().unwrap() >= 30000);
    assert_eq!(host_names(clusters).await, before);
    assert_eq!(spec(&on_host(clusters, "applied").await.unwrap())["type"], "ClusterIP");
}

async fn addresses_by_hand(clusters: &Clusters) {
    let others: Api<Service> = Api::namespaced(clusters.host_admin.clone(), "default");
    let other = create(&others, plain("of-another-tenant")).await;
    let taken = spec(&other)["clusterIP"].clone();
    let mut service = plain("by-hand");
    service["spec"]["clusterIP"] = taken;
    let services = clusters.tenant_api::<Service>();
    let wanted: Service = serde_json::from_value(service.clone()).unwrap();
    let (code, message) = denial(services.create(&PostParams::default(), &wanted).await);
    assert!(
        code == 422 && message.contains("taken by another Service"),
        "{code} {message}"
    );
    assert!(on_host(clusters, "by-hand").await.is_none());
    // Free, but kept for Services of the host.
    service["spec"]["clusterIP"] = "10.96.0.77".into();
    let wanted: Service = serde_json::from_value(service.clone()).unwrap();
    for params in [
        PostParams::default(),
        PostParams {
            dry_run: true,
            ..PostParams::default()
        },
    ] {
        let (code, message) = denial(services.create(&params, &wanted).await);
        assert!(
            code == 403 && message.contains("10.96.0.77 is one of the addresses that the host"),
            "{code} {message}"
        );
    }
    assert!(on_host(clusters, "by-hand").await.is_none());
    service["spec"]["clusterIP"] = "10.96.200.200".into();
    let created = create(&services, service).await;
    assert_eq!(spec(&created)["clusterIP"], "10.96.200.200");
    assert_same(clusters, &created).await;
}

async fn fields_that_are_not_offered_are_denied(clusters: &Clusters) {
    let services = clusters.tenant_api::<Service>();
    let mut service = plain("denied");
    service["spec"]["externalIPs"] = json!(["1.2.3.4"]);
    service["spec"]["type"] = "LoadBalancer".into();
    service["spec"]["loadBalancerClass"] = "example.com/f5".into();
    let denied: Service = serde_json::from_value(service).unwrap();
    let (code, message) = denial(services.create(&PostParams::default(), &denied).await);
    assert_eq!(code, 403);
    for text in [
        "spec.externalIPs: they could take over",
        "spec.loadBalancerClass: example.com/f5 is not offered",
    ] {
        assert!(message.contains(text), "{message}");
    }
    assert!(services.get_opt("denied").await.unwrap().is_none());
}

async fn changes_of_type(clusters: &Clusters) {
    let services = clusters.tenant_api::<Service>();
    let external = patch(
        clusters,
        "applied",
        json!({"spec": {"type": "ExternalName", "externalName": "example.com"}}),
    )
    .await
    .unwrap();
    assert_eq!(spec(&external).get("clusterIP"), None);
    eventually("the host lets go of the address", async || {
        on_host(clusters, "applied").await.is_none()
    })
    .await;
    let back = patch(
        clusters,
        "applied",
        json!({"spec": {"type": "ClusterIP", "externalName": null}}),
    )
    .await
    .unwrap();
    assert_same(clusters, &back).await;

    let node_port = patch(clusters, "applied", json!({"spec": {"type": "NodePort"}}))
        .await
        .unwrap();
    assert_same(clusters, &node_port).await;
    let mut ports = spec(&node_port)["ports"].clone();
    assert!(ports[0]["nodePort"].as_u64().unwrap() >= 30000);
    ports
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "more", "port": 8080}));
    let more = patch(clusters, "applied", json!({"spec": {"ports": ports}}))
        .await
        .unwrap();
    assert_same(clusters, &more).await;
    assert_eq!(spec(&more)["ports"].as_array().unwrap().len(), 2);

    // The port of another Service of the host.
    let others: Api<Service> = Api::namespaced(clusters.host_admin.clone(), "default");
    let mut other = plain("with-a-port");
    other["spec"]["type"] = "NodePort".into();
    let taken = spec(&create(&others, other).await)["ports"][0]["nodePort"].clone();
    let mut ports = spec(&more)["ports"].clone();
    ports[0]["nodePort"] = taken;
    let (code, message) = denial(patch(clusters, "applied", json!({"spec": {"ports": ports}})).await);
    assert!(
        code == 422 && message.contains("provided port is already allocated"),
        "{message}"
    );

    let plain_again = patch(clusters, "applied", json!({"spec": {"type": "ClusterIP"}}))
        .await
        .unwrap();
    assert!(spec(&plain_again)["ports"][0].get("nodePort").is_none());
    assert_eq!(spec(&plain_again)["clusterIP"], spec(&back)["clusterIP"]);
    eventually("the host gives the ports back", async || {
        spec(&on_host(clusters, "applied").await.unwrap())["type"] == "ClusterIP"
    })
    .await;
    // Session affinity and the like are not allocated.
    patch(
        clusters,
        "applied",
        json!({"spec": {"sessionAffinity": "ClientIP", "trafficDistribution": "PreferSameZone"}}),
    )
    .await
    .unwrap();
    eventually("they arrive", async || {
        let host = spec(&on_host(clusters, "applied").await.unwrap());
        host["sessionAffinity"] == "ClientIP" && host["trafficDistribution"] == "PreferSameZone"
    })
    .await;
    services.delete("applied", &DeleteParams::default()).await.unwrap();
    eventually("it is gone", async || on_host(clusters, "applied").await.is_none()).await;
}

async fn a_load_balancer(clusters: &Clusters) {
    let services = clusters.tenant_api::<Service>();
    let mut service = plain("balanced");
    service["spec"]["type"] = "LoadBalancer".into();
    service["spec"]["externalTrafficPolicy"] = "Local".into();
    service["spec"]["loadBalancerSourceRanges"] = json!(["192.0.2.0/24"]);
    let created = create(&services, service).await;
    assert_same(clusters, &created).await;
    assert!(spec(&created)["healthCheckNodePort"].as_u64().unwrap() > 0);
    let host = on_host(clusters, "balanced").await.unwrap();
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.7", "ipMode": "VIP"}]}}});
    let host_services = clusters.host_api::<Service>();
    host_services
        .patch_status(&host.name_any(), &PatchParams::default(), &Patch::Merge(status))
        .await
        .unwrap();
    eventually("the tenant sees the address", async || {
        let status = serde_json::to_value(services.get("balanced").await.unwrap().status).unwrap();
        status["loadBalancer"]["ingress"][0]["ip"] == "192.0.2.7"
    })
    .await;
    // An edit of annotations alone is denied as well: stored, it would take the load balancer away.
    let pool = json!({"metadata": {"annotations": {"metallb.io/address-pool": "other"}}});
    let (code, message) = denial(patch(clusters, "balanced", pool).await);
    assert!(
        code == 403 && message.contains("sync.services.annotations"),
        "{code} {message}"
    );
    patch(
        clusters,
        "balanced",
        json!({"metadata": {"annotations": {"note": "n"}}}),
    )
    .await
    .unwrap();
    assert_eq!(
        spec(&on_host(clusters, "balanced").await.unwrap())["type"],
        "LoadBalancer"
    );
    let node_port = patch(
        clusters,
        "balanced",
        json!({"spec": {"type": "NodePort", "loadBalancerSourceRanges": null}}),
    )
    .await
    .unwrap();
    assert_same(clusters, &node_port).await;
    assert_eq!(spec(&node_port)["ports"], spec(&created)["ports"]);
}

async fn both_families(clusters: &Clusters) {
    let services = clusters.tenant_api::<Service>();
    let single = create(&services, plain("families")).await;
    assert_eq!(spec(&single)["ipFamilies"], json!(["IPv4"]));
    let both = patch(
        clusters,
        "families",
        json!({"spec": {"ipFamilyPolicy": "PreferDualStack"}}),
    )
    .await
    .unwrap();
    assert_same(clusters, &both).await;
    let addresses = spec(&both)["clusterIPs"].clone();
    assert!(
        addresses[0] == spec(&single)["clusterIP"] && addresses[1].as_str().unwrap().starts_with("fd00:10:96::"),
        "{addresses}"
    );
    let single_again = patch(clusters, "families", json!({"spec": {"ipFamilyPolicy": "SingleStack"}}))
        .await
        .unwrap();
    assert_eq!(spec(&single_again)["clusterIPs"], json!([addresses[0]]));
    eventually("the host lets go of the second address", async || {
        spec(&on_host(clusters, "families").await.unwrap())["clusterIPs"] == json!([addresses[0]])
    })
    .await;
    let mut service = plain("six");
    service["spec"]["ipFamilyPolicy"] = "RequireDualStack".into();
    service["spec"]["ipFamilies"] = json!(["IPv6", "IPv4"]);
    let six = create(&services, service).await;
    assert_same(clusters, &six).await;
    assert!(spec(&six)["clusterIP"].as_str().unwrap().starts_with("fd00:10:96::"));
}
