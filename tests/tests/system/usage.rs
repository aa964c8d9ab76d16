//! The metrics API of a tenant whose host has no metrics. (With a host that does, see the end-to-end suite.)

use berth_tests::{
    kubectl::{Kubectl, Said},
    tenant::{Tenant, cluster, ensure_namespace},
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, api::DeleteParams};
use std::sync::Arc;

async fn until_output(kubectl: &Kubectl, arguments: &[&str], is_right: impl Fn(&Said) -> bool) {
    until(
        &format!("kubectl {arguments:?} prints the expected output"),
        SOON,
        async || {
            let said = kubectl.run(arguments).await;
            if is_right(&said) { Ok(()) } else { Err(said) }
        },
    )
    .await;
}

pub(crate) async fn host_without_metrics_is_reported(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, "usage", &cluster("usage", &[])).await;
    let kubectl = Kubectl::of(&tenant);
    let path = "/apis/metrics.k8s.io/v1beta1";
    let resources = until("the API is served", SOON, async || {
        let said = kubectl.run(&["get", "--raw", path]).await;
        if said.success { Ok(said.out) } else { Err(said) }
    })
    .await;
    assert!(
        resources.contains("PodMetrics") && resources.contains("NodeMetrics"),
        "{resources}"
    );
    // An aggregated API may be unavailable for a moment.
    until_output(&kubectl, &["top", "pod"], |said| {
        !said.success && said.err.contains("its cluster has no metrics.k8s.io")
    })
    .await;
    // The tenant has no nodes.
    until_output(&kubectl, &["get", "nodemetrics", "-o", "name"], |said| {
        said.success && said.out.is_empty()
    })
    .await;
    for other in ["/namespaces/default/pods/none", "/nodes/none", "/none"] {
        until_output(&kubectl, &["get", "--raw", &format!("{path}{other}")], |said| {
            !said.success && said.err.contains("NotFound")
        })
        .await;
    }
    // An API that does not answer would block its deletion.
    ensure_namespace(&tenant.client, "short-lived").await;
    let namespaces: Api<Namespace> = Api::all(tenant.client.clone());
    namespaces
        .delete("short-lived", &DeleteParams::default())
        .await
        .unwrap();
    until("the namespace is gone", SOON, async || {
        match namespaces.get_opt("short-lived").await {
            Ok(None) => Ok(()),
            Ok(Some(namespace)) => Err(format!("{:?}", namespace.status)),
            Err(error) => Err(error.to_string()),
        }
    })
    .await;
    tenant.delete(&host).await;
}
