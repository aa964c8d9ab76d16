//! What is said to people about where they stand.

use crate::growth::Asked;
use crate::packing::{Load, Part};
use crate::round::{Fate, Round};
use crate::supply::Supply;
use crate::{NodeGroupPlan, Seconds, Topology};
use std::collections::BTreeSet;

/// Why demand waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// It can never be served as things are.
    Never(String),
    /// The group may not have more.
    Ceiling { max: u32 },
    /// A share may not have more.
    Limit { share: String, limit: u64 },
    /// What is free is others' and not lent.
    NotLent { kept: u64 },
    /// There are not enough free nodes.
    NoneFree,
    /// It is next: nodes are on their way.
    Coming,
}

/// Nodes without an owner.
#[derive(Default)]
pub(crate) struct Stock {
    /// Free for anybody.
    free: usize,
    /// Free, and kept for somebody.
    awaited: usize,
    returning: usize,
}

/// A time of the day, UTC.
pub(crate) fn clock(time: Seconds) -> String {
    let minutes = time.rem_euclid(86_400) / 60;
    format!("{:02}:{:02} UTC", minutes / 60, minutes % 60)
}

/// A span of time as people say it.
pub(crate) fn span(seconds: Seconds) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

/// `1 node`, `2 nodes`.
pub(crate) fn nodes(number: usize) -> String {
    if number == 1 {
        "1 node".into()
    } else {
        format!("{number} nodes")
    }
}

