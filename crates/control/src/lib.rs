//! Control: the operator that turns `TenantCluster`s into control planes, syncers and assigned nodes.
//!
//! Watches put keys into one queue, and a worker takes them and reconciles what they name: `key::Key` lists what that is. All state
//! lives in the host's objects and in etcd.
//!
//! | modules | what is in them |
//! |---|---|
//! | `watches`, [`stores`], `changes` | the watches of the host, and what they know |
//! | `gpu_pods`, `user_pods`, `tenant_pods`, `pod_activity`, `published_nodes`, `storage_uses`, [`metered_use`] | what is kept of single kinds of objects |
//! | [`controllers`] | the reconcile of each key, and the worker |
//! | `quota_ledger`, `user_quota_ledger` | what was decided last about quotas |
//! | [`control_plane`], [`runtime`] | the control plane of a tenant as data, and where it runs |
//! | [`datastore`] | the etcd of all tenants |
//! | [`network`] | policies on the host that isolate tenants |
//! | `authentication` | which issuers of tokens a tenant may trust |
//! | `tenant_lists`, `tenant_errors`, [`syncer_report`], `tenant_state` | what the servers of a tenant answer, and what its status says |
//! | [`apply`], `status_write`, `finalizers`, `events`, `host_pods`, `device_claims` | requests to API servers, most of which write |
//! | [`install`] | installation on a host, and uninstallation |
//! | [`clock`], [`metrics`], `gauges`, `secret_texts`, `error` | what all of these use |

pub mod apply;
mod authentication;
mod changes;
pub mod clock;
pub mod control_plane;
pub mod controllers;
pub mod datastore;
mod device_claims;
mod error;
mod events;
mod finalizers;
mod gauges;
mod gpu_pods;
mod host_pods;
pub mod install;
mod key;
pub mod metered_use;
pub mod metrics;
pub mod network;
mod pod_activity;
mod published_nodes;
mod quota_ledger;
pub mod runtime;
mod secret_texts;
mod status_write;
mod storage_uses;
pub mod stores;
pub mod syncer_report;
mod tenant_errors;
mod tenant_lists;
mod tenant_pods;
mod tenant_state;
#[cfg(test)]
mod testing;
mod user_pods;
mod user_quota_ledger;
mod watches;

use apply::Applier;
use berth_runtime::queue::Queue;
use berth_snapshots::Store as SnapshotStore;
use control_plane::HostInput;
use controllers::{
    Controllers,
    host_node_pool::HostNodePoolContext,
    idle_gpus::{GpuMetricsSource, IdleGpusContext},
    nodes::{
        NodesContext,
        requested::{HealthTracker, RequestTracker, UnavailableTracker},
    },
    quota_use::{self, QuotaUseContext},
    quotas::QuotasContext,
    schedule_policy::{SchedulePolicyContext, Schedules},
    shared_nodes::SharedNodesContext,
    snapshots::{SnapshotsContext, StoreCheck},
    tenant::{NetworkRemote, TenantContext, Tenants},
    tenant_class::{KnownKinds, TenantClassContext},
    usage::{UsageContext, UsageState},
    user_quotas::UserQuotasContext,
};
use datastore::{Datastore, DatastoreConfig, DatastoreError, TenantContents};
use events::EventRecorder;
use key::Key;
use kube::Client;
use metered_use::MeteredUse;
use metrics::Metrics;
use network::{AdministrativeTier, HostAddresses};
use quota_ledger::QuotaLedger;
use runtime::ControlPlaneRuntime;
use std::{sync::Arc, time::Duration};
use stores::Stores;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// What control needs to run.
pub struct ControlConfig {
    /// The host's API server.
    pub client: Client,
    /// How syncers reach the host.
    pub host: HostInput,
    /// The tenants' shared etcd.
    pub datastore: DatastoreConfig,
    /// What flags and settings say about the host's network.
    pub network: network::NetworkConfig,
    /// What a TenantCluster without a class gets.
    pub without_class: controllers::tenant::WithoutClass,
    /// Whether Berth's admission policies are installed on the host.
    pub has_admission_policies: bool,
    /// Namespace of the platform's Argo CD; none: no tenant is registered there.
    pub argo_cd_namespace: Option<String>,
    /// How nodes are cleaned and checked.
    pub node_jobs: controllers::nodes::jobs::NodeJobs,
    /// The clock of the host, by which everything is decided.
    pub clock: clock::Clock,
    /// Where the metrics of GPUs are; none: no idle GPU is found.
    pub gpu_metrics: Option<GpuMetricsSource>,
    /// Time between two measurements of what tenants use of their quotas.
    pub quota_use_interval: Duration,
    /// For how many months records of what tenants used are kept besides the current one. 0: usage is not recorded.
    pub usage_retention_months: u32,
    /// The object store for snapshots of what tenants store; none: there are no snapshots.
    pub snapshot_store: Option<SnapshotStore>,
    /// Where control planes run.
    pub runtime: Arc<dyn ControlPlaneRuntime>,
    /// Counters.
    pub metrics: Metrics,
}

