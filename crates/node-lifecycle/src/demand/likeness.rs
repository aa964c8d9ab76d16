//! Which pods of a tenant are one demand, with a higher count.

use berth_planner::{Demand, Seconds, Topology};

/// Pods of which the waits differ by less are created together.
const CREATED_TOGETHER: Seconds = 60;
/// How often what is one demand may change while no pod comes or goes: the status of the tenant names demands, and would change with each plan.
const STEP: Seconds = 60;

/// Which pods are alike, besides what they request.
#[derive(Clone, Copy)]
pub(super) struct Likeness {
    /// When the tenant left nodes unused. Pods that were created before and later ones are not alike.
    pub(super) left_unused: Option<Seconds>,
    /// Now, if the longest wait comes first: what is one demand has the wait of its oldest pod.
    pub(super) by_wait_until: Option<Seconds>,
}

impl Likeness {
    /// Whether two demands, of which the first is not the younger one, can be one with a higher count.
    pub(super) fn can_merge(self, a: &Demand, b: &Demand) -> bool {
        let is_later = |one: &Demand| self.left_unused.is_some_and(|at| one.waiting_since > at);
        is_later(a) == is_later(b)
            && self.has_waited_as_long(a, b)
            && !a.gang
            && !b.gang
            && a.priority == b.priority
            && a.selector == b.selector
            && a.existing_nodes_only == b.existing_nodes_only
            && a.topology == Topology::Any
            && b.topology == Topology::Any
            && a.pod_sets.len() == 1
            && b.pod_sets.len() == 1
            && a.pod_sets[0].requests == b.pod_sets[0].requests
    }

    /// Whether the second may come as early as the first. Otherwise one pod that has waited for long, or can never start, would let any number of new
    /// ones come before the pods of other tenants. At least half of the wait is enough, so that there are few demands, however many pods there are.
    fn has_waited_as_long(self, a: &Demand, b: &Demand) -> bool {
        self.by_wait_until.is_none_or(|now| {
            let until = now - now.rem_euclid(STEP);
            let wait = |one: &Demand| (until - one.waiting_since).max(0);
            wait(b) + CREATED_TOGETHER >= wait(a) - wait(b)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        HostNode, NodeGroupDemand, PodAffinity, PoolDevices, PoolNodes, Share, Tenant, Workload, translate_demand,
    };
    use super::Likeness;
    use berth_planner::{Amounts, Demand, Seconds};
    use std::collections::BTreeMap;

    const NOW: Seconds = 1_000_000;

    /// How many pods each demand of a tenant has, in a pool in which the longest wait comes first, or another one.
    fn count_pods(is_fifo: bool, pods: &[Workload]) -> Vec<u32> {
        let node = HostNode {
            name: "h1",
            capacity: gpus(),
            ..HostNode::default()
        };
        let pool = PoolNodes {
            nodes: vec![node],
            devices: PoolDevices::Any,
            topology: None,
            is_fifo,
        };
        let group = "burst";
        let tenant = Tenant {
            groups: vec![NodeGroupDemand {
                name: group,
                pool: "h100",
                is_dynamic: true,
                left: 99,
            }],
            workloads: pods.iter().collect(),
            share: Share::of_one(1),
            now: NOW,
            ..Tenant::default()
        };
        let found = translate_demand(&tenant, &BTreeMap::from([("h100", pool)]));
        found.demand[group]
            .iter()
            .map(|demand| demand.pod_sets[0].count)
            .collect()
    }

    /// The same for single pods that have waited for so long.
    fn counts(is_fifo: bool, waits: &[Seconds]) -> Vec<u32> {
        let pods: Vec<Workload> = waits
            .iter()
            .enumerate()
            .map(|(number, wait)| pod(format!("p{number}"), *wait))
            .collect();
        count_pods(is_fifo, &pods)
    }

    fn pod(name: String, wait: Seconds) -> Workload {
        Workload {
            name,
            since: NOW - wait,
            amounts: gpus(),
            ..Workload::default()
        }
    }

    /// All GPUs of a node.
    fn gpus() -> Amounts {
        [("nvidia.com/gpu".to_owned(), 8)].into()
    }

    #[test]
    fn in_a_pool_where_the_longest_wait_comes_first_no_old_pod_takes_new_ones_along() {
        let waits = [86_400, 3600, 3000, 10, 5, 0];
        assert_eq!(counts(true, &waits), [1, 2, 3]);
        assert_eq!(counts(false, &waits), [6]);
    }

    #[test]
    fn however_many_pods_there_are_few_demands_follow_from_their_waits() {
        let waits: Vec<Seconds> = (0..3000).map(|minute| minute * 60).collect();
        assert!(counts(true, &waits).len() <= 13, "{:?}", counts(true, &waits));
    }

    #[test]
    fn what_is_one_demand_changes_once_a_minute_at_most() {
        let demand = |waiting_since: Seconds| Demand {
            waiting_since,
            ..Demand::default()
        };
        let (old, new) = (demand(0), demand(3_010));
        let is_one = |now: Seconds| {
            let likeness = Likeness {
                left_unused: None,
                by_wait_until: Some(now),
            };
            likeness.has_waited_as_long(&old, &new)
        };
        let changes: Vec<Seconds> = (3_000..7_000).filter(|now| is_one(*now) != is_one(now - 1)).collect();
        assert_eq!(changes, [6_000], "it has waited for almost half of that from 5,960 on");
    }

    #[test]
    fn pods_with_an_affinity_to_each_other_all_count_when_they_are_alike() {
        let of_app = |app: &str, name: &str| Workload {
            affinity: Some(PodAffinity {
                key: format!("app={app}"),
                topology: "zone".into(),
            }),
            ..pod(name.into(), 10)
        };
        let pods = [
            of_app("a", "a-0"),
            of_app("a", "a-1"),
            of_app("b", "b-0"),
            of_app("b", "b-1"),
        ];
        assert_eq!(count_pods(false, &pods), [4]);
    }
}
