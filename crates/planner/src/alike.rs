//! Requests that end as one like them did. A tenant may have many that differ in nothing but how long they wait, and most of them lack the same nodes.

use crate::load::Load;
use crate::pass::{Blocked, PlanningPass};
use crate::stage::{Outcome, Stage};
use std::borrow::Cow;

/// What decides how a request of a group ends whose pods may run in any domains, besides what was decided before.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Likeness<'l> {
    /// With the priority of the request.
    stage: Stage,
    selector: usize,
    gang: bool,
    /// The pods that have no node. Their number decides as well: the free node that suits one of them may be small enough for a limit, and that for
    /// eight of them not.
    unplaced: Cow<'l, Load>,
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
pub(crate) struct FailedRequests<'a> {
    /// By group, in the order of what decides. A group has few that differ, and to compare them takes less time than hashing one.
    known: Vec<Vec<(Likeness<'static>, Failed<'a>)>>,
    /// [`PlanningPass::changes`] when the last of them was noted: all are of no use after a change.
    changes: Option<u64>,
}

impl<'a> FailedRequests<'a> {
    fn find(&self, group: usize, likeness: &Likeness<'_>) -> Option<&Failed<'a>> {
        let known = self.known.get(group)?;
        let at = known.binary_search_by(|(other, _)| other.cmp(likeness)).ok()?;
        Some(&known[at].1)
    }

    fn note(&mut self, group: usize, likeness: Likeness<'static>, failed: Failed<'a>) {
        self.changes = Some(failed.changes);
        if group >= self.known.len() {
            self.known.resize_with(group + 1, Vec::new);
        }
        let known = &mut self.known[group];
        match known.binary_search_by(|(other, _)| other.cmp(&likeness)) {
            Ok(at) => known[at].1 = failed,
            Err(at) => known.insert(at, (likeness, failed)),
        }
    }
}

impl Likeness<'_> {
    fn into_owned(self) -> Likeness<'static> {
        Likeness {
            unplaced: Cow::Owned(self.unplaced.into_owned()),
            ..self
        }
    }
}

impl<'a> PlanningPass<'a> {
    /// Serves a request whose pods may run in any domains. One like another that got nothing ends as that one did, without a search, unless something has
    /// changed since.
    pub fn serve_unless_in_vain(&mut self, request: usize, stage: Stage) -> Outcome {
        let failed = self.find_failed(request, stage);
        if let Some(failed) = failed.filter(|failed| !self.may_keep_nodes(request, failed)) {
            if cfg!(debug_assertions) {
                self.check_in_vain(request, stage, &failed);
            }
            return match failed.blocked_by {
                Some(blocked) => self.block(request, blocked),
                None => Outcome::NotNow,
            };
        }
        // What an earlier step of this request has found out is not known of those like it.
        let is_first_step = self.enough.is_none();
        let changes = self.changes;
        let outcome = self.serve_in_any_domains(request, stage);
        let progress = &self.progress[request];
        let got_nothing = outcome != Outcome::Progress && !progress.unplaced.is_empty();
        // The gang that waited too long counts fewer pods now, even if no node is kept for it.
        let is_alike = is_first_step && self.starved_gang != Some(request);
        if got_nothing && is_alike && self.changes == changes {
            let is_blocked = outcome == Outcome::Finished;
            let blocked_by = progress.blocked_by.clone().filter(|_| is_blocked);
            let likeness = self.likeness(request, stage).into_owned();
            let group = self.view.requests[request].group;
            self.failed.note(group, likeness, Failed { changes, blocked_by });
        }
        outcome
    }

    fn serve_in_any_domains(&mut self, request: usize, stage: Stage) -> Outcome {
        if self.view.requests[request].demand.gang {
            self.serve_gang(request, stage)
        } else {
            self.serve_pods(request, stage)
        }
    }

    /// Whether free nodes may be kept for a gang that lacks others: it may have waited for longer than the one that is like it.
    fn may_keep_nodes(&mut self, request: usize, failed: &Failed<'a>) -> bool {
        let lacks_nodes = failed.blocked_by == Some(Blocked::NoFreeNodes);
        let is_starved = lacks_nodes && self.view.requests[request].demand.gang && self.is_starved(request);
        is_starved && self.starved_gang.is_none()
    }

