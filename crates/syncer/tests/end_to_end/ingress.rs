//! Ingresses and routes of the Gateway API between real API servers: what reaches a tenant from outside.

use crate::{
    limits::{count_on_host, until_beyond},
    objects::{Objects, both, create, events, eventually},
    refusals,
    setup::{Clusters, Syncer},
};
use berth_api::{TenantLimits, names::host_name};
use k8s_openapi::{
    api::core::v1::{Namespace, Secret},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, ListParams, PostParams},
};
use serde_json::{Value, json};

const GATEWAY: &str = "gateway.networking.k8s.io";
const NETWORKING: &str = "networking.k8s.io";

/// Defines the part of the Gateway API that matters here.
pub async fn define_gateway_api(client: &Client) {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    for (version, kind, plural, scope) in [
        ("v1", "GatewayClass", "gatewayclasses", "Cluster"),
        ("v1", "Gateway", "gateways", "Namespaced"),
        ("v1", "HTTPRoute", "httproutes", "Namespaced"),
        ("v1", "GRPCRoute", "grpcroutes", "Namespaced"),
        ("v1beta1", "ReferenceGrant", "referencegrants", "Namespaced"),
    ] {
        let definition = json!({
            "metadata": {
                "name": format!("{plural}.{GATEWAY}"),
                // Names under k8s.io belong to the community; this annotation claims its approval.
                "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/gateway-api/pull/1"}},
            "spec": {"group": GATEWAY, "scope": scope, "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
                "versions": [{"name": version, "served": true, "storage": true, "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": open, "status": open}}}}]}});
        create(&crds, definition).await;
        let objects = Objects::new(client, GATEWAY, version, kind, None);
        eventually(&format!("{kind} is served"), async || {
            objects.0.list(&ListParams::default()).await.is_ok()
        })
        .await;
    }
}

