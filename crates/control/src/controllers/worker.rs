//! The worker: it takes keys from the one queue and reconciles what these name, several at the same time.
//!
//! One queue for all kinds instead of a `kube::runtime::Controller` each: namespaces of tenants take turns, keys of the whole fleet
//! have no object, and what a deleted object left is cleaned up as well. Reconciles that wait for a tenant have no slot, so that
//! tenants whose API servers do not answer delay no others.

use super::{
    host_node_pool::{self, HostNodePoolContext},
    nodes::{self, NodesContext},
    quotas::{self, QuotasContext},
    schedule_policy::{self, SchedulePolicyContext},
    shared_nodes::{self, SharedNodesContext},
    slots::{Slot, Slots},
    snapshots::{self, SnapshotsContext},
    tenant::{self, TenantContext, TenantError, Tenants},
    tenant_class::{self, TenantClassContext, TenantClassError},
    usage::{self, UsageContext},
    user_quotas::{self, UserQuotasContext},
};
use crate::{
    error::ReconcileError,
    key::Key,
    metrics::{Metrics, ReconcileLabels, SleepStateLabels, TenantLabels},
    stores::Stores,
};
use berth_api::{SleepState, TenantCluster, conditions::SYNCER_READY};
use berth_runtime::{
    locks::lock,
    queue::{Queue, Taken},
};
use futures::FutureExt;
use kube::runtime::reflector::ObjectRef;
use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

/// Reconciles that may run at once, without those that wait for a tenant. More would only queue up at the host's API server.
const SLOTS: usize = 16;
/// Time after which a reconcile is given up and tried again. Longer than it may wait for its tenant: see [`super::slots`].
const RECONCILE_TIMEOUT: Duration = Duration::from_secs(100);
/// Time that reconciles have to end when control stops. The next control does what is left.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// First and longest pause before a failing key is tried again.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// All controllers with their contexts, and the queue that feeds them.
pub struct Controllers {
    /// Objects that wait to be reconciled.
    pub queue: Queue<Key>,
    /// Views of the host.
    pub stores: Stores,
    /// Counters.
    pub metrics: Metrics,
    /// Of `TenantCluster`s.
    pub tenant: TenantContext,
    /// Of `TenantClass`es.
    pub tenant_class: TenantClassContext,
    /// Of `SchedulePolicy`s.
    pub schedule_policy: SchedulePolicyContext,
    /// Of quotas.
    pub quotas: QuotasContext,
    /// Of users' quotas.
    pub user_quotas: UserQuotasContext,
    /// Of nodes.
    pub nodes: NodesContext,
    /// Of nodes that several tenants use.
    pub shared_nodes: SharedNodesContext,
    /// Of `HostNodePool`s.
    pub host_node_pool: HostNodePoolContext,
    /// Of what tenants use.
    pub usage: UsageContext,
    /// Of snapshots of what tenants store.
    pub snapshots: SnapshotsContext,
}

/// Why a reconcile failed.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// Of a `TenantCluster`.
    #[error(transparent)]
    Tenant(#[from] TenantError),
    /// Of a `TenantClass`.
    #[error(transparent)]
    TenantClass(#[from] TenantClassError),
    /// Of nodes, pools, schedules, quotas, usage or snapshots.
    #[error(transparent)]
    Nodes(#[from] ReconcileError),
    /// It took too long.
    #[error("the reconcile took longer than {} s", RECONCILE_TIMEOUT.as_secs())]
    Timeout,
    /// It panicked: a bug. The message is in the log.
    #[error("the reconcile panicked: please report this with the log above")]
    Panicked,
}

impl ControllerError {
    /// The result in metrics, one of few values.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Tenant(error) => error.reason(),
            Self::TenantClass(error) => error.reason(),
            Self::Nodes(error) => error.category(),
            Self::Timeout => "Timeout",
            Self::Panicked => "Panicked",
        }
    }
}

