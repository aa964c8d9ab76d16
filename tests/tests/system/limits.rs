//! Limits of one tenant: how many objects it has on the host, and how much it stores.

use berth_api::{Project, TenantClass, TenantCluster, conditions};
use berth_control::control_plane::Authorities;
use berth_tests::{
    objects::apply,
    tenant::{Tenant, cluster, patient},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    core::v1::{ConfigMap, LimitRange, Namespace, ResourceQuota, Secret, Service},
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{
    Api, Client, Error,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
    config::Kubeconfig,
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

/// Time for a measurement of an API server that has been running for a while, and for its restart.
const MEASURED: Duration = Duration::from_mins(8);

/// A role that an API server corrects when it starts.
const OWN_ROLE: &str = "system:aggregate-to-edit";
/// Path of the `APIServices`.
const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

async fn create_tenant(host: &TestCluster, name: &str, limits: &Value) -> Tenant {
    let class = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": name},
        "spec": {"limits": limits}});
    apply(&host.client, "", &class).await.unwrap();
    let mut tenant: TenantCluster = cluster(name, &[]);
    tenant.spec.class_name = Some(name.into());
    Tenant::create(host, name, &tenant).await
}

/// The message of a refusal with status 403; none if the request succeeded.
fn refusal<K>(result: Result<K, Error>) -> Option<String> {
    match result {
        Ok(_) => None,
        Err(Error::Api(status)) if status.code == 403 => Some(status.message.clone()),
        Err(other) => panic!("{other}"),
    }
}

pub(crate) async fn services_and_writes_beyond_the_limits_are_refused(host: Arc<TestCluster>) {
    let tenant = create_tenant(
        &host,
        "limit-services",
        &json!({"services": 3, "pods": 70, "datastoreWriteBytesPerSecond": "64Ki"}),
    )
    .await;
    large_writes_have_a_pace(&tenant.client).await;
    let quotas: Api<ResourceQuota> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
    let quota = until("the host counts", SOON, async || {
        let quota = quotas.get("berth-limits").await.map_err(|error| error.to_string())?;
        let status = quota.status.clone().unwrap_or_default();
        status.used.map(|_| quota).ok_or_else(|| "no usage".to_owned())
    })
    .await;
    let hard = quota.spec.and_then(|spec| spec.hard).unwrap();
    assert_eq!(
        (hard["count/pods"].0.as_str(), hard["count/services"].0.as_str()),
        ("70", "3")
    );
    let services: Api<Service> = Api::namespaced(tenant.client.clone(), "default");
    let mut refused = None;
    for number in 0..10 {
        let service = json!({"metadata": {"name": format!("s{number}")}, "spec": {"ports": [{"port": 80}], "selector": {"app": "a"}}});
        let service: Service = serde_json::from_value(service).unwrap();
        refused = refusal(services.create(&PostParams::default(), &service).await);
        if refused.is_some() {
            break;
        }
    }
    let message = refused.expect("the fourth Service is refused");
    assert!(message.contains("spec.limits.services"), "{message}");
    assert!(!message.contains(&tenant.id.workload_namespace()), "{message}");
    tenant.delete(&host).await;
}

/// After what a tenant may write at once, large objects have to wait; small ones do not.
async fn large_writes_have_a_pace(client: &Client) {
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let large = |name: String| ConfigMap {
        metadata: ObjectMeta {
            name: Some(name),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([("value".to_owned(), "x".repeat(1_000_000))])),
        ..ConfigMap::default()
    };
    let mut refused = None;
    for number in 0..40 {
        let result = config_maps
            .create(&PostParams::default(), &large(format!("large-{number}")))
            .await;
        if let Err(error) = result {
            refused = Some((number, error));
            break;
        }
    }
    let (number, error) = refused.expect("40 MB are more than the tenant may write at once");
    assert!(number > 0, "{error}");
    let Error::Api(status) = &error else { panic!("{error}") };
    assert_eq!(status.code, 429, "{status:?}");
    assert!(
        status.message.contains("spec.limits.datastoreWriteBytesPerSecond"),
        "{status:?}"
    );
    let later = status.details.as_ref().map(|details| details.retry_after_seconds);
    assert!(later.is_some_and(|seconds| seconds > 0), "{status:?}");
    // What stores nothing does not count, and small objects never wait.
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    config_maps.create(&dry_run, &large("dry-run".into())).await.unwrap();
    create_config_map(client, "small-beside-large", None).await.unwrap();
}

