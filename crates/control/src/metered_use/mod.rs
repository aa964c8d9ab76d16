//! What objects of tenants use on the host and tenants are billed for: requests of pods on shared nodes, and volumes of claims with
//! their snapshots.
//!
//! A pass over all objects once a minute misses pods that run for seconds, and does not know when others ended. So the watches record here when each
//! object began and ceased to use what it uses, and a pass reads what there is and what has been since the last one.

mod kept;
mod snapshot;
#[cfg(test)]
mod tests;

pub(crate) use snapshot::{UnrecordedSource, VolumeSnapshot, snapshot_resource};

use crate::clock::Clock;
use berth_api::{labels, names, quantity};
use berth_node_lifecycle::{pod_phase::has_ended, pod_requests};
use berth_runtime::locks::lock;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kept::{Counted, KeptClaims};
use kube::ResourceExt;
use snapshot::read_snapshot;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard},
};

/// Most uses of all tenants that have ended and are kept until a pass reads them. Passes come every minute, but the first one waits for the stored records.
const MOST_ENDED: usize = 100_000;
/// Thousandths of a byte in a MiB.
const MEBIBYTE: i128 = 1024 * 1024 * 1000;

/// What one object uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Using<V> {
    /// Slug of its tenant.
    pub tenant: String,
    /// What it uses.
    pub amount: V,
    /// Since when.
    pub since: Timestamp,
}

/// What a pod uses that may run on shared nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodUse {
    /// Its node.
    pub node: String,
    /// CPU that it requests, in thousandths.
    pub millicores: i64,
    /// Memory that it requests, in MiB, rounded up.
    pub mebibytes: i64,
}

/// What a claim uses that has a volume, or a snapshot of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimUse {
    /// Its StorageClass, or the VolumeSnapshotClass of the snapshot. None: it has none.
    pub class: Option<String>,
    /// What it requests, or what its volume has if that is more, in MiB, rounded up; 0: the size of the snapshot is not known.
    pub mebibytes: i64,
}

/// Who uses how much now, and who did since the log was read last.
#[derive(Debug)]
pub struct UseLog<V>(Mutex<State<V>>);

#[derive(Debug)]
struct State<V> {
    now: HashMap<String, Using<V>>,
    /// By tenant, with the time of the end.
    ended: HashMap<String, Vec<(Using<V>, Timestamp)>>,
    /// How many uses these are.
    kept: usize,
    /// How many ends of each tenant were not kept.
    lost: BTreeMap<String, u64>,
}

impl<V> Default for UseLog<V> {
    fn default() -> Self {
        Self(Mutex::new(State {
            now: HashMap::new(),
            ended: HashMap::new(),
            kept: 0,
            lost: BTreeMap::new(),
        }))
    }
}

impl<V> UseLog<V> {
    fn lock(&self) -> MutexGuard<'_, State<V>> {
        lock(&self.0)
    }
}

impl<V: PartialEq> UseLog<V> {
    /// Sets what an object uses, given by its namespace and name. None: nothing, also if it is gone. `at` is the time of the change.
    pub fn put(&self, object: &str, using: Option<Using<V>>, at: Timestamp) {
        let mut state = self.lock();
        let Some(mut using) = using else {
            state.end(object, at);
            return;
        };
        if let Some(known) = state.now.get(object) {
            if known.tenant == using.tenant && known.amount == using.amount {
                // Since when is known better of one that was seen to begin.
                return;
            }
            // Another object of this name, or the same one, which uses another amount from now on.
            if using.since <= known.since {
                using.since = at;
            }
            state.end(object, using.since.min(at));
        }
        state.now.insert(object.to_owned(), using);
    }

    /// Ends the use of all objects but these.
    pub fn retain(&self, names: &HashSet<String>, at: Timestamp) {
        let mut state = self.lock();
        let gone: Vec<String> = state
            .now
            .keys()
            .filter(|name| !names.contains(*name))
            .cloned()
            .collect();
        for object in gone {
            state.end(&object, at);
        }
    }

