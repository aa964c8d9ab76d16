//! PodDisruptionBudgets that the host could not work with.

use crate::{
    objects::{Objects, both, events, eventually},
    setup::Clusters,
};
use berth_api::names::host_name;
use kube::{
    Error,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

const ADMISSION: &str = "admissionregistration.k8s.io";

/// A spec whose selector has one expression with this number of values.
fn spec(values: usize) -> Value {
    let values: Vec<String> = (0..values).map(|number| format!("v{number}")).collect();
    let selector = json!({"matchExpressions": [{"key": "app", "operator": "In", "values": values}]});
    json!({"minAvailable": 0, "selector": selector})
}

/// A denied edit leaves the host's budget as it was, unless that is larger than the host should have, as from an earlier release. One entry
/// more is too large: the expression of [`spec`] counts as well, and ten entries are the most.
pub async fn too_large_ones_leave_the_host(clusters: &Clusters) {
    let (tenant, host) = both(clusters, "policy", "v1", "PodDisruptionBudget");
    tenant
        .create(json!({"metadata": {"name": "wide"}, "spec": spec(9)}))
        .await;
    let name = host_name("PodDisruptionBudget", "default", "wide");
    host.until(&name, "it is on the host", |_| true).await;
    tenant.patch("wide", json!({"spec": spec(10)})).await;
    eventually("an Event says what is too large", async || {
        let messages = events(clusters, "wide", "FieldDenied").await;
        messages
            .iter()
            .any(|message| message.contains("spec.selector: there are 11, and one object may have at most 10"))
    })
    .await;
    let values = |budget: &Value| {
        let values = &budget["spec"]["selector"]["matchExpressions"][0]["values"];
        values.as_array().map(Vec::len)
    };
    assert_eq!(host.get(&name).await.as_ref().and_then(values), Some(9));

    // Two labels of Berth remain.
    host.patch(&name, json!({"spec": spec(10)})).await;
    host.gone(&name).await;
    tenant.patch("wide", json!({"spec": spec(8)})).await;
    host.until(&name, "it is back", |budget| values(budget) == Some(8))
        .await;

    // As with a stolen credential. A budget cannot have both numbers.
    host.patch(&name, json!({"spec": {"minAvailable": null, "maxUnavailable": 0}}))
        .await;
    tenant.patch("wide", json!({"spec": {"minAvailable": 1}})).await;
    host.until(&name, "it has the tenant's number", |budget| {
        budget["spec"]["minAvailable"] == 1 && budget["spec"].get("maxUnavailable").is_none()
    })
    .await;
    tenant.delete("wide").await;
    host.gone(&name).await;
}

/// A team can keep its own controller from counting. The host's must not look for the owners of pods then, which it does not know.
pub async fn uncounted_ones_forbid_disruptions(clusters: &Clusters) {
    let of_team = |kind: &str| Objects::new(&clusters.tenant_admin, ADMISSION, "v1", kind, None);
    let policies = of_team("ValidatingAdmissionPolicy");
    let bindings = of_team("ValidatingAdmissionPolicyBinding");
    let rule = json!({"apiGroups": ["policy"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["poddisruptionbudgets/status"]});
    policies
        .create(json!({"metadata": {"name": "uncounted"}, "spec": {
            "matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "false"}]}}))
        .await;
    bindings
        .create(json!({"metadata": {"name": "uncounted"}, "spec": {"policyName": "uncounted", "validationActions": ["Deny"]}}))
        .await;
    let (tenant, host) = both(clusters, "policy", "v1", "PodDisruptionBudget");
    tenant
        .create(json!({"metadata": {"name": "trial"}, "spec": spec(1)}))
        .await;
    let trial = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let status = Patch::Merge(json!({"status": {"expectedPods": 1}}));
    eventually("nothing is counted", async || {
        let answer = tenant.0.patch_status("trial", &trial, &status).await;
        matches!(answer, Err(Error::Api(status)) if status.message.contains("'uncounted'"))
    })
    .await;

    tenant
        .create(json!({"metadata": {"name": "uncounted"}, "spec": {"maxUnavailable": 1, "selector": {}}}))
        .await;
    let name = host_name("PodDisruptionBudget", "default", "uncounted");
    let wants_all = |budget: &Value| budget["status"]["desiredHealthy"] == i32::MAX;
    let budget = host.until(&name, "the host's controller has counted", wants_all).await;
    assert_eq!(budget["spec"]["minAvailable"], i32::MAX);
    assert_eq!(budget["spec"].get("maxUnavailable"), None);
    assert_eq!(budget["status"]["disruptionsAllowed"], 0);
    bindings.delete("uncounted").await;
    policies.delete("uncounted").await;
    for budget in ["trial", "uncounted"] {
        tenant.delete(budget).await;
    }
    host.gone(&name).await;
}
