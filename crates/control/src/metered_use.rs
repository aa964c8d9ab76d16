//! What objects of tenants use on the host and tenants are billed for: requests of pods on shared nodes, and volumes of claims.
//!
//! A pass over all objects once a minute misses pods that run for seconds, and does not know when others ended. So the watches record here when each
//! object began and ceased to use what it uses, and a pass reads what there is and what has been since the last one.

use crate::clock::Clock;
use berth_api::{labels, names, quantity};
use berth_node_lifecycle::{pod_phase::has_ended, pod_requests};
use berth_runtime::locks::lock;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
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

/// What a claim uses that has a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimUse {
    /// Its StorageClass. None: it has none.
    pub class: Option<String>,
    /// What it requests, or what its volume has if that is more, in MiB, rounded up.
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
    /// Of claims.
    pub claims: Arc<UseLog<ClaimUse>>,
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
            self.claims
                .put(name, claim.and_then(|claim| read_claim(claim, now)), now);
        }
    }

    /// Records that there are no other claims than these.
    pub(crate) fn retain_claims(&self, names: &HashSet<String>) {
        if self.is_read {
            self.claims.retain(names, self.clock.now());
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
        since: within_existence(None, claim, now),
        amount: ClaimUse {
            class: spec.storage_class_name.clone().filter(|class| !class.is_empty()),
            mebibytes: whole(size, MEBIBYTE),
        },
    })
}

/// A time between the creation of an object and now; without one, the creation.
fn within_existence(time: Option<Timestamp>, object: &impl ResourceExt, now: Timestamp) -> Timestamp {
    let created = object.creation_timestamp().map_or(now, |time| time.0).min(now);
    time.unwrap_or(created).clamp(created, now)
}

