//! Policies, endpoints, Ingresses and routes between real API servers. No packet flows: the tests look at the objects
//! and labels that network plug-ins and controllers of the host act upon.

use crate::{
    objects::{create, events, eventually, is_phase, origin, phase, pod},
    setup::{Clusters, WORKLOADS},
};
use berth_api::{
    SchedulingMode, SyncPolicy,
    labels::{NETWORK_EGRESS, NETWORK_INGRESS},
    names::host_name,
    sync_policy::GatewayReference,
};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{Namespace, Pod, Secret, Service},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{
        ApiResource, DeleteParams, DynamicObject, EvictParams, GroupVersionKind, ListParams, Patch, PatchParams,
        PostParams,
    },
};
use serde_json::{Value, json};

const GATEWAY: &str = "gateway.networking.k8s.io";
const NETWORKING: &str = "networking.k8s.io";

fn policy() -> SyncPolicy {
    let mut policy = SyncPolicy::default();
    policy.ingress.classes = vec!["nginx".into()];
    policy.ingress.gateway_classes = vec!["shared".into()];
    policy.ingress.gateways = vec![GatewayReference {
        namespace: "infra".into(),
        name: "public".into(),
    }];
    policy.ingress.hostnames = vec!["*.team.example.com".into()];
    policy
}

/// Objects of any kind as JSON.
struct Objects(Api<DynamicObject>, ApiResource);

impl Objects {
    fn new(client: &Client, group: &str, version: &str, kind: &str, namespace: Option<&str>) -> Self {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api = match namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        Self(api, resource)
    }

    async fn get(&self, name: &str) -> Option<Value> {
        let object = self.0.get_opt(name).await.unwrap()?;
        Some(serde_json::to_value(object).unwrap())
    }

    /// The object with its API version and kind.
    fn of_kind(&self, mut object: Value) -> Value {
        object["apiVersion"] = self.1.api_version.clone().into();
        object["kind"] = self.1.kind.clone().into();
        object
    }

    async fn create(&self, object: Value) -> Value {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        create(&self.0, self.of_kind(object)).await;
        self.get(&name).await.unwrap()
    }

