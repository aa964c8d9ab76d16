//! The tenants that tests share.

use berth_kubernetes_versions::KUBERNETES_PREVIOUS;
use berth_tests::{
    objects::apply,
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
};
use serde_json::json;
use tokio::sync::OnceCell;

/// Class of [`vision`].
const CLASS_OF_VISION: &str = "vision";
/// Class of [`speech`], with the same rules: a test gives it manifests for a while.
pub(crate) const CLASS_OF_SPEECH: &str = "speech";
/// Namespace of both on the host.
const NAMESPACE: &str = "teams";

static VISION: OnceCell<Tenant> = OnceCell::const_new();
static SPEECH: OnceCell<Tenant> = OnceCell::const_new();

/// The one address outside of the cluster that [`vision`] has declared.
pub(crate) const DECLARED: &str = "198.51.100.10";

async fn put_class(host: &TestCluster, name: &str) {
    let class = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": name}, "spec": {
        "network": {"egress": {"allowedCIDRs": ["198.51.100.0/24"]}},
        "sync": {"devices": {"classes": ["gpu.nvidia.com"]}, "services": {"nodePorts": true}},
    }});
    apply(&host.client, "", &class).await.unwrap();
}

/// A tenant with two nodes of 8 GPUs each.
pub(crate) async fn vision(host: &TestCluster) -> &'static Tenant {
    let create = async || {
        put_class(host, CLASS_OF_VISION).await;
        let mut cluster = cluster("vision", &[("train", "h100", 2)]);
        cluster.spec.class_name = Some(CLASS_OF_VISION.into());
        let declared = json!({"egress": {"allow": [{"cidr": format!("{DECLARED}/32"), "ports": [8080]}]}});
        cluster.spec.network = serde_json::from_value(declared).unwrap();
        Tenant::shared(host, NAMESPACE, &cluster).await
    };
    VISION.get_or_init(create).await
}

/// A tenant with one node of 4 GPUs, and an older version of Kubernetes.
pub(crate) async fn speech(host: &TestCluster) -> &'static Tenant {
    let create = async || {
        put_class(host, CLASS_OF_SPEECH).await;
        let mut cluster = cluster("speech", &[("serve", "l40s", 1)]);
        cluster.spec.class_name = Some(CLASS_OF_SPEECH.into());
        cluster.spec.version = Some(KUBERNETES_PREVIOUS.into());
        Tenant::shared(host, NAMESPACE, &cluster).await
    };
    SPEECH.get_or_init(create).await
}