/// An amount in units of so many thousandths, rounded up.
fn whole(thousandths: i128, unit: i128) -> i64 {
    let units = thousandths.max(0).saturating_add(unit - 1) / unit;
    i64::try_from(units).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::names::TenantId;
    use serde_json::{Value, json};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn using(tenant: &str, amount: u32, since: i64) -> Using<u32> {
        Using {
            tenant: tenant.into(),
            amount,
            since: at(since),
        }
    }

    /// What is read, as tenant, amount, since and until in seconds, in order.
    fn read(log: &UseLog<u32>) -> Vec<(String, u32, i64, Option<i64>)> {
        let mut all = Vec::new();
        let lost = log.read(|using, until| {
            let until = until.map(Timestamp::as_second);
            all.push((using.tenant.clone(), using.amount, using.since.as_second(), until));
        });
        assert_eq!(lost, BTreeMap::new());
        all.sort();
        all
    }

    #[test]
    fn a_use_that_ends_between_two_passes_is_read_once() {
        let log = UseLog::default();
        log.put("a/x", Some(using("a", 1, 5)), at(6));
        log.put("a/y", Some(using("a", 2, 7)), at(8));
        log.put("a/y", None, at(9));
        log.put("a/never", None, at(9));
        let first = [("a".to_owned(), 1, 5, None), ("a".to_owned(), 2, 7, Some(9))];
        assert_eq!(read(&log), first);
        assert_eq!(read(&log), first[..1]);
        log.retain(&HashSet::from(["a/z".to_owned()]), at(20));
        assert_eq!(read(&log), [("a".to_owned(), 1, 5, Some(20))]);
        assert!(read(&log).is_empty());
    }

    #[test]
    fn an_amount_that_changes_counts_from_the_change_on() {
        let log = UseLog::default();
        log.put("a/x", Some(using("a", 1, 5)), at(6));
        log.put("a/x", Some(using("a", 1, 5)), at(7));
        log.put("a/x", Some(using("a", 4, 5)), at(10));
        let expected = [("a".to_owned(), 1, 5, Some(10)), ("a".to_owned(), 4, 10, None)];
        assert_eq!(read(&log), expected);
        // It was deleted and created again, and the watch saw neither.
        log.put("a/x", Some(using("a", 2, 30)), at(40));
        let expected = [("a".to_owned(), 2, 30, None), ("a".to_owned(), 4, 10, Some(30))];
        assert_eq!(read(&log), expected);
    }

    #[test]
    fn a_list_that_is_read_again_does_not_move_the_beginning() {
        let log = UseLog::default();
        log.put("a/x", Some(using("a", 1, 6)), at(6));
        log.put("a/x", Some(using("a", 1, 3)), at(50));
        assert_eq!(read(&log), [("a".to_owned(), 1, 6, None)]);
    }

    #[test]
    fn ends_that_nothing_reads_take_no_memory_without_end() {
        let log = UseLog::default();
        for number in 0..MOST_ENDED + 3 {
            log.put("a/x", Some(using("a", u32::try_from(number).unwrap(), 0)), at(1));
        }
        log.put("a/x", None, at(2));
        let mut ends = 0;
        assert_eq!(log.read(|_, _| ends += 1), BTreeMap::from([("a".to_owned(), 3)]));
        assert_eq!(ends, MOST_ENDED);
        assert_eq!(log.read(|_, _| ()), BTreeMap::new());
    }

    #[test]
    fn ends_of_one_tenant_take_no_place_from_those_of_others() {
        let log = UseLog::default();
        for number in 0..=MOST_ENDED {
            log.put("a/x", Some(using("a", u32::try_from(number).unwrap(), 0)), at(1));
        }
        log.put("a/x", None, at(2));
        for (tenant, object) in [("b", "b/y"), ("c", "c/z")] {
            log.put(object, Some(using(tenant, 7, 3)), at(3));
            log.put(object, None, at(4));
        }
        let (mut of_others, mut of_first) = (Vec::new(), 0);
        let lost = log.read(|using, until| {
            if using.tenant == "a" {
                of_first += 1;
            } else {
                of_others.push((using.tenant.clone(), using.amount, until));
            }
        });
        of_others.sort();
        let expected = ["b", "c"].map(|tenant| (tenant.to_owned(), 7, Some(at(4))));
        assert_eq!(of_others, expected);
        assert_eq!(of_first, MOST_ENDED - 2);
        assert_eq!(lost, BTreeMap::from([("a".to_owned(), 3)]));
    }

    fn pod(more: &Value) -> Pod {
        let requests = json!({"cpu": "1500m", "memory": "1025Ki"});
        let mut pod = json!({
            "metadata": {"name": "p", "creationTimestamp": "1970-01-01T00:01:40Z",
                "labels": {labels::TENANT: "vision-abc", labels::SHARED_NODES: labels::SHARED_NODES_ALLOWED}},
            "spec": {"nodeName": "n1", "overhead": {"cpu": "100m"},
                "containers": [{"name": "c", "resources": {"requests": requests}}]},
            "status": {"phase": "Running"},
        });
        for (pointer, value) in more.as_object().unwrap() {
            *pod.pointer_mut(pointer).unwrap() = value.clone();
        }
        serde_json::from_value(pod).unwrap()
    }

    fn scheduled(second: i64) -> Value {
        let condition = json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": at(second).to_string()});
        json!({"/status": {"conditions": [condition]}})
    }

    #[test]
    fn a_pod_counts_from_its_node_to_its_end_with_what_the_scheduler_counts() {
        let read = |more: &Value| read_pod(&pod(more), at(500));
        let expected = Using {
            tenant: "vision-abc".into(),
            amount: PodUse {
                node: "n1".into(),
                millicores: 1600,
                mebibytes: 2,
            },
            since: at(100),
        };
        assert_eq!(read(&json!({})), Some(expected));
        for (scheduled_at, since) in [(160, 160), (9, 100), (900, 500)] {
            assert_eq!(read(&scheduled(scheduled_at)).unwrap().since, at(since));
        }
        for nothing in [
            json!({"/spec/nodeName": ""}),
            json!({"/status/phase": "Succeeded"}),
            json!({"/metadata/labels": {labels::TENANT: "vision-abc"}}),
            json!({"/metadata/labels": {labels::SHARED_NODES: labels::SHARED_NODES_ALLOWED}}),
        ] {
            assert_eq!(read(&nothing), None, "{nothing}");
        }
    }

    #[test]
    fn a_claim_counts_if_it_has_a_volume_and_is_where_its_tenant_has_claims() {
        let id = TenantId::new("vision", "6f2c");
        let read = |namespace: &str, phase: &str, class: &str, size: &str| {
            let claim = json!({
                "metadata": {"name": "c", "namespace": namespace, "labels": {labels::TENANT: id.slug()},
                    "creationTimestamp": "1970-01-01T00:01:40Z"},
                "spec": {"storageClassName": class, "resources": {"requests": {"storage": size}}},
                "status": {"phase": phase},
            });
            read_claim(&serde_json::from_value(claim).unwrap(), at(500))
        };
        let own = id.workload_namespace();
        let using = |class: Option<&str>, mebibytes| {
            Some(Using {
                tenant: id.slug().to_owned(),
                amount: ClaimUse {
                    class: class.map(ToOwned::to_owned),
                    mebibytes,
                },
                since: at(100),
            })
        };
        assert_eq!(read(&own, "Bound", "fast", "10Gi"), using(Some("fast"), 10 * 1024));
        assert_eq!(read(&own, "Bound", "", "1"), using(None, 1));
        assert_eq!(read(&own, "Pending", "fast", "10Gi"), None, "it has no volume");
        assert_eq!(read("team", "Bound", "fast", "10Gi"), None, "a label that others wrote");
        assert_eq!(read(&own, "Bound", "fast", "lots"), None);
    }

    /// Drivers round up: the smallest volume of a shared file system may have a TiB.
    #[test]
    fn a_claim_counts_with_the_whole_volume_that_it_has() {
        let id = TenantId::new("vision", "6f2c");
        let mebibytes = |requested: &str, status: Value| {
            let claim = json!({
                "metadata": {"name": "c", "namespace": id.workload_namespace(), "labels": {labels::TENANT: id.slug()}},
                "spec": {"storageClassName": "fast", "resources": {"requests": {"storage": requested}}},
                "status": status,
            });
            let using = read_claim(&serde_json::from_value(claim).unwrap(), at(500));
            using.unwrap().amount.mebibytes
        };
        let bound = |capacity: &str| json!({"phase": "Bound", "capacity": {"storage": capacity}});
        assert_eq!(mebibytes("1Ki", bound("1Ti")), 1024 * 1024);
        assert_eq!(mebibytes("10Gi", bound("10Gi")), 10 * 1024);
        assert_eq!(mebibytes("20Gi", bound("10Gi")), 20 * 1024, "it is being expanded");
        for unknown in [
            bound("lots"),
            json!({"phase": "Bound", "capacity": {}}),
            json!({"phase": "Bound"}),
        ] {
            assert_eq!(mebibytes("10Gi", unknown.clone()), 10 * 1024, "{unknown}");
        }
    }

    #[test]
    fn what_nothing_reads_is_not_written() {
        let metered = MeteredUse::new(Clock::at(at(500)), false);
        metered.put_pod("a/p", Some(&pod(&json!({}))));
        let mut count = 0;
        metered.pods.read(|_, _| count += 1);
        assert_eq!(count, 0);
        let metered = MeteredUse::new(Clock::at(at(500)), true);
        metered.put_pod("a/p", Some(&pod(&json!({}))));
        metered.pods.read(|_, _| count += 1);
        assert_eq!(count, 1);
    }
}
