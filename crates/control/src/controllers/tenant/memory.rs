//! What control remembers of each tenant between reconciles. All of it can be read again: losing it costs work,
//! never correctness.

use super::{
    argo_cd::Recorded,
    audit_errors::AuditErrors,
    connection::Connection,
    datastore_usage::UsageMemory,
    enforcement_places::EnforcementPlaces,
    issuer_memory::IssuerMemory,
    listed_projects::ListedProjects,
    manifests::{ManifestMemory, ParsedManifests},
    readable::{LooksWhileAsleep, Readable},
    recorded_kinds::RecordedKinds,
    restore::{RestoreUnderWay, Restores},
    rewriting::Rewriting,
    syncer_absence::SyncerAbsence,
    uids::Uids,
    unused_nodes,
};
use crate::{
    apply::Applier,
    control_plane::{Authorities, LeafStore},
    syncer_report::SyncerReport,
};
use berth_api::TenantCluster;
use berth_planner::{NodeGroupPlan, Tenant as PlannedTenant, UnusedNodes, UnusedNodesByTenant};
use berth_quota::Amounts;
use berth_runtime::locks::lock;
use berth_sleep::activity::ActivityLog;
use kube::{Client, ResourceExt};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{sync::Semaphore, time::Instant};

/// Reconciles in a row that may end before they look at the components. A tenant that falls asleep and is woken at once needs four.
const MOST_EARLY_ENDS: u32 = 5;
/// Pause before all pods of a tenant under deletion are deleted once more, as long as there are more than are looked at. The API server goes through all of
/// them, one after the other, and the reconcile has its slot meanwhile.
const DELETE_PODS_AGAIN: Duration = Duration::from_secs(30);

/// Withdrawn kinds, over all tenants, whose objects are deleted at the same time. Those that never answer must not take all of what the host serves of
/// control's requests at a time.
pub(super) const KIND_DELETIONS: u32 = 16;

/// Turns of the kinds that the classes of tenants list no more, to have their objects deleted.
#[derive(Debug)]
pub(super) struct KindDeletions(pub(super) Semaphore);

impl Default for KindDeletions {
    fn default() -> Self {
        Self(Semaphore::new(KIND_DELETIONS as usize))
    }
}

/// What is remembered of one tenant.
pub struct TenantMemory {
    /// Applies the tenant's objects on the host.
    pub host: Applier,
    /// The one connection to the tenant's API server.
    pub connection: Connection,
    /// Its keys, once loaded.
    pub(super) authorities: Mutex<Option<KnownAuthorities>>,
    /// With which keys everything that it stores was found to be readable, or is being looked at.
    readable: Mutex<Readable>,
    /// How far the rewriting of its objects is.
    pub(super) rewriting: Mutex<Rewriting>,
    /// Which database it has, if the host has a record of that and etcd had that one when it answered last: see `apply::datastore_identity`.
    pub(super) database: Mutex<Option<String>>,
    /// The further kinds in the record of its settings, as this process has written it last.
    pub(super) recorded_kinds: Mutex<Option<RecordedKinds>>,
    /// With which issuers an API server of it has started.
    pub(super) issuers: Mutex<IssuerMemory>,
    /// Its leaf certificates, as they are stored.
    pub leaves: Mutex<Option<LeafStore>>,
    /// What it stores, as far as that was measured.
    pub datastore_usage: Mutex<UsageMemory>,
    /// When its syncer said last how many bytes it has on the host.
    pub(super) host_usage_read_at: Mutex<Option<Instant>>,
    /// What is known of its syncer.
    pub(super) syncer: Mutex<SyncerReport>,
    /// For how long it has not worked.
    syncer_absence: Mutex<SyncerAbsence>,
    /// Since when its syncer is probed and is not ready.
    unready_since: Mutex<Option<Instant>>,
    /// Hash of the rules of its class that its syncer has enforced; none if that is not known.
    enforced_rules: Mutex<Option<String>>,
    /// Whether it sleeps, and its objects on the host may follow earlier rules of its class.
    is_outdated: AtomicBool,
    /// Whether this process has stopped all of its components, and has started none since.
    is_stopped: AtomicBool,
    /// How often it was used, as far as that was counted.
    pub activity: Mutex<ActivityLog>,
    /// Events that its API servers could not write into their audit log.
    pub(super) audit_errors: Mutex<AuditErrors>,
    /// Since when its limits are lower than what is reserved for it.
    pub(super) lowered: Mutex<Option<LoweredLimits>>,
    /// Number of the measurement of its use that its status shows; 0: this process has published none.
    pub(super) published_use: AtomicU64,
    /// How the tenant customised its DNS, as it was read last.
    pub dns: Mutex<Option<BTreeMap<String, String>>>,
    /// What the platform applied in it. Held during a pass.
    pub(super) manifests: tokio::sync::Mutex<ManifestMemory>,
    /// Where its Secret for Argo CD is. Held during a pass.
    pub(super) argo_cd: tokio::sync::Mutex<Recorded>,
    /// Whether no Project named its namespace when it was created.
    pub(super) is_without_project: AtomicBool,
    /// Whether its components have run after everything that they need was applied.
    pub have_components_run: AtomicBool,
    /// Whether it was set back to a snapshot, and none of its components has run since: their Leases are of those that ran when the snapshot was taken.
    pub(super) has_leases_of_snapshot: AtomicBool,
    /// Whether its API servers publish only authorities that they trust, as was seen since its last rotation of credentials.
    pub(super) publishes_trusted_only: AtomicBool,
    /// Reconciles in a row that ended early.
    early_ends: AtomicU32,
}