impl Controllers {
    /// Works until `stop`. `tasks` are the watches.
    pub async fn run(self, mut tasks: JoinSet<()>, stop: CancellationToken) {
        usage::keep_proofs(&self.usage);
        let controllers = Arc::new(self);
        tasks.spawn(work(Arc::clone(&controllers), stop.clone()));
        stop.cancelled().await;
        while tasks.join_next().await.is_some() {}
        usage::save(&controllers.usage).await;
    }

    async fn reconcile(&self, key: &Key, slot: &Arc<Slot>) -> Result<Option<Duration>, ControllerError> {
        Ok(match key {
            Key::Tenant { namespace, name } => tenant::reconcile(&self.tenant, namespace, name, slot).await?,
            Key::Class(name) => tenant_class::reconcile(&self.tenant_class, name).await?,
            Key::SchedulePolicy(name) => schedule_policy::reconcile(&self.schedule_policy, name).await?,
            Key::Pool(name) => host_node_pool::reconcile(&self.host_node_pool, name).await?,
            Key::Quotas => quotas::reconcile(&self.quotas).await?,
            Key::UserQuotas => user_quotas::reconcile(&self.user_quotas).await?,
            Key::Fleet => nodes::reconcile(&self.nodes).await?,
            Key::SharedNodes => shared_nodes::reconcile(&self.shared_nodes).await?,
            Key::Usage => usage::reconcile(&self.usage).await?,
            Key::Snapshots => snapshots::reconcile(&self.snapshots).await?,
        })
    }
}

/// How often each key has failed in a row.
#[derive(Default)]
struct Failures(Mutex<HashMap<Key, u32>>);

impl Failures {
    fn clear(&self, key: &Key) {
        lock(&self.0).remove(key);
    }

    /// Counts a failure; the pause before the next try doubles each time.
    fn count(&self, key: &Key) -> Duration {
        let mut failures = lock(&self.0);
        let count = failures.entry(key.clone()).or_default();
        let pause = BACKOFF.0.saturating_mul(1 << (*count).min(16)).min(BACKOFF.1);
        *count += 1;
        pause
    }
}

/// Reconciles each key as soon as there is a slot.
async fn work(controllers: Arc<Controllers>, stop: CancellationToken) {
    let slots = Slots::new(SLOTS);
    let failures = Arc::new(Failures::default());
    let mut running = JoinSet::new();
    loop {
        // Frees the memory of those that have ended.
        while running.try_join_next().is_some() {}
        let next = async {
            let slot = slots.take().await;
            (slot, controllers.queue.take().await)
        };
        let (slot, taken) = tokio::select! {
            () = stop.cancelled() => break,
            next = next => next,
        };
        running.spawn(process(Arc::clone(&controllers), Arc::clone(&failures), slot, taken));
    }
    let ended = async { while running.join_next().await.is_some() {} };
    if tokio::time::timeout(STOP_TIMEOUT, ended).await.is_err() {
        running.shutdown().await;
    }
}

/// Runs a reconcile that may neither take for ever nor end all others: a key that is not given back to the queue is never reconciled again.
async fn limit<T>(reconcile: impl Future<Output = Result<T, ControllerError>>) -> Result<T, ControllerError> {
    // What a reconcile shares with others is in stores and locks, which others can use after a panic.
    let caught = AssertUnwindSafe(reconcile).catch_unwind();
    match tokio::time::timeout(RECONCILE_TIMEOUT, caught).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(ControllerError::Panicked),
        Err(_) => Err(ControllerError::Timeout),
    }
}