/// Why control could not start.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The datastore's files.
    #[error(transparent)]
    Datastore(#[from] DatastoreError),
    /// A watch ended before it had listed anything.
    #[error("the watches of the host ended before they had listed anything")]
    Watches,
}

/// Reconciles until `stop` is cancelled. `on_ready` is called once all watches have listed what there is.
///
/// # Errors
/// Control could not start.
pub async fn run(config: ControlConfig, stop: CancellationToken, on_ready: impl FnOnce()) -> Result<(), ControlError> {
    let queue = Queue::new();
    let mut tasks = JoinSet::new();
    let datastore = Arc::new(Datastore::open(&config.datastore)?);
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        () = config.clock.wait_for_host(&config.client) => {}
    }
    let metered = MeteredUse::new(config.clock.clone(), config.usage_retention_months > 0);
    let uses_pods = config.runtime.uses_pods();
    let stores = tokio::select! {
        () = stop.cancelled() => return Ok(()),
        stores = watches::start(&config.client, &queue, &mut tasks, &stop, uses_pods, metered) => stores.map_err(|_| ControlError::Watches)?,
    };
    tasks.spawn(config.clock.clone().follow(config.client.clone(), stop.clone()));
    tasks.spawn(controllers::database::watch(
        Arc::clone(&datastore),
        stores.clone(),
        config.metrics.clone(),
        stop.clone(),
    ));
    let schedules = Arc::new(Schedules::new({
        let clock = config.clock.clone();
        move || clock.now()
    }));
    let tenants = Arc::new(Tenants::default());
    let idle_gpus = build_idle_gpus(&config, &stores, &schedules, &tenants);
    tasks.spawn(controllers::idle_gpus::watch(idle_gpus, stop.clone()));
    let quotas = Arc::new(QuotaLedger::default());
    let quota_use = QuotaUseContext {
        client: config.client.clone(),
        stores: stores.clone(),
        quotas: Arc::clone(&quotas),
        queue: queue.clone(),
        interval: config.quota_use_interval,
    };
    tasks.spawn(quota_use::watch(quota_use, stop.clone()));
    if let Some(store) = config.snapshot_store.clone() {
        let check = StoreCheck {
            store,
            metrics: config.metrics.snapshots.clone(),
            recorder: EventRecorder::new(config.client.clone()),
        };
        tasks.spawn(check.watch(stop.clone()));
    }
    queue.add(Key::Usage);
    queue.add(Key::Snapshots);
    let controllers = build_controllers(config, datastore, stores, (schedules, tenants, quotas), queue);
    on_ready();
    Box::pin(controllers.run(tasks, stop)).await;
    Ok(())
}