impl TenantMemory {
    /// With which keys everything that it stores was found to be readable.
    pub(super) fn readable(&self) -> MutexGuard<'_, Readable> {
        lock(&self.readable)
    }

    /// Forgets how far the rewriting of its objects is: they are to be stored otherwise from now on.
    pub(super) fn forget_rewriting(&self) {
        *lock(&self.rewriting) = Rewriting::default();
    }

    /// Whether a reconcile may end before it looks at the components, because something has to be recorded or decided first: not too often in a
    /// row. A team decides how often there is something, and no component would be updated meanwhile. Counts the reconcile.
    pub(super) fn may_end_early(&self) -> bool {
        self.early_ends.fetch_add(1, Ordering::Relaxed) < MOST_EARLY_ENDS
    }

    /// Notes that a reconcile has looked at everything.
    pub(super) fn note_whole_reconcile(&self) {
        self.early_ends.store(0, Ordering::Relaxed);
    }

    /// Forgets whether the tenant's syncer is ready, until it is probed.
    pub(super) fn forget_readiness(&self) {
        lock(&self.syncer).is_ready = false;
    }

    /// Notes whether the tenant's syncer is ready, as a probe says.
    pub(super) fn note_syncer(&self, is_ready: bool) {
        lock(&self.syncer).is_ready = is_ready;
        if is_ready && !self.is_host_silent() {
            self.syncer_absence().note_working(Instant::now());
        } else {
            self.syncer_absence().suspect();
        }
    }

    /// For how long the tenant's syncer has not worked.
    pub(super) fn syncer_absence(&self) -> MutexGuard<'_, SyncerAbsence> {
        lock(&self.syncer_absence)
    }

    /// Whether the host's API server does not answer the tenant's syncer, as that has said last.
    pub(super) fn is_host_silent(&self) -> bool {
        lock(&self.syncer).is_host_silent()
    }

    /// Notes what a probe of the tenant's syncer says. Returns for how long it has not been ready.
    pub(super) fn note_probe(&self, is_ready: bool, now: Instant) -> Duration {
        let mut since = lock(&self.unready_since);
        if is_ready {
            *since = None;
            return Duration::ZERO;
        }
        now.duration_since(*since.get_or_insert(now))
    }

    /// Whether the tenant's syncer has enforced the rules with this hash.
    pub(super) fn follows(&self, rules: &str) -> bool {
        lock(&self.enforced_rules).as_deref() == Some(rules)
    }

    /// Notes that it has.
    pub(super) fn note_enforced(&self, rules: &str) {
        *lock(&self.enforced_rules) = Some(rules.to_owned());
    }

    /// Forgets what the tenant's syncer has enforced, if that is not this: before one with these rules is started. What it did with other rules in
    /// between is not known later.
    pub(super) fn forget_other_rules(&self, rules: &str) {
        let mut enforced = lock(&self.enforced_rules);
        if enforced.as_deref() != Some(rules) {
            *enforced = None;
        }
    }

    /// Notes whether the tenant sleeps and may have objects on the host that follow earlier rules of its class.
    pub(super) fn note_outdated(&self, is_outdated: bool) {
        self.is_outdated.store(is_outdated, Ordering::Relaxed);
    }

    /// What [`TenantMemory::note_outdated`] noted last.
    pub(super) fn is_outdated(&self) -> bool {
        self.is_outdated.load(Ordering::Relaxed)
    }

    /// Notes that its components were stopped, or that some are about to be started. Returns whether that was noted before.
    pub(super) fn note_stopped(&self, is_stopped: bool) -> bool {
        if is_stopped {
            *lock(&self.unready_since) = None;
        }
        self.is_stopped.swap(is_stopped, Ordering::Relaxed) == is_stopped
    }

    /// Whether nothing of it runs, as this process has seen to.
    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Notes what the metrics of the tenant's syncer say.
    pub(super) fn note_syncer_metrics(&self, metrics: &str) {
        lock(&self.syncer).read(metrics);
        if self.is_host_silent() {
            self.syncer_absence().suspect();
        }
    }
}

