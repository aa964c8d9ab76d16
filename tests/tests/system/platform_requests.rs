//! Admission policies and webhooks of a tenant: they judge everybody but the platform.

use crate::platform_objects::{create_tenant, put_manifest};
use berth_kubernetes_versions::KUBERNETES_DEFAULT;
use berth_tests::{
    objects::apply,
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, Error, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

const GROUP: &str = "admissionregistration.k8s.io";
/// The match condition that the API server adds.
const CONDITION: &str = "berth.dev/platform-requests";

/// A manifest with one object, of a version.
fn manifest(version: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: kept, namespace: default}}\ndata: {{version: {version}}}\n"
    )
}

/// Rules for ConfigMaps.
fn rules() -> Value {
    json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}])
}

/// Writes in the namespace of the test only: the rest of the tenant works.
fn namespace_selector() -> Value {
    json!({"matchLabels": {"kubernetes.io/metadata.name": "default"}})
}

/// A policy, and a binding of its name.
fn policy(kind: &str, name: &str, spec: &Value, binding: &Value) -> [Value; 2] {
    let of = |kind: String, spec: &Value| json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": {"name": name}, "spec": spec});
    [of(kind.into(), spec), of(format!("{kind}Binding"), binding)]
}

/// Something by which a tenant can deny or change requests.
struct Obstacle {
    objects: Vec<Value>,
    /// What the team reads in its own requests; empty if they are changed.
    denial: &'static str,
}

fn obstacles() -> Vec<Obstacle> {
    let constraints = json!({"resourceRules": rules(), "namespaceSelector": namespace_selector()});
    let denial = json!([{"expression": "false", "message": "denied by the team"}]);
    let change = json!([{"patchType": "JSONPatch", "jsonPatch": {
        "expression": "[JSONPatch{op: 'add', path: '/data', value: {'changed': 'yes'}}]"}}]);
    let (validating, mutating) = ("ValidatingAdmissionPolicy", "MutatingAdmissionPolicy");
    let missing = |policy: &str| json!({"policyName": policy, "paramRef": {"name": "missing", "namespace": "default", "parameterNotFoundAction": "Deny"}});
    let mut deny_without_parameters = missing("no-parameters");
    deny_without_parameters["validationActions"] = json!(["Deny"]);
    let mut selected = constraints.clone();
    selected["objectSelector"] = json!({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]});
    let obstacle = |objects: [Value; 2], denial| Obstacle {
        objects: objects.into(),
        denial,
    };
    let mut all = vec![
        obstacle(
            policy(
                validating,
                "deny",
                &json!({"matchConstraints": constraints, "validations": denial, "matchConditions": [
                    {"name": "always", "expression": "true"},
                    // As somebody would who wants it to have no effect.
                    {"name": CONDITION, "expression": "true"},
                ]}),
                &json!({"policyName": "deny", "validationActions": ["Deny"]}),
            ),
            "denied by the team",
        ),
        // Parameters are looked for before conditions are evaluated.
        obstacle(
            policy(
                validating,
                "no-parameters",
                &json!({"matchConstraints": constraints, "validations": denial,
                    "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}),
                &deny_without_parameters,
            ),
            "failed to configure binding",
        ),
        obstacle(
            policy(
                mutating,
                "change-without-parameters",
                &json!({"matchConstraints": selected, "reinvocationPolicy": "Never", "mutations": change,
                    "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}),
                &missing("change-without-parameters"),
            ),
            "failed to configure binding",
        ),
        obstacle(
            policy(
                mutating,
                "change",
                &json!({"matchConstraints": selected, "reinvocationPolicy": "IfNeeded", "mutations": change}),
                &json!({"policyName": "change"}),
            ),
            "",
        ),
    ];
    // Nothing listens there.
    let webhook = |name: &str| {
        json!({
            "name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail", "timeoutSeconds": 1,
            "clientConfig": {"url": "https://127.0.0.1:1/"}, "rules": rules(), "namespaceSelector": namespace_selector(),
        })
    };
    all.extend(
        ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"].map(|kind| Obstacle {
            objects: vec![
                json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": {"name": "dead"},
            "webhooks": [webhook("a.example.com"), webhook("b.example.com")]}),
            ],
            denial: "failed calling webhook",
        }),
    );
    all
}

async fn apply_all(admin: &Client, objects: &[Value]) {
    for object in objects {
        apply(admin, "", object)
            .await
            .unwrap_or_else(|error| panic!("{}: {error}", object["kind"]));
    }
}

/// The objects of a kind of admission.
fn all_of(admin: &Client, kind: &str) -> Api<DynamicObject> {
    Api::all_with(
        admin.clone(),
        &ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, "v1", kind)),
    )
}

