//! What the platform applies in tenants: kept, deleted when no manifest has it any more, and out of reach of the tenant's admins.

use crate::{own_objects::own_objects_are_kept, sleep::kill_control};
use berth_api::{TenantCluster, conditions, labels, system};
use berth_kubernetes_versions::{KUBERNETES_DEFAULT, KUBERNETES_PREVIOUS};
use berth_tests::{
    objects::apply,
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use k8s_openapi::{
    api::{
        admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
        apps::v1::Deployment,
        core::v1::{ConfigMap, Event, LimitRange, Namespace, ResourceQuota},
        discovery::v1::EndpointSlice,
        networking::v1::NetworkPolicy,
        rbac::v1::ClusterRole,
    },
    kube_aggregator::pkg::apis::apiregistration::v1::APIService,
};
use kube::{
    Api, Client, Error, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::sync::Arc;

/// What the tests keep in tenants.
const BASE: &str = "
apiVersion: v1
kind: Namespace
metadata:
  name: platform
  labels: {pod-security.kubernetes.io/enforce: restricted}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: platform}
spec: {podSelector: {}, policyTypes: [Ingress]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: default}
spec: {podSelector: {matchLabels: {tier: db}}, policyTypes: [Ingress]}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: platform, namespace: default}
spec: {hard: {count/cronjobs.batch: '10'}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-latest}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [''], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [configmaps]}]
  validations: [{expression: \"object.metadata.name != 'latest'\", message: no latest}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-latest}
spec: {policyName: no-latest, validationActions: [Deny]}
";

pub(crate) async fn put_manifest(host: &TestCluster, name: &str, text: &str) {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {(labels::MANIFESTS): labels::MANIFESTS_ALLOWED}}, "data": {"objects.yaml": text}});
    apply(&host.client, system::NAMESPACE, &map).await.unwrap();
}

/// The scheduling mode keeps the spec from being empty: an API server stores no spec if an applied one has an empty list alone.
async fn put_class(host: &TestCluster, name: &str, manifests: &Value) {
    let class = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": name},
        "spec": {"schedulingMode": "Host", "manifests": manifests}});
    apply(&host.client, "", &class).await.unwrap();
}

/// A tenant of a class of its name, with one manifest of this text.
pub(crate) async fn create_tenant(host: &TestCluster, name: &str, version: &str, text: &str) -> Tenant {
    put_manifest(host, name, text).await;
    put_class(
        host,
        name,
        &json!([{"name": "base", "version": "v1", "configMapRef": {"name": name}}]),
    )
    .await;
    let mut tenant: TenantCluster = cluster(name, &[]);
    tenant.spec.class_name = Some(name.into());
    tenant.spec.version = Some(version.into());
    let tenant = Tenant::create(host, name, &tenant).await;
    until_applied(host, &tenant, "Applied").await;
    tenant
}