/// Authorities of a tenant, and what is stored of them.
#[derive(Clone)]
pub(super) struct KnownAuthorities {
    pub(super) loaded: Arc<Authorities>,
    /// The contents of their Secret.
    pub(super) stored: BTreeMap<String, String>,
    /// The version of the Secret with these contents.
    pub(super) version: Option<String>,
    /// When the Secret was there last.
    pub(super) seen_at: Instant,
}

/// Limits that are lower than what is reserved for a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoweredLimits {
    /// What a tenant with these limits reserves.
    pub(super) requested: Amounts,
    /// When a reconcile had enforced them.
    pub(super) since: Instant,
}

/// Memory of all tenants, by UID of their `TenantCluster`.
#[derive(Default)]
pub struct Tenants {
    memory: Mutex<BTreeMap<String, Arc<TenantMemory>>>,
    /// Which TenantClusters had a name.
    pub(super) uids: Uids,
    /// What the planner said last of tenants' node groups.
    groups: Mutex<NodeGroupPlans>,
    /// What it knows of nodes that tenants did not use. None: nothing was planned yet.
    unused: Mutex<Option<UnusedNodesByTenant>>,
    /// Tenants in a pause that others share, for fleets in which they are gone.
    in_shared_pause: Mutex<Vec<PlannedTenant>>,
    /// Tenants under deletion whose pods are gone.
    workloads_gone: Mutex<BTreeSet<String>>,
    /// When all pods of tenants under deletion were deleted last.
    pods_deleted_at: Mutex<BTreeMap<String, Instant>>,
    /// Objects of the ConfigMaps that classes name.
    pub(super) manifests: ParsedManifests,
    /// The last list of Projects.
    pub(super) listed_projects: ListedProjects,
    /// Who of those that sleep is started because its class has changed.
    pub(super) enforcement_places: EnforcementPlaces,
    /// Held while sizes of a tenant's keys are read in etcd.
    pub(super) size_reading: tokio::sync::Mutex<()>,
    /// Held while a page is read there of how a tenant's keys are stored.
    pub(super) head_reading: tokio::sync::Mutex<()>,
    /// When tenants that sleep are looked at for that.
    looks_while_asleep: Mutex<LooksWhileAsleep>,
    /// Of which withdrawn kinds objects are deleted now.
    pub(super) kind_deletions: KindDeletions,
    /// Which tenants are set back to a snapshot.
    restores: Restores,
}

/// What the planner says of node groups, by the tenant's UID and the group's name.
pub type NodeGroupPlans = BTreeMap<String, BTreeMap<String, NodeGroupPlan>>;

