//! The team that installs the operators, one after the other, and what it runs with them.

use crate::host_objects;
use berth_local::images::catalog::AGNHOST;
use berth_tests::{
    objects::apply,
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use kube::api::DynamicObject;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::OnceCell;

static TEAM: OnceCell<Tenant> = OnceCell::const_new();

/// The tenant, with three nodes of 8 GPUs each.
pub async fn team(host: &TestCluster) -> &'static Tenant {
    let cluster = cluster("team", &[("train", "h100", 3)]);
    TEAM.get_or_init(|| Tenant::shared(host, "charts", &cluster)).await
}

/// A container that holds GPUs while it runs a shell script.
pub fn container(gpus: u32, script: &str) -> Value {
    json!({"name": "main", "image": AGNHOST, "command": ["/bin/sh", "-c", script],
        "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}})
}

/// A script that runs for ever, but ends at once on SIGTERM.
pub const FOREVER: &str = "trap 'exit 0' TERM; while true; do sleep 0.2; done";

/// Applies an object that the webhook of an operator validates. The webhook may not answer yet, or not for a
/// while: operators end when they lose their lease, as they do on a machine that stands still.
pub async fn accepted(tenant: &Tenant, object: &Value) -> DynamicObject {
    until(&format!("{} is stored", object["metadata"]["name"]), SOON, async || {
        apply(&tenant.client, "team", object).await
    })
    .await
}

/// Waits until the webhook of an operator refuses an object with this message; it must never accept it.
pub async fn refused(tenant: &Tenant, object: &Value, message: &str) {
    let name = &object["metadata"]["name"];
    until(&format!("{name} is refused: {message}"), SOON, async || {
        match apply(&tenant.client, "team", object).await {
            Err(kube::Error::Api(status)) if status.message.contains(message) => Ok(()),
            Err(error) => Err(error),
            Ok(_) => panic!("{name} was accepted"),
        }
    })
    .await;
}

/// The last of the tests: those before it have removed all that they made.
pub(crate) async fn nothing_is_left_on_the_host(host: Arc<TestCluster>) {
    let tenant = team(&host).await;
    host_objects::until_nothing_is_left(&host, tenant).await;
    tenant.delete(&host).await;
}
