//! Volumes that no claim has, such as one that the platform restores: the host's controllers give one to any claim that it fits, also of another tenant.

use super::{expect_denied, rbac};
use crate::shared::attacker;
use berth_api::labels;
use berth_tests::{
    objects::apply,
    tenant::patient,
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) async fn a_volume_that_no_claim_has_goes_to_no_tenant(host: Arc<TestCluster>) {
    let tenant = attacker(&host).await;
    let workloads = tenant.id.workload_namespace();
    let claim_in = |namespace: &str| json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": "c"});
    let volume = |name: &str, more: &Value| {
        let base = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "adversarial",
            "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": "/tmp/adversarial"},
        }});
        super::with(&base, more)
    };
    let offered = json!({"metadata": {"labels": {labels::ALLOW_ANY_CLAIM: "true"}}});
    let released = json!({"spec": {"claimRef": claim_in("adversarial-gone")}});
    let volumes = [
        volume("adversarial-free", &json!({})),
        volume("adversarial-offered", &offered),
        volume("adversarial-released", &released),
    ];
    for volume in &volumes {
        apply(&host.client, "", volume).await.unwrap();
    }
    // As kube-controller-manager and the scheduler have them.
    let rules = json!([{"apiGroups": [""], "resources": ["persistentvolumes"], "verbs": ["get", "update", "patch"]}]);
    rbac::grant(&host.client, "", "volume-binder", &rbac::user("volume-binder"), &rules).await;
    let binder: Api<PersistentVolume> = Api::all(patient(&host.kubeconfig_for("volume-binder", &[]).unwrap()).await);
    let bind = async |name: &str, namespace: &str| {
        let params = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let patch = Patch::Merge(json!({"spec": {"claimRef": claim_in(namespace)}}));
        binder.patch(name, &params, &patch).await
    };
    until("the binder has rights", SOON, async || {
        bind("adversarial-free", "default").await
    })
    .await;
    let denied = "no claim of a tenant may get a volume that was not made for it";
    expect_denied(denied, bind("adversarial-free", &workloads).await);
    bind("adversarial-free", "berth-system").await.unwrap();
    bind("adversarial-offered", &workloads).await.unwrap();
    // As the platform restores a volume.
    bind("adversarial-released", &workloads).await.unwrap();

    let of_admin: Api<PersistentVolume> = Api::all(host.client.clone());
    for volume in &volumes {
        let name = volume["metadata"]["name"].as_str().unwrap();
        of_admin.delete(name, &DeleteParams::default()).await.unwrap();
    }
    rbac::revoke(&host.client, "volume-binder").await;
}