/// Reconciles one key and gives it back to the queue.
async fn process(controllers: Arc<Controllers>, failures: Arc<Failures>, slot: Slot, taken: Taken<Key>) {
    let Controllers {
        queue, metrics, stores, ..
    } = controllers.as_ref();
    let Taken { key, queued_for } = taken;
    let size = |length: usize| i64::try_from(length).unwrap_or(i64::MAX);
    metrics.queue.record_taken(queued_for, queue.len());
    metrics.tenants.set(size(stores.tenants.len()));
    let started = Instant::now();
    let slot = Arc::new(slot);
    let outcome = limit(Box::pin(controllers.reconcile(&key, &slot))).await;
    metrics.reconcile_seconds.observe(started.elapsed().as_secs_f64());
    if let Key::Tenant { namespace, name } = &key {
        record_usage(metrics, stores, namespace, name);
        record_syncer(metrics, stores, &controllers.tenant.tenants, (namespace, name));
        record_audit_errors(metrics, stores, &controllers.tenant.tenants, (namespace, name));
    }
    if key == Key::Fleet {
        record_sleep(metrics, stores);
        metrics.encryption.record(&stores.tenants.state());
    }
    let result = match outcome {
        Ok(again) => {
            failures.clear(&key);
            if let Some(pause) = again {
                queue.add_after(key.clone(), pause);
            }
            "ok"
        }
        Err(error) => {
            let pause = failures.count(&key);
            tracing::warn!(?key, %error, retry_in = ?pause, "reconcile failed");
            queue.add_after(key.clone(), pause);
            error.reason()
        }
    };
    let kind = kind_label(&key);
    let labels = ReconcileLabels { kind, result };
    metrics.reconciles.get_or_create(&labels).inc();
    queue.done(&key);
}

/// Sets what a tenant uses of the datastore and of the host, or forgets a tenant that is gone.
fn record_usage(metrics: &Metrics, stores: &Stores, namespace: &str, name: &str) {
    let labels = TenantLabels {
        tenant_namespace: namespace.to_owned(),
        tenant: name.to_owned(),
    };
    let cluster = stores.tenants.get(&ObjectRef::new(name).within(namespace));
    let status = cluster.as_ref().and_then(|cluster| cluster.status.as_ref());
    let datastore = status.and_then(|status| Some(status.datastore?.percent));
    let host = status.and_then(|status| Some(status.host_usage?.percent));
    for (family, percent) in [(&metrics.datastore_used, datastore), (&metrics.host_used, host)] {
        match percent {
            Some(percent) => {
                family.get_or_create(&labels).set(percent.into());
            }
            None => {
                family.remove(&labels);
            }
        }
    }
}

/// Sets what is known of the syncer of a tenant that has been started and does not sleep, or forgets one that is gone or sleeps. Of one that sleeps, sets whether
/// its class was enforced before.
fn record_syncer(metrics: &Metrics, stores: &Stores, tenants: &Tenants, (namespace, name): (&str, &str)) {
    let labels = TenantLabels {
        tenant_namespace: namespace.to_owned(),
        tenant: name.to_owned(),
    };
    let cluster = stores.tenants.get(&ObjectRef::new(name).within(namespace));
    let enforced = cluster.as_ref().filter(|cluster| should_be_enforced(cluster));
    let report = enforced.and_then(|cluster| {
        let uid = cluster.metadata.uid.as_deref()?;
        Some(tenants.syncer(uid).unwrap_or_default())
    });
    metrics.syncers.record(&labels, report);
    let asleep = cluster.filter(|cluster| is_asleep(cluster));
    let uid = asleep.and_then(|cluster| cluster.metadata.uid.clone());
    metrics
        .syncers
        .record_asleep(&labels, uid.map(|uid| tenants.is_outdated(&uid)));
}

/// Counts the events that API servers of a tenant could not write into their audit log since the last reconcile, or forgets a tenant that is gone.
fn record_audit_errors(metrics: &Metrics, stores: &Stores, tenants: &Tenants, (namespace, name): (&str, &str)) {
    let labels = TenantLabels {
        tenant_namespace: namespace.to_owned(),
        tenant: name.to_owned(),
    };
    let cluster = stores.tenants.get(&ObjectRef::new(name).within(namespace));
    let Some(uid) = cluster.and_then(|cluster| cluster.metadata.uid.clone()) else {
        metrics.audit_errors.remove(&labels);
        return;
    };
    if let Some(new) = tenants.take_audit_errors(&uid) {
        metrics.audit_errors.get_or_create(&labels).inc_by(new);
    }
}

