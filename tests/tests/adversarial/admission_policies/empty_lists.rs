//! A class that no longer lists something: what has no name is not what it lists.

use super::StolenCredential;
use berth_api::{TenantClass, policy_annotations};
use berth_tests::wait::{SOON, until};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

/// The last part of a test: it takes host names and classes of snapshots from the class.
pub(super) async fn names_that_are_left_out(credential: &StolenCredential, admin: &Client) {
    let nothing = json!({"spec": {"sync": {"ingress": {"hostnames": []}, "storage": {"snapshotClasses": []}}}});
    let classes: Api<TenantClass> = Api::all(admin.clone());
    classes
        .patch("policies", &PatchParams::default(), &Patch::Merge(nothing))
        .await
        .unwrap();
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    until("the policies know what the class lists now", SOON, async || {
        let namespace = namespaces.get(&credential.namespace).await.unwrap();
        let mut lists = [policy_annotations::HOSTNAMES, policy_annotations::SNAPSHOT_CLASSES].into_iter();
        match lists.find(|list| namespace.annotations().contains_key(*list)) {
            None => Ok(()),
            Some(list) => Err(list),
        }
    })
    .await;
    // For every name that nobody else serves.
    let backend = json!({"service": {"name": "s", "port": {"number": 1}}});
    let rule = json!({"http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}});
    let spec = json!({"ingressClassName": "nginx", "rules": [rule]});
    let ingress = credential.object("networking.k8s.io/v1", "Ingress", &json!({ "spec": spec }));
    credential.expect_denied("spec.rules[].host", &ingress).await;
    // Of the host's default class.
    let spec = json!({"source": {"persistentVolumeClaimName": "c"}});
    let snapshot = credential.object("snapshot.storage.k8s.io/v1", "VolumeSnapshot", &json!({ "spec": spec }));
    credential.expect_denied("volumeSnapshotClassName", &snapshot).await;
}