impl Round<'_> {
    /// Demand that cannot be served however long it waits: it is told so, and is in nobody's way.
    pub fn refuse_what_never_fits(&mut self) {
        let mut everything: Option<Supply> = None;
        for want in 0..self.view.wants.len() {
            if let Some(words) = self.never(want, &mut everything) {
                self.requests[want].why = Some(Why::Never(words));
            }
        }
    }

    fn never(&self, want: usize, everything: &mut Option<Supply>) -> Option<String> {
        let wanted = &self.view.wants[want];
        let (group, tenant) = (
            self.view.askers[wanted.asker].group,
            self.view.askers[wanted.asker].tenant,
        );
        if !self.knows_a_node() || wanted.load.is_empty() {
            return None;
        }
        let whole = wanted.demand.gang || wanted.demand.topology == Topology::SingleDomain;
        for part in &wanted.load.parts {
            let pod = Load {
                parts: vec![Part {
                    left: 1,
                    each: part.each.clone(),
                }],
            };
            let mut matching = self.view.kinds.iter().filter(|kind| kind.matches[wanted.selector]);
            if !matching.any(|kind| pod.any_fits(&kind.capacity)) {
                return Some(format!(
                    "no node of pool {} is large enough for a pod of it, or has its labels",
                    self.view.pool.name
                ));
            }
        }
        if !whole {
            return None;
        }
        if wanted.demand.topology == Topology::SingleDomain && self.view.domains.is_empty() {
            return Some(format!("pool {} has no topology domains", self.view.pool.name));
        }
        let least = self.nodes_for(want, &wanted.load);
        if least > group.max_nodes {
            return Some(format!(
                "it needs {} and the group has {} at most",
                nodes(least as usize),
                group.max_nodes
            ));
        }
        let fewest = self.view.kinds.iter().map(|kind| kind.gpus).min().unwrap_or(1) * u64::from(least);
        if let Some((share, limit)) = self.tree.never(tenant, fewest) {
            return Some(format!("it needs {fewest} GPUs and {share} has {limit} at most"));
        }
        if let Some(growth) = &self.view.pool.scale_up {
            // What is too small today can be large enough tomorrow.
            return growth.max_nodes.filter(|most| least > *most).map(|most| {
                let pool = &self.view.pool.name;
                format!(
                    "it needs {} and pool {pool} may have {most} at most",
                    nodes(least as usize)
                )
            });
        }
        let everything = everything.get_or_insert_with(|| self.view.supply(|_| true));
        (!self.view.fits(want, everything)).then(|| match wanted.demand.topology {
            Topology::Any => format!("all of pool {} is too small for it", self.view.pool.name),
            Topology::SingleDomain => format!("no topology domain of pool {} is large enough", self.view.pool.name),
        })
    }

    /// Whether there is a node from which can be told what nodes of the pool hold.
    pub fn knows_a_node(&self) -> bool {
        self.view.machines.iter().any(|machine| !machine.node.starting)
    }

    /// Nodes that a load takes at least.
    pub fn nodes_for(&self, want: usize, load: &Load) -> u32 {
        let selector = self.view.wants[want].selector;
        let kinds = self.view.kinds.iter().filter(|kind| kind.matches[selector]);
        kinds
            .filter_map(|kind| load.nodes_of(&kind.capacity))
            .min()
            .unwrap_or(u32::from(!load.is_empty()))
    }

    /// Why a node is given.
    pub fn gift_words(&self, want: usize, gang: bool) -> String {
        let demand = self.view.wants[want].demand;
        let waited = span((self.view.now - demand.waiting_since).max(0));
        let name = &self.view.askers[self.view.wants[want].asker].of.name;
        format!(
            "{}{} of {name} waited {waited}",
            if gang { "gang " } else { "" },
            demand.name
        )
    }

    /// What is left of the pool after this plan.
    pub fn stock(&self) -> Stock {
        let mut stock = Stock::default();
        for (machine, fate) in self.view.machines.iter().zip(&self.fates) {
            match fate {
                Fate::Awaited if machine.is_free() => stock.awaited += 1,
                Fate::Open if machine.is_free() => stock.free += 1,
                _ if machine.is_returning() => stock.returning += 1,
                _ => {}
            }
        }
        stock
    }

    /// Where a group stands after this plan.
    pub fn standing(&self, asker: usize, stock: &Stock, asked: Option<&Asked>) -> NodeGroupPlan {
        let holding = &self.holdings[asker];
        let group = self.view.askers[asker].group;
        let mut waiting = holding.missing;
        let mut desired = holding.kept + holding.missing;
        let mut words = Vec::new();
        if let Some(why) = &holding.floor_why {
            words.push(format!(
                "{} of {} missing: {}",
                holding.missing,
                nodes(group.min_nodes as usize),
                self.why(why, &[], stock)
            ));
        }
        let mut more = 0;
        for want in self.wants_of(asker) {
            let request = &self.requests[want];
            let Some(why) = &request.why else { continue };
            let awaited = u32::try_from(request.awaited.len()).unwrap_or(u32::MAX);
            let lacks = self.nodes_for(want, &request.rest) + awaited;
            desired += awaited;
            if !matches!(why, Why::Never(_)) {
                waiting += lacks;
            }
            if words.len() > 1 {
                more += 1;
                continue;
            }
            let demand = self.view.wants[want].demand;
            let name = format!("{}{}", if demand.gang { "gang " } else { "" }, demand.name);
            words.push(match why {
                Why::Never(words) => format!("{name} can never be served: {words}"),
                _ => format!(
                    "{name} needs {} more: {}",
                    nodes(lacks as usize),
                    self.why(why, &request.awaited, stock)
                ),
            });
        }
        if more > 0 {
            words.push(format!("{more} more wait"));
        }
        if let Some(number) = asked.map(|asked| asked.by_asker[asker]).filter(|number| *number > 0) {
            words.push(format!("an autoscaler is asked for {}", nodes(number as usize)));
        }
        NodeGroupPlan {
            desired,
            held: holding.there,
            waiting,
            borrowed: self.borrowed_nodes(asker),
            reason: words.join("; "),
        }
    }

    fn wants_of(&self, asker: usize) -> std::ops::Range<usize> {
        let from = self.view.wants.partition_point(|want| want.asker < asker);
        from..self.view.wants.partition_point(|want| want.asker <= asker)
    }

    fn borrowed_nodes(&self, asker: usize) -> u32 {
        let of_demand = self.holdings[asker]
            .kept
            .saturating_sub(self.view.askers[asker].group.min_nodes);
        let gpus = self.view.askers[asker]
            .machines
            .first()
            .map_or(1, |at| self.view.gpus(*at));
        let borrowed = self.tree.borrowed(self.view.askers[asker].tenant).div_ceil(gpus);
        of_demand.min(u32::try_from(borrowed).unwrap_or(u32::MAX))
    }

    fn why(&self, why: &Why, awaited: &[usize], stock: &Stock) -> String {
        let pool = &self.view.pool.name;
        match why {
            Why::Never(words) => words.clone(),
            Why::Ceiling { max } => format!("the group has {max} at most"),
            Why::Limit { share, limit } => format!("{share} has {limit} GPUs of pool {pool} at most"),
            Why::NotLent { kept } => {
                format!("{kept} of the free GPUs of pool {pool} are kept for those they belong to")
            }
            Why::NoneFree | Why::Coming => self.supply_words(awaited, stock),
        }
    }

    /// What there is, and what is on its way to whoever waits.
    fn supply_words(&self, awaited: &[usize], stock: &Stock) -> String {
        let pool = &self.view.pool.name;
        let machines = &self.view.machines;
        let own = awaited.iter().filter(|at| machines[**at].is_free()).count();
        let mut words = vec![match stock.free + own {
            0 if machines.is_empty() => format!("pool {pool} has no nodes"),
            number => format!("pool {pool} has {} free", nodes(number)),
        }];
        if stock.awaited > own {
            words.push(format!("{} kept for those who are next", nodes(stock.awaited - own)));
        }
        if stock.returning > 0 {
            words.push(format!("{} being handed on", nodes(stock.returning)));
        }
        let from: Vec<(Seconds, &str)> = awaited.iter().filter_map(|at| self.taken_from(*at)).collect();
        if let Some(first) = from.iter().map(|(time, _)| *time).min() {
            let holders: BTreeSet<&str> = from.iter().map(|(_, name)| *name).collect();
            let holders: Vec<&str> = holders.into_iter().take(3).collect();
            let when = if first > self.view.now {
                format!(" from {} on", clock(first))
            } else {
                String::new()
            };
            words.push(format!(
                "{} taken back from {}{when}",
                nodes(from.len()),
                holders.join(", ")
            ));
        }
        words.join(", ")
    }

    fn taken_from(&self, at: usize) -> Option<(Seconds, &str)> {
        let machine = &self.view.machines[at];
        let until = match self.fates[at] {
            Fate::Release { until } => until,
            _ => machine.cordoned_until()?,
        };
        Some((
            until,
            machine
                .asker
                .map_or("", |asker| self.view.askers[asker].of.name.as_str()),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_times_are_short() {
        assert_eq!(
            [span(119), span(120), span(7199), span(7200)],
            ["119 s", "2 min", "119 min", "2 h"]
        );
        assert_eq!([clock(43_200), clock(-60)], ["12:00 UTC", "23:59 UTC"]);
        assert_eq!([nodes(0), nodes(1), nodes(2)], ["0 nodes", "1 node", "2 nodes"]);
    }
}