    async fn patch(&self, name: &str, patch: Value) {
        let patch = Patch::Merge(patch);
        self.0.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    async fn patch_status(&self, name: &str, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        self.0
            .patch_status(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    async fn delete(&self, name: &str) {
        self.0.delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Waits until an object is there and something holds for it.
    async fn until(&self, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("{name}: {what}"), async || {
            self.get(name).await.is_some_and(|object| holds(&object))
        })
        .await;
        self.get(name).await.unwrap()
    }

    async fn gone(&self, name: &str) {
        eventually(&format!("{name} is gone"), async || self.get(name).await.is_none()).await;
    }
}

/// The two ends of a kind: the tenant's namespace `default`, and the workload namespace.
fn both(clusters: &Clusters, group: &str, version: &str, kind: &str) -> (Objects, Objects) {
    (
        Objects::new(&clusters.tenant_admin, group, version, kind, Some("default")),
        Objects::new(&clusters.host_admin, group, version, kind, Some(WORKLOADS)),
    )
}

/// Defines the part of the Gateway API that matters here.
async fn define_gateway_api(client: &Client) {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn network_kinds() {
    let clusters = Clusters::start_with(policy(), SchedulingMode::Host).await;
    for client in [&clusters.host_admin, &clusters.tenant_admin] {
        define_gateway_api(client).await;
    }
    let syncer = clusters.syncer().await;
    policies_isolate(&clusters).await;
    endpoints_are_the_tenants_own(&clusters).await;
    ingresses_are_served(&clusters).await;
    routes_are_attached(&clusters).await;
    budgets_hold_on_the_host(&clusters).await;
    syncer.stop().await;
}

async fn host_pod(clusters: &Clusters, name: &str) -> Option<Pod> {
    clusters.host_pods().await.into_iter().find(|pod| origin(pod) == name)
}

/// The directions in which the platform's policies leave a pod open.
async fn open(clusters: &Clusters, name: &str) -> Option<[bool; 2]> {
    let labels = host_pod(clusters, name).await?.metadata.labels?;
    Some([NETWORK_INGRESS, NETWORK_EGRESS].map(|label| labels.get(label).is_some_and(|value| value == "open")))
}

async fn until_open(clusters: &Clusters, name: &str, wanted: [bool; 2]) {
    eventually(&format!("{name} is open: {wanted:?}"), async || {
        open(clusters, name).await == Some(wanted)
    })
    .await;
}

async fn policies_isolate(clusters: &Clusters) {
    let pods = clusters.tenant_api::<Pod>();
    for name in ["db", "web"] {
        create(&pods, pod(name, &json!({}))).await;
        until_open(clusters, name, [true, true]).await;
    }
    let (tenant, host) = both(clusters, NETWORKING, "v1", "NetworkPolicy");
    tenant
        .create(json!({"metadata": {"name": "db"}, "spec": {"podSelector": {"matchLabels": {"app": "db"}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}, {"ipBlock": {"cidr": "10.5.0.0/16"}}]},
                        {"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}], "ports": [{"port": 443}]}]}}))
        .await;
    let name = host_name("NetworkPolicy", "default", "db");
    let policy = host.until(&name, "it is on the host", |_| true).await;
    let rules = &policy["spec"]["ingress"];
    assert_eq!(
        rules[0]["from"],
        json!([{"podSelector": {"matchLabels": {"app": "web", "berth.dev/tenant": crate::setup::SLUG, "berth.dev/namespace": "default"}}}])
    );
    assert_eq!(
        rules[1]["from"][0]["ipBlock"]["except"],
        json!([
            "10.0.0.0/8",
            "100.100.100.200/32",
            "127.0.0.0/8",
            "168.63.129.16/32",
            "169.254.0.0/16",
            "192.0.0.192/32"
        ])
    );
    until_open(clusters, "db", [false, true]).await;
    assert_eq!(open(clusters, "web").await, Some([true, true]));
    eventually("an Event names what is left out", async || {
        let messages = events(clusters, "db", "FieldIgnored").await;
        messages
            .iter()
            .any(|message| message.contains("spec.ingress[0].from[1].ipBlock: these addresses belong to the platform"))
    })
    .await;
    // A new pod is never open where a policy selects it.
    let mut second = pod("db-2", &json!({}));
    second["metadata"]["labels"]["app"] = "db".into();
    create(&pods, second).await;
    eventually("db-2 is on the host", async || {
        host_pod(clusters, "db-2").await.is_some()
    })
    .await;
    assert_eq!(open(clusters, "db-2").await, Some([false, true]));
    // A changed label takes a pod out of the policy; a policy for the other direction then selects it.
    let relabel = Patch::Merge(json!({"metadata": {"labels": {"app": "other"}}}));
    pods.patch("db-2", &PatchParams::default(), &relabel).await.unwrap();
    until_open(clusters, "db-2", [true, true]).await;
    tenant
        .create(json!({"metadata": {"name": "all"}, "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]}}))
        .await;
    until_open(clusters, "db-2", [true, false]).await;
    for policy in ["db", "all"] {
        tenant.delete(policy).await;
        host.gone(&host_name("NetworkPolicy", "default", policy)).await;
    }
    for name in ["db", "db-2", "web"] {
        until_open(clusters, name, [true, true]).await;
    }
}

async fn endpoints_are_the_tenants_own(clusters: &Clusters) {
    let pods = clusters.tenant_api::<Pod>();
    eventually("db runs", async || is_phase(&pods, "db", "Running").await).await;
    let address = pods.get("db").await.unwrap().status.unwrap().pod_ip.unwrap();
    let (tenant, host) = both(clusters, "discovery.k8s.io", "v1", "EndpointSlice");
    // A slice is not synced before its Service exists.
    tenant
        .create(json!({"metadata": {"name": "manual", "labels": {"kubernetes.io/service-name": "manual"}}, "addressType": "IPv4",
            "endpoints": [{"addresses": [address]}, {"addresses": ["192.0.2.7"]}, {"addresses": ["10.0.0.1"]}], "ports": [{"name": "", "port": 5432}]}))
        .await;
    let services = clusters.tenant_api::<Service>();
    let name = host_name("EndpointSlice", "default", "manual");
    assert!(host.get(&name).await.is_none());
    for name in ["manual", "older"] {
        create(
            &services,
            json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 5432}]}}),
        )
        .await;
    }
    let addresses = |slice: &Value| -> Vec<Value> {
        let endpoints = slice["endpoints"].as_array().cloned().unwrap_or_default();
        endpoints
            .iter()
            .map(|endpoint| endpoint["addresses"][0].clone())
            .collect()
    };
    let slice = host.until(&name, "it follows its Service", |_| true).await;
    assert_eq!(addresses(&slice), [json!(address), json!("192.0.2.7")]);
    assert_eq!(
        slice["metadata"]["labels"]["kubernetes.io/service-name"],
        host_name("Service", "default", "manual")
    );
    eventually("an Event names what is left out", async || {
        let messages = events(clusters, "manual", "FieldIgnored").await;
        messages
            .iter()
            .any(|message| message.contains("endpoints[2].addresses: 10.0.0.1"))
    })
    .await;
    // An address is removed with its pod.
    pods.delete("db", &DeleteParams::default()).await.unwrap();
    host.until(&name, "the address of the pod is gone", |slice| {
        addresses(slice) == [json!("192.0.2.7")]
    })
    .await;
    // Endpoints of the older kind are synced as the slices that the tenant's controller manager makes of them, once.
    let (endpoints, host_endpoints) = both(clusters, "", "v1", "Endpoints");
    endpoints
        .create(json!({"metadata": {"name": "older"}, "subsets": [{"addresses": [{"ip": "192.0.2.9"}], "ports": [{"port": 5432}]}]}))
        .await;
    let service = host_name("Service", "default", "older");
    let selector = ListParams::default().labels(&format!("kubernetes.io/service-name={service}"));
    eventually("the mirrored slice is on the host", async || {
        let slices = host.0.list(&selector).await.unwrap().items;
        slices.len() == 1 && addresses(&serde_json::to_value(&slices[0]).unwrap()) == [json!("192.0.2.9")]
    })
    .await;
    assert!(host_endpoints.get(&service).await.is_none());
    services.delete("manual", &DeleteParams::default()).await.unwrap();
    host.gone(&name).await;
}

async fn ingresses_are_served(clusters: &Clusters) {
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
    a_denied_edit_takes_an_ingress_back((&tenant, &host), &name).await;
    tenant.delete("app").await;
    host.gone(&name).await;
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

async fn routes_are_attached(clusters: &Clusters) {
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

async fn budgets_hold_on_the_host(clusters: &Clusters) {
    let deployment = json!({"metadata": {"name": "api"}, "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "api"}},
        "template": {"metadata": {"labels": {"app": "api"}}, "spec": {"containers": [{"name": "main", "image": "api:1"}]}}}});
    create(&clusters.tenant_api::<Deployment>(), deployment).await;
    let (tenant, host) = both(clusters, "policy", "v1", "PodDisruptionBudget");
    tenant
        .create(json!({"metadata": {"name": "api"}, "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "api"}}}}))
        .await;
    let allowed = |budget: &Value| budget["status"]["disruptionsAllowed"] == 1;
    tenant.until("api", "the tenant's controller counts", allowed).await;
    let name = host_name("PodDisruptionBudget", "default", "api");
    let budget = host.until(&name, "the host's agrees", allowed).await;
    assert_eq!(budget["spec"]["minAvailable"], 2);
    // A drain on the host may evict one pod, and has to wait for the next.
    let pods: Vec<Pod> = clusters.host_pods().await;
    let pods: Vec<&Pod> = pods
        .iter()
        .filter(|pod| origin(pod).starts_with("api-") && phase(pod) == "Running")
        .collect();
    assert_eq!(pods.len(), 3);
    let api = clusters.host_api::<Pod>();
    // All at the same time: otherwise the pod might be replaced in between, and the next one evicted.
    let params = EvictParams::default();
    let evictions = pods
        .iter()
        .map(|pod| api.evict(pod.metadata.name.as_deref().unwrap(), &params));
    let answers = futures::future::join_all(evictions).await;
    let evicted = answers.iter().filter(|answer| answer.is_ok()).count();
    assert!(evicted < 3, "the budget holds");
    // In the tenant the evicted pods are replaced, and no longer count as healthy.
    let of_team = clusters.tenant_api::<Pod>();
    eventually("the evicted pods have failed", async || {
        let pods = of_team.list(&ListParams::default().labels("app=api")).await.unwrap();
        pods.iter().filter(|pod| phase(pod) == "Failed").count() == evicted
    })
    .await;
    let is_as_before = |budget: &Value| budget["status"]["currentHealthy"] == 3 && allowed(budget);
    tenant
        .until("api", "three are healthy, and one may be disrupted", is_as_before)
        .await;
    tenant.delete("api").await;
    host.gone(&name).await;
}
