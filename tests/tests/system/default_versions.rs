//! Tenants whose spec names no Kubernetes version.

use crate::classes::{class, of_class};
use berth_kubernetes_versions::{KUBERNETES_DEFAULT, KUBERNETES_PREVIOUS};
use berth_tests::{
    objects::apply,
    tenant::Tenant,
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use serde_json::{Value, json};
use std::sync::Arc;

/// Name of the class, of the tenant and of its namespace.
const NAME: &str = "default-version";

/// Gives the class a version for new tenants, and a limit that says when its tenant has the rules.
async fn set_class(host: &TestCluster, default: &str, services: u64) {
    let rules = json!({
        "versions": [KUBERNETES_PREVIOUS, KUBERNETES_DEFAULT], "defaultVersion": default, "limits": {"services": services},
    });
    apply(&host.client, "", &class(NAME, &rules)).await.unwrap();
}

async fn set_version(host: &TestCluster, version: Option<&str>) {
    host.patch_tenant(NAME, NAME, &json!({ "version": version })).await;
}

/// Waits until the tenant was accepted under rules with this limit, and then until its API server and its status have a version.
async fn until_runs(host: &TestCluster, tenant: &Tenant, version: &str, services: u64) {
    let (maps, tenants) = (
        Api::<ConfigMap>::namespaced(host.client.clone(), &tenant.id.control_plane_namespace()),
        host.tenants(NAME),
    );
    let minor = version.split('.').nth(1).unwrap();
    until(&format!("{version} runs with {services} Services"), SOON, async || {
        let map = maps.get("settings").await.map_err(|error| error.to_string())?;
        let settings: Value = serde_json::from_str(&map.data.unwrap_or_default()["settings.json"]).unwrap();
        let accepted = (settings["version"].clone(), settings["limits"]["services"].clone());
        let status = tenants.get(NAME).await.map_err(|error| error.to_string())?.status;
        let status = status.map(|status| (status.version, status.upgrading_to));
        let served = tenant.client.apiserver_version().await;
        let served = served.map_err(|error| error.to_string())?.emulation_minor;
        let is_expected = accepted == (json!(version), json!(services))
            && status == Some((Some(version.to_owned()), None))
            && served.as_deref() == Some(minor);
        is_expected
            .then_some(())
            .ok_or_else(|| format!("{accepted:?} {status:?} {served:?}"))
    })
    .await;
}

pub(crate) async fn tenants_keep_the_version_that_their_class_gave_them(host: Arc<TestCluster>) {
    set_class(&host, KUBERNETES_PREVIOUS, 11).await;
    let mut silent = of_class(NAME, NAME);
    silent.spec.version = None;
    let tenant = Tenant::create(&host, NAME, &silent).await;
    until_runs(&host, &tenant, KUBERNETES_PREVIOUS, 11).await;
    assert_eq!(host.tenants(NAME).get(NAME).await.unwrap().spec.version, None);

    set_class(&host, KUBERNETES_DEFAULT, 12).await;
    until_runs(&host, &tenant, KUBERNETES_PREVIOUS, 12).await;
    set_version(&host, Some(KUBERNETES_DEFAULT)).await;
    until_runs(&host, &tenant, KUBERNETES_DEFAULT, 12).await;
    set_version(&host, None).await;
    set_class(&host, KUBERNETES_PREVIOUS, 13).await;
    until_runs(&host, &tenant, KUBERNETES_DEFAULT, 13).await;
    tenant.delete(&host).await;
}