/// A class whose limits have one resource by name.
fn class_with_resource(resource: &str, quantity: &Value) -> Value {
    json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": "limit-resources-invalid"},
        "spec": {"limits": {"resources": [{"resource": resource, "quantity": quantity}]}}})
}

pub(crate) async fn resources_by_name_are_limited_and_reserved(host: Arc<TestCluster>) {
    let dry_run = PatchParams::apply("berth-tests").dry_run();
    let classes: Api<TenantClass> = Api::all(host.client.clone());
    for (resource, quantity, field) in [
        ("requests.gold", json!("1"), "resources[0].resource"),
        ("requests.storage", json!("1"), "resources[0].resource"),
        ("limits.cpu", json!("1"), "resources[0].resource"),
        ("count/pods", json!("1"), "resources[0].resource"),
        ("requests.cpu", json!("500m"), "resources[0].quantity"),
        ("requests.cpu", json!("-1"), "resources[0].quantity"),
    ] {
        let class = class_with_resource(resource, &quantity);
        let error = classes
            .patch("limit-resources-invalid", &dry_run, &Patch::Apply(&class))
            .await;
        let error = error.expect_err(resource).to_string();
        assert!(error.contains(field), "{field:?} is not in: {error}");
    }
    let namespace = "limit-resources";
    let project = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Project", "metadata": {"name": namespace}, "spec": {
        "namespaces": [namespace],
        "quotas": [{"resource": "requests.cpu", "nominalQuota": 100, "borrowingLimit": 0},
            {"resource": "requests.memory", "nominalQuota": "1Ti", "borrowingLimit": 0}]}});
    apply(&host.client, "", &project).await.unwrap();
    let resources = [
        ("requests.cpu", "64"),
        ("requests.memory", "512Gi"),
        ("requests.nvidia.com/mig-1g.10gb", "7"),
        ("fast.storageclass.storage.k8s.io/requests.storage", "10Ti"),
        ("gpu.example.com.deviceclass.resource.k8s.io/devices", "8"),
    ];
    let listed: Vec<Value> = resources
        .iter()
        .map(|(resource, quantity)| json!({"resource": resource, "quantity": quantity}))
        .collect();
    let limits = json!({"resources": listed, "defaultRequest": {"cpu": "20m"}});
    let tenant = create_tenant(&host, namespace, &limits).await;
    let workloads = tenant.id.workload_namespace();
    let quotas: Api<ResourceQuota> = Api::namespaced(host.client.clone(), &workloads);
    until_true("the host counts each resource", SOON, async || {
        let quota = quotas.get("berth-limits").await.unwrap();
        let used = quota.status.and_then(|status| status.used).unwrap_or_default();
        resources.iter().all(|(resource, _)| used.contains_key(*resource))
    })
    .await;
    let hard = quotas
        .get("berth-limits")
        .await
        .unwrap()
        .spec
        .and_then(|spec| spec.hard)
        .unwrap();
    for (resource, quantity) in resources {
        assert_eq!(hard[resource].0, quantity, "{resource}");
    }
    let ranges: Api<LimitRange> = Api::namespaced(host.client.clone(), &workloads);
    let range = ranges.get("berth-limits").await.unwrap().spec.unwrap();
    let requests = range.limits[0].default_request.clone().unwrap();
    assert_eq!(
        (requests["cpu"].0.as_str(), requests["memory"].0.as_str()),
        ("20m", "16Mi")
    );
    let stored = host.tenants(namespace).get(namespace).await.unwrap();
    let reserved = stored.status.and_then(|status| status.quota).unwrap().reserved;
    assert_eq!((reserved["requests.cpu"], reserved["requests.memory"]), (64, 512 << 30));
    // A second tenant of the class does not fit.
    let mut second: TenantCluster = cluster("second", &[]);
    second.spec.class_name = Some(namespace.into());
    host.tenants(namespace)
        .create(&PostParams::default(), &second)
        .await
        .unwrap();
    until_true("the second tenant waits for CPU", SOON, async || {
        let second = host.tenants(namespace).get("second").await.unwrap();
        let conditions = second.status.map(|status| status.conditions).unwrap_or_default();
        let reserved = conditions
            .iter()
            .find(|condition| condition.type_ == conditions::QUOTA_RESERVED);
        reserved.is_some_and(|condition| condition.message.contains("64 of requests.cpu and 36 are left"))
    })
    .await;
    let delete = DeleteParams::default();
    host.tenants(namespace).delete("second", &delete).await.unwrap();
    tenant.delete(&host).await;
    Api::<Project>::all(host.client.clone())
        .delete(namespace, &delete)
        .await
        .unwrap();
}