/// Waits until the condition ManifestsApplied has a reason; returns its message.
pub(crate) async fn until_applied(host: &TestCluster, tenant: &Tenant, reason: &str) -> String {
    let tenants = host.tenants(&tenant.namespace);
    until(&format!("ManifestsApplied is {reason}"), SOON, async || {
        let cluster = tenants.get(&tenant.name).await.map_err(|error| error.to_string())?;
        let all = cluster.status.map(|status| status.conditions).unwrap_or_default();
        match all.into_iter().find(|c| c.type_ == conditions::MANIFESTS_APPLIED) {
            Some(condition) if condition.reason == reason => Ok(condition.message),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

/// Checks that a request was denied because the object is the platform's.
pub(crate) fn assert_denied<K: std::fmt::Debug>(what: &str, result: Result<K, Error>) {
    match result {
        Err(Error::Api(status)) if status.code == 403 => {
            assert!(
                status.message.contains("belongs to the platform"),
                "{what}: {}",
                status.message
            );
        }
        other => panic!("{what}: {other:?}"),
    }
}

async fn request(client: &Client, method: &str, path: &str, body: &Value, user: &str) -> Result<Value, Error> {
    let mut request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json");
    if !user.is_empty() {
        request = request
            .header("Impersonate-User", user)
            .header("Impersonate-Group", "system:masters");
    }
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    client.request(request.body(body.into_bytes()).unwrap()).await
}

/// Every write to one of the platform's objects, as the tenant's admin.
async fn edits_are_denied(admin: &Client) {
    let policies: Api<NetworkPolicy> = Api::namespaced(admin.clone(), "platform");
    let merge = PatchParams::default();
    for (what, patch) in [
        ("edit", json!({"spec": {"ingress": [{}]}})),
        (
            "remove the label",
            json!({"metadata": {"labels": {(labels::MANAGED_BY): null}}}),
        ),
        (
            "change the label",
            json!({"metadata": {"labels": {(labels::MANAGED_BY): "me"}}}),
        ),
        ("annotate", json!({"metadata": {"annotations": {"a": "b"}}})),
        (
            "add an owner",
            json!({"metadata": {"ownerReferences": [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "b"}]}}),
        ),
    ] {
        assert_denied(what, policies.patch("deny", &merge, &Patch::Merge(&patch)).await);
    }
    let mut stolen = policies.get("deny").await.unwrap();
    stolen.metadata.labels = None;
    assert_denied(
        "replace",
        policies.replace("deny", &PostParams::default(), &stolen).await,
    );
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    let privileged = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}});
    let privileged = Patch::Merge(&privileged);
    assert_denied("relabel", namespaces.patch("platform", &merge, &privileged).await);
    let by_status = namespaces.patch_status("platform", &merge, &privileged).await;
    assert_denied("relabel by the status", by_status);
    let finalizer = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/mine"]}}));
    let by_status = namespaces.patch_status("platform", &merge, &finalizer).await;
    assert_denied("add a finalizer by the status", by_status);
    let mut endless = serde_json::to_value(namespaces.get("platform").await.unwrap()).unwrap();
    endless["spec"]["finalizers"] = json!(["kubernetes", "evil.example/x"]);
    let finalize = "/api/v1/namespaces/platform/finalize";
    assert_denied(
        "add a finalizer to the spec",
        request(admin, "PUT", finalize, &endless, "").await,
    );
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(admin.clone());
    let audit = json!({"spec": {"validationActions": ["Audit"]}});
    assert_denied(
        "weaken a binding",
        bindings.patch("no-latest", &merge, &Patch::Merge(&audit)).await,
    );
    let roles: Api<ClusterRole> = Api::all(admin.clone());
    let secrets = json!({"rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]});
    assert_denied(
        "edit a role",
        roles.patch("berth:viewer", &merge, &Patch::Merge(&secrets)).await,
    );
    // An object of the team's cannot become the platform's either.
    let maps: Api<ConfigMap> = Api::namespaced(admin.clone(), "default");
    let labelled = json!({"metadata": {"name": "mine", "labels": {(labels::MANAGED_BY): labels::MANAGED_BY_PLATFORM}}});
    let map: ConfigMap = serde_json::from_value(labelled.clone()).unwrap();
    assert_denied("create", maps.create(&PostParams::default(), &map).await);
    let plain: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "mine"}})).unwrap();
    maps.create(&PostParams::default(), &plain).await.unwrap();
    assert_denied("label", maps.patch("mine", &merge, &Patch::Merge(&labelled)).await);
    maps.delete("mine", &DeleteParams::default()).await.unwrap();
}

/// Nobody owns fields of the platform's objects as well: they would stay when a manifest drops them. Stored objects are migrated even so.
async fn owners_of_fields_stay(admin: &Client) {
    let policies: Api<NetworkPolicy> = Api::namespaced(admin.clone(), "platform");
    let before = policies.get("deny").await.unwrap().metadata;
    let apply = |metadata: Value, spec: Value| {
        let mut object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata});
        if !spec.is_null() {
            object["spec"] = spec;
        }
        Patch::Apply(object)
    };
    let same = apply(
        json!({"name": "deny"}),
        json!({"podSelector": {}, "policyTypes": ["Ingress"]}),
    );
    let mine = PatchParams::apply("mine");
    assert_denied("apply what is there", policies.patch("deny", &mine, &same).await);
    let none = Patch::Merge(json!({"metadata": {"managedFields": [{}]}}));
    assert_denied(
        "forget the owners",
        policies.patch("deny", &PatchParams::default(), &none).await,
    );
    // As the controller of StorageVersionMigrations does it.
    let nothing = apply(
        json!({"uid": before.uid, "resourceVersion": before.resource_version}),
        Value::Null,
    );
    let migrator = PatchParams::apply("storage-version-migrator-controller");
    let migrated = policies.patch("deny", &migrator, &nothing).await.unwrap();
    assert_eq!(migrated.metadata.managed_fields, before.managed_fields);
}