/// What the passes over idle GPUs work with.
fn build_idle_gpus(
    config: &ControlConfig,
    stores: &Stores,
    schedules: &Arc<Schedules>,
    tenants: &Arc<Tenants>,
) -> IdleGpusContext {
    IdleGpusContext {
        client: config.client.clone(),
        stores: stores.clone(),
        tenants: Arc::clone(tenants),
        clock: config.clock.clone(),
        schedules: Arc::clone(schedules),
        source: config.gpu_metrics.clone(),
        metrics: config.metrics.clone(),
        recorder: EventRecorder::new(config.client.clone()),
    }
}

/// What limits of users are decided with.
fn build_user_quotas(config: &ControlConfig, stores: &Stores, queue: &Queue<Key>) -> UserQuotasContext {
    UserQuotasContext {
        client: config.client.clone(),
        stores: stores.clone(),
        clock: config.clock.clone(),
        ledger: Arc::default(),
        queue: queue.clone(),
        metrics: config.metrics.clone(),
        recorder: EventRecorder::new(config.client.clone()),
    }
}

fn build_schedule_policies(
    client: &Client,
    stores: &Stores,
    schedules: &Arc<Schedules>,
    queue: &Queue<Key>,
) -> SchedulePolicyContext {
    SchedulePolicyContext {
        client: client.clone(),
        stores: stores.clone(),
        schedules: Arc::clone(schedules),
        queue: queue.clone(),
        recorder: EventRecorder::new(client.clone()),
    }
}

/// With what is known of pools from their nodes.
fn build_host_node_pools(
    client: &Client,
    stores: &Stores,
    clock: &clock::Clock,
    (requested, unavailable, health): (&Arc<RequestTracker>, &Arc<UnavailableTracker>, &Arc<HealthTracker>),
    recorder: &EventRecorder,
) -> HostNodePoolContext {
    HostNodePoolContext {
        client: client.clone(),
        stores: stores.clone(),
        clock: clock.clone(),
        requested: Arc::clone(requested),
        unavailable: Arc::clone(unavailable),
        health: Arc::clone(health),
        recorder: recorder.clone(),
    }
}

fn build_shared_nodes(client: &Client, stores: &Stores, clock: &clock::Clock, metrics: &Metrics) -> SharedNodesContext {
    SharedNodesContext {
        client: client.clone(),
        stores: stores.clone(),
        clock: clock.clone(),
        metrics: metrics.clone(),
        recorder: EventRecorder::new(client.clone()),
        marked: controllers::shared_nodes::MarkedNodes::default(),
    }
}

/// What quotas are decided with.
fn build_quotas(
    config: &ControlConfig,
    stores: &Stores,
    quotas: &Arc<QuotaLedger>,
    users: &UserQuotasContext,
    queue: &Queue<Key>,
) -> QuotasContext {
    QuotasContext {
        client: config.client.clone(),
        stores: stores.clone(),
        network_config: config.network.clone(),
        without_class: config.without_class,
        runtime: Arc::clone(&config.runtime),
        quotas: Arc::clone(quotas),
        clock: config.clock.clone(),
        pace: controllers::quotas::Pace::default(),
        users: Arc::clone(&users.ledger),
        queue: queue.clone(),
        metrics: config.metrics.clone(),
        recorder: EventRecorder::new(config.client.clone()),
    }
}

/// What snapshots are taken with.
fn build_snapshots(
    config: &ControlConfig,
    datastore: &Arc<Datastore>,
    stores: &Stores,
    tenants: &Arc<Tenants>,
    queue: &Queue<Key>,
) -> SnapshotsContext {
    SnapshotsContext {
        client: config.client.clone(),
        stores: stores.clone(),
        clock: config.clock.clone(),
        store: config.snapshot_store.clone(),
        contents: Arc::clone(datastore) as Arc<dyn TenantContents>,
        tenants: Arc::clone(tenants),
        queue: queue.clone(),
        metrics: config.metrics.snapshots.clone(),
        recorder: EventRecorder::new(config.client.clone()),
        runs: Arc::default(),
        pauses: Arc::default(),
        deletions: Arc::default(),
    }
}

