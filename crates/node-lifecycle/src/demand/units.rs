//! Pods that are served together: single ones, those with an affinity to each other, and gangs.

use super::workload::{SchedulingState, Workload};
use berth_planner::Seconds;
use std::{cmp::Reverse, collections::BTreeMap};

/// How long the pods of a gang may be created one after the other. A gang of which fewer than half exist then counts with those alone: its
/// size is a number that the tenant writes, and one pod must not get the nodes of a whole gang.
const TIME_TO_CREATE: Seconds = 60;

/// One pod, or a gang.
pub(super) struct SchedulingUnit<'a> {
    pub(super) name: String,
    pub(super) priority: i32,
    pub(super) since: Seconds,
    pub(super) pods: Vec<&'a Workload>,
    /// Pods of the gang that are not created yet.
    pub(super) missing: u32,
    pub(super) is_gang: bool,
    /// Until when it is no demand, because fewer than half of the pods of the gang exist.
    pub(super) is_created_until: Option<Seconds>,
    pub(super) one_domain: DomainRule<'a>,
}

/// Whether nodes must be of one topology domain.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DomainRule<'a> {
    No,
    /// Of the pool's topology key.
    Yes,
    /// Of this label.
    By(&'a str),
}

/// Pending pods one by one, those with an affinity to each other, and gangs: higher priority first, then by age.
pub(super) fn group_into_units<'a>(
    workloads: impl Iterator<Item = &'a Workload>,
    now: Seconds,
) -> Vec<SchedulingUnit<'a>> {
    let mut units = Vec::new();
    let mut gangs: BTreeMap<&str, Vec<&'a Workload>> = BTreeMap::new();
    let mut companions: BTreeMap<_, SchedulingUnit<'a>> = BTreeMap::new();
    for workload in workloads {
        match (&workload.gang, &workload.affinity) {
            (Some(gang), _) if gang.size > 1 => gangs.entry(&gang.name).or_default().push(workload),
            _ if workload.scheduling != SchedulingState::Pending => {}
            (_, Some(affinity)) => {
                if let Some(unit) = companions.get_mut(affinity) {
                    unit.priority = unit.priority.max(workload.priority);
                    unit.pods.push(workload);
                } else {
                    let mut unit = single_pod(workload);
                    unit.one_domain = DomainRule::By(&affinity.topology);
                    companions.insert(affinity, unit);
                }
            }
            (_, None) => units.push(single_pod(workload)),
        }
    }
    for unit in companions.values_mut() {
        unit.since = common_wait(&unit.pods);
    }
    units.extend(companions.into_values());
    for (name, mut members) in gangs {
        members.sort_by_key(|pod| (pod.since, pod.name.clone()));
        let Some(gang) = members.iter().find_map(|pod| pod.gang.as_ref()) else {
            continue;
        };
        let has_started = members
            .iter()
            .any(|pod| matches!(pod.scheduling, SchedulingState::Bound(_) | SchedulingState::Finished));
        let running = members
            .iter()
            .filter(|pod| matches!(pod.scheduling, SchedulingState::Bound(_)))
            .count();
        let size = usize::try_from(gang.size).unwrap_or(usize::MAX);
        let still = size.saturating_sub(running);
        let is_partial = !has_started && members.len() < size.div_ceil(2);
        let mut waiting: Vec<&Workload> = members
            .into_iter()
            .filter(|pod| pod.scheduling == SchedulingState::Pending)
            .collect();
        // Pods beyond the gang's size are served one by one.
        let more = waiting.split_off(still.min(waiting.len()));
        units.extend(more.into_iter().map(single_pod));
        let Some(first) = waiting.first() else { continue };
        let until = first.since + TIME_TO_CREATE;
        // Before the gang starts, pods that are not created yet are taken to be like the others. Afterwards the missing pods
        // have finished.
        let missing = if has_started || is_partial {
            0
        } else {
            still - waiting.len()
        };
        units.push(SchedulingUnit {
            name: name.to_owned(),
            priority: waiting.iter().map(|pod| pod.priority).max().unwrap_or_default(),
            since: common_wait(&waiting),
            missing: u32::try_from(missing).unwrap_or(u32::MAX),
            is_gang: true,
            is_created_until: Some(until).filter(|until| is_partial && *until > now),
            one_domain: if gang.one_domain {
                DomainRule::Yes
            } else {
                DomainRule::No
            },
            pods: waiting,
        });
    }
    let rank = |unit: &SchedulingUnit<'_>| (Reverse(unit.priority), unit.since, unit.name.clone());
    units.sort_by_cached_key(rank);
    units
}

/// Since when pods that are served together wait: at least half of those that exist have waited for so long. So one that is old, or can never start, takes
/// no new ones along.
fn common_wait(pods: &[&Workload]) -> Seconds {
    let mut since: Vec<Seconds> = pods.iter().map(|pod| pod.since).collect();
    since.sort_unstable();
    let middle = since.len().saturating_sub(1) / 2;
    since.get(middle).copied().unwrap_or_default()
}

fn single_pod(workload: &Workload) -> SchedulingUnit<'_> {
    SchedulingUnit {
        name: workload.name.clone(),
        priority: workload.priority,
        since: workload.since,
        pods: vec![workload],
        missing: 0,
        is_gang: false,
        is_created_until: None,
        one_domain: DomainRule::No,
    }
}

impl<'a> SchedulingUnit<'a> {
    /// Its pods, those that are not created yet included.
    pub(super) fn all(&self) -> Vec<&'a Workload> {
        let missing = usize::try_from(self.missing).unwrap_or_default();
        let more = self.pods.last().into_iter().cycle().take(missing);
        self.pods.iter().chain(more).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Gang, PodAffinity},
        *,
    };

    /// The unit of pods that wait since then, of a gang of as many or with an affinity to each other.
    fn since(pods: &[Seconds], is_gang: bool) -> Seconds {
        let size = u32::try_from(pods.len()).unwrap();
        let pods: Vec<Workload> = pods
            .iter()
            .enumerate()
            .map(|(number, since)| Workload {
                name: format!("p{number}"),
                since: *since,
                gang: is_gang.then(|| Gang {
                    name: "train".into(),
                    size,
                    one_domain: false,
                }),
                affinity: (!is_gang).then(|| PodAffinity {
                    key: "app=train".into(),
                    topology: "rack".into(),
                }),
                ..Workload::default()
            })
            .collect();
        let units = group_into_units(pods.iter(), 1_000);
        assert_eq!(units.len(), 1);
        units[0].since
    }

    #[test]
    fn one_old_pod_takes_no_new_ones_along() {
        for is_gang in [true, false] {
            assert_eq!(since(&[10, 900, 900, 900], is_gang), 900);
            assert_eq!(since(&[900, 10, 900], is_gang), 900);
            assert_eq!(since(&[900, 20, 10, 900], is_gang), 20, "half of them have waited");
            assert_eq!(since(&[40, 20], is_gang), 20);
        }
    }
}