/// Whether a tenant sleeps and is not being deleted.
fn is_asleep(cluster: &TenantCluster) -> bool {
    cluster.metadata.deletion_timestamp.is_none() && cluster.sleep_state().is_asleep()
}

/// Whether a syncer should enforce the class of a tenant now.
fn should_be_enforced(cluster: &TenantCluster) -> bool {
    let mut conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    cluster.metadata.deletion_timestamp.is_none()
        && cluster.sleep_state() != SleepState::Sleeping
        && conditions.any(|condition| condition.type_ == SYNCER_READY)
}

/// Counts the tenants by their state of sleep.
fn record_sleep(metrics: &Metrics, stores: &Stores) {
    let tenants = stores.tenants.state();
    for state in SleepState::ALL {
        let count = tenants.iter().filter(|tenant| tenant.sleep_state() == state).count();
        let labels = SleepStateLabels { state: state.name() };
        let gauge = metrics.sleep.tenants.get_or_create(&labels);
        gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}

/// The kind of a key in metrics.
fn kind_label(key: &Key) -> &'static str {
    match key {
        Key::Tenant { .. } => "tenant",
        Key::Pool(_) => "pool",
        Key::Class(_) => "class",
        Key::SchedulePolicy(_) => "schedule-policy",
        Key::Quotas => "quotas",
        Key::UserQuotas => "user-quotas",
        Key::Fleet => "fleet",
        Key::SharedNodes => "shared-nodes",
        Key::Usage => "usage",
        Key::Snapshots => "snapshots",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::TenantClusterSpec;
    use serde_json::{Value, json};

    #[tokio::test(start_paused = true)]
    async fn a_reconcile_that_panics_or_hangs_is_tried_again() {
        let panics = limit::<()>(async { panic!("a bug") }).await;
        assert_eq!(panics.unwrap_err().reason(), "Panicked");
        assert_eq!(
            limit::<()>(std::future::pending()).await.unwrap_err().reason(),
            "Timeout"
        );
        assert_eq!(limit(async { Ok(7) }).await.unwrap(), 7);
    }

    #[test]
    fn classes_are_to_be_enforced_from_the_first_start_on_and_not_of_tenants_that_sleep_or_end() {
        let cluster = |conditions: &Value, state: &str| {
            let mut cluster = TenantCluster::new("vision", TenantClusterSpec::default());
            let status = json!({"conditions": conditions, "sleep": {"state": state}});
            cluster.status = Some(serde_json::from_value(status).unwrap());
            cluster
        };
        let is_enforced = |conditions: &Value, state: &str| should_be_enforced(&cluster(conditions, state));
        let started = json!([{"type": SYNCER_READY, "status": "False", "reason": "Starting", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        assert!(!is_enforced(&json!([]), "Awake"), "it was never started");
        for (state, expected) in [
            ("Awake", true),
            ("FallingAsleep", true),
            ("Sleeping", false),
            ("Enforcing", true),
            ("Waking", true),
        ] {
            assert_eq!(is_enforced(&started, state), expected, "{state}");
        }
        let mut deleted = cluster(&started, "Awake");
        deleted.metadata.deletion_timestamp = Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        assert!(!should_be_enforced(&deleted), "it is being deleted");
    }

    #[test]
    fn the_pause_doubles_with_each_failure_and_starts_again_after_a_success() {
        let (failures, key) = (Failures::default(), Key::Fleet);
        let pauses: Vec<u128> = (0..10).map(|_| failures.count(&key).as_millis()).collect();
        assert_eq!(pauses[..4], [200, 400, 800, 1600]);
        assert_eq!(pauses[9], 30_000);
        failures.clear(&key);
        assert_eq!(failures.count(&key).as_millis(), 200);
    }
}