/// Creates a ConfigMap; as another user if one is given.
async fn create_config_map(client: &Client, name: &str, user: Option<&str>) -> Result<Value, Error> {
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"key": "value"}});
    let mut request =
        http::Request::post("/api/v1/namespaces/default/configmaps").header("content-type", "application/json");
    if let Some(user) = user {
        request = request
            .header("Impersonate-User", user)
            .header("Impersonate-Group", "system:masters");
    }
    client
        .request(request.body(body.to_string().into_bytes()).unwrap())
        .await
}

/// A client of control's, which may change what nobody in the tenant may: what an API server makes for itself. A tenant of an earlier version
/// of Berth may have done that before.
async fn as_control(host: &TestCluster, tenant: &Tenant) -> Client {
    let secrets: Api<Secret> = Api::namespaced(host.client.clone(), &tenant.id.control_plane_namespace());
    let stored = secrets.get("pki").await.unwrap().data.unwrap();
    let stored = stored
        .into_iter()
        .map(|(name, text)| (name, String::from_utf8(text.0).unwrap()))
        .collect();
    let files = host.datastore();
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let authorities = Authorities::load(&stored, &read(&files.ca_cert), &read(&files.ca_key)).unwrap();
    let of_team = Kubeconfig::from_yaml(&tenant.kubeconfig).unwrap();
    let server = of_team.clusters[0].cluster.as_ref().unwrap().server.clone().unwrap();
    patient(&authorities.control_kubeconfig(&server).unwrap()).await
}

/// Deletes an APIService of the API server's own. It creates those again only when it starts.
async fn delete_api_service(client: &Client, name: &str) {
    let request = http::Request::delete(format!("{API_SERVICES}/{name}")).body(Vec::new());
    let _: Value = client.request(request.unwrap()).await.unwrap();
}

/// Takes the rules from the role of the API server's own that has most of them, and makes the role large. An API server adds the rules when it
/// starts, one by one, and ends if it cannot.
async fn damage_own_role(client: &Client) {
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let patch = json!({"metadata": {"annotations": {"large": "x".repeat(20_000)}}, "rules": []});
    roles
        .patch(OWN_ROLE, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
}

/// Makes a binding large of which an API server creates a copy when it starts, and deletes the copy.
async fn enlarge_copied_binding(client: &Client) {
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    let patch = json!({"metadata": {"annotations": {"large": "x".repeat(20_000)}}});
    bindings
        .patch("system:discovery", &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
    bindings
        .delete("system:public-info-viewer", &DeleteParams::default())
        .await
        .unwrap();
}

/// No user of the tenant can be the API server, which the limits exempt.
async fn nobody_impersonates_the_api_server(admin: &Client) {
    for groups in [None, Some("system:masters")] {
        let body = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "more"}, "rules": []});
        let mut request = http::Request::post("/apis/rbac.authorization.k8s.io/v1/clusterroles")
            .header("content-type", "application/json")
            .header("Impersonate-User", "system:apiserver");
        if let Some(group) = groups {
            request = request.header("Impersonate-Group", group);
        }
        let request = request.body(body.to_string().into_bytes()).unwrap();
        let message = refusal(admin.request::<Value>(request).await);
        assert!(
            message
                .as_ref()
                .is_some_and(|message| message.contains("cannot impersonate")),
            "{groups:?}: {message:?}"
        );
    }
}