/// Waits until the team's own requests are judged.
async fn until_in_effect(maps: &Api<ConfigMap>, denial: &str) {
    let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "of-the-team"}})).unwrap();
    until("the team's requests are judged", SOON, async || {
        let answer = maps.create(&PostParams::default(), &map).await;
        let _ = maps.delete("of-the-team", &DeleteParams::default()).await;
        match answer {
            Err(Error::Api(status)) if !denial.is_empty() && status.message.contains(denial) => Ok(()),
            Ok(map) if denial.is_empty() && map.data.as_ref().is_some_and(|data| data.contains_key("changed")) => {
                Ok(())
            }
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

/// Nobody takes the match condition or the selector away.
async fn additions_stay(admin: &Client) {
    let validating = all_of(admin, "ValidatingAdmissionPolicy");
    let merge = PatchParams::default();
    let conditions = |object: &DynamicObject| object.data["spec"]["matchConditions"].clone();
    let without = json!({"spec": {"matchConditions": [{"name": "always", "expression": "true"}]}});
    let patched = validating.patch("deny", &merge, &Patch::Merge(&without)).await.unwrap();
    let names: Vec<Value> = conditions(&patched)
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["name"].clone())
        .collect();
    assert_eq!(names, ["always", CONDITION]);
    let expression = conditions(&patched)[1]["expression"].clone();
    assert!(expression.as_str().unwrap().contains("berth:control"), "{expression}");
    let selector = json!({"spec": {"matchConstraints": {"objectSelector": {"matchLabels": {"team": "a"}}}}});
    let patched = validating
        .patch("no-parameters", &merge, &Patch::Merge(&selector))
        .await
        .unwrap();
    let selector = &patched.data["spec"]["matchConstraints"]["objectSelector"];
    assert_eq!(selector["matchLabels"], json!({"team": "a"}));
    assert_eq!(selector["matchExpressions"][0]["key"], berth_api::labels::MANAGED_BY);
    let back = json!({"spec": {"matchConstraints": {"objectSelector": {"matchLabels": null}}}});
    validating
        .patch("no-parameters", &merge, &Patch::Merge(&back))
        .await
        .unwrap();
}

/// A policy of the tenant that takes match conditions from webhooks does not win.
async fn conditions_of_webhooks_are_checked(admin: &Client) {
    let constraints = json!({"resourceRules": [{"apiGroups": [GROUP], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
        "resources": ["validatingwebhookconfigurations"]}]});
    let thief = policy(
        "MutatingAdmissionPolicy",
        "thief",
        &json!({
            "matchConstraints": constraints,
            "reinvocationPolicy": "IfNeeded",
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {
                "expression": "[JSONPatch{op: 'add', path: '/metadata/labels/thief', value: 'was-here'}] + \
                               object.webhooks.transformList(i, w, has(w.matchConditions), \
                               JSONPatch{op: 'remove', path: '/webhooks/' + string(i) + '/matchConditions'})"}}],
        }),
        &json!({"policyName": "thief"}),
    );
    apply_all(admin, &thief).await;
    let hooks = all_of(admin, "ValidatingWebhookConfiguration");
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    until("the policy is in effect", SOON, async || {
        let patch = Patch::Merge(&label);
        match hooks.patch("dead", &PatchParams::default(), &patch).await {
            // Its turn was after that of the platform's.
            Err(error) if error.to_string().contains("nobody can change it") => Ok(()),
            Ok(hooks) => {
                let text = hooks.data["webhooks"].to_string();
                assert_eq!(text.matches(CONDITION).count(), 2, "{text}");
                if hooks.labels().contains_key("thief") {
                    Ok(())
                } else {
                    Err("not yet".to_owned())
                }
            }
            Err(error) => Err(error.to_string()),
        }
    })
    .await;
    all_of(admin, "MutatingAdmissionPolicyBinding")
        .delete("thief", &DeleteParams::default())
        .await
        .unwrap();
}

pub(crate) async fn policies_and_webhooks_of_a_tenant_do_not_see_the_platforms_requests(host: Arc<TestCluster>) {
    let name = "platform-requests";
    let tenant = create_tenant(&host, name, KUBERNETES_DEFAULT, &manifest("v1")).await;
    let admin = &tenant.client;
    let maps: Api<ConfigMap> = Api::namespaced(admin.clone(), "default");
    for (number, obstacle) in (2..).zip(obstacles()) {
        apply_all(admin, &obstacle.objects).await;
        until_in_effect(&maps, obstacle.denial).await;
        let version = format!("v{number}");
        put_manifest(&host, name, &manifest(&version)).await;
        let kept = until(
            &format!("the platform's object is changed past {}", obstacle.objects[0]),
            SOON,
            async || {
                let kept = maps.get("kept").await.map_err(|error| error.to_string())?;
                let data = kept.data.clone().unwrap_or_default();
                (data.get("version") == Some(&version))
                    .then_some(kept)
                    .ok_or(format!("{data:?}"))
            },
        )
        .await;
        assert_eq!(kept.data.as_ref().map(BTreeMap::len), Some(1), "{kept:?}");
        assert_eq!(
            kept.labels()[berth_api::labels::MANAGED_BY],
            berth_api::labels::MANAGED_BY_PLATFORM
        );
        if obstacle.objects[0]["metadata"]["name"] == "no-parameters" {
            additions_stay(admin).await;
        }
        // The others go on without its effect.
        if let Some(binding) = obstacle.objects.get(1) {
            let kind = binding["kind"].as_str().unwrap();
            let name = binding["metadata"]["name"].as_str().unwrap();
            all_of(admin, kind)
                .delete(name, &DeleteParams::default())
                .await
                .unwrap();
        } else if obstacle.objects[0]["kind"] == "MutatingWebhookConfiguration" {
            let hooks = all_of(admin, "MutatingWebhookConfiguration");
            hooks.delete("dead", &DeleteParams::default()).await.unwrap();
        }
    }

    let constraints = json!({"resourceRules": [
        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["pods", "pods/exec"]}]});
    let [connections, _] = policy(
        "ValidatingAdmissionPolicy",
        "connections",
        &json!({"matchConstraints": constraints, "validations": [{"expression": "true"}],
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}),
        &Value::Null,
    );
    let refused = apply(admin, "", &connections).await.unwrap_err().to_string();
    assert!(refused.contains("cannot be for the operation CONNECT"), "{refused}");
    conditions_of_webhooks_are_checked(admin).await;
    tenant.delete(&host).await;
}
