//! Index of tenants' pods on the host, by name.

use super::{SchedulingState, Workload};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Tenants' pods. Finished ones are kept as long as they exist and belong to a gang.
#[derive(Default)]
pub struct WorkloadIndex(Mutex<HashMap<String, Arc<Workload>>>);

impl WorkloadIndex {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Workload>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets a pod; none if it is gone. Returns the slug of its tenant if the pod changed.
    pub fn put(&self, pod: &str, workload: Option<Workload>) -> Option<String> {
        let workload =
            workload.filter(|workload| workload.scheduling != SchedulingState::Finished || workload.gang.is_some());
        let mut all = self.lock();
        match workload {
            Some(workload) => {
                if all.get(pod).is_some_and(|earlier| **earlier == workload) {
                    return None;
                }
                let tenant = workload.tenant.clone();
                all.insert(pod.to_owned(), Arc::new(workload));
                Some(tenant)
            }
            None => all.remove(pod).map(|gone| gone.tenant.clone()),
        }
    }

    /// Removes all pods except these. Returns the slugs of the tenants whose pods were removed.
    pub fn retain(&self, pods: &HashSet<String>) -> HashSet<String> {
        let mut all = self.lock();
        let mut concerned = HashSet::new();
        all.retain(|pod, workload| {
            let stays = pods.contains(pod);
            if !stays {
                concerned.insert(workload.tenant.clone());
            }
            stays
        });
        concerned
    }

    pub fn all(&self) -> Vec<Arc<Workload>> {
        self.lock().values().cloned().collect()
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
}
