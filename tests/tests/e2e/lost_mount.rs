//! Memory that the containers of a tenant's pod have shared, still mounted on the node, as a container runtime leaves it that was killed in the middle of its
//! work.

use crate::{on_node, pods::SOON};
use berth_api::system;
use berth_tests::{test_cluster::TestCluster, wait::until};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};
use std::{fs, path::PathBuf};

/// Where containerd mounts it, for a sandbox that it does not know.
const SHARED: &str = "/run/containerd/io.containerd.grpc.v1.cri/sandboxes/lost/shm";
/// The container that validates a node.
const CHECK: &str = "check";
/// How many seconds the validation goes on if it waits. One that finds nothing ends at once.
const WAITS: i64 = 3;

/// The mount.
pub(crate) struct LostMount<'a> {
    host: &'a TestCluster,
    node: String,
    /// The folder of the sandbox as it is seen outside of the node.
    folder: PathBuf,
}

impl<'a> LostMount<'a> {
    /// Mounts it on a node, with a file in it.
    pub(crate) fn make(host: &'a TestCluster, node: &str) -> Self {
        let inside = SHARED.trim_start_matches("/run/containerd/");
        let run = host.home().root().join("nodes").join(node).join("containerd-run");
        let shared = run.join(inside);
        fs::create_dir_all(&shared).unwrap();
        on_node::run(host, node, "mount", &["-t", "tmpfs", "shm", SHARED]);
        on_node::run(host, node, "touch", &[&format!("{SHARED}/weights")]);
        Self {
            host,
            node: node.to_owned(),
            folder: shared.parent().unwrap().to_owned(),
        }
    }

    /// Asserts that the validation of the node waits for its end, and unmounts it.
    pub(crate) async fn assert_keeps_the_node(self) {
        let pods: Api<Pod> = Api::namespaced(self.host.client.clone(), system::NAMESPACE);
        let there = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        until("the validation waits for what is mounted", SOON, async || {
            let pods = pods.list(&there).await.map_err(|error| error.to_string())?;
            let since = pods.iter().find_map(checks_since).ok_or("no validation runs")?;
            let waits = Timestamp::now().as_second() - since.as_second();
            if waits > WAITS {
                Ok(())
            } else {
                Err(format!("since {waits} s"))
            }
        })
        .await;
        on_node::run(self.host, &self.node, "umount", &[SHARED]);
        fs::remove_dir_all(&self.folder).unwrap();
    }
}

/// Since when a pod checks its node; nothing if it does not.
fn checks_since(pod: &Pod) -> Option<Timestamp> {
    let containers = pod.status.as_ref()?.init_container_statuses.as_ref()?;
    let check = containers.iter().find(|container| container.name == CHECK)?;
    let started = check.state.as_ref()?.running.as_ref()?.started_at.as_ref()?;
    Some(started.0)
}
