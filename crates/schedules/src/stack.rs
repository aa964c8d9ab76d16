//! The policies of a tenant, from the outermost target to the tenant itself.

use crate::{NextChange, Schedule, Standing, search};
use berth_api::{ScheduleState, ScheduleTarget, ScheduleTargetKind, WorkloadSelector};
use jiff::Timestamp;
use std::{collections::HashMap, sync::Arc};

/// Changes of single policies that a search for the next change of all of them looks at.
const MAX_CHANGES: usize = 100;

/// Where a tenant belongs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The organization of its project.
    pub organization: Option<String>,
    /// The project of its namespace.
    pub project: Option<String>,
    /// The class that applies to it.
    pub class: Option<String>,
    /// Namespace of its TenantCluster.
    pub namespace: String,
    /// Name of its TenantCluster.
    pub name: String,
}

impl Place {
    /// The targets by which policies can name it, the outermost first.
    fn targets(&self) -> impl Iterator<Item = ScheduleTarget> {
        let around = [
            (ScheduleTargetKind::Organization, &self.organization),
            (ScheduleTargetKind::Project, &self.project),
            (ScheduleTargetKind::TenantClass, &self.class),
        ];
        let around = around.into_iter().filter_map(|(kind, name)| {
            Some(ScheduleTarget {
                kind,
                name: name.clone()?,
                namespace: None,
                workloads: None,
            })
        });
        around.chain([ScheduleTarget {
            kind: ScheduleTargetKind::TenantCluster,
            name: self.name.clone(),
            namespace: Some(self.namespace.clone()),
            workloads: None,
        }])
    }
}

/// All policies, by their targets.
#[derive(Debug, Default)]
pub struct PolicyIndex(HashMap<ScheduleTarget, OfTarget>);

/// The policies of one target, by name.
#[derive(Debug, Default)]
struct OfTarget {
    /// Those for its tenants as a whole.
    tenants: Vec<Arc<Schedule>>,
    /// Those for some pods of them.
    workloads: Vec<(WorkloadSelector, Arc<Schedule>)>,
}

impl PolicyIndex {
    /// Policies with their targets.
    pub fn new<'a>(policies: impl IntoIterator<Item = (&'a [ScheduleTarget], Arc<Schedule>)>) -> Self {
        let mut index: HashMap<ScheduleTarget, OfTarget> = HashMap::new();
        for (targets, schedule) in policies {
            for target in targets {
                let mut key = target.clone();
                let workloads = key.workloads.take();
                let (of_target, schedule) = (index.entry(key).or_default(), Arc::clone(&schedule));
                match workloads {
                    None => of_target.tenants.push(schedule),
                    Some(workloads) => of_target.workloads.push((workloads, schedule)),
                }
            }
        }
        for OfTarget { tenants, workloads } in index.values_mut() {
            tenants.sort_by(|a, b| a.policy().cmp(b.policy()));
            // The order of the targets of one policy stays.
            workloads.sort_by(|(_, a), (_, b)| a.policy().cmp(b.policy()));
        }
        Self(index)
    }

    /// Remembers the state of each policy at `now`, see [`Schedule::keep`]. Returns when to do so again: when the first of them changes.
    pub fn keep(&self, now: Timestamp) -> Option<Timestamp> {
        let schedules = self.0.values().flat_map(|of_target| {
            let of_workloads = of_target.workloads.iter().map(|(_, schedule)| schedule);
            of_target.tenants.iter().chain(of_workloads)
        });
        schedules
            .filter_map(|schedule| {
                schedule.keep(now);
                schedule.next_change(now).evaluate_again()
            })
            .min()
    }

    /// Whether there are no policies.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The policies of a tenant as a whole.
    pub fn stack(&self, place: &Place) -> Stack {
        let of_target = |target: &OfTarget| target.tenants.clone();
        Stack(self.of_place(place).flat_map(of_target).collect())
    }

    /// The policies of some pods of a tenant, the outermost first.
    pub fn rules(&self, place: &Place) -> Vec<WorkloadRule> {
        let rules = self.of_place(place).flat_map(|target| &target.workloads);
        rules
            .map(|(workloads, schedule)| WorkloadRule {
                workloads: workloads.clone(),
                stack: Stack(vec![Arc::clone(schedule)]),
            })
            .collect()
    }

    fn of_place(&self, place: &Place) -> impl Iterator<Item = &OfTarget> {
        // Most hosts have no policies.
        let targets = (!self.0.is_empty()).then(|| place.targets());
        let keys: Vec<ScheduleTarget> = targets.into_iter().flatten().collect();
        keys.into_iter().filter_map(|key| self.0.get(&key))
    }
}

/// A policy for some pods of a tenant.
#[derive(Clone, Debug)]
pub struct WorkloadRule {
    /// The pods.
    pub workloads: WorkloadSelector,
    /// The policy alone.
    pub stack: Stack,
}

impl WorkloadRule {
    /// Name of the policy.
    pub fn policy(&self) -> &str {
        self.stack
            .0
            .first()
            .map(|schedule| schedule.policy())
            .unwrap_or_default()
    }
}

/// The policies of a tenant, the outermost first.
#[derive(Clone, Debug, Default)]
pub struct Stack(Vec<Arc<Schedule>>);

impl Stack {
    /// Whether the tenant has no policy.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What the tenant may do: the strictest of what its policies say. So a policy can restrict what those further out allow, and
    /// allows nothing that they do not.
    pub fn state(&self, at: Timestamp) -> ScheduleState {
        let states = self.0.iter().map(|schedule| schedule.state(at));
        states.max().unwrap_or_default()
    }

    /// What the tenant may do, and why: of several policies that say the same, the outermost decides.
    pub fn standing(&self, at: Timestamp) -> Standing<'_> {
        let state = self.state(at);
        let deciding = match state {
            ScheduleState::Running => None,
            _ => self.0.iter().find(|schedule| schedule.state(at) == state),
        };
        match deciding {
            Some(schedule) => schedule.standing(at),
            None => Standing {
                state,
                schedule: None,
                window: None,
            },
        }
    }

    /// When that changes after an instant.
    pub fn next_change(&self, after: Timestamp) -> NextChange {
        search::find_change(after, MAX_CHANGES, |from| self.next_of_one(from), |at| self.state(at))
    }

    /// When the first of the policies changes after an instant. One that is not certain comes first.
    fn next_of_one(&self, after: Timestamp) -> NextChange {
        let changes = self.0.iter().map(|schedule| schedule.next_change(after));
        let first = changes
            .filter_map(|change| Some((change.evaluate_again()?, matches!(change, NextChange::At(_)))))
            .min();
        match first {
            None => NextChange::Never,
            Some((at, true)) => NextChange::At(at),
            Some((at, false)) => NextChange::NotBefore(at),
        }
    }

    /// The next changes after an instant, `count` at most.
    pub fn transitions(&self, after: Timestamp, count: usize) -> Vec<(Timestamp, Standing<'_>)> {
        search::list_transitions(after, count, |from| self.next_change(from), |at| self.standing(at))
    }
}
