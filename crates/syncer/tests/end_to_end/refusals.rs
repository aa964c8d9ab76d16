//! Policies of a tenant that refuse what its syncer writes there. See `refused` for what the host refuses.

use crate::{
    objects::{Objects, create, eventually},
    setup::{Clusters, USER},
};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};

const NAME: &str = "against-the-syncer";

fn apis(clusters: &Clusters) -> (Api<ValidatingAdmissionPolicy>, Api<ValidatingAdmissionPolicyBinding>) {
    let tenant = &clusters.tenant_admin;
    (Api::all(tenant.clone()), Api::all(tenant.clone()))
}

/// Refuses the syncer whatever these rules match. Waits until this status of an object (group, kind and name) is refused.
async fn refuse(clusters: &Clusters, rules: &Value, (group, kind, name): (&str, &str, &str), status: &Value) {
    let (policies, bindings) = apis(clusters);
    let is_other =
        json!({"expression": format!("request.userInfo.username != '{USER}'"), "message": "not in this cluster"});
    create(
        &policies,
        json!({"metadata": {"name": NAME}, "spec": {"matchConstraints": {"resourceRules": rules}, "validations": [is_other]}}),
    )
    .await;
    create(
        &bindings,
        json!({"metadata": {"name": NAME}, "spec": {"policyName": NAME, "validationActions": ["Deny"]}}),
    )
    .await;
    let kubeconfig = clusters.tenant.kubeconfig_for(USER, &[]).unwrap();
    let syncer = berth_runtime::client::from_text(&kubeconfig).await.unwrap();
    let objects = Objects::new(&syncer, group, "v1", kind, Some("default"));
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let change = Patch::Merge(json!({ "status": status }));
    eventually("the syncer is refused", async || {
        objects.0.patch_status(name, &dry_run, &change).await.is_err()
    })
    .await;
}

/// Refuses the syncer the status of Ingresses and routes, such as that of an Ingress.
pub async fn refuse_edge(clusters: &Clusters, ingress: &str) {
    let rule = |group: &str, resource: &str| json!({"apiGroups": [group], "apiVersions": ["*"], "resources": [resource], "operations": ["UPDATE"]});
    let rules = json!([
        rule("networking.k8s.io", "ingresses/status"),
        rule("gateway.networking.k8s.io", "httproutes/status"),
    ]);
    let status = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.99"}]}});
    refuse(clusters, &rules, ("networking.k8s.io", "Ingress", ingress), &status).await;
}

/// Refuses the syncer the status, evictions and deletions of pods, such as that of a pod.
pub async fn refuse_pods(clusters: &Clusters, pod: &str) {
    let resources = ["pods", "pods/status", "pods/eviction"];
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "resources": resources, "operations": ["*"]}]);
    refuse(clusters, &rules, ("", "Pod", pod), &json!({"message": "refused"})).await;
}

/// Refuses nothing any more.
pub async fn accept(clusters: &Clusters) {
    let (policies, bindings) = apis(clusters);
    bindings.delete(NAME, &DeleteParams::default()).await.unwrap();
    policies.delete(NAME, &DeleteParams::default()).await.unwrap();
}
