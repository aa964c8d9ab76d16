//! Deletions of what the platform has in the namespace of a tenant.

use super::{StolenCredential, expect_denied, with};
use berth_api::labels;
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, PostParams},
};
use serde_json::{Value, json};

/// Objects of kinds of which a platform may have some, as a syncer would create them.
fn objects(credential: &StolenCredential) -> [Value; 7] {
    let object = |api_version: &str, kind: &str, more: Value| credential.object(api_version, kind, &more);
    [
        credential.pod(&json!({})),
        object(
            "v1",
            "PersistentVolumeClaim",
            json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
                "storageClassName": "fast"}}),
        ),
        object(
            "discovery.k8s.io/v1",
            "EndpointSlice",
            json!({"addressType": "IPv4", "endpoints": [],
                "metadata": {"labels": {"endpointslice.kubernetes.io/managed-by": "berth-syncer"}}}),
        ),
        object(
            "networking.k8s.io/v1",
            "Ingress",
            json!({"spec": {"defaultBackend": {"service": {"name": "web", "port": {"number": 80}}}}}),
        ),
        object(
            "policy/v1",
            "PodDisruptionBudget",
            json!({"spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "agent"}}}}),
        ),
        object(
            "resource.k8s.io/v1",
            "ResourceClaimTemplate",
            json!({"spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}}}),
        ),
        object("gateway.networking.k8s.io/v1", "HTTPRoute", json!({"spec": {}})),
    ]
}

fn api(client: &Client, namespace: &str, object: &Value) -> Api<DynamicObject> {
    let text = |field: &str| object[field].as_str().unwrap();
    let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, text("kind")));
    Api::namespaced_with(client.clone(), namespace, &resource)
}

/// The platform creates an object of each kind with the syncer's label and one without it. Only the first one can be deleted.
pub(super) async fn objects_of_the_platform(credential: &StolenCredential, admin: &Client) {
    let dry_run = DeleteParams {
        dry_run: true,
        ..DeleteParams::default()
    };
    for object in objects(credential) {
        let (own, admins) = (
            api(&credential.client, &credential.namespace, &object),
            api(admin, &credential.namespace, &object),
        );
        let unmarked = json!({labels::MANAGED_BY: null});
        for (name, changed_labels, is_platforms) in [("of-platform", unmarked, true), ("of-tenant", json!({}), false)] {
            let metadata = json!({"metadata": {"name": name, "labels": changed_labels}});
            let created = serde_json::from_value(with(&object, &metadata)).unwrap();
            admins.create(&PostParams::default(), &created).await.unwrap();
            let deleted = own.delete(name, &dry_run).await;
            if is_platforms {
                expect_denied("may not delete objects of the platform", deleted);
            } else if let Err(error) = deleted {
                panic!("a policy denies what an intact syncer deletes: {error}: {object}");
            }
            admins
                .delete(name, &DeleteParams::default().grace_period(0))
                .await
                .unwrap();
        }
    }
}