/// In a tenant that stores as much as it may, control can still make its bindings: one that it deleted in etcd before the API server started (ADR 0052) is
/// the only one by which people could make room.
async fn only_control_creates_bindings(control: &Client, admin: &Client) {
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let create = async |client: &Client, name: &str| {
        let binding = json!({"metadata": {"name": name}, "subjects": [{"kind": "User", "name": "ada", "apiGroup": "rbac.authorization.k8s.io"}],
            "roleRef": {"kind": "ClusterRole", "name": "view", "apiGroup": "rbac.authorization.k8s.io"}});
        let binding: ClusterRoleBinding = serde_json::from_value(binding).unwrap();
        let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
        refusal(bindings.create(&dry_run, &binding).await)
    };
    assert_eq!(create(control, "berth:access:test").await, None);
    for (client, name) in [(admin, "berth:access:test"), (control, "test")] {
        let message = create(client, name).await;
        assert!(
            message
                .as_ref()
                .is_some_and(|message| message.contains("spec.limits.datastoreBytes")),
            "{name}: {message:?}"
        );
    }
}

/// Name of a `ConfigMap` whose text is four times as long as its content.
const HELD: &str = "control-characters";

/// Creates it, with a finalizer.
async fn create_held_config_map(client: &Client) {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let map = json!({"metadata": {"name": HELD, "finalizers": ["example.com/hold"]}, "data": {"key": "\u{1}".repeat(400_000)}});
    let map: ConfigMap = serde_json::from_value(map).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
}

/// Deletes it and removes the finalizer.
async fn delete_held_config_map(client: &Client) {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    maps.delete(HELD, &DeleteParams::default()).await.unwrap();
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    maps.patch(HELD, &PatchParams::default(), &free).await.unwrap();
    assert!(maps.get_opt(HELD).await.unwrap().is_none());
}

