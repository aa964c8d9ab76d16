//! The engine: the queue, and the only place that writes. It knows no kind; what should be is said by `kinds`.
//!
//! ```text
//!  watches ──► stores ──► queue of keys ──► step(key) ──► writes ──► stores
//!  (one a side     │                         │
//!   and kind)      └── dependents ───────────┘ reads both stores, decides, acts
//! ```
//!
//! A step reads everything from the stores, never from an event, so it may run at any time and any number of times.
//! No two steps of one key run at once; what a step writes is in the store before the next one reads it. A key whose
//! step fails comes again later and later, and holds up nobody else. Nothing runs before both sides are listed.

pub mod api;
mod decide;
mod down;
mod events;
mod nodes;
mod queued;
mod recorder;
pub(crate) mod reserve;
mod tokens;
mod views;
mod watches;

use crate::metrics::{KindLabels, Metrics, StepLabels};
use api::{Api, CallError};
use berth_runtime::queue::{Queue, Taken};
use berth_sync_rules::{
    kinds::{self, Flow},
    resource::{Key, KindId, Name, Side},
    store::Stored,
    world::World,
};
use queued::Queued;
use recorder::{Level, Recorder};
use serde_json::Value;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::{sync::Notify, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// Steps that run at a time in each lane. Each waits for an API server most of its life; each needs a connection.
const CONCURRENCY: [usize; 3] = [32, 8, 2];
/// Time between full scans of both sides.
const RESYNC: Duration = Duration::from_mins(5);
/// First and longest wait after failures.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_mins(1));
/// Longest wait while an API server does not answer, or fails: what it missed must not wait for long once it is back.
const UNAVAILABLE: Duration = Duration::from_secs(15);
/// After so many failures in a row, half a minute at least, the log tells of it, and again after as many more.
const PERSISTENT: u32 = 10;

/// Keys wait in three queues, so that a burst of pods does not delay the tokens of those that are placed already, and
/// Events take only what the rest leaves.
const fn lane(kind: KindId) -> usize {
    match kind {
        KindId::PodToken => 1,
        KindId::Event => 2,
        _ => 0,
    }
}

/// The engine of one tenant.
pub struct Engine {
    world: World,
    tenant: Api,
    host: Api,
    /// One queue for each [`lane`].
    queues: [Queue<Queued>; 3],
    recorder: Recorder,
    metrics: Metrics,
    /// Failures in a row.
    failures: Mutex<HashMap<Key, u32>>,
    /// Versions (tenant, host) that were found to agree, for kinds whose content is not watched.
    agreed: Mutex<HashMap<Key, (u64, u64)>>,
    /// Host objects that are ahead of the tenant's.
    holds: reserve::Holds,
    /// Wakes the watches of host objects that wait for the first of their kind.
    demand: HashMap<KindId, Notify>,
    /// Some kind went off or on.
    availability: Notify,
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Done {
    /// For metrics and logs.
    result: &'static str,
    /// When to look again, if not when something changes.
    again: Option<Duration>,
}

impl Done {
    const fn new(result: &'static str) -> Self {
        Self { result, again: None }
    }

    const fn again(result: &'static str, after: Duration) -> Self {
        Self {
            result,
            again: Some(after),
        }
    }
}

impl Engine {
    /// An engine that has not started.
    pub fn new(world: World, tenant: Api, host: Api, metrics: Metrics) -> Arc<Self> {
        let demand = world.kinds.iter().map(|id| (*id, Notify::new())).collect();
        Arc::new(Self {
            demand,
            availability: Notify::new(),
            world,
            recorder: Recorder::new(tenant.clone(), metrics.clone()),
            tenant,
            host,
            queues: Default::default(),
            metrics,
            failures: Mutex::default(),
            agreed: Mutex::default(),
            holds: reserve::Holds::default(),
        })
    }

    /// What is known of both sides.
    pub(crate) fn world(&self) -> &World {
        &self.world
    }

    /// Where everything is counted.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Runs until `stop`. Calls `ready` once both sides are listed, and again when kinds went off or on, with those that
    /// are off.
    pub async fn run(self: Arc<Self>, stop: CancellationToken, mut ready: impl FnMut(&[String]) + Send) {
        let mut tasks = JoinSet::new();
        for id in self.world.kinds.iter().copied() {
            for side in [Side::Tenant, Side::Host] {
                tasks.spawn(Arc::clone(&self).watch(side, id));
            }
        }
        tokio::select! { () = stop.cancelled() => return, () = self.listed() => {} }
        let mut without = self.without();
        ready(&without);
        tasks.spawn(Arc::clone(&self).resync());
        tasks.spawn(Arc::clone(&self).renew_leases());
        for (queue, concurrency) in self.queues.iter().zip(CONCURRENCY) {
            tasks.spawn(Arc::clone(&self).run_lane(queue.clone(), concurrency));
        }
        loop {
            tokio::select! { () = stop.cancelled() => return, () = self.availability.notified() => {} }
            let now = self.without();
            if now != without {
                ready(&now);
                without = now;
            }
        }
    }

    async fn run_lane(self: Arc<Self>, queue: Queue<Queued>, concurrency: usize) {
        let mut steps = JoinSet::new();
        loop {
            tokio::select! {
                Some(_) = steps.join_next() => {}
                taken = queue.take(), if steps.len() < concurrency => {
                    steps.spawn(Arc::clone(&self).work(taken));
                }
            }
        }
    }

    /// Puts a key into its queue.
    fn add(&self, key: Key) {
        self.queues[lane(key.kind)].add(Queued(key));
    }

    /// One step of one key, and what follows from its result.
    async fn work(self: Arc<Self>, taken: Taken<Queued>) {
        let Taken {
            key: Queued(key),
            queued_for,
        } = taken;
        let queue = &self.queues[lane(key.kind)];
        self.metrics.queued.observe(queued_for.as_secs_f64());
        let waiting: usize = self.queues.iter().map(Queue::len).sum();
        self.metrics.queue_depth.set(i64::try_from(waiting).unwrap_or(i64::MAX));
        let seen = Instant::now().checked_sub(queued_for).unwrap_or_else(Instant::now);
        let result = self.step(&key, seen).await;
        let kind = key.kind.label();
        match result {
            Ok(done) => {
                lock(&self.failures).remove(&key);
                self.metrics
                    .steps
                    .get_or_create(&StepLabels {
                        kind,
                        result: done.result,
                    })
                    .inc();
                tracing::debug!(%key, result = done.result, "step");
                if let Some(after) = done.again {
                    queue.add_after(Queued(key.clone()), after);
                }
            }
            Err(error) => {
                self.metrics
                    .steps
                    .get_or_create(&StepLabels { kind, result: "error" })
                    .inc();
                let wait = self.wait_after(&key, &error);
                tracing::debug!(%key, %error, ?wait, "step failed");
                if let CallError::Refused(message) = &error {
                    tracing::info!(%key, message, "an API server refused a write");
                    let message = kinds::text::sanitize(&self.world, &key.name, message);
                    self.tell(&key, Level::Warning, "SyncFailed", &message).await;
                }
                queue.add_after(Queued(key.clone()), wait);
            }
        }
        queue.done(&Queued(key));
    }

    async fn step(&self, key: &Key, seen: Instant) -> Result<Done, CallError> {
        if let Some((side, why)) = self.off(key.kind) {
            // Without the one side nothing can be said about what should be on the other.
            if side == Side::Host {
                self.tell(key, Level::Warning, "KindUnavailable", &Self::off_words(key, why))
                    .await;
            }
            return Ok(Done::new("off"));
        }
        match kinds::kind(key.kind).flow {
            Flow::View(view) => views::step(self, (key.kind, view), &key.name, seen).await,
            Flow::Known => Ok(Done::new("nothing")),
            Flow::Down(kind) => down::step(self, (key.kind, kind), &key.name, seen).await,
            Flow::Tokens => tokens::step(self, &key.name).await,
            Flow::Nodes => nodes::step(self, &key.name, seen).await,
            Flow::Events => events::step(self, &key.name).await,
        }
    }

    /// How long a failed key waits: longer each time, and differently for each key.
    fn wait_after(&self, key: &Key, error: &CallError) -> Duration {
        let mut failures = lock(&self.failures);
        let count = failures.entry(key.clone()).or_default();
        *count = count.saturating_add(1);
        if count.is_multiple_of(PERSISTENT) {
            tracing::warn!(%key, %error, "a step fails again and again");
        }
        let wait = BACKOFF.0.saturating_mul(1 << (*count - 1).min(11)).min(BACKOFF.1);
        let wait = match error {
            CallError::Busy(at_least) => wait.max(*at_least),
            CallError::Unavailable(_) => wait.min(UNAVAILABLE),
            _ => wait,
        };
        wait + wait.mul_f64(jitter(key))
    }

    /// Keeps what a write returned, and looks at what depends on it.
    fn remember(&self, side: Side, id: KindId, name: &Name, mut object: Value) {
        let kind = kinds::kind(id);
        let spec = match side {
            Side::Tenant => kind.tenant,
            Side::Host => kind.host.map(|(_, spec)| spec),
        };
        if let Some(spec) = spec {
            (spec.trim)(&mut object);
            self.world
                .stores
                .of(side, id)
                .written(name.clone(), Stored::new(&object));
            self.add_dependents(side, id, name);
        }
    }

    fn add_dependents(&self, side: Side, id: KindId, name: &Name) {
        for key in self.world.dependents(side, id, name) {
            if matches!(kinds::kind(key.kind).flow, Flow::View(_)) {
                self.need(key.kind);
            }
            self.add(key);
        }
    }

    /// Tells the tenant something about one of its objects.
    async fn tell(&self, key: &Key, level: Level, reason: &'static str, message: &str) {
        if let Some(object) = self.world.stores.tenant(key.kind).get(&key.name) {
            self.recorder.record(key, &object.uid, level, reason, message).await;
        }
    }

    /// Scans both sides from time to time, in case something was missed. Nothing should be.
    async fn resync(self: Arc<Self>) {
        loop {
            tokio::time::sleep(RESYNC).await;
            for id in self.world.kinds.iter().copied() {
                for name in self.world.stores.names(id) {
                    if self.is_orphan(id, &name) {
                        tracing::warn!(kind = id.label(), %name, "found a host object without origin");
                        self.metrics
                            .orphans
                            .get_or_create(&KindLabels { kind: id.label() })
                            .inc();
                    }
                    self.add(id.key(name));
                }
            }
        }
    }

    fn is_orphan(&self, id: KindId, name: &Name) -> bool {
        let stores = &self.world.stores;
        let settled = stores
            .host(id)
            .get(name)
            .is_some_and(|host| host.deletion.is_none() && host.reserved_at.is_none());
        let origin = match kinds::kind(id).flow {
            Flow::Tokens => stores.host(KindId::Pod).contains(name) || stores.tenant(KindId::Pod).contains(name),
            Flow::Down(_) => self.off(id).is_some() || stores.tenant(id).contains(name),
            Flow::Nodes | Flow::Events | Flow::View(_) | Flow::Known => true,
        };
        settled && !origin
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A fraction between 0 and 0.25 that differs between keys.
fn jitter(key: &Key) -> f64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    #[allow(clippy::cast_precision_loss)] // a number below 256
    let fraction = (hasher.finish() & 0xff) as f64 / 1024.0;
    fraction
}
