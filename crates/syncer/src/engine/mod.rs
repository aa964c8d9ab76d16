//! The engine: the queues, and the only place that writes. It has no code for single kinds: `kinds` of
//! `berth-sync-rules` say what should exist, and each kind declares its queue, whether it is essential and when the
//! host is watched.
//!
//! ```text
//!  watches ──► stores ──► queues of keys ──► reconcile(key) ──► writes ──► stores
//!  (one a side     │                          │
//!   and kind)      └── dependents ────────────┘ reads both stores, decides, acts
//! ```
//!
//! Reconciling reads everything from the stores, never from an event, so it may run at any time and any number of
//! times. A key is never reconciled twice at once; what is written is in the store before the key is reconciled again.
//! A key that fails is retried with a growing delay, and delays no other. Nothing runs before both sides are listed,
//! but for kinds that the tenant serves by definitions of its own: see [`watches`].
//!
//! | modules | what is in them |
//! |---|---|
//! | `watches`, `own_writes`, `followers`, `group_members`, `resync` | which keys come into the queues |
//! | `queues`, `queued_key`, `slow_queue`, `tenant_waits` | which key is next |
//! | `work`, `outcome` | the reconciliation of a key, and when there is another one |
//! | `to_host`, `decide`, `create`, `update`, `delete`, `dropped`, `contents`, `status_sync`, `removal` | objects that are synced to the host |
//! | `reserve`, `pending` | host objects that are ahead of the tenant's |
//! | `strays` | host objects that the syncer has not made, beside those that it has |
//! | `host_first`, `host_answers`, `withdraw`, `close_ending`, `closing_room`, `endings` | what ends on the host whatever the tenant does |
//! | `mirror`, `nodes`, `host_events` | objects that come from the host |
//! | `tokens`, `certificates` | the Secret with the tokens and certificates of a pod |
//! | `admit`, `window`, `room_waits`, `waiting_room`, `device_room`, `user_waits`, `user_places`, `places`, `schedule` | which pods may be on the host |
//! | `device_claims`, `gang_claims`, `claims_without_volume`, `controller_requests`, `request_grants` | claims, and requests of the host's controllers |
//! | `turns`, `turns_of_keys`, `host_bytes`, `quota`, `endpoint_changes` | how much the tenant may write to the host |
//! | `first_comparison`, `unenforced`, `recorder` | what is reported |
//! | `api`, `call_error` | calls to API servers |

mod admit;
pub mod api;
mod call_error;
mod certificates;
mod claims_without_volume;
mod close_ending;
mod closing;
mod closing_room;
mod contents;
mod controller_requests;
mod create;
mod decide;
mod delete;
mod device_claims;
mod device_room;
mod dropped;
mod endings;
pub(crate) mod endpoint_changes;
mod first_comparison;
mod followers;
mod gang_claims;
mod group_members;
mod host_answers;
mod host_bytes;
mod host_events;
mod host_first;
mod mirror;
mod nodes;
mod outcome;
mod own_writes;
mod pending;
mod places;
mod queued_key;
mod queues;
mod quota;
mod recorder;
mod refusals;
mod removal;
mod request_grants;
pub(crate) mod reserve;
mod resync;
mod room_waits;
mod schedule;
#[cfg(test)]
mod scripted;
mod slow_queue;
mod status_sync;
mod strays;
mod tenant_waits;
#[cfg(test)]
pub(crate) mod test_engine;
#[cfg(test)]
mod test_pods;
#[cfg(test)]
mod test_requests;
mod to_host;
mod tokens;
mod turns;
mod turns_of_keys;
mod unenforced;
mod update;
mod user_places;
mod user_waits;
mod waiting_room;
mod watches;
mod window;
mod withdraw;
mod work;

pub use watches::Lists;