impl Tenants {
    /// Memory of one tenant; empty at first.
    pub fn of(&self, uid: &str, host: &Client) -> Arc<TenantMemory> {
        let mut memory = lock(&self.memory);
        Arc::clone(memory.entry(uid.to_owned()).or_insert_with(|| {
            Arc::new(TenantMemory {
                host: Applier::new(host.clone()),
                connection: Connection::default(),
                authorities: Mutex::default(),
                readable: Mutex::default(),
                rewriting: Mutex::default(),
                database: Mutex::default(),
                recorded_kinds: Mutex::default(),
                issuers: Mutex::default(),
                leaves: Mutex::new(None),
                datastore_usage: Mutex::default(),
                host_usage_read_at: Mutex::default(),
                syncer: Mutex::default(),
                syncer_absence: Mutex::default(),
                unready_since: Mutex::default(),
                enforced_rules: Mutex::default(),
                is_outdated: AtomicBool::new(true),
                is_stopped: AtomicBool::new(false),
                activity: Mutex::default(),
                audit_errors: Mutex::default(),
                lowered: Mutex::default(),
                published_use: AtomicU64::new(0),
                dns: Mutex::new(None),
                manifests: tokio::sync::Mutex::default(),
                argo_cd: tokio::sync::Mutex::default(),
                is_without_project: AtomicBool::new(false),
                have_components_run: AtomicBool::new(false),
                has_leases_of_snapshot: AtomicBool::new(false),
                publishes_trusted_only: AtomicBool::new(false),
                early_ends: AtomicU32::new(0),
            })
        }))
    }

    /// A client for the API server of a tenant, if that answers now.
    pub fn client(&self, uid: &str) -> Option<Client> {
        let known = lock(&self.memory).get(uid).map(Arc::clone)?;
        known.connection.client()
    }

    /// What is known of the syncer of a tenant.
    pub fn syncer(&self, uid: &str) -> Option<SyncerReport> {
        let known = lock(&self.memory).get(uid).map(Arc::clone)?;
        let report = *lock(&known.syncer);
        Some(report)
    }

    /// Whether a tenant that sleeps may have objects on the host that follow earlier rules of its class, or that is not known.
    pub fn is_outdated(&self, uid: &str) -> bool {
        let known = lock(&self.memory).get(uid).map(Arc::clone);
        known.is_none_or(|known| known.is_outdated())
    }

    /// Which tenants are set back to a snapshot.
    pub(super) fn restores(&self) -> &Restores {
        &self.restores
    }

    /// The restore of a tenant, if one is under way as far as this process knows.
    pub fn restore_under_way(&self, uid: &str) -> Option<RestoreUnderWay> {
        self.restores.under_way(uid)
    }

    /// Forgets what was known of a tenant, as if this process had just started: all that it stores is another one. Its components have run, as a tenant that
    /// has never run has no snapshot.
    pub(super) fn renew(&self, uid: &str, host: &Client) {
        lock(&self.memory).remove(uid);
        let known = self.of(uid, host);
        known.have_components_run.store(true, Ordering::Relaxed);
        known.has_leases_of_snapshot.store(true, Ordering::Relaxed);
    }

    /// Events that API servers of a tenant could not write into their audit log, and that nobody has taken; none if they write none, or if that is not
    /// known yet.
    pub fn take_audit_errors(&self, uid: &str) -> Option<u64> {
        let known = lock(&self.memory).get(uid).map(Arc::clone)?;
        lock(&known.audit_errors).take()
    }

