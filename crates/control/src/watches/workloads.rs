//! The watch of tenants' pods on the host. Of each only what matters for nodes is kept.

use super::{
    FLEET_PAUSE,
    follow::{Index, follow},
};
use crate::{
    gpu_pods::{self, GpuPods},
    key::Key,
};
use berth_api::{NodeMode, TenantCluster, labels, names::TenantId};
use berth_node_lifecycle::demand::{Workload, WorkloadIndex};
use berth_runtime::queue::Queue;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    runtime::{reflector::Store, watcher},
};
use std::{
    collections::HashSet,
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};
use tokio::{sync::oneshot, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// Time for which tenants with nodes that follow demand are remembered.
const REMEMBERED: Duration = Duration::from_millis(500);

/// What is kept of the pods.
pub(super) struct Indexes {
    /// Their demand for nodes.
    pub(super) workloads: Arc<WorkloadIndex>,
    /// Those that request devices.
    pub(super) gpu_pods: Arc<GpuPods>,
}

/// Watches the pods that syncers created. The receiver resolves when the first list is complete.
pub(super) fn start(
    client: &Client,
    tenants: Store<TenantCluster>,
    queue: Queue<Key>,
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> (Indexes, oneshot::Receiver<()>) {
    let index = Arc::new(WorkloadIndex::default());
    let gpu_pods = Arc::new(GpuPods::default());
    let (listed, is_listed) = oneshot::channel();
    let of_syncers = format!("{}={}", labels::MANAGED_BY, labels::MANAGED_BY_SYNCER);
    let api = Api::<Pod>::all(client.clone());
    let config = watcher::Config::default().labels(&of_syncers);
    let watch = WorkloadWatch {
        index: Arc::clone(&index),
        gpu_pods: Arc::clone(&gpu_pods),
        tenants,
        queue,
        known: RwLock::default(),
    };
    let stop = stop.clone();
    tasks.spawn(async move { follow(api, config, &watch, listed, &stop).await });
    let indexes = Indexes {
        workloads: index,
        gpu_pods,
    };
    (indexes, is_listed)
}

/// Indexes the pods, and plans the fleet after changes that matter to it.
struct WorkloadWatch {
    index: Arc<WorkloadIndex>,
    gpu_pods: Arc<GpuPods>,
    tenants: Store<TenantCluster>,
    queue: Queue<Key>,
    known: RwLock<Option<(Instant, HashSet<String>)>>,
}

impl WorkloadWatch {
    /// Puts the fleet into the queue if the tenant's nodes follow demand.
    fn wake(&self, tenant: &str) {
        if self.follows_demand(tenant) {
            self.queue.add_after(Key::Fleet, FLEET_PAUSE);
        }
    }

    fn follows_demand(&self, slug: &str) -> bool {
        {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            if let Some((at, slugs)) = known.as_ref()
                && at.elapsed() < REMEMBERED
            {
                return slugs.contains(slug);
            }
        }
        let dynamic = |tenant: &&Arc<TenantCluster>| {
            tenant
                .spec
                .node_groups
                .iter()
                .any(|group| group.mode == NodeMode::Dynamic)
        };
        let tenants = self.tenants.state();
        let slugs: HashSet<String> = tenants
            .iter()
            .filter(dynamic)
            .filter_map(|tenant| Some(TenantId::new(&tenant.name_any(), &tenant.uid()?).slug().to_owned()))
            .collect();
        let follows = slugs.contains(slug);
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), slugs));
        follows
    }
}

impl Index<Pod> for WorkloadWatch {
    fn put(&self, name: &str, pod: Option<&Pod>) {
        self.gpu_pods.put(name, pod.and_then(gpu_pods::read_pod));
        if let Some(tenant) = self.index.put(name, pod.and_then(Workload::from_pod)) {
            self.wake(&tenant);
        }
    }

    fn retain(&self, names: &HashSet<String>) {
        self.gpu_pods.retain(names);
        for tenant in self.index.retain(names) {
            self.wake(&tenant);
        }
    }
}