use crate::metrics::Metrics;
use api::{Api, CallError};
use berth_runtime::{extension_answers, locks::lock, queue::Queue};
use berth_sync_rules::{
    kinds::pod::gang,
    model::{
        Cache, Direction, KindId,
        resource::{Key, Name, Side},
    },
};
use kube::Client;
use outcome::Outcome;
use queued_key::QueuedKey;
use queues::PRIORITIES;
use recorder::{Level, Recorder, Subject};
use slow_queue::SlowQueue;
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio::{
    sync::{Notify, Semaphore},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// Time between two looks for objects to pack.
const PACK: Duration = Duration::from_secs(1);
/// Time between two looks at what cannot be enforced: it changes with what is on the host as well.
const LOOK: Duration = Duration::from_secs(5);
/// Reason of the Event and of the condition of objects beyond a limit of the tenant.
const QUOTA_EXCEEDED: &str = "QuotaExceeded";

/// Result of a reconciliation of an object that is denied.
const DENIED: &str = "denied";
/// Result of a reconciliation that has to be done again, because an object changed meanwhile.
const OUTDATED: &str = "outdated";

/// The engine of one tenant.
pub struct Engine {
    cache: Cache,
    tenant: Api,
    host: Api,
    /// The tenant's API server, for kinds that the tenant may serve by servers of its own.
    extensions: Client,
    /// A queue for each of [`PRIORITIES`].
    queues: [Queue<QueuedKey>; 3],
    /// A second one for each, of keys that were taken from the first, are slow, and have something to ask the tenant's API server.
    slow_queues: [SlowQueue; 3],
    /// Keys for which the tenant's API server takes long.
    slow_keys: tenant_waits::SlowKeys,
    recorder: Recorder,
    metrics: Metrics,
    /// Keys that have failed since they last succeeded.
    failures: Mutex<HashMap<Key, work::Failures>>,
    /// Kinds of groups of pods that start together.
    groups: Vec<KindId>,
    /// How many pods of each group must start together.
    group_sizes: Mutex<HashMap<Key, u64>>,
    /// Pods that name groups.
    group_members: Mutex<group_members::GroupMembers>,
    /// Keys whose objects have to be compared as a whole.
    to_compare: Mutex<HashSet<Key>>,
    /// Room for contents that are read.
    contents: contents::ContentRoom,
    /// Keys of objects that the host has had since before the start and that were not compared yet; none while the syncer starts.
    uncompared: Mutex<first_comparison::Uncompared>,
    /// Versions (tenant, host) that were found to agree, for kinds whose content is not watched.
    synced_versions: Mutex<HashMap<Key, (u64, u64)>>,
    /// Of changes that wait, and of host objects that are being deleted: the hash of what the host object should be, or of what decides how far it is
    /// isolated, and the version of the host object that has nothing which the change takes away.
    narrowed: Mutex<HashMap<Key, (String, u64)>>,
    /// Whether host objects have fields which somebody else has set, as far as that was found out since the start.
    foreign_fields: Mutex<HashMap<Key, bool>>,
    /// Parts of host objects that the host has refused.
    refusals: refusals::Refusals,
    /// Host objects that are about to be gone.
    endings: endings::Endings,
    /// How many bytes of each host object the syncer has written that can change.
    applied_bytes: Mutex<HashMap<Key, u64>>,
    /// Bytes that are being written to the host and are not in the stores yet.
    bytes_in_flight: Mutex<u64>,
    /// Host objects that are ahead of the tenant's.
    pending: pending::PendingReservations,
    /// Which pods may be created now.
    windows: Mutex<window::SchedulingWindows>,
    /// One of them rests, and must be looked after when the rest is over.
    rest_begins: Notify,
    /// Which pods may be on the host without a node.
    waiting_room: Mutex<waiting_room::WaitingRoom>,
    /// The same of pods for which the host's scheduler allocates devices.
    device_room: Mutex<waiting_room::WaitingRoom>,
    /// Which pods of users with limits may wait on the host.
    user_places: Mutex<user_places::UserPlaces>,
    /// The schedule for which pods were reconciled last.
    schedule_phase: Mutex<schedule::AppliedPhase>,
    /// When which object may be written to the host.
    turns: turns::Turns,
    /// Claims of devices that are made for pods on the host.
    device_claims: Mutex<device_claims::DeviceClaims>,
    /// Kinds of which the tenant has as many objects as it may have.
    refused_kinds: quota::RefusedKinds,
    /// What decides about each Node which pods may run on it, as hashes.
    node_placements: Mutex<HashMap<Name, String>>,
    /// Pods that follow Nodes and trust bundles.
    followers: Mutex<followers::Followers>,
    /// Certificates that pods wait for.
    certificates: Mutex<certificates::Requests>,
    /// Turns to make keys for certificates.
    key_turns: Semaphore,
    /// Host objects that somebody else has made.
    strays: strays::Strays,
    /// Since when Secrets of pods have no host pod.
    orphaned_secrets: Mutex<HashMap<Name, tokio::time::Instant>>,
    /// Wakes the watches of host objects that wait for the first of their kind.
    demand: HashMap<KindId, Notify>,
    /// Some kind became available or unavailable.
    availability: Notify,
}

impl Engine {
    /// An engine that has not started.
    pub fn new(cache: Cache, tenant: Api, host: Api, metrics: Metrics) -> Arc<Self> {
        let demand = cache.kinds.iter().map(|id| (*id, Notify::new())).collect();
        Arc::new(Self {
            windows: admit::new_windows(&cache),
            rest_begins: Notify::new(),
            waiting_room: room_waits::new_waiting_room(&cache),
            device_room: device_room::new_device_room(&cache),
            user_places: user_waits::new_user_places(&cache),
            groups: gang::groups(&cache),
            group_sizes: Mutex::default(),
            group_members: Mutex::default(),
            demand,
            availability: Notify::new(),
            turns: turns::Turns::new(&cache.tenant.host_limits),
            device_claims: Mutex::new(device_claims::DeviceClaims::new(
                cache.tenant.host_limits.resource_claims,
            )),
            cache,
            recorder: Recorder::new(tenant.clone(), metrics.clone()),
            extensions: extension_answers::limited(tenant.client()),
            tenant,
            host,
            queues: Default::default(),
            slow_queues: Default::default(),
            slow_keys: tenant_waits::SlowKeys::default(),
            metrics,
            failures: Mutex::default(),
            to_compare: Mutex::default(),
            contents: contents::ContentRoom::default(),
            uncompared: Mutex::default(),
            synced_versions: Mutex::default(),
            narrowed: Mutex::default(),
            foreign_fields: Mutex::default(),
            refusals: refusals::Refusals::default(),
            endings: endings::Endings::default(),
            applied_bytes: Mutex::default(),
            pending: pending::PendingReservations::default(),
            bytes_in_flight: Mutex::default(),
            schedule_phase: Mutex::default(),
            refused_kinds: quota::RefusedKinds::default(),
            node_placements: Mutex::default(),
            followers: Mutex::default(),
            certificates: Mutex::default(),
            key_turns: Semaphore::new(certificates::KEYS_AT_A_TIME),
            strays: strays::Strays::default(),
            orphaned_secrets: Mutex::default(),
        })
    }

    /// What is known of both sides.
    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Where everything is counted.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Runs until `stop`. Calls `report` once both sides are listed, and again when kinds become available or
    /// unavailable; and before that if the lists take long.
    pub async fn run(self: Arc<Self>, stop: CancellationToken, mut report: impl FnMut(Lists<'_>) + Send) {
        let mut tasks = JoinSet::new();
        for id in self.cache.kinds.iter().copied() {
            for side in [Side::Tenant, Side::Host] {
                tasks.spawn(Arc::clone(&self).watch(side, id));
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = self.listed() => {}
            () = self.report_missing(|missing: &[String]| report(Lists::Missing(missing))) => {}
        }
        self.restore_windows();
        self.restore_user_places();
        self.restore_waiting_room();
        tokio::select! { () = stop.cancelled() => return, () = self.begin_with_nodes() => {} }
        // Control reads them as soon as it knows that the syncer is ready.
        self.publish_host_bytes();
        self.publish_unenforced();
        self.begin_first_comparison();
        let mut without = self.unavailable_kinds();
        report(Lists::Complete { without: &without });
        tasks.spawn(Arc::clone(&self).resync());
        tasks.spawn(Arc::clone(&self).renew_leases());
        tasks.spawn(Arc::clone(&self).follow_host());
        tasks.spawn(Arc::clone(&self).pack());
        tasks.spawn(Arc::clone(&self).check_windows());
        tasks.spawn(Arc::clone(&self).charge_claims_that_wait());
        tasks.spawn(Arc::clone(&self).delete_strays());
        for kind in turns::LineKind::ALL {
            tasks.spawn(Arc::clone(&self).take_turns(kind));
        }
        for priority in PRIORITIES {
            tasks.spawn(Arc::clone(&self).run_queue(priority));
        }
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.availability.notified() => {}
                () = tokio::time::sleep(LOOK) => {}
            }
            self.publish_unenforced();
            let now = self.unavailable_kinds();
            if now != without {
                report(Lists::Complete { without: &now });
                without = now;
            }
        }
    }

    /// Puts a key into its queue.
    fn add(&self, key: Key) {
        self.compare_later(&key);
        self.add_for_status(key);
    }

    /// Puts every key of a kind into its queue.
    fn add_all_of(&self, id: KindId) {
        for name in self.cache.stores.names(id) {
            self.add(id.key(name));
        }
    }

    /// Puts every key into its queue.
    fn add_all(&self) {
        for id in self.cache.kinds.iter().copied() {
            self.add_all_of(id);
        }
    }

    /// Puts a key into its queue because of the status of the host object: unless there is another reason as well, the rest is not
    /// compared.
    fn add_for_status(&self, key: Key) {
        self.queue_of(key.kind).add(QueuedKey(key));
    }

    /// Remembers that the next reconciliation of a key has to compare both objects as a whole.
    fn compare_later(&self, key: &Key) {
        lock(&self.to_compare).insert(key.clone());
    }

    async fn reconcile(&self, key: &Key, observed_at: Instant, compares: bool) -> Result<Outcome, CallError> {
        if let Some((side, why)) = self.find_unavailable_side(key.kind) {
            // Without one side it is not known what should exist on the other.
            if side == Side::Host {
                self.record_event(
                    key,
                    Level::Warning,
                    "KindUnavailable",
                    &Self::unavailable_message(key, why),
                )
                .await;
            }
            return Ok(Outcome::new(first_comparison::UNAVAILABLE));
        }
        match self.cache.kind(key.kind).direction {
            Direction::Mirror(view) => mirror::reconcile(self, (key.kind, view), &key.name, observed_at).await,
            Direction::ReadOnly => Ok(Outcome::new("nothing")),
            Direction::ToHost(kind) => {
                to_host::reconcile(self, (key.kind, kind), &key.name, observed_at, compares).await
            }
            Direction::Tokens => tokens::reconcile(self, &key.name).await,
            Direction::Nodes => nodes::reconcile(self, &key.name, observed_at).await,
            Direction::Schedule => Ok(schedule::reconcile(self)),
            Direction::Events => host_events::reconcile(self, &key.name).await,
        }
    }

    fn add_dependents(&self, side: Side, id: KindId, name: &Name) {
        if id == KindId::Pod {
            if side == Side::Tenant {
                // First: what follows reads the sizes of its groups.
                self.update_group_members(name);
            }
            self.update_windows(side, name);
            self.update_user_places(side, name);
            self.update_device_claims(name);
            self.update_waiting_room(side, name);
        }
        if side == Side::Tenant {
            self.compare_members(id, name);
        }
        for key in self.cache.update_dependents(side, id, name) {
            if matches!(self.cache.kind(key.kind).direction, Direction::Mirror(_)) {
                self.start_host_watch(key.kind);
            }
            self.add(key);
        }
        if id == KindId::ClusterTrustBundle {
            self.follow_changes();
        }
    }

    /// Records an Event about one of the tenant's objects.
    async fn record_event(&self, key: &Key, level: Level, reason: &'static str, message: &str) {
        if let Some(object) = self.cache.stores.tenant(key.kind).get(&key.name) {
            let Some(resource) = self.cache.kind(key.kind).resource() else {
                return;
            };
            let about = Subject {
                key,
                resource,
                uid: &object.uid,
            };
            self.recorder.record(about, level, reason, message).await;
        }
    }

    /// Packs objects that have not changed for some time, publishes how much there is, and does what was too early before.
    async fn pack(self: Arc<Self>) {
        loop {
            tokio::time::sleep(PACK).await;
            self.cache.stores.pack_old();
            self.publish_host_bytes();
            self.open_services();
            self.follow_changes();
        }
    }
}
