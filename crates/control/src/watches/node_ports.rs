//! The watch of tenants' Services on the host. Of each only its node ports are kept.

use super::{
    FLEET_PAUSE,
    follow::{self, Index},
    of_tenants,
};
use crate::{
    key::Key,
    network::node_ports::{self, NodePort, NodePorts},
};
use berth_api::{TenantCluster, names::TenantId};
use berth_runtime::queue::Queue;
use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client, ResourceExt, runtime::reflector::Store};
use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};
use tokio::{sync::oneshot, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// Watches the Services of tenants. The receiver resolves when the first list is complete.
pub(super) fn start(
    client: &Client,
    tenants: Store<TenantCluster>,
    queue: Queue<Key>,
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> (Arc<NodePorts>, oneshot::Receiver<()>) {
    let ports = Arc::new(NodePorts::default());
    let watch = NodePortWatch {
        ports: Arc::clone(&ports),
        tenants,
        queue,
    };
    let listed = follow::start(Api::all(client.clone()), of_tenants(), watch, tasks, stop);
    (ports, listed)
}

/// Indexes the node ports, and reconciles tenants whose node ports changed.
struct NodePortWatch {
    ports: Arc<NodePorts>,
    tenants: Store<TenantCluster>,
    queue: Queue<Key>,
}

impl NodePortWatch {
    fn set(&self, service: &str, ports: BTreeSet<NodePort>) {
        if !self.ports.set(service, ports) {
            return;
        }
        let namespace = service.split('/').next().unwrap_or_default();
        let is_owner = |tenant: &&Arc<TenantCluster>| {
            let uid = tenant.uid().unwrap_or_default();
            TenantId::new(&tenant.name_any(), &uid).workload_namespace() == namespace
        };
        if let Some(tenant) = self.tenants.state().iter().find(is_owner) {
            self.queue.add_after(Key::of_tenant(tenant), FLEET_PAUSE);
        }
    }
}

impl Index<Service> for NodePortWatch {
    fn put(&self, name: &str, service: Option<&Service>) {
        self.set(name, service.map(node_ports::node_ports).unwrap_or_default());
    }

    fn retain(&self, names: &HashSet<String>) {
        for gone in self.ports.names().iter().filter(|name| !names.contains(*name)) {
            self.set(gone, BTreeSet::new());
        }
    }
}
