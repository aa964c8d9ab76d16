//! The watch of tenants' Services on the host. Of each only its node ports are kept.

use super::{
    follow::{self, Index},
    of_tenants,
};
use crate::{
    key::Key,
    network::node_ports::{self, NodePort, NodePorts},
};
use berth_api::{TenantCluster, names::TenantId};
use berth_runtime::{locks::lock, queue::Queue};
use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client, ResourceExt, runtime::reflector::Store};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{sync::oneshot, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// Pause before a tenant is reconciled. Its policies are written again then, and it can change node ports some hundred times a second.
const PAUSE: Duration = Duration::from_secs(1);
/// Namespaces whose tenants are remembered.
const MOST_OWNERS: usize = 4096;

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
        owners: Mutex::default(),
        queue,
    };
    let listed = follow::start(Api::all(client.clone()), of_tenants(), watch, tasks, stop);
    (ports, listed)
}

/// Indexes the node ports, and reconciles tenants whose node ports changed.
struct NodePortWatch {
    ports: Arc<NodePorts>,
    tenants: Store<TenantCluster>,
    /// Tenants by their namespaces, which no other tenant ever has.
    owners: Mutex<HashMap<String, Key>>,
    queue: Queue<Key>,
}

impl NodePortWatch {
    fn set(&self, service: &str, ports: BTreeSet<NodePort>) {
        if !self.ports.set(service, ports) {
            return;
        }
        let namespace = service.split('/').next().unwrap_or_default();
        if let Some(key) = self.find_owner(namespace) {
            self.queue.add_after(key, PAUSE);
        }
    }

    /// The tenant of a namespace. To find it, the namespaces of all tenants are derived from their names.
    fn find_owner(&self, namespace: &str) -> Option<Key> {
        let mut owners = lock(&self.owners);
        if let Some(known) = owners.get(namespace) {
            return Some(known.clone());
        }
        let is_owner = |tenant: &&Arc<TenantCluster>| {
            let uid = tenant.uid().unwrap_or_default();
            TenantId::new(&tenant.name_any(), &uid).workload_namespace() == namespace
        };
        let key = Key::of_tenant(self.tenants.state().iter().find(is_owner)?);
        if owners.len() >= MOST_OWNERS {
            owners.clear();
        }
        owners.insert(namespace.to_owned(), key.clone());
        Some(key)
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

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::{TenantClusterSpec, network::Protocol};
    use kube::runtime::{reflector, watcher::Event};
    use tokio::time::{Instant, timeout};

    #[tokio::test(start_paused = true)]
    async fn a_tenant_whose_node_ports_change_all_the_time_is_reconciled_once_a_second() {
        let (tenants, mut writer) = reflector::store::<TenantCluster>();
        let mut tenant = TenantCluster::new("vision", TenantClusterSpec::default());
        tenant.metadata.namespace = Some("team".into());
        tenant.metadata.uid = Some("u".into());
        writer.apply_watcher_event(&Event::Apply(tenant.clone()));
        let queue = Queue::new();
        let watch = NodePortWatch {
            ports: Arc::default(),
            tenants,
            owners: Mutex::default(),
            queue: queue.clone(),
        };
        let service = format!("{}/web", TenantId::new("vision", "u").workload_namespace());
        let change = |number: u16| watch.set(&service, BTreeSet::from([(Protocol::Tcp, number)]));
        for second in 1..=2 {
            let start = Instant::now();
            for number in 0..100 {
                change(30_000 + 1000 * second + number);
            }
            let taken = queue.take().await;
            assert_eq!(taken.key, Key::of_tenant(&tenant));
            let waited = start.elapsed();
            assert!(waited >= PAUSE && waited < 2 * PAUSE, "{waited:?}");
            queue.done(&taken.key);
        }
        assert!(timeout(10 * PAUSE, queue.take()).await.is_err(), "once");
        watch.set(
            "berth-other-aaaaaaaaaaaaa/web",
            BTreeSet::from([(Protocol::Tcp, 30_001)]),
        );
        assert!(timeout(10 * PAUSE, queue.take()).await.is_err(), "of no tenant");
        assert_eq!(lock(&watch.owners).len(), 1);
    }
}