    /// Calls `each` with everything that is used now, and with everything that was used since the last call and is not any more, with the time of its
    /// end. Returns for how many of these there was no place, by tenant.
    pub fn read(&self, mut each: impl FnMut(&Using<V>, Option<Timestamp>)) -> BTreeMap<String, u64> {
        let mut state = self.lock();
        for using in state.now.values() {
            each(using, None);
        }
        for (using, until) in std::mem::take(&mut state.ended).into_values().flatten() {
            each(&using, Some(until));
        }
        state.kept = 0;
        std::mem::take(&mut state.lost)
    }
}

impl<V> State<V> {
    fn end(&mut self, object: &str, at: Timestamp) {
        let Some(using) = self.now.remove(object) else {
            return;
        };
        let of_tenant = self.ended.entry(using.tenant.clone()).or_default();
        of_tenant.push((using, at));
        self.kept += 1;
        if self.kept > MOST_ENDED {
            self.drop_one();
        }
    }

    /// Drops an end of the tenant that has most of them: a tenant whose pods end again and again takes no place from others.
    fn drop_one(&mut self) {
        let most = self.ended.iter_mut().max_by_key(|(_, uses)| uses.len());
        if let Some((tenant, uses)) = most
            && uses.pop().is_some()
        {
            *self.lost.entry(tenant.clone()).or_default() += 1;
            self.kept -= 1;
        }
    }
}

/// The logs of what is metered, and the clock by which they are written. Copies share them.
#[derive(Clone, Debug)]
pub struct MeteredUse {
    /// Of pods that may run on shared nodes.
    pub pods: Arc<UseLog<PodUse>>,
    /// Of claims, and of snapshots whose claims are gone.
    pub claims: Arc<UseLog<ClaimUse>>,
    /// What `claims` is made of. It is locked while `claims` is written, so that both have the same order.
    kept: Arc<Mutex<KeptClaims>>,
    clock: Clock,
    /// Whether anything reads them.
    is_read: bool,
}

impl MeteredUse {
    /// Empty logs. If nothing reads them, nothing is written either.
    pub fn new(clock: Clock, is_read: bool) -> Self {
        Self {
            pods: Arc::default(),
            claims: Arc::default(),
            kept: Arc::default(),
            clock,
            is_read,
        }
    }

    /// Records a pod of a tenant; none if it is gone.
    pub(crate) fn put_pod(&self, name: &str, pod: Option<&Pod>) {
        if self.is_read {
            let now = self.clock.now();
            self.pods.put(name, pod.and_then(|pod| read_pod(pod, now)), now);
        }
    }

    /// Records that there are no other pods than these.
    pub(crate) fn retain_pods(&self, names: &HashSet<String>) {
        if self.is_read {
            self.pods.retain(names, self.clock.now());
        }
    }

    /// Records a claim; none if it is gone.
    pub(crate) fn put_claim(&self, name: &str, claim: Option<&PersistentVolumeClaim>) {
        if self.is_read {
            let now = self.clock.now();
            let claim = claim.and_then(|claim| read_claim(claim, now));
            let mut kept = lock(&self.kept);
            let counted = kept.put_claim(name, claim, now);
            self.log_claims(counted, now);
        }
    }

    /// Records that there are no other claims than these.
    pub(crate) fn retain_claims(&self, names: &HashSet<String>) {
        if self.is_read {
            let now = self.clock.now();
            let mut kept = lock(&self.kept);
            let counted = kept.retain_claims(names, now);
            self.log_claims(counted, now);
        }
    }

    /// Records a snapshot; none if it is gone.
    pub(crate) fn put_snapshot(&self, name: &str, snapshot: Option<&VolumeSnapshot>) {
        if self.is_read {
            let now = self.clock.now();
            let snapshot = snapshot.and_then(|snapshot| read_snapshot(snapshot, now));
            let mut kept = lock(&self.kept);
            let counted = kept.put_snapshot(name, snapshot);
            self.log_claims(counted, now);
        }
    }

    /// Records that there are no other snapshots than these.
    pub(crate) fn retain_snapshots(&self, names: &HashSet<String>) {
        if self.is_read {
            let mut kept = lock(&self.kept);
            let counted = kept.retain_snapshots(names);
            self.log_claims(counted, self.clock.now());
        }
    }