pub async fn ingresses_are_served(clusters: &Clusters) {
    let classes = [&clusters.host_admin, &clusters.tenant_admin]
        .map(|client| Objects::new(client, NETWORKING, "v1", "IngressClass", None));
    for (name, default) in [("nginx", "true"), ("internal", "false")] {
        classes[0]
            .create(json!({"metadata": {"name": name, "annotations": {"ingressclass.kubernetes.io/is-default-class": default}},
                "spec": {"controller": "k8s.io/ingress-nginx"}}))
            .await;
    }
    classes[1].until("nginx", "the class is mirrored", |_| true).await;
    assert!(classes[1].get("internal").await.is_none());
    classes[1].delete("nginx").await;
    classes[1].until("nginx", "the class is mirrored again", |_| true).await;
    let secret = json!({"metadata": {"name": "app-tls"}, "type": "kubernetes.io/tls", "stringData": {"tls.crt": "c", "tls.key": "k"}});
    create(&clusters.tenant_api::<Secret>(), secret).await;
    let (tenant, host) = both(clusters, NETWORKING, "v1", "Ingress");
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    let ingress = json!({"metadata": {"name": "app", "annotations": {"nginx.ingress.kubernetes.io/proxy-body-size": "8m"}},
        "spec": {"rules": [{"host": "app.team.example.com", "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}],
            "tls": [{"hosts": ["app.team.example.com"], "secretName": "app-tls"}]}});
    // The API server's own cache of classes may be a moment old.
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let typed: DynamicObject = serde_json::from_value(tenant.of_kind(ingress.clone())).unwrap();
    eventually("the default class is set", async || {
        let answer = tenant.0.create(&dry_run, &typed).await;
        answer.is_ok_and(|ingress| ingress.data["spec"]["ingressClassName"].is_string())
    })
    .await;
    let created = tenant.create(ingress).await;
    assert_eq!(created["spec"]["ingressClassName"], "nginx", "by default");
    let name = host_name("Ingress", "default", "app");
    let synced = host.until(&name, "it is on the host", |_| true).await;
    let secret = synced["spec"]["tls"][0]["secretName"].as_str().unwrap();
    assert!(clusters.host_api::<Secret>().get_opt(secret).await.unwrap().is_some());
    let backend = &synced["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]["name"];
    assert_eq!(*backend, host_name("Service", "default", "web"));
    let balancer = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.80"}]}});
    host.patch_status(&name, balancer.clone()).await;
    tenant
        .until("app", "the address is known", |ingress| ingress["status"] == balancer)
        .await;
    // Fields that are not offered are reported at once.
    tenant
        .create(
            json!({"metadata": {"name": "grab", "annotations": {"nginx.ingress.kubernetes.io/server-snippet": "x"}},
            "spec": {"ingressClassName": "internal", "rules": [{"host": "other.example.com"}]}}),
        )
        .await;
    eventually("an Event reports the denial", async || {
        let messages = events(clusters, "grab", "FieldDenied").await;
        messages.iter().any(|message| {
            ["spec.ingressClassName", "spec.rules[0].host", "server-snippet"]
                .iter()
                .all(|field| message.contains(field))
        })
    })
    .await;
    assert!(host.get(&host_name("Ingress", "default", "grab")).await.is_none());
    what_somebody_else_adds_goes_with_the_next_write((&tenant, &host), &name).await;
    a_denied_edit_takes_an_ingress_back((&tenant, &host), &name).await;
    tenant.delete("app").await;
    host.gone(&name).await;
}

/// An apply leaves what another field manager owns.
async fn what_somebody_else_adds_goes_with_the_next_write((tenant, host): (&Objects, &Objects), name: &str) {
    const SIZE: &str = "nginx.ingress.kubernetes.io/proxy-body-size";
    let backend = json!({"service": {"name": "elsewhere", "port": {"number": 80}}});
    host.patch(name, json!({"spec": {"defaultBackend": backend}})).await;
    tenant
        .patch("app", json!({"metadata": {"annotations": {SIZE: "9m"}}}))
        .await;
    host.until(name, "the change is there, and the backend is not", |ingress| {
        ingress["metadata"]["annotations"][SIZE] == "9m" && ingress["spec"].get("defaultBackend").is_none()
    })
    .await;
}

/// Left as it was, the host's Ingress would lead to what its Services become.
async fn a_denied_edit_takes_an_ingress_back((tenant, host): (&Objects, &Objects), name: &str) {
    let rules = tenant.get("app").await.unwrap()["spec"]["rules"].clone();
    let patch = async |host: &str| {
        let mut rules = rules.clone();
        rules[0]["host"] = host.into();
        tenant.patch("app", json!({"spec": {"rules": rules}})).await;
    };
    patch("foreign.example.com").await;
    host.gone(name).await;
    tenant
        .until("app", "it has no address", |ingress| {
            ingress["status"]["loadBalancer"] == json!({})
        })
        .await;
    patch("app.team.example.com").await;
    host.until(name, "it is back", |_| true).await;
}

pub async fn routes_are_attached(clusters: &Clusters) {
    let classes = [&clusters.host_admin, &clusters.tenant_admin]
        .map(|client| Objects::new(client, GATEWAY, "v1", "GatewayClass", None));
    for name in ["shared", "private"] {
        classes[0]
            .create(json!({"metadata": {"name": name}, "spec": {"controllerName": "example.com/gateway"}}))
            .await;
    }
    classes[0]
        .patch_status(
            "shared",
            json!({"conditions": [{"type": "Accepted", "status": "True"}]}),
        )
        .await;
    classes[1]
        .until("shared", "the class is mirrored", |class| {
            class["status"]["conditions"][0]["status"] == "True"
        })
        .await;
    assert!(classes[1].get("private").await.is_none());
    let namespaces: Api<Namespace> = Api::all(clusters.tenant_admin.clone());
    create(&namespaces, json!({"metadata": {"name": "lab"}})).await;
    let (tenant, host) = both(clusters, GATEWAY, "v1", "HTTPRoute");
    tenant
        .create(json!({"metadata": {"name": "app"}, "spec": {"parentRefs": [{"name": "public"}], "hostnames": ["app.team.example.com"],
            "rules": [{"backendRefs": [{"name": "web", "port": 80}, {"name": "models", "namespace": "lab", "port": 80}]}]}}))
        .await;
    let name = host_name("HttpRoute", "default", "app");
    let route = host.until(&name, "it is on the host", |_| true).await;
    assert_eq!(
        route["spec"]["parentRefs"],
        json!([{"group": GATEWAY, "kind": "Gateway", "namespace": "infra", "name": "public"}])
    );
    let backends = &route["spec"]["rules"][0]["backendRefs"];
    let models = host_name("Service", "lab", "models");
    assert_eq!(backends[0]["name"], host_name("Service", "default", "web"));
    assert_ne!(backends[1]["name"], models, "no ReferenceGrant permits it yet");
    let status = |reason: &str, resolved: &str| {
        let condition = |kind: &str, status: &str, reason: &str| json!({"type": kind, "status": status, "reason": reason, "message": "", "observedGeneration": 1, "lastTransitionTime": "2026-11-21T00:00:00Z"});
        json!({"parents": [{"controllerName": "example.com/gateway", "parentRef": route["spec"]["parentRefs"][0],
            "conditions": [condition("Accepted", "True", "Accepted"), condition("ResolvedRefs", resolved, reason)]}]})
    };
    host.patch_status(&name, status("BackendNotFound", "False")).await;
    let synced = tenant
        .until("app", "the status says why", |route| {
            route["status"]["parents"][0]["conditions"][1]["reason"] == "RefNotPermitted"
        })
        .await;
    assert_eq!(synced["status"]["parents"][0]["parentRef"], json!({"name": "public"}));
    let grants = Objects::new(
        &clusters.tenant_admin,
        GATEWAY,
        "v1beta1",
        "ReferenceGrant",
        Some("lab"),
    );
    grants
        .create(json!({"metadata": {"name": "web"}, "spec": {
            "from": [{"group": GATEWAY, "kind": "HTTPRoute", "namespace": "default"}], "to": [{"group": "", "kind": "Service"}]}}))
        .await;
    host.until(&name, "the ReferenceGrant permits the backend", |route| {
        route["spec"]["rules"][0]["backendRefs"][1]["name"] == models
    })
    .await;
    host.patch_status(&name, status("ResolvedRefs", "True")).await;
    tenant
        .until("app", "the backend is resolved", |route| {
            route["status"]["parents"][0]["conditions"][1]["status"] == "True"
        })
        .await;
    // A Gateway of the tenant's own takes the route over.
    let gateways = Objects::new(&clusters.tenant_admin, GATEWAY, "v1", "Gateway", Some("default"));
    gateways
        .create(json!({"metadata": {"name": "public"}, "spec": {"gatewayClassName": "mine"}}))
        .await;
    host.gone(&name).await;
    gateways.delete("public").await;
    host.until(&name, "it is back", |_| true).await;
    // Neither the host nor the tenant serves TLSRoutes here, and that disturbs no other route.
    tenant
        .patch("app", json!({"spec": {"hostnames": ["else.example.org"]}}))
        .await;
    eventually("an Event reports the denial", async || {
        let messages = events(clusters, "app", "FieldDenied").await;
        messages
            .iter()
            .any(|message| message.contains("spec.hostnames[0]: the host name else.example.org"))
    })
    .await;
    host.gone(&name).await;
    tenant
        .until("app", "its status says why", |route| {
            let entry = &route["status"]["parents"][0];
            entry["controllerName"] == "berth.dev/syncer" && entry["conditions"][0]["status"] == "False"
        })
        .await;
}

/// Controllers at the edge resolve names on the host: once its Service becomes one, an Ingress leads nowhere.
pub async fn a_service_that_becomes_a_name_is_no_backend(clusters: &Clusters) {
    let (tenant, host) = both(clusters, NETWORKING, "v1", "Ingress");
    let (services, host_services) = both(clusters, "", "v1", "Service");
    services
        .create(json!({"metadata": {"name": "shop"}, "spec": {"ports": [{"port": 80}], "selector": {"app": "shop"}}}))
        .await;
    let backend = json!({"service": {"name": "shop", "port": {"number": 80}}});
    let paths = json!([{"path": "/", "pathType": "Prefix", "backend": backend}]);
    tenant
        .create(
            json!({"metadata": {"name": "shop"}, "spec": {"ingressClassName": "nginx",
            "rules": [{"host": "shop.team.example.com", "http": {"paths": paths}}]}}),
        )
        .await;
    let (ingress, service) = (
        host_name("Ingress", "default", "shop"),
        host_name("Service", "default", "shop"),
    );
    let leads_to = |ingress: &Value| {
        let backend = &ingress["spec"]["rules"][0]["http"]["paths"][0]["backend"];
        backend["service"]["name"].clone()
    };
    host.until(&ingress, "it leads to the Service", |ingress| {
        leads_to(ingress) == service
    })
    .await;
    let name = "169-254-169-254.nip.io";
    services
        .patch("shop", json!({"spec": {"type": "ExternalName", "externalName": name}}))
        .await;
    let after = host
        .until(&ingress, "it leads nowhere", |ingress| leads_to(ingress) != service)
        .await;
    assert!(!after.to_string().contains(name), "{after}");
    host_services.gone(&service).await;
    let nowhere = leads_to(&after);
    assert!(host_services.get(nowhere.as_str().unwrap()).await.is_none());
    eventually("an Event says why", async || {
        let messages = events(clusters, "shop", "FieldIgnored").await;
        messages
            .iter()
            .any(|message| message.contains("stands for an external name"))
    })
    .await;
    tenant.delete("shop").await;
    services.delete("shop").await;
}

/// There is none.
pub async fn routes_are_counted_on_the_host(clusters: &Clusters) {
    let limits = TenantLimits {
        routes: 0,
        ..TenantLimits::default()
    };
    let quotas = count_on_host(clusters, "count/httproutes.gateway.networking.k8s.io", &limits).await;
    let (routes, host_routes) = both(clusters, GATEWAY, "v1", "HTTPRoute");
    routes
        .create(
            json!({"metadata": {"name": "beyond"}, "spec": {"parentRefs": [{"name": "public"}],
            "hostnames": ["beyond.team.example.com"], "rules": [{"backendRefs": [{"name": "web", "port": 80}]}]}}),
        )
        .await;
    until_beyond(clusters, "beyond", "spec.limits.routes").await;
    let name = host_name("HttpRoute", "default", "beyond");
    assert!(host_routes.get(&name).await.is_none());
    quotas.delete("berth-limits", &DeleteParams::default()).await.unwrap();
    host_routes
        .until(&name, "it is on the host once there is room", |_| true)
        .await;
    routes.delete("beyond").await;
}

/// The class offers other host names, and no Gateway any more: what leads traffic leaves the host, also if the tenant refuses the status that says so,
/// and is back with the offer.
pub async fn what_the_class_takes_away_is_withdrawn(clusters: &mut Clusters, syncer: Syncer) -> Syncer {
    let (ingresses, host_ingresses) = both(clusters, NETWORKING, "v1", "Ingress");
    let (routes, host_routes) = both(clusters, GATEWAY, "v1", "HTTPRoute");
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    let paths = json!([{"path": "/", "pathType": "Prefix", "backend": backend}]);
    ingresses
        .create(
            json!({"metadata": {"name": "later"}, "spec": {"ingressClassName": "nginx",
            "rules": [{"host": "later.team.example.com", "http": {"paths": paths}}]}}),
        )
        .await;
    routes
        .create(
            json!({"metadata": {"name": "later"}, "spec": {"parentRefs": [{"name": "public"}],
            "hostnames": ["later.team.example.com"], "rules": [{"backendRefs": [{"name": "web", "port": 80}]}]}}),
        )
        .await;
    let (ingress, route) = (
        host_name("Ingress", "default", "later"),
        host_name("HttpRoute", "default", "later"),
    );
    host_ingresses.until(&ingress, "it is on the host", |_| true).await;
    host_routes.until(&route, "it is on the host", |_| true).await;
    let balancer = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.81"}]}});
    host_ingresses.patch_status(&ingress, balancer.clone()).await;
    ingresses
        .until("later", "the address is known", |ingress| ingress["status"] == balancer)
        .await;
    refusals::refuse_edge(clusters, "later").await;

    syncer.stop().await;
    let offered = clusters.policy.clone();
    clusters.policy.ingress.hostnames = vec!["*.other.example.com".into()];
    clusters.policy.ingress.gateways.clear();
    let syncer = clusters.syncer().await;
    host_ingresses.gone(&ingress).await;
    host_routes.gone(&route).await;
    eventually("Events say what is not offered", async || {
        let messages = events(clusters, "later", "FieldDenied").await;
        ["spec.rules[0].host", "spec.parentRefs[0].name"]
            .iter()
            .all(|field| messages.iter().any(|message| message.contains(field)))
    })
    .await;
    let kept = ingresses.get("later").await.unwrap();
    assert_eq!(kept["status"], balancer, "the tenant has refused another one");
    refusals::accept(clusters).await;

    syncer.stop().await;
    clusters.policy = offered;
    let syncer = clusters.syncer().await;
    host_ingresses.until(&ingress, "it is back", |_| true).await;
    host_routes.until(&route, "it is back", |_| true).await;
    syncer
}
