//! The Secret `pki` of a tenant is lost while control does not run, and restored.

use super::{administrator, back_up, commands};
use berth_tests::{
    tenant::{Tenant, cluster, patient},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, api::DeleteParams};
use std::sync::Arc;

pub(crate) async fn kubeconfigs_are_accepted_again_once_the_keys_of_a_tenant_are_restored(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, "restore-keys", &cluster("locked", &[])).await;
    let namespace = tenant.id.control_plane_namespace();
    let secrets: Api<Secret> = Api::namespaced(host.client.clone(), &namespace);
    let before = secrets.get("pki").await.unwrap().data;
    let shell = administrator(&host).await;
    back_up(&shell).await;

    host.stop_control("first").await;
    secrets.delete("pki", &DeleteParams::default()).await.unwrap();
    host.start_control("first").await;
    until_true("control makes other keys", SOON, async || {
        secrets.get("pki").await.is_ok_and(|other| other.data != before)
    })
    .await;
    until_true("the kubeconfig from before is refused", SOON, async || {
        patient(&tenant.kubeconfig).await.apiserver_version().await.is_err()
    })
    .await;

    host.stop_control("first").await;
    let replaced = [("CONTROL-PLANE-NAMESPACE", namespace.as_str())];
    shell.run(&commands("delete secret pki", &replaced)).await;
    assert_eq!(secrets.get("pki").await.unwrap().data, before);
    host.start_control("first").await;
    until("the kubeconfig from before is accepted", SOON, async || {
        patient(&tenant.kubeconfig).await.apiserver_version().await
    })
    .await;
    Tenant::ready(&host, "restore-keys", "locked").await.delete(&host).await;
}