    /// So many snapshots of which it is known which claim they are of, and which do not say so. Those that were tried come last.
    pub(crate) fn unrecorded_sources(&self, most: usize) -> Vec<UnrecordedSource> {
        lock(&self.kept).unrecorded_sources(most)
    }

    /// Records that its claim is written into a snapshot now.
    pub(crate) fn note_tried_source(&self, snapshot: &str) {
        lock(&self.kept).note_tried(snapshot);
    }

    /// Whether anything reads the logs.
    pub(crate) fn is_read(&self) -> bool {
        self.is_read
    }

    fn log_claims(&self, claims: impl IntoIterator<Item = Counted>, now: Timestamp) {
        for (name, using) in claims {
            self.claims.put(&name, using, now);
        }
    }
}

/// What a pod of a tenant uses that may run on shared nodes, from the time at which it got its node until it ends.
fn read_pod(pod: &Pod, now: Timestamp) -> Option<Using<PodUse>> {
    let node = pod.spec.as_ref()?.node_name.clone().filter(|node| !node.is_empty())?;
    if has_ended(pod) || !pod.labels().contains_key(labels::SHARED_NODES) {
        return None;
    }
    let requests = pod_requests::of_pod(pod);
    let amount = |resource: &str| requests.get(resource).copied().unwrap_or_default();
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut bound = conditions.filter(|condition| condition.type_ == "PodScheduled" && condition.status == "True");
    let bound = bound.find_map(|condition| Some(condition.last_transition_time.as_ref()?.0));
    Some(Using {
        tenant: pod.labels().get(labels::TENANT)?.clone(),
        since: within_existence(bound, pod, now),
        amount: PodUse {
            node,
            millicores: whole(amount("cpu"), 1),
            mebibytes: whole(amount("memory"), MEBIBYTE),
        },
    })
}

/// What a claim of a tenant uses from its creation on, as soon as it has a volume. Others can write the labels of a tenant in namespaces of their own.
fn read_claim(claim: &PersistentVolumeClaim, now: Timestamp) -> Option<Using<ClaimUse>> {
    let tenant = claim.labels().get(labels::TENANT)?;
    let status = claim.status.as_ref()?;
    let is_bound = status.phase.as_deref() == Some("Bound");
    if !is_bound || !names::is_workload_namespace(&claim.namespace().unwrap_or_default(), tenant) {
        return None;
    }
    let spec = claim.spec.as_ref()?;
    let requested = spec.resources.as_ref()?.requests.as_ref()?.get("storage")?;
    // The smallest volume of a class can be far larger than what a claim requests: then the tenant has all of it.
    let capacity = status.capacity.as_ref().and_then(|capacity| capacity.get("storage"));
    let size = quantity::parse(&requested.0)?;
    let size = capacity
        .and_then(|capacity| quantity::parse(&capacity.0))
        .map_or(size, |volume| volume.max(size));
    Some(Using {
        tenant: tenant.clone(),
        since: created(claim, now),
        amount: ClaimUse {
            class: spec.storage_class_name.clone().filter(|class| !class.is_empty()),
            mebibytes: whole(size, MEBIBYTE),
        },
    })
}

/// When an object was created. It does not depend on our clock: which claim a snapshot is of does not either.
fn created(object: &impl ResourceExt, now: Timestamp) -> Timestamp {
    object.creation_timestamp().map_or(now, |time| time.0)
}

/// A time between the creation of an object and now; without one, the creation.
fn within_existence(time: Option<Timestamp>, object: &impl ResourceExt, now: Timestamp) -> Timestamp {
    let created = created(object, now).min(now);
    time.unwrap_or(created).clamp(created, now)
}

/// An amount in units of so many thousandths, rounded up.
fn whole(thousandths: i128, unit: i128) -> i64 {
    let units = thousandths.max(0).saturating_add(unit - 1) / unit;
    i64::try_from(units).unwrap_or(i64::MAX)
}
