//! Tenants' pods on the host, as far as they matter for nodes, by their names.

use super::demand::{Place, Workload};
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Tenants' pods. Those that ran are remembered as long as they exist and belong to a gang.
#[derive(Default)]
pub struct Workloads(Mutex<HashMap<String, Arc<Workload>>>);

impl Workloads {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Workload>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets what a pod is; nothing for one that is gone. Gives the slug of its tenant if that changed anything.
    pub fn put(&self, pod: &str, workload: Option<Workload>) -> Option<String> {
        let workload = workload.filter(|workload| workload.place != Place::Done || workload.gang.is_some());
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

    /// Forgets all pods but these. Gives the slugs of the tenants that it concerns.
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

    /// All of them.
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
            place: Place::On(node.into()),
            ..Workload::default()
        }
    }

    #[test]
    fn changes_are_told_once() {
        let workloads = Workloads::default();
        assert_eq!(workloads.put("a", Some(on("n1"))).as_deref(), Some("t"));
        assert_eq!(workloads.put("a", Some(on("n1"))), None);
        assert_eq!(workloads.put("a", Some(on("n2"))).as_deref(), Some("t"));
        assert_eq!(workloads.retain(&HashSet::new()), HashSet::from(["t".to_owned()]));
        assert!(workloads.all().is_empty());
    }

    #[test]
    fn what_ran_is_remembered_for_its_gang_only() {
        let workloads = Workloads::default();
        let done = Workload {
            place: Place::Done,
            ..on("n1")
        };
        workloads.put("a", Some(on("n1")));
        assert_eq!(workloads.put("a", Some(done)).as_deref(), Some("t"));
        assert!(workloads.all().is_empty());
    }
}
