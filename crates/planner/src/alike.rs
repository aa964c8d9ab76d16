//! Requests that end as one like them did. A tenant may have many that differ in nothing but how long they wait, and most of them lack the same nodes.

use crate::pass::{Blocked, PlanningPass};
use crate::stage::{Outcome, Stage};
use std::collections::HashMap;
use std::rc::Rc;

/// What decides how a request ends whose pods are served one by one, besides what was decided before.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Likeness {
    group: usize,
    /// With the priority of the request.
    stage: Stage,
    selector: usize,
    /// What the pods request that have no node.
    pods: Vec<Rc<[u64]>>,
}

/// How a request ended that got nothing.
#[derive(Clone, Debug)]
struct Failed<'a> {
    /// [`PlanningPass::changes`] at that time.
    changes: u64,
    /// Why it waits; `None`: it comes again in a later stage.
    blocked_by: Option<Blocked<'a>>,
}

/// Requests that got nothing, the last one of those that are alike.
#[derive(Default)]
pub(crate) struct FailedRequests<'a>(HashMap<Likeness, Failed<'a>>);

impl PlanningPass<'_> {
    /// As [`Self::serve_pods`]. A request like one that got nothing ends as that one did, without a search, unless something has changed since.
    pub fn serve_pods_unless_in_vain(&mut self, request: usize, stage: Stage) -> Outcome {
        let likeness = self.likeness(request, stage);
        let known = self.failed.0.get(&likeness).cloned();
        if let Some(failed) = known.filter(|failed| failed.changes == self.changes) {
            return match failed.blocked_by {
                Some(blocked) => self.block(request, blocked),
                None => Outcome::NotNow,
            };
        }
        let before = self.changes;
        let outcome = self.serve_pods(request, stage);
        let blocked_by = match outcome {
            Outcome::Finished => self.progress[request].blocked_by.clone(),
            Outcome::NotNow | Outcome::Progress => None,
        };
        let got_nothing = outcome == Outcome::NotNow || blocked_by.is_some();
        if got_nothing && self.changes == before {
            let changes = before;
            self.failed.0.insert(likeness, Failed { changes, blocked_by });
        }
        outcome
    }

    fn likeness(&self, request: usize, stage: Stage) -> Likeness {
        let spec = &self.view.requests[request];
        let parts = self.progress[request].unplaced.parts.iter();
        Likeness {
            group: spec.group,
            stage,
            selector: spec.selector,
            pods: parts.map(|part| Rc::clone(&part.each)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;
    use crate::view::Catalog;
    use crate::{ActionReason, Amounts, Demand, Fleet, Node, NodeGroup, NodeState, Owner, Phase, PodSet, Pool, Tenant};

    const STAGE: Stage = Stage {
        quota_depth: None,
        priority: 0,
    };

    fn gpus(number: u64) -> Amounts {
        [("gpu".to_owned(), number)].into()
    }

    /// A request of one pod.
    fn pod(name: &str, number: u64) -> Demand {
        Demand {
            name: name.into(),
            pod_sets: vec![PodSet {
                count: 1,
                requests: gpus(number),
            }],
            ..Demand::default()
        }
    }

    /// A node that another tenant has and uses, and three requests, of which the first two are alike.
    fn fleet() -> Fleet {
        let tenant = |name: &str, demand: Vec<Demand>| Tenant {
            uid: name.into(),
            name: name.into(),
            node_groups: vec![NodeGroup {
                name: "g".into(),
                pool: "h100".into(),
                max_nodes: 8,
                demand,
                ..NodeGroup::default()
            }],
            ..Tenant::default()
        };
        let owner = Owner {
            tenant: "holder".into(),
            node_group: "g".into(),
            since: 0,
            phase: Phase::Assigned,
        };
        Fleet {
            now: 100_000,
            pools: vec![Pool {
                name: "h100".into(),
                gpu_resource_name: Some("gpu".into()),
                ..Pool::default()
            }],
            nodes: vec![Node {
                name: "n1".into(),
                pool: "h100".into(),
                capacity: gpus(8),
                used: gpus(8),
                pods: 1,
                state: NodeState::Owned(owner),
                ..Node::default()
            }],
            tenants: vec![
                tenant("holder", Vec::new()),
                tenant("waiting", vec![pod("a", 8), pod("b", 8), pod("c", 4)]),
            ],
            ..Fleet::default()
        }
    }

    fn serve(pass: &mut PlanningPass<'_>, request: usize) -> Outcome {
        pass.serve_pods_unless_in_vain(request, STAGE)
    }

    #[test]
    fn what_is_like_a_request_that_got_nothing_ends_like_it_until_something_changes() {
        let fleet = fleet();
        let catalog = Catalog::new(&fleet.tenants, &fleet.nodes);
        let tree = Tree::new(&fleet.pools[0], &fleet.quotas, &catalog.tenants);
        let mut pass = PlanningPass::new(catalog.view(fleet.now, &fleet.pools[0]), tree);
        assert_eq!(serve(&mut pass, 0), Outcome::Finished);
        assert_eq!(pass.failed.0.len(), 1);
        // A search lists them again.
        pass.victims = None;
        assert_eq!(serve(&mut pass, 1), Outcome::Finished);
        assert!(pass.victims.is_none(), "nothing was searched");
        assert_eq!(pass.progress[1].blocked_by, Some(Blocked::NoFreeNodes));
        assert_eq!(pass.lacking, [0, 1]);
        assert_eq!(serve(&mut pass, 2), Outcome::Finished);
        assert!(pass.victims.is_some(), "other pods are searched for");
        pass.release(0, fleet.now, ActionReason::Idle { idle: 0 });
        pass.add_incoming(0);
        assert_eq!(serve(&mut pass, 1), Outcome::Progress);
        assert_eq!(pass.progress[1].earmarked, [0], "the node comes to it");
    }
}