    fn likeness(&self, request: usize, stage: Stage) -> Likeness<'_> {
        let spec = &self.view.requests[request];
        Likeness {
            stage,
            selector: spec.selector,
            gang: spec.demand.gang,
            unplaced: Cow::Borrowed(&self.progress[request].unplaced),
        }
    }

    /// How a request like this ended, if nothing has changed since.
    fn find_failed(&self, request: usize, stage: Stage) -> Option<Failed<'a>> {
        if self.failed.changes != Some(self.changes) {
            return None;
        }
        let group = self.view.requests[request].group;
        let failed = self.failed.find(group, &self.likeness(request, stage))?;
        (failed.changes == self.changes).then(|| failed.clone())
    }

    /// Searches all the same, and panics if the request ends in another way than the one that is like it. Builds with debug assertions do that, so each
    /// test of a plan tests that plans are the same with and without the searches that are left out.
    fn check_in_vain(&mut self, request: usize, stage: Stage, failed: &Failed<'a>) {
        let lacking = self.lacking.len();
        let outcome = self.serve_in_any_domains(request, stage);
        self.lacking.truncate(lacking);
        let is_blocked = outcome == Outcome::Finished;
        let blocked_by = self.progress[request].blocked_by.as_ref().filter(|_| is_blocked);
        assert_ne!(outcome, Outcome::Progress, "a search finds something");
        assert_eq!(
            (blocked_by, self.changes),
            (failed.blocked_by.as_ref(), failed.changes),
            "a search ends in another way"
        );
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

    fn pods(name: &str, count: u32, number: u64) -> Demand {
        Demand {
            name: name.into(),
            pod_sets: vec![PodSet {
                count,
                requests: gpus(number),
            }],
            ..Demand::default()
        }
    }

    /// A node that another tenant has and uses, and four requests, of which the first two are alike.
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
                tenant(
                    "waiting",
                    vec![pods("a", 1, 8), pods("b", 1, 8), pods("c", 1, 4), pods("d", 2, 8)],
                ),
            ],
            ..Fleet::default()
        }
    }

    fn serve(pass: &mut PlanningPass<'_>, request: usize) -> Outcome {
        pass.serve_unless_in_vain(request, STAGE)
    }

    fn is_known(pass: &PlanningPass<'_>, request: usize) -> bool {
        pass.find_failed(request, STAGE).is_some()
    }

    #[test]
    fn what_is_like_a_request_that_got_nothing_ends_like_it_until_something_changes() {
        let fleet = fleet();
        let catalog = Catalog::new(&fleet.tenants, &fleet.nodes);
        let tree = Tree::new(&fleet.pools[0], &fleet.quotas, &catalog.tenants);
        let mut pass = PlanningPass::new(catalog.view(fleet.now, &fleet.pools[0]), tree);
        assert_eq!(serve(&mut pass, 0), Outcome::Finished);
        assert!(is_known(&pass, 1), "nothing is searched");
        assert_eq!(serve(&mut pass, 1), Outcome::Finished);
        assert_eq!(pass.progress[1].blocked_by, Some(Blocked::NoFreeNodes));
        assert_eq!(pass.lacking, [0, 1]);
        for other in [2, 3] {
            assert!(!is_known(&pass, other), "other pods, or more of them, are searched for");
        }
        pass.release(0, fleet.now, ActionReason::Idle { idle: 0 });
        pass.add_incoming(0);
        assert!(!is_known(&pass, 1));
        assert_eq!(serve(&mut pass, 1), Outcome::Progress);
        assert_eq!(pass.progress[1].earmarked, [0], "the node comes to it");
    }

    #[test]
    fn a_gang_ends_like_another_unless_nodes_may_be_kept_for_it() {
        let mut fleet = fleet();
        let demand = fleet.tenants[1].node_groups[0].demand.iter_mut();
        for (demand, waiting_since) in demand.zip([99_900, 0, 0]) {
            *demand = Demand {
                gang: true,
                waiting_since,
                ..pods(&demand.name, 1, 8)
            };
        }
        let catalog = Catalog::new(&fleet.tenants, &fleet.nodes);
        let tree = Tree::new(&fleet.pools[0], &fleet.quotas, &catalog.tenants);
        let mut pass = PlanningPass::new(catalog.view(fleet.now, &fleet.pools[0]), tree);
        for request in 0..3 {
            assert_eq!(serve(&mut pass, request), Outcome::Finished);
            assert!(is_known(&pass, request));
        }
        assert_eq!(
            pass.starved_gang,
            Some(1),
            "it has waited for longer than the one like it"
        );
        assert_eq!(pass.lacking, [0, 1, 2]);
        assert_eq!(pass.progress[2].blocked_by, Some(Blocked::NoFreeNodes));
    }
}