fn build_usage(config: &ControlConfig, stores: &Stores) -> UsageContext {
    UsageContext {
        client: config.client.clone(),
        stores: stores.clone(),
        clock: config.clock.clone(),
        retention_months: config.usage_retention_months,
        metrics: config.metrics.usage.clone(),
        state: UsageState::default(),
    }
}

/// All controllers, with what they share.
fn build_controllers(
    config: ControlConfig,
    datastore: Arc<Datastore>,
    stores: Stores,
    (schedules, tenants, quotas): (Arc<Schedules>, Arc<Tenants>, Arc<QuotaLedger>),
    queue: Queue<Key>,
) -> Controllers {
    let user_quotas = build_user_quotas(&config, &stores, &queue);
    let usage = build_usage(&config, &stores);
    let snapshots = build_snapshots(&config, &datastore, &stores, &tenants, &queue);
    let of_quotas = build_quotas(&config, &stores, &quotas, &user_quotas, &queue);
    let ControlConfig {
        client,
        host,
        datastore: _,
        network,
        without_class,
        has_admission_policies,
        argo_cd_namespace,
        node_jobs,
        clock,
        gpu_metrics: _,
        quota_use_interval: _,
        usage_retention_months: _,
        snapshot_store,
        runtime,
        metrics,
    } = config;
    let recorder = EventRecorder::new(client.clone());
    let kinds = Arc::new(KnownKinds::new(client.clone()));
    let requested = Arc::new(RequestTracker::default());
    let unavailable = Arc::new(UnavailableTracker::default());
    let health = Arc::new(HealthTracker::default());
    Controllers {
        tenant_class: TenantClassContext {
            client: client.clone(),
            stores: stores.clone(),
            clock: clock.clone(),
            has_admission_policies,
            has_snapshot_store: snapshot_store.is_some(),
            runtime: Arc::clone(&runtime),
            kinds: Arc::clone(&kinds),
            recorder: recorder.clone(),
        },
        schedule_policy: build_schedule_policies(&client, &stores, &schedules, &queue),
        tenant: TenantContext {
            network_config: network.clone(),
            without_class,
            has_admission_policies,
            argo_cd_namespace,
            administrative_tier: AdministrativeTier::default(),
            host_addresses: HostAddresses::default(),
            client: client.clone(),
            stores: stores.clone(),
            clock: clock.clone(),
            syncer_host: host,
            contents: Arc::clone(&datastore) as Arc<dyn TenantContents>,
            datastore,
            snapshot_store,
            runtime: Arc::clone(&runtime),
            remote: Arc::new(NetworkRemote::default()),
            kinds,
            tenants: Arc::clone(&tenants),
            schedules: Arc::clone(&schedules),
            quotas: Arc::clone(&quotas),
            queue: queue.clone(),
            metrics: metrics.sleep.clone(),
            rotations: metrics.rotations.clone(),
            restores: metrics.snapshots.restores.clone(),
            own_slices_deleted: metrics.syncers.own_slices_deleted.clone(),
            recorder: recorder.clone(),
        },
        host_node_pool: build_host_node_pools(&client, &stores, &clock, (&requested, &unavailable, &health), &recorder),
        shared_nodes: build_shared_nodes(&client, &stores, &clock, &metrics),
        quotas: of_quotas,
        user_quotas,
        usage,
        snapshots,
        nodes: NodesContext {
            host: Applier::new(client.clone()),
            client,
            stores: stores.clone(),
            network_config: network,
            without_class,
            node_jobs,
            clock,
            schedules,
            idle: berth_node_lifecycle::idle::IdleTracker::default(),
            rejected_nodes: berth_node_lifecycle::rejections::RejectedNodes::default(),
            requested,
            unavailable,
            health,
            runtime,
            tenants,
            quotas,
            queue: queue.clone(),
            metrics: metrics.clone(),
            recorder,
        },
        queue,
        stores,
        metrics,
    }
}