    /// When tenants that sleep are looked at for how their keys are stored.
    pub(super) fn looks_while_asleep(&self) -> MutexGuard<'_, LooksWhileAsleep> {
        lock(&self.looks_while_asleep)
    }

    /// UIDs of the tenants of which something is remembered.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> Vec<String> {
        lock(&self.memory).keys().cloned().collect()
    }

    /// Forgets a tenant that is gone.
    pub fn forget(&self, uid: &str) {
        self.restores.forget(uid);
        lock(&self.memory).remove(uid);
        lock(&self.groups).remove(uid);
        lock(&self.workloads_gone).remove(uid);
        lock(&self.pods_deleted_at).remove(uid);
    }

    /// Whether all pods of a tenant under deletion have to be deleted once more, if those that were looked at are being deleted.
    pub(super) fn may_have_other_pods(&self, uid: &str, now: Instant) -> bool {
        let deleted_at = lock(&self.pods_deleted_at).get(uid).copied();
        deleted_at.is_none_or(|deleted_at| now.duration_since(deleted_at) >= DELETE_PODS_AGAIN)
    }

    /// Notes that all pods of a tenant under deletion were deleted.
    pub(super) fn note_pods_deleted(&self, uid: &str, now: Instant) {
        lock(&self.pods_deleted_at).insert(uid.to_owned(), now);
    }

    /// Keeps what a plan says of node groups. Returns the UIDs of the tenants for which that changed.
    pub fn set_node_group_plans(&self, plans: &NodeGroupPlans) -> BTreeSet<String> {
        let mut known = lock(&self.groups);
        let uids = known.keys().chain(plans.keys());
        let changed = uids.filter(|uid| known.get(*uid) != plans.get(*uid));
        let changed = changed.cloned().collect();
        known.clone_from(plans);
        changed
    }

    /// Keeps what is known of nodes that tenants did not use. Returns the UIDs of the tenants whose status changes.
    pub fn set_unused_nodes(&self, unused: UnusedNodesByTenant) -> BTreeSet<String> {
        let mut known = lock(&self.unused);
        let before = known.take().unwrap_or_default();
        let statuses = |all: &UnusedNodesByTenant, uid: &String| {
            let of_tenant = all.get(uid).map(unused_nodes::statuses);
            of_tenant.unwrap_or_default()
        };
        let uids = before.keys().chain(unused.keys());
        let changed = uids.filter(|uid| statuses(&before, uid) != statuses(&unused, uid));
        let changed = changed.cloned().collect();
        *known = Some(unused);
        changed
    }

    /// What is known of nodes that a tenant did not use, by pool: what its status says, as long as nothing was planned.
    pub fn unused_nodes(&self, cluster: &TenantCluster) -> BTreeMap<String, UnusedNodes> {
        let known = lock(&self.unused);
        let planned = known.as_ref().zip(cluster.uid());
        planned.map_or_else(
            || unused_nodes::recorded(cluster),
            |(all, uid)| all.get(&uid).cloned().unwrap_or_default(),
        )
    }

    /// Keeps which tenants are in a pause that others share. It outlasts them.
    pub fn set_in_shared_pause(&self, tenants: Vec<PlannedTenant>) {
        *lock(&self.in_shared_pause) = tenants;
    }

    /// The tenants that were in a pause that others share after the last plan, those included that are gone.
    pub fn in_shared_pause(&self) -> Vec<PlannedTenant> {
        lock(&self.in_shared_pause).clone()
    }

    /// What the planner said last of a tenant's node groups. None: nothing was planned yet.
    pub fn node_group_plans(&self, uid: &str) -> Option<BTreeMap<String, NodeGroupPlan>> {
        lock(&self.groups).get(uid).cloned()
    }

    /// Notes that the workload namespace of a tenant under deletion is gone, so that its nodes can be released.
    pub fn set_workloads_gone(&self, uid: &str) {
        lock(&self.workloads_gone).insert(uid.to_owned());
    }

    /// Whether [`Tenants::set_workloads_gone`] was called.
    pub fn workloads_gone(&self, uid: &str) -> bool {
        lock(&self.workloads_gone).contains(uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Script, ScriptedApi};
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn a_syncer_is_not_ready_since_the_first_probe_that_says_so() {
        let host = ScriptedApi::new("host", &Script::default());
        let memory = Tenants::default().of("uid", &host.client());
        let probe = |is_ready| memory.note_probe(is_ready, Instant::now());
        let pause = Duration::from_secs(10);
        assert_eq!(probe(false), Duration::ZERO);
        advance(pause).await;
        assert_eq!(probe(false), pause);
        assert_eq!(probe(true), Duration::ZERO);
        advance(pause).await;
        assert_eq!(probe(false), Duration::ZERO);
        // The next start is another one.
        memory.note_stopped(true);
        advance(pause).await;
        assert_eq!(probe(false), Duration::ZERO);
    }

    #[test]
    fn all_pods_are_deleted_again_after_a_while() {
        let (tenants, now) = (Tenants::default(), Instant::now());
        assert!(tenants.may_have_other_pods("uid", now));
        tenants.note_pods_deleted("uid", now);
        assert!(!tenants.may_have_other_pods("uid", now + DELETE_PODS_AGAIN / 2));
        assert!(tenants.may_have_other_pods("uid", now + DELETE_PODS_AGAIN));
        tenants.forget("uid");
        assert!(tenants.may_have_other_pods("uid", now));
    }
}
