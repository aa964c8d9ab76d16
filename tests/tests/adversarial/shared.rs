//! The tenants that attacks share which change nothing in them: starting one takes longer than most attacks.

use berth_tests::{
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
};

/// Namespace of both on the host.
const NAMESPACE: &str = "adv-shared";

/// The attacker's tenant, with one node.
pub(crate) async fn attacker(host: &TestCluster) -> Tenant {
    Tenant::shared(host, NAMESPACE, &cluster("attacker", &[("a", "h100", 1)])).await
}

/// Another team's tenant.
pub(crate) async fn victim(host: &TestCluster) -> Tenant {
    Tenant::shared(host, NAMESPACE, &cluster("victim", &[])).await
}

/// Both.
pub(crate) async fn attacker_and_victim(host: &TestCluster) -> (Tenant, Tenant) {
    tokio::join!(attacker(host), victim(host))
}