/// Waits until a namespace cannot get a large annotation. Then it can neither by another way, and loses a finalizer nevertheless.
async fn no_object_can_grow(admin: &Client) {
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    let annotate = async |bytes: usize| {
        let patch =
            json!({"metadata": {"annotations": {"large": "x".repeat(bytes)}, "finalizers": ["example.com/hold"]}});
        let params = PatchParams::default();
        namespaces.patch("default", &params, &Patch::Merge(&patch)).await
    };
    until(
        "an update that makes an object larger is denied",
        MEASURED,
        async || {
            match annotate(10_000).await {
                Err(Error::Api(status)) if status.message.contains("no object can become larger") => Ok(()),
                Ok(_) => match annotate(0).await {
                    Ok(_) => Err("it was allowed".to_owned()),
                    Err(error) => Err(error.to_string()),
                },
                // Its API server restarts.
                Err(error) => Err(error.to_string()),
            }
        },
    )
    .await;
    let status = json!({"status": {"conditions": [{"type": "Large", "status": "True", "reason": "Large",
        "message": "x".repeat(20_000), "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    let params = PatchParams::default();
    let message = refusal(
        namespaces
            .patch_status("default", &params, &Patch::Merge(&status))
            .await,
    );
    assert!(message.is_some_and(|message| message.contains("no object can become larger")));
    // Small changes, and those that make an object smaller.
    annotate(10).await.unwrap();
    let free = json!({"metadata": {"annotations": {"large": null}, "finalizers": null}});
    namespaces
        .patch("default", &params, &Patch::Merge(&free))
        .await
        .unwrap();
}

pub(crate) async fn a_tenant_cannot_store_more_than_its_share_whoever_asks(host: Arc<TestCluster>) {
    let tenant = create_tenant(&host, "limit-store", &json!({"datastoreObjects": 1150})).await;
    // The API server creates these again when it starts with the rule. If that was denied, it would not become ready, and the one without the
    // rule would go on.
    let control = as_control(&host, &tenant).await;
    let roles: Api<ClusterRole> = Api::all(control.clone());
    roles.delete("view", &DeleteParams::default()).await.unwrap();
    delete_api_service(&control, "v1.node.k8s.io").await;
    damage_own_role(&control).await;
    enlarge_copied_binding(&control).await;
    create_held_config_map(&tenant.client).await;
    for number in 0..1000 {
        // It may be full before the last one.
        let name = format!("fill-{number}");
        if create_config_map(&tenant.client, &name, None).await.is_err() {
            break;
        }
    }
    let admin = &tenant.client;
    until("nothing can be created", MEASURED, async || {
        match create_config_map(admin, "more", None).await {
            Err(Error::Api(status)) if status.message.contains("spec.limits.datastoreBytes") => Ok(()),
            Ok(_) => {
                let maps: Api<ConfigMap> = Api::namespaced(admin.clone(), "default");
                drop(maps.delete("more", &DeleteParams::default()).await);
                Err("it was created".to_owned())
            }
            // Its API server restarts.
            Err(error) => Err(error.to_string()),
        }
    })
    .await;
    until("the status says so", SOON, async || {
        let tenants = host.tenants("limit-store");
        let cluster = tenants.get("limit-store").await.map_err(|error| error.to_string())?;
        let status = cluster.status.unwrap_or_default();
        let is_published = status.datastore.is_some_and(|usage| usage.full)
            && status.conditions.iter().any(|condition| {
                let reasons = ["DatastoreLimitReached", "DatastoreLimitExceeded"];
                condition.type_ == conditions::DATASTORE_WITHIN_LIMITS && reasons.contains(&condition.reason.as_str())
            });
        if is_published {
            Ok(())
        } else {
            Err(format!("{:?}", status.datastore))
        }
    })
    .await;

    nobody_impersonates_the_api_server(admin).await;
    only_control_creates_bindings(&control, admin).await;

    // No object of the tenant holds the rule, and no user is exempt from it.
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(admin.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(admin.clone());
    let (all, now) = (ListParams::default(), DeleteParams::default());
    policies.delete_collection(&now, &all).await.unwrap();
    bindings.delete_collection(&now, &all).await.unwrap();
    for user in [None, Some("somebody")] {
        let message = refusal(create_config_map(admin, "more", user).await);
        assert!(
            message
                .as_ref()
                .is_some_and(|message| message.contains("spec.limits.datastoreBytes")),
            "{user:?}: {message:?}"
        );
    }

    // What is at the limit by now is above a lower one. The API server starts with the rule against growth.
    damage_own_role(&control).await;
    let lower = json!({"spec": {"limits": {"datastoreObjects": 1000}}});
    let classes: Api<TenantClass> = Api::all(host.client.clone());
    let merge = Patch::Merge(&lower);
    classes
        .patch("limit-store", &PatchParams::default(), &merge)
        .await
        .unwrap();
    no_object_can_grow(admin).await;
    only_control_creates_bindings(&control, admin).await;
    delete_held_config_map(admin).await;

    // Deletions make room.
    let maps: Api<ConfigMap> = Api::namespaced(admin.clone(), "default");
    maps.delete_collection(&now, &all).await.unwrap();
    until_true("objects can be created again", MEASURED, async || {
        create_config_map(admin, "after", None).await.is_ok()
    })
    .await;
    tenant.delete(&host).await;
}
