//! Kinds that the platform defines in tenants: no kind of the team's takes their objects.

use crate::platform_objects::{assert_denied, create_tenant, put_manifest, until_applied};
use berth_kubernetes_versions::KUBERNETES_DEFAULT;
use berth_tests::{
    objects::apply,
    test_cluster::TestCluster,
    wait::{SOON, until_true},
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tokio::time::sleep;

/// Time in which control tries again what it could not apply.
const RETRIED: Duration = Duration::from_secs(15);

/// A definition of the kind Guard.
fn definition(group: &str, plural: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group, "scope": "Cluster", "names": {"plural": plural, "kind": "Guard", "listKind": "GuardList"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    })
}

/// The platform's definition of a group, and an object of its kind.
fn guards(group: &str, name: &str) -> [Value; 2] {
    let guard =
        json!({"apiVersion": format!("{group}/v1"), "kind": "Guard", "metadata": {"name": name}, "spec": {"a": "b"}});
    [definition(group, "guards"), guard]
}

/// The text of a manifest.
fn text(documents: &[Value]) -> String {
    let texts: Vec<String> = documents
        .iter()
        .map(|document| serde_json::to_string_pretty(document).unwrap())
        .collect();
    texts.join("\n---\n")
}

fn resource(client: &Client, group: &str, plural: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(group, "v1", "Guard");
    Api::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&kind, plural))
}

/// A status that says under which names a kind is served.
fn status(names: &Value, is_served: &str) -> Value {
    json!({"status": {"acceptedNames": names, "conditions": [
        {"type": "NamesAccepted", "status": is_served, "reason": "Test", "message": ""},
        {"type": "Established", "status": is_served, "reason": "Test", "message": ""},
    ]}})
}

/// An admin cannot take the platform's kind out of service to have its objects in a kind of the team's.
async fn statuses_are_denied(admin: &Client) {
    let group = "platform.example";
    apply(admin, "", &definition(group, "evils")).await.unwrap();
    let definitions: Api<CustomResourceDefinition> = Api::all(admin.clone());
    let merge = PatchParams::default();
    let nothing = status(
        &json!({"plural": "", "kind": "", "listKind": null, "singular": null}),
        "False",
    );
    let unpublished = definitions
        .patch_status("guards.platform.example", &merge, &Patch::Merge(&nothing))
        .await;
    assert_denied("unpublish", unpublished);
    // As a controller does that has stored all objects in another version.
    let guards = definitions.get("guards.platform.example").await.unwrap();
    let mut conditions = json!(guards.status.unwrap().conditions);
    let migrated = json!({"type": "StorageMigrating", "status": "False", "reason": "Test", "message": ""});
    conditions.as_array_mut().unwrap().push(migrated);
    let stored = Patch::Merge(json!({"status": {"conditions": conditions, "storedVersions": ["v1"]}}));
    definitions
        .patch_status("guards.platform.example", &merge, &stored)
        .await
        .unwrap();
    let names = json!({"plural": "evils", "singular": "guard", "kind": "Guard", "listKind": "GuardList"});
    let published = status(&names, "True");
    // Both are served from now on.
    definitions
        .patch_status("evils.platform.example", &merge, &Patch::Merge(&published))
        .await
        .unwrap();
    assert!(resource(admin, group, "guards").get_opt("g1").await.unwrap().is_some());
}

pub(crate) async fn the_platforms_objects_go_to_no_kind_of_the_teams(host: Arc<TestCluster>) {
    let name = "platform-kinds";
    let first = guards("platform.example", "g1");
    let tenant = create_tenant(&host, name, KUBERNETES_DEFAULT, &text(&first)).await;
    let admin = &tenant.client;
    statuses_are_denied(admin).await;

    // The team's definition of a kind that the platform defines later.
    let group = "newplat.example";
    apply(admin, "", &definition(group, "evils")).await.unwrap();
    let (evils, served) = (resource(admin, group, "evils"), resource(admin, group, "guards"));
    until_true("the team's kind is served", SOON, async || {
        evils.list(&ListParams::default()).await.is_ok()
    })
    .await;
    // And one that has the platform's name already, with a webhook that would see its objects.
    let mut converted = definition("converted.example", "guards");
    converted["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {
        "conversionReviewVersions": ["v1"], "clientConfig": {"url": "https://team.example/convert"},
    }});
    apply(admin, "", &converted).await.unwrap();
    let all = [first, guards(group, "g9"), guards("converted.example", "g3")].concat();
    put_manifest(&host, name, &text(&all)).await;
    let message = until_applied(&host, &tenant, "ApplyFailed").await;
    assert!(
        message.contains("Guard g9: the tenant does not serve the kind in version v1"),
        "{message}"
    );
    assert!(message.contains("guards.newplat.example"), "{message}");
    sleep(RETRIED).await;
    until_applied(&host, &tenant, "ApplyFailed").await;
    let found = evils.list(&ListParams::default()).await.unwrap().items;
    assert!(found.is_empty(), "{found:?}");

    // Without it the platform's is served.
    let definitions: Api<CustomResourceDefinition> = Api::all(admin.clone());
    definitions
        .delete("evils.newplat.example", &DeleteParams::default())
        .await
        .unwrap();
    until_applied(&host, &tenant, "Applied").await;
    assert!(served.get_opt("g9").await.unwrap().is_some());
    let converted = definitions.get("guards.converted.example").await.unwrap();
    assert_eq!(
        converted
            .spec
            .conversion
            .map(|conversion| conversion.strategy)
            .as_deref(),
        Some("None")
    );
    tenant.delete(&host).await;
}