/// Every way to delete one of them.
async fn deletions_are_denied(admin: &Client) {
    let delete = DeleteParams::default();
    let policies: Api<NetworkPolicy> = Api::namespaced(admin.clone(), "platform");
    assert_denied("delete", policies.delete("deny", &delete).await);
    let force = DeleteParams::default().grace_period(0);
    assert_denied("force", policies.delete("deny", &force).await);
    let all = policies.delete_collection(&delete, &ListParams::default()).await;
    assert_denied("delete all", all.map(|either| either.is_left()));
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    assert_denied("delete the namespace", namespaces.delete("platform", &delete).await);
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(admin.clone());
    assert_denied("delete a binding", bindings.delete("no-latest", &delete).await);
    let all = bindings.delete_collection(&delete, &ListParams::default()).await;
    assert_denied("delete all bindings", all.map(|either| either.is_left()));
    let admission: Api<ValidatingAdmissionPolicy> = Api::all(admin.clone());
    assert_denied("delete a policy", admission.delete("no-latest", &delete).await);
    let roles: Api<ClusterRole> = Api::all(admin.clone());
    assert_denied("delete a role", roles.delete("berth:editor", &delete).await);
    // Whatever groups somebody claims.
    let path = "/apis/networking.k8s.io/v1/namespaces/platform/networkpolicies/deny";
    let as_master = request(admin, "DELETE", path, &Value::Null, "anybody").await;
    assert_denied("as system:masters", as_master);
}

/// Nobody can be control, nor lead the API of a kind elsewhere.
async fn identities_and_apis_cannot_be_taken(admin: &Client) {
    for user in ["berth:control", "berth:argocd", "system:apiserver"] {
        let answer = request(admin, "GET", "/api/v1/namespaces", &Value::Null, user).await;
        match answer {
            Err(Error::Api(status)) => assert!(status.message.contains("cannot impersonate"), "{}", status.message),
            other => panic!("{user}: {other:?}"),
        }
    }
    let service = json!({"spec": {"insecureSkipTLSVerify": true, "service": {"name": "a", "namespace": "default"}}});
    for group in ["networking.k8s.io", "admissionregistration.k8s.io"] {
        let path = format!("/apis/apiregistration.k8s.io/v1/apiservices/v1.{group}");
        let patch = http::Request::patch(path).header("content-type", "application/merge-patch+json");
        let patch = patch.body(service.to_string().into_bytes()).unwrap();
        match admin.request::<Value>(patch).await {
            Err(Error::Api(status)) => assert!(
                status.message.contains("serves this group itself"),
                "{}",
                status.message
            ),
            other => panic!("{group}: {other:?}"),
        }
    }
}

