//! The metrics API of a tenant whose host measures nothing. (With a host that does, see the end-to-end suite.)

use berth_tests::{
    kubectl::Kubectl,
    tenant::{Tenant, cluster, ensure_namespace},
    wait::until,
    world::World,
};
use std::{sync::Arc, time::Duration};

const SOON: Duration = Duration::from_secs(60);

pub(crate) async fn a_host_that_measures_nothing_is_told(world: Arc<World>) {
    let tenant = Tenant::create(&world, "usage", &cluster("usage", &[])).await;
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
    let said = kubectl.run(&["top", "pod"]).await;
    assert!(
        !said.success && said.err.contains("its cluster has no metrics.k8s.io"),
        "{said:?}"
    );
    let nodes = kubectl.output(&["get", "nodemetrics", "-o", "name"]).await;
    assert_eq!(nodes, "", "there are no nodes to ask about");
    for other in ["/namespaces/default/pods/none", "/nodes/none", "/none"] {
        let said = kubectl.run(&["get", "--raw", &format!("{path}{other}")]).await;
        assert!(!said.success && said.err.contains("NotFound"), "{other}: {said:?}");
    }
    // An API that does not answer would keep it.
    ensure_namespace(&tenant.client, "short-lived").await;
    kubectl
        .output(&["delete", "namespace", "short-lived", "--timeout=50s"])
        .await;
    tenant.delete(&world).await;
}
