//! Index of tenants' pods on the host, by name.

use super::{SchedulingState, Workload};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Tenants' pods. Finished ones are kept as long as they exist and belong to a gang.
#[derive(Default)]
pub struct WorkloadIndex(Mutex<Pods>);

#[derive(Default)]
struct Pods {
    by_name: HashMap<String, Arc<Workload>>,
    /// Number of pods that have not ended, by slug of the tenant; none is 0.
    unfinished: HashMap<String, usize>,
}

impl Pods {
    fn insert(&mut self, pod: &str, workload: Workload) {
        self.remove(pod);
        if workload.scheduling != SchedulingState::Finished {
            *self.unfinished.entry(workload.tenant.clone()).or_default() += 1;
        }
        self.by_name.insert(pod.to_owned(), Arc::new(workload));
    }

    fn remove(&mut self, pod: &str) -> Option<Arc<Workload>> {
        let gone = self.by_name.remove(pod)?;
        if gone.scheduling != SchedulingState::Finished
            && let Some(count) = self.unfinished.get_mut(&gone.tenant)
        {
            *count -= 1;
            if *count == 0 {
                self.unfinished.remove(&gone.tenant);
            }
        }
        Some(gone)
    }
}

impl WorkloadIndex {
    fn lock(&self) -> MutexGuard<'_, Pods> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets a pod; none if it is gone. Returns the slug of its tenant if the pod changed.
    pub fn put(&self, pod: &str, workload: Option<Workload>) -> Option<String> {
        let workload =
            workload.filter(|workload| workload.scheduling != SchedulingState::Finished || workload.gang.is_some());
        let mut all = self.lock();
        match workload {
            Some(workload) => {
                if all.by_name.get(pod).is_some_and(|earlier| **earlier == workload) {
                    return None;
                }
                let tenant = workload.tenant.clone();
                all.insert(pod, workload);
                Some(tenant)
            }
            None => all.remove(pod).map(|gone| gone.tenant.clone()),
        }
    }

    /// Removes all pods except these. Returns the slugs of the tenants whose pods were removed.
    pub fn retain(&self, pods: &HashSet<String>) -> HashSet<String> {
        let mut all = self.lock();
        let gone: Vec<String> = all.by_name.keys().filter(|pod| !pods.contains(*pod)).cloned().collect();
        let gone = gone.iter().filter_map(|pod| all.remove(pod));
        gone.map(|workload| workload.tenant.clone()).collect()
    }

    /// Whether a pod of the tenant has not ended.
    pub fn has_unfinished(&self, tenant: &str) -> bool {
        self.lock().unfinished.contains_key(tenant)
    }

    /// All pods that are kept, in no order.
    pub fn all(&self) -> Vec<Arc<Workload>> {
        self.lock().by_name.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(node: &str) -> Workload {
        Workload {
            tenant: "t".into(),
            scheduling: SchedulingState::Bound(node.into()),
            ..Workload::default()
        }
    }

    #[test]
    fn changes_of_workloads_are_reported_once() {
        let workloads = WorkloadIndex::default();
        assert_eq!(workloads.put("a", Some(on("n1"))).as_deref(), Some("t"));
        assert_eq!(workloads.put("a", Some(on("n1"))), None);
        assert_eq!(workloads.put("a", Some(on("n2"))).as_deref(), Some("t"));
        assert_eq!(workloads.retain(&HashSet::new()), HashSet::from(["t".to_owned()]));
        assert!(workloads.all().is_empty());
    }

    #[test]
    fn finished_pods_are_kept_for_their_gang_only() {
        let workloads = WorkloadIndex::default();
        let done = Workload {
            scheduling: SchedulingState::Finished,
            ..on("n1")
        };
        workloads.put("a", Some(on("n1")));
        assert_eq!(workloads.put("a", Some(done)).as_deref(), Some("t"));
        assert!(workloads.all().is_empty());
    }

    #[test]
    fn a_tenant_has_pods_until_the_last_one_has_ended() {
        let workloads = WorkloadIndex::default();
        assert!(!workloads.has_unfinished("t"));
        let in_gang = |scheduling| Workload {
            scheduling,
            gang: Some(crate::demand::Gang {
                name: "g".into(),
                size: 1,
                one_domain: false,
            }),
            ..on("n1")
        };
        workloads.put("a", Some(on("n1")));
        workloads.put("a", Some(on("n2")));
        workloads.put("b", Some(in_gang(SchedulingState::Pending)));
        workloads.put("a", None);
        assert!(workloads.has_unfinished("t") && !workloads.has_unfinished("u"));
        workloads.put("b", Some(in_gang(SchedulingState::Finished)));
        assert!(!workloads.has_unfinished("t"));
        assert_eq!(workloads.all().len(), 1, "kept for its gang");
        workloads.put("c", Some(on("n1")));
        workloads.retain(&HashSet::new());
        assert!(!workloads.has_unfinished("t"));
    }
}