pub(crate) async fn nobody_in_a_tenant_changes_the_platforms_objects(host: Arc<TestCluster>) {
    let tenant = create_tenant(&host, "platform-denied", KUBERNETES_DEFAULT, BASE).await;
    let admin = &tenant.client;
    edits_are_denied(admin).await;
    owners_of_fields_stay(admin).await;
    deletions_are_denied(admin).await;
    identities_and_apis_cannot_be_taken(admin).await;
    own_objects_are_kept(admin).await;
    // What the platform wants enforced is enforced.
    let maps: Api<ConfigMap> = Api::namespaced(admin.clone(), "default");
    let latest: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "latest"}})).unwrap();
    until("the policy is in effect", SOON, async || {
        let answer = maps.create(&PostParams::default(), &latest).await;
        let _ = maps.delete("latest", &DeleteParams::default()).await;
        match answer {
            Err(error) if error.to_string().contains("no latest") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    // Controllers of the tenant work with the platform's objects.
    let quotas: Api<ResourceQuota> = Api::namespaced(admin.clone(), "default");
    until_true("the quota has a status", SOON, async || {
        let quota = quotas.get("platform").await.unwrap();
        quota.status.is_some_and(|status| status.used.is_some())
    })
    .await;
    let roles: Api<ClusterRole> = Api::all(admin.clone());
    for (role, reads_secrets) in [("berth:viewer", false), ("berth:editor", true)] {
        let has_secrets = until(&format!("{role} has rules"), SOON, async || {
            let rules = roles.get(role).await.unwrap().rules.unwrap_or_default();
            let has = |resource: &str| {
                let mut all = rules.iter().flat_map(|rule| rule.resources.iter().flatten());
                all.any(|found| found == resource)
            };
            // Rules of Kubernetes, and of what the platform shows.
            if has("pods/log") && has("nodes") {
                Ok(has("secrets"))
            } else {
                Err(format!("{rules:?}"))
            }
        })
        .await;
        assert_eq!(has_secrets, reads_secrets, "{role}");
    }
    tenant.delete(&host).await;
}

pub(crate) async fn manifests_follow_their_class_and_surplus_is_deleted(host: Arc<TestCluster>) {
    let name = "platform-follow";
    let tenant = create_tenant(&host, name, KUBERNETES_DEFAULT, BASE).await;
    let policies: Api<NetworkPolicy> = Api::namespaced(tenant.client.clone(), "default");
    let policy = policies.get("deny").await.unwrap();
    assert_eq!(policy.labels()[labels::MANIFEST], "base");
    // A ConfigMap with other objects.
    let other =
        "apiVersion: v1\nkind: LimitRange\nmetadata: {name: platform, namespace: default}\nspec: {limits: []}\n";
    put_manifest(&host, name, other).await;
    let namespaces: Api<Namespace> = Api::all(tenant.client.clone());
    until_true("what is no longer in the manifest is gone", SOON, async || {
        let namespace = namespaces.get_opt("platform").await.unwrap();
        namespace.is_none() && policies.get_opt("deny").await.unwrap().is_none()
    })
    .await;
    // One that cannot be read deletes nothing, and says why.
    put_manifest(&host, name, "kind: [").await;
    let message = until_applied(&host, &tenant, "ManifestInvalid").await;
    assert!(message.contains("objects.yaml is not YAML"), "{message}");
    let ranges: Api<LimitRange> = Api::namespaced(tenant.client.clone(), "default");
    assert!(ranges.get_opt("platform").await.unwrap().is_some());
    // A version that is applied once is the team's.
    let once = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: welcome, namespace: default}\n";
    let manifest =
        |version: &str| json!([{"name": "base", "version": version, "mode": "Once", "configMapRef": {"name": name}}]);
    put_class(&host, name, &manifest("v1")).await;
    put_manifest(&host, name, once).await;
    until_applied(&host, &tenant, "Applied").await;
    let maps: Api<ConfigMap> = Api::namespaced(tenant.client.clone(), "default");
    // Control may see the new ConfigMap before it sees that the class applies it once.
    until_true("it is applied, and not the platform's", SOON, async || {
        let map = maps.get_opt("welcome").await.unwrap();
        map.is_some_and(|map| map.labels().get(labels::MANAGED_BY) != Some(&labels::MANAGED_BY_PLATFORM.to_owned()))
    })
    .await;
    maps.delete("welcome", &DeleteParams::default()).await.unwrap();
    put_class(&host, name, &manifest("v2")).await;
    until_true("the next version is applied", SOON, async || {
        maps.get_opt("welcome").await.unwrap().is_some()
    })
    .await;
    put_class(&host, name, &json!([])).await;
    let tenants = host.tenants(name);
    until_true("nothing is left in the status", SOON, async || {
        let status = tenants.get(name).await.unwrap().status.unwrap_or_default();
        let has_condition = status
            .conditions
            .iter()
            .any(|c| c.type_ == conditions::MANIFESTS_APPLIED);
        !has_condition && status.manifests.is_empty()
    })
    .await;
    assert!(maps.get_opt("welcome").await.unwrap().is_some());
    tenant.delete(&host).await;
}

/// Objects of versions without static admission policies can be changed. Berth changes them back.
pub(crate) async fn drift_in_a_tenant_of_an_earlier_version_is_corrected(host: Arc<TestCluster>) {
    const OWN_API: &str = "v1.networking.k8s.io";
    let name = "platform-drift";
    let text = format!(
        "{BASE}---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: agent, namespace: platform}}\n\
         spec: {{replicas: 0, selector: {{matchLabels: {{app: agent}}}}, template: {{metadata: {{labels: {{app: agent}}}}, \
         spec: {{containers: [{{name: agent, image: agent}}]}}}}}}\n"
    );
    let tenant = create_tenant(&host, name, KUBERNETES_PREVIOUS, &text).await;
    let admin = &tenant.client;
    let policies: Api<NetworkPolicy> = Api::namespaced(admin.clone(), "default");
    let deployments: Api<Deployment> = Api::namespaced(admin.clone(), "platform");
    policies.delete("deny", &DeleteParams::default()).await.unwrap();
    let merge = PatchParams::default();
    let scale = json!({"spec": {"replicas": 1}});
    deployments.patch("agent", &merge, &Patch::Merge(&scale)).await.unwrap();
    until_true("drift is corrected", SOON, async || {
        let deployment = deployments.get("agent").await.unwrap();
        let is_back = deployment.spec.replicas == Some(0);
        is_back && policies.get_opt("deny").await.unwrap().is_some()
    })
    .await;
    // Nobody sees the policy while another server is registered for its group.
    let apis: Api<APIService> = Api::all(admin.clone());
    let service = json!({"insecureSkipTLSVerify": true, "service": {"name": "a", "namespace": "default"}});
    let other = Patch::Merge(json!({"spec": service}));
    apis.patch(OWN_API, &merge, &other).await.unwrap();
    until_true("the API server serves the group itself again", SOON, async || {
        let spec = apis.get(OWN_API).await.unwrap().spec;
        let is_own = spec.is_some_and(|spec| spec.service.is_none());
        is_own && policies.get_opt("deny").await.is_ok_and(|found| found.is_some())
    })
    .await;
    let events: Api<Event> = Api::namespaced(host.client.clone(), name);
    until("the drift is reported", SOON, async || {
        let all = events
            .list(&ListParams::default())
            .await
            .map_err(|error| error.to_string())?;
        let drift = all
            .iter()
            .filter(|event| event.reason.as_deref() == Some("DriftCorrected"));
        let notes: Vec<String> = drift.filter_map(|event| event.message.clone()).collect();
        let says = |text: &str| notes.iter().any(|note| note.contains(text));
        if says("NetworkPolicy default/deny") && says(OWN_API) {
            Ok(())
        } else {
            Err(format!("{notes:?}"))
        }
    })
    .await;
    let status = host.tenants(name).get(name).await.unwrap().status.unwrap();
    assert!(status.manifests[0].drift_corrected_at.is_some());
    tenant.delete(&host).await;
}

/// Objects that nobody can change into Berth's are replaced, and nothing waits for that.
pub(crate) async fn objects_in_the_way_keep_no_manifest_back(host: Arc<TestCluster>) {
    const METRICS: &str = "v1beta1.metrics.k8s.io";
    let name = "platform-blocked";
    let tenant = create_tenant(&host, name, KUBERNETES_DEFAULT, BASE).await;
    let admin = &tenant.client;
    let slices: Api<EndpointSlice> = Api::namespaced(admin.clone(), "default");
    slices.delete("kubernetes", &DeleteParams::default()).await.unwrap();
    let foreign = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "kubernetes"},
        "addressType": "FQDN", "endpoints": []});
    apply(admin, "default", &foreign).await.unwrap();
    let apis: Api<APIService> = Api::all(admin.clone());
    let insecure = Patch::Merge(json!({"spec": {"insecureSkipTLSVerify": true, "caBundle": null}}));
    apis.patch(METRICS, &PatchParams::default(), &insecure).await.unwrap();
    // Control that remembers nothing applies everything again.
    kill_control(&host, &[20]).await;
    let other =
        "apiVersion: v1\nkind: LimitRange\nmetadata: {name: platform, namespace: default}\nspec: {limits: []}\n";
    put_manifest(&host, name, other).await;
    let ranges: Api<LimitRange> = Api::namespaced(admin.clone(), "default");
    until_true("the manifest is applied", SOON, async || {
        ranges.get_opt("platform").await.unwrap().is_some()
    })
    .await;
    until_true("the slice is the API server's again", SOON, async || {
        let slice = slices.get_opt("kubernetes").await.unwrap();
        slice.is_some_and(|slice| slice.address_type != "FQDN")
    })
    .await;
    until_true("the metrics API is verified again", SOON, async || {
        let spec = apis.get_opt(METRICS).await.unwrap().and_then(|api| api.spec);
        spec.is_some_and(|spec| spec.ca_bundle.is_some() && spec.insecure_skip_tls_verify != Some(true))
    })
    .await;
    Tenant::ready(&host, name, name).await.delete(&host).await;
}
