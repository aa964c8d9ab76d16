//! Control: the operator that turns `TenantCluster`s into control planes, syncers and assigned nodes.
//!
//! Watches put keys into one queue ([`context::Key`]); workers take them and reconcile a tenant, a pool, or the node
//! assignments of the whole fleet. All state lives in the host's objects and in etcd.

pub mod apply;
pub mod context;
pub mod control_plane;
pub mod controllers;
pub mod datastore;
pub mod error;
pub mod install;
pub mod metrics;
pub mod network;
pub mod nodes;
mod pool;
pub mod runtime;
mod watches;

use berth_runtime::queue::{Queue, Taken};
use context::{Context, Key};
use control_plane::HostInput;
use controllers::{tenant, tenant_class};
use datastore::{Datastore, DatastoreConfig, DatastoreError};
use error::ReconcileError;
use kube::{
    Client,
    runtime::events::{Recorder, Reporter},
};
use metrics::{Metrics, ReconcileLabels};
use runtime::ControlPlaneRuntime;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

/// Reconciles that may run at once. More would only queue up at the host's API server.
const WORKERS: usize = 16;
/// Time after which a reconcile is given up and tried again.
const RECONCILE_TIMEOUT: Duration = Duration::from_secs(60);
/// First and longest pause before a failing key is tried again.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// What control needs to run.
pub struct ControlConfig {
    /// The host's API server.
    pub client: Client,
    /// How syncers reach the host.
    pub host: HostInput,
    /// The tenants' shared etcd.
    pub datastore: DatastoreConfig,
    /// What flags say about the host's network.
    pub network: network::NetworkConfig,
    /// How nodes are cleaned and checked.
    pub node_jobs: nodes::jobs::NodeJobs,
    /// The time by which nodes are handed on.
    pub clock: nodes::clock::Clock,
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
    let ControlConfig {
        client,
        host,
        datastore,
        network,
        node_jobs,
        clock,
        runtime,
        metrics,
    } = config;
    let queue = Queue::new();
    let mut tasks = JoinSet::new();
    let datastore = Datastore::open(&datastore)?;
    let stores = tokio::select! {
        () = stop.cancelled() => return Ok(()),
        stores = watches::start(&client, &queue, &mut tasks, &stop, runtime.uses_pods()) => stores.map_err(|_| ControlError::Watches)?,
    };
    let reporter = Reporter {
        controller: "berth-control".into(),
        instance: None,
    };
    let context = Arc::new(Context {
        recorder: Recorder::new(client.clone(), reporter),
        client,
        host,
        stores,
        datastore,
        network_config: network,
        administrative_tier: network::AdministrativeTier::default(),
        node_jobs,
        clock,
        idle: nodes::idle::Idle::default(),
        refusals: nodes::refusals::Refusals::default(),
        requested: nodes::placeholders::Requested::default(),
        runtime,
        tenants: tenant::Tenants::default(),
        kinds: tenant_class::KnownKinds::default(),
        queue,
        metrics,
    });
    on_ready();
    let failures = Arc::new(Failures::default());
    for _ in 0..WORKERS {
        tasks.spawn(work(Arc::clone(&context), Arc::clone(&failures), stop.clone()));
    }
    stop.cancelled().await;
    // Workers finish the step they are at; what they leave undone the next control finds out.
    while tasks.join_next().await.is_some() {}
    Ok(())
}

/// How often each key has failed in a row.
#[derive(Default)]
struct Failures(Mutex<HashMap<Key, u32>>);

impl Failures {
    fn succeeded(&self, key: &Key) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// Counts a failure; the pause before the next try doubles each time.
    fn failed(&self, key: &Key) -> Duration {
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.entry(key.clone()).or_default();
        let pause = BACKOFF.0.saturating_mul(1 << (*count).min(16)).min(BACKOFF.1);
        *count += 1;
        pause
    }
}

async fn work(context: Arc<Context>, failures: Arc<Failures>, stop: CancellationToken) {
    loop {
        let Taken { key, queued_for } = tokio::select! {
            () = stop.cancelled() => return,
            taken = context.queue.take() => taken,
        };
        context.metrics.queue_seconds.observe(queued_for.as_secs_f64());
        context
            .metrics
            .queue_depth
            .set(i64::try_from(context.queue.len()).unwrap_or(i64::MAX));
        context
            .metrics
            .tenants
            .set(i64::try_from(context.stores.tenants.state().len()).unwrap_or(i64::MAX));
        let started = Instant::now();
        let outcome = tokio::time::timeout(RECONCILE_TIMEOUT, reconcile(&context, &key)).await;
        context
            .metrics
            .reconcile_seconds
            .observe(started.elapsed().as_secs_f64());
        let result = match outcome {
            Ok(Ok(again)) => {
                failures.succeeded(&key);
                if let Some(pause) = again {
                    context.queue.add_after(key.clone(), pause);
                }
                "ok"
            }
            Ok(Err(error)) => {
                let pause = failures.failed(&key);
                tracing::warn!(?key, %error, retry_in = ?pause, "reconcile failed");
                context.queue.add_after(key.clone(), pause);
                error.category()
            }
            Err(_) => {
                let pause = failures.failed(&key);
                tracing::warn!(?key, timeout = ?RECONCILE_TIMEOUT, retry_in = ?pause, "reconcile took too long");
                context.queue.add_after(key.clone(), pause);
                "Timeout"
            }
        };
        let kind = match &key {
            Key::Tenant { .. } => "tenant",
            Key::Pool(_) => "pool",
            Key::Class(_) => "class",
            Key::Fleet => "fleet",
            Key::SharedNodes => "shared-nodes",
        };
        context
            .metrics
            .reconciles
            .get_or_create(&ReconcileLabels { kind, result })
            .inc();
        context.queue.done(&key);
    }
}

async fn reconcile(context: &Context, key: &Key) -> Result<Option<Duration>, ReconcileError> {
    match key {
        Key::Tenant { namespace, name } => tenant::reconcile(context, namespace, name).await,
        Key::Pool(name) => pool::reconcile(context, name).await,
        Key::Class(name) => tenant_class::reconcile(context, name).await,
        Key::Fleet => nodes::executor::reconcile(context).await,
        Key::SharedNodes => nodes::shared::reconcile(context).await,
    }
}
