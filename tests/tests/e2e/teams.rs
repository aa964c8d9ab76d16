//! The tenants that tests share.

use berth_tests::{
    tenant::{Tenant, cluster},
    world::World,
};
use tokio::sync::OnceCell;

/// Namespace of both on the host.
const NAMESPACE: &str = "teams";

static VISION: OnceCell<Tenant> = OnceCell::const_new();
static SPEECH: OnceCell<Tenant> = OnceCell::const_new();

/// A tenant with two nodes of 8 GPUs each.
pub(crate) async fn vision(world: &World) -> &'static Tenant {
    let cluster = cluster("vision", &[("train", "h100", 2)]);
    VISION.get_or_init(|| Tenant::create(world, NAMESPACE, &cluster)).await
}

/// A tenant with one node of 4 GPUs.
pub(crate) async fn speech(world: &World) -> &'static Tenant {
    let cluster = cluster("speech", &[("serve", "l40s", 1)]);
    SPEECH.get_or_init(|| Tenant::create(world, NAMESPACE, &cluster)).await
}
