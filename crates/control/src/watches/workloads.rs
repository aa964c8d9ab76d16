//! The watch of tenants' pods on the host. Of each only what matters for nodes is kept.

use super::FLEET_PAUSE;
use crate::{
    context::Key,
    nodes::{demand::Workload, workloads::Workloads},
};
use berth_api::{NodeMode, TenantCluster, labels, names::TenantId};
use berth_runtime::queue::Queue;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    runtime::{
        WatchStreamExt,
        reflector::Store,
        watcher::{self, Event, watcher},
    },
};
use std::{
    collections::HashSet,
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};
use tokio::{sync::oneshot, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// For how long it is remembered which tenants have nodes that follow demand.
const REMEMBERED: Duration = Duration::from_millis(500);

/// Watches the pods that syncers made. The receiver hears when the first list is complete.
pub(super) fn start(
    client: &Client,
    tenants: Store<TenantCluster>,
    queue: Queue<Key>,
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> (Arc<Workloads>, oneshot::Receiver<()>) {
    let index = Arc::new(Workloads::default());
    let (listed, is_listed) = oneshot::channel();
    let of_syncers = format!("{}={}", labels::MANAGED_BY, labels::MANAGED_BY_SYNCER);
    let api = Api::<Pod>::all(client.clone());
    let config = watcher::Config::default().labels(&of_syncers);
    let concerned = Concerned {
        tenants,
        queue,
        known: RwLock::default(),
    };
    let (of_task, stop) = (Arc::clone(&index), stop.clone());
    tasks.spawn(async move {
        let stream = watcher(api, config).default_backoff().boxed();
        follow(stream, &of_task, &concerned, listed, &stop).await;
    });
    (index, is_listed)
}

/// Whom a change of pods concerns.
struct Concerned {
    tenants: Store<TenantCluster>,
    queue: Queue<Key>,
    known: RwLock<Option<(Instant, HashSet<String>)>>,
}

impl Concerned {
    /// Has the fleet planned if the tenant's nodes follow demand.
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
        let dynamic =
            |tenant: &&Arc<TenantCluster>| tenant.spec.nodes.iter().any(|group| group.mode == NodeMode::Dynamic);
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

async fn follow(
    mut stream: impl futures::Stream<Item = Result<Event<Pod>, watcher::Error>> + Unpin,
    index: &Workloads,
    concerned: &Concerned,
    listed: oneshot::Sender<()>,
    stop: &CancellationToken,
) {
    let mut listed = Some(listed);
    let mut seen = HashSet::new();
    let name = |pod: &Pod| format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
    let put = |pod: &Pod| {
        if let Some(tenant) = index.put(&name(pod), Workload::read(pod)) {
            concerned.wake(&tenant);
        }
    };
    loop {
        let next = tokio::select! {
            () = stop.cancelled() => return,
            next = stream.try_next() => next,
        };
        match next {
            Ok(Some(Event::Init)) => seen.clear(),
            Ok(Some(Event::InitApply(pod))) => {
                seen.insert(name(&pod));
                put(&pod);
            }
            Ok(Some(Event::InitDone)) => {
                for tenant in index.retain(&seen) {
                    concerned.wake(&tenant);
                }
                seen = HashSet::new();
                if let Some(listed) = listed.take() {
                    // Whoever waited may have gone.
                    let _ = listed.send(());
                }
            }
            Ok(Some(Event::Apply(pod))) => put(&pod),
            Ok(Some(Event::Delete(pod))) => {
                if let Some(tenant) = index.put(&name(&pod), None) {
                    concerned.wake(&tenant);
                }
            }
            Ok(None) => return,
            Err(error) => tracing::warn!(%error, "watch of tenants' pods interrupted; trying again"),
        }
    }
}
