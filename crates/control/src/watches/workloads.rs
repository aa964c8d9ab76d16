//! The watch of tenants' pods on the host. Of each only what matters for nodes is kept.

use super::{
    FLEET_PAUSE,
    follow::{self, Index},
};
use crate::{
    gpu_pods::{self, GpuPods},
    key::Key,
    metered_use::MeteredUse,
    pod_activity::PodActivity,
    storage_uses::{self, StorageUses},
    tenant_pods::is_of_tenant,
    user_pods::{self, UserPods},
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
/// Pause before limits of users are decided, so that several pods are one decision.
const USERS_PAUSE: Duration = Duration::from_millis(20);

/// What is kept of the pods.
pub(super) struct Watched {
    /// Their demand for nodes.
    pub(super) workloads: Arc<WorkloadIndex>,
    /// Those that request devices.
    pub(super) gpu_pods: Arc<GpuPods>,
    /// Those that have not ended, by the users who created them.
    pub(super) user_pods: Arc<UserPods>,
    /// The drivers of their inline volumes.
    pub(super) inline_volumes: Arc<StorageUses>,
    /// When they came and went.
    pub(super) activity: Arc<PodActivity>,
    /// Resolves when the first list is complete.
    pub(super) listed: oneshot::Receiver<()>,
}

/// Watches the pods that syncers created.
pub(super) fn start(
    client: &Client,
    tenants: Store<TenantCluster>,
    metered: MeteredUse,
    queue: Queue<Key>,
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> Watched {
    let index = Arc::new(WorkloadIndex::default());
    let gpu_pods = Arc::new(GpuPods::default());
    let user_pods = Arc::new(UserPods::default());
    let inline_volumes = Arc::new(StorageUses::default());
    let activity = Arc::new(PodActivity::default());
    let of_syncers = format!("{}={}", labels::MANAGED_BY, labels::MANAGED_BY_SYNCER);
    let config = watcher::Config::default().labels(&of_syncers);
    let watch = WorkloadWatch {
        index: Arc::clone(&index),
        gpu_pods: Arc::clone(&gpu_pods),
        user_pods: Arc::clone(&user_pods),
        inline_volumes: Arc::clone(&inline_volumes),
        activity: Arc::clone(&activity),
        metered,
        tenants,
        queue,
        known: RwLock::default(),
    };
    let listed = follow::start(Api::all(client.clone()), config, watch, tasks, stop);
    Watched {
        workloads: index,
        gpu_pods,
        user_pods,
        inline_volumes,
        activity,
        listed,
    }
}

/// Indexes the pods, and plans the fleet after changes that matter to it.
struct WorkloadWatch {
    index: Arc<WorkloadIndex>,
    gpu_pods: Arc<GpuPods>,
    user_pods: Arc<UserPods>,
    inline_volumes: Arc<StorageUses>,
    activity: Arc<PodActivity>,
    metered: MeteredUse,
    tenants: Store<TenantCluster>,
    queue: Queue<Key>,
    known: RwLock<Option<(Instant, HashSet<String>)>>,
}

impl WorkloadWatch {
    /// Records that pods of the tenant changed, and puts the fleet into the queue if its nodes follow demand.
    fn wake(&self, tenant: &str) {
        self.activity.record(tenant, self.index.has_unfinished(tenant));
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
        let pod = pod.filter(|pod| is_of_tenant(pod));
        self.metered.put_pod(name, pod);
        self.gpu_pods.put(name, pod.and_then(gpu_pods::read_pod));
        self.inline_volumes
            .put(name, pod.map(storage_uses::of_pod).unwrap_or_default());
        if self.user_pods.put(name, pod.and_then(user_pods::read_pod)) {
            self.queue.add_after(Key::UserQuotas, USERS_PAUSE);
        }
        if let Some(tenant) = self.index.put(name, pod.and_then(Workload::from_pod)) {
            self.wake(&tenant);
        }
    }

    fn retain(&self, names: &HashSet<String>) {
        self.metered.retain_pods(names);
        self.gpu_pods.retain(names);
        self.inline_volumes.retain(names);
        if self.user_pods.retain(names) {
            self.queue.add_after(Key::UserQuotas, USERS_PAUSE);
        }
        for tenant in self.index.retain(names) {
            self.wake(&tenant);
        }
    }
}
