//! The planning of one pool: what has been decided so far, and the few ways in which that changes.

use crate::packing::Load;
use crate::reclaim::Victims;
use crate::supply::Supply;
use crate::tree::Tree;
use crate::view::View;
use crate::words::Why;
use crate::{Action, ActionKind, Phase, Plan, Seconds};
use std::collections::BTreeSet;

/// What becomes of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Nothing was decided.
    Open,
    /// Its tenant needs it: it stays.
    Wanted,
    /// Free, and promised now; with others of a gang or by itself.
    Reserve { together: bool },
    /// Promised, and free again.
    Unreserve,
    /// Taken from its tenant.
    Release { until: Seconds },
    /// Cordoned, and left to its tenant after all.
    Keep,
    /// For the time of a search it counts as taken.
    Lent { wanted: bool },
    /// Free or on its way to be; somebody who cannot have all that it needs yet is next.
    Awaited,
}

/// Where demand stands.
pub(crate) struct Request {
    /// Pods that no node is planned for.
    pub rest: Load,
    /// Nodes that are on their way to it.
    pub awaited: Vec<usize>,
    /// Nodes that were promised to it now.
    pub given: u32,
    /// Why it waits.
    pub why: Option<Why>,
}

/// A node group's nodes.
pub(crate) struct Holding {
    /// Nodes it has: Reserved, Joining, Assigned and cordoned ones, and those promised now.
    pub there: u32,
    /// Of these the ones that stay.
    pub kept: u32,
    /// Room on nodes that stay: (machine, amounts), the fullest first.
    pub rooms: Vec<(usize, Vec<u64>)>,
    /// Cordoned nodes.
    pub cordoned: Vec<usize>,
    /// Domains in which it is.
    pub home: BTreeSet<usize>,
    /// Nodes that are on their way to it.
    pub awaited: usize,
    /// What its floor lacks.
    pub missing: u32,
    /// Nodes that are free or will be, and kept for its floor.
    pub awaited_for_floor: Vec<usize>,
    pub floor_why: Option<Why>,
}

/// One pool being planned.
pub(crate) struct Round<'a> {
    pub view: View<'a>,
    pub tree: Tree<'a>,
    pub supply: Supply,
    pub fates: Vec<Fate>,
    /// Why a node's fate is what it is.
    pub reasons: Vec<String>,
    pub holdings: Vec<Holding>,
    pub requests: Vec<Request>,
    /// Nodes that will be free and that nobody has claimed yet, in the order of [`Round::due`]: returning ones, cordoned ones,
    /// and those that have been idle for so long that they may go back.
    pub coming: Vec<usize>,
    /// Groups whose floors lack more than what is on its way, with the number of nodes.
    pub short: Vec<(usize, usize)>,
    /// Free GPUs were kept for a gang that waited too long.
    pub holds_for_gang: bool,
    pub replan_at: Option<Seconds>,
    /// Whole-pool searches that may still be made.
    pub searches: u32,
    /// All nodes that demand may hope for, once somebody asked.
    pub reachable: Option<Supply>,
    /// Nodes that may be taken back, once somebody asked.
    pub victims: Option<Victims>,
}

impl<'a> Round<'a> {
    pub fn new(view: View<'a>, tree: Tree<'a>) -> Self {
        let supply = view.supply(|at| view.machines[at].is_free());
        let requests = view.wants.iter().map(|want| Request {
            rest: want.load.clone(),
            awaited: Vec::new(),
            given: 0,
            why: None,
        });
        let mut round = Self {
            tree,
            supply,
            fates: vec![Fate::Open; view.machines.len()],
            reasons: vec![String::new(); view.machines.len()],
            holdings: Vec::with_capacity(view.askers.len()),
            requests: requests.collect(),
            coming: Vec::new(),
            short: Vec::new(),
            holds_for_gang: false,
            replan_at: None,
            searches: 8,
            reachable: None,
            victims: None,
            view,
        };
        round.take_stock();
        round
    }

    /// Counts what everybody has.
    fn take_stock(&mut self) {
        for asker in &self.view.askers {
            let mut holding = Holding {
                there: 0,
                kept: 0,
                rooms: Vec::new(),
                cordoned: Vec::new(),
                home: BTreeSet::new(),
                awaited: 0,
                missing: 0,
                awaited_for_floor: Vec::new(),
                floor_why: None,
            };
            for number in &asker.machines {
                let gpus = self.view.gpus(*number);
                holding.there += 1;
                if self.view.machines[*number].cordoned_until().is_some() {
                    holding.cordoned.push(*number);
                    self.tree.leave(asker.tenant, gpus);
                } else {
                    holding.kept += 1;
                    holding.home.insert(self.view.machines[*number].domain);
                    self.tree.take(asker.tenant, gpus);
                }
            }
            holding.home.remove(&self.view.domains.len());
            self.holdings.push(holding);
        }
        let mut coming: Vec<usize> = (0..self.view.machines.len())
            .filter(|at| {
                let machine = &self.view.machines[*at];
                machine.is_returning() || machine.is_cordoned() || self.is_expired(*at)
            })
            .collect();
        coming.sort_by_key(|at| (self.due(*at), *at));
        self.coming = coming;
    }

    /// When a node that will be free begins to return; `None`: it did. The same before and after it was released.
    pub fn due(&self, machine: usize) -> Option<Seconds> {
        match self.fates[machine] {
            Fate::Release { until } => Some(until),
            Fate::Unreserve => None,
            _ => self.view.machines[machine]
                .cordoned_until()
                .or_else(|| self.is_expired(machine).then_some(self.view.now)),
        }
    }

    /// A node that is released now will be free.
    pub fn expect(&mut self, machine: usize) {
        self.coming.retain(|other| *other != machine);
        let key = (self.due(machine), machine);
        let at = self.coming.partition_point(|other| (self.due(*other), *other) < key);
        self.coming.insert(at, machine);
    }

    /// Whether a group may count on a node of [`Round::coming`]: one that is idle with somebody who needs it for a floor does
    /// not come.
    pub fn comes(&self, machine: usize, asker: usize) -> bool {
        let Some(owner) = self.view.machines[machine].asker.filter(|_| self.is_expired(machine)) else {
            return true;
        };
        match self.fates[machine] {
            Fate::Open => owner != asker && self.holdings[owner].kept > self.view.askers[owner].group.min_nodes,
            fate => matches!(fate, Fate::Release { .. }),
        }
    }

    /// Plans again at `time` at the latest.
    pub fn wake(&mut self, time: Seconds) {
        if time > self.view.now {
            self.replan_at = Some(self.replan_at.map_or(time, |other| other.min(time)));
        }
    }

    /// Takes a node from the group that it belongs to.
    pub fn release(&mut self, machine: usize, until: Seconds, why: String) {
        let gpus = self.view.gpus(machine);
        if let Some(asker) = self.view.machines[machine].asker {
            let tenant = self.view.askers[asker].tenant;
            self.holdings[asker].kept -= 1;
            self.holdings[asker].rooms.retain(|(other, _)| *other != machine);
            self.tree.give_back(tenant, gpus);
            self.tree.leave(tenant, gpus);
        }
        self.fates[machine] = Fate::Release { until };
        self.reasons[machine] = why;
    }

    /// Takes a promise back.
    pub fn unreserve(&mut self, machine: usize, why: String) {
        let gpus = self.view.gpus(machine);
        if let Some(asker) = self.view.machines[machine].asker {
            self.holdings[asker].kept -= 1;
            self.holdings[asker].there -= 1;
            self.holdings[asker].rooms.retain(|(other, _)| *other != machine);
            self.tree.give_back(self.view.askers[asker].tenant, gpus);
        }
        self.fates[machine] = Fate::Unreserve;
        self.reasons[machine] = why;
    }

    /// Leaves a cordoned node to its group.
    pub fn keep(&mut self, machine: usize, why: String) {
        let Some(asker) = self.view.machines[machine].asker else {
            return;
        };
        let (gpus, tenant) = (self.view.gpus(machine), self.view.askers[asker].tenant);
        self.tree.stay(tenant, gpus);
        self.tree.take(tenant, gpus);
        let holding = &mut self.holdings[asker];
        holding.kept += 1;
        holding.cordoned.retain(|other| *other != machine);
        holding.home.insert(self.view.machines[machine].domain);
        self.coming.retain(|other| *other != machine);
        self.fates[machine] = Fate::Keep;
        self.reasons[machine] = why;
    }

    /// Promises a free node to a group.
    pub fn reserve(&mut self, machine: usize, asker: usize, together: bool, why: String) {
        let (kind, domain) = (self.view.machines[machine].kind, self.view.machines[machine].domain);
        let gpus = self.view.gpus(machine);
        self.supply.take(machine, kind, domain, gpus);
        self.tree.take(self.view.askers[asker].tenant, gpus);
        let holding = &mut self.holdings[asker];
        holding.there += 1;
        holding.kept += 1;
        if domain < self.view.domains.len() {
            holding.home.insert(domain);
        }
        self.fates[machine] = Fate::Reserve { together };
        self.reasons[machine] = why;
        self.view.machines[machine].asker = Some(asker);
        self.view.askers[asker].machines.push(machine);
    }

    /// A node that is free, or will be, is for somebody who waits.
    pub fn await_node(&mut self, machine: usize, asker: usize) {
        let gpus = self.view.gpus(machine);
        if self.view.machines[machine].is_free() {
            let (kind, domain) = (self.view.machines[machine].kind, self.view.machines[machine].domain);
            self.supply.take(machine, kind, domain, gpus);
        } else {
            self.coming.retain(|other| *other != machine);
        }
        self.tree.take(self.view.askers[asker].tenant, gpus);
        self.holdings[asker].awaited += 1;
        if self.fates[machine] == Fate::Open {
            self.fates[machine] = Fate::Awaited;
        }
    }

    /// Undoes a promise of this plan.
    pub fn undo_reserve(&mut self, machine: usize, asker: usize) {
        let (kind, domain) = (self.view.machines[machine].kind, self.view.machines[machine].domain);
        self.tree
            .give_back(self.view.askers[asker].tenant, self.view.gpus(machine));
        self.supply.put_back(machine, kind, domain, self.view.gpus(machine));
        self.holdings[asker].there -= 1;
        self.holdings[asker].kept -= 1;
        self.fates[machine] = Fate::Open;
        self.reasons[machine].clear();
        self.view.machines[machine].asker = None;
        self.view.askers[asker].machines.retain(|other| *other != machine);
    }

    /// Whether a group may have `nodes` more with `gpus` GPUs, whoever they come from.
    pub fn may_have(&self, asker: usize, nodes: usize, gpus: u64) -> Result<(), Why> {
        let (group, tenant) = (self.view.askers[asker].group, self.view.askers[asker].tenant);
        let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
        if self.holdings[asker].there.saturating_add(nodes) > self.view.askers[asker].most() {
            return Err(Why::Ceiling { max: group.max_nodes });
        }
        if let Some((share, limit)) = self.tree.limit(tenant, gpus) {
            return Err(Why::Limit {
                share: share.to_string(),
                limit,
            });
        }
        Ok(())
    }

    /// Whether a tenant may take `gpus` of what is free without touching what others do not lend.
    pub fn is_lent(&self, tenant: usize, gpus: u64) -> Result<(), Why> {
        if !self.tree.keeps() || self.tree.is_guaranteed(tenant, gpus) {
            return Ok(());
        }
        let kept = self.tree.kept_for_others(tenant);
        if gpus + kept > self.supply.gpus {
            Err(Why::NotLent { kept })
        } else {
            Ok(())
        }
    }

    /// Adds what was decided to the plan.
    pub fn conclude(mut self, plan: &mut Plan) {
        let stock = self.stock();
        let asked = self.ask();
        for asker in 0..self.view.askers.len() {
            let standing = self.standing(asker, &stock, asked.as_ref());
            let groups = plan
                .node_groups
                .entry(self.view.askers[asker].of.uid.clone())
                .or_default();
            groups
                .entry(self.view.askers[asker].group.name.clone())
                .or_insert(standing);
        }
        if let Some(asked) = asked {
            plan.scale_ups.insert(self.view.pool.name.clone(), asked.ask);
        }
        for machine in 0..self.view.machines.len() {
            let reason = std::mem::take(&mut self.reasons[machine]);
            if let Some(kind) = self.step(machine) {
                plan.actions.push(Action {
                    node: self.view.machines[machine].node.name.clone(),
                    kind,
                    reason,
                });
            }
        }
        plan.replan_at = match (plan.replan_at, self.replan_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }

    fn step(&self, number: usize) -> Option<ActionKind> {
        let machine = &self.view.machines[number];
        let reserve = |of: u32| {
            let asker = &self.view.askers[machine.asker?];
            Some(ActionKind::Reserve {
                tenant: asker.of.uid.clone(),
                node_group: asker.group.name.clone(),
                required_nodes: of,
            })
        };
        match self.fates[number] {
            Fate::Reserve { together: false } => reserve(1),
            Fate::Reserve { together: true } => reserve(self.holdings[machine.asker?].kept),
            // A fellow has vanished, or others were promised since: what is waited for is another number now.
            Fate::Wanted => {
                let (kept, of) = (self.holdings[machine.asker?].kept, machine.reserved_of()?);
                (of > self.joined_by_now(machine.asker?) && of != kept).then(|| reserve(kept))?
            }
            Fate::Unreserve => Some(ActionKind::CancelReservation),
            Fate::Release { until } => match machine.owner()?.phase {
                Phase::Cordoned { drain_at: already } if already <= until => None,
                Phase::Reserved { .. } => Some(ActionKind::CancelReservation),
                _ => Some(ActionKind::Release { drain_at: until }),
            },
            Fate::Keep => Some(ActionKind::CancelRelease),
            Fate::Open | Fate::Awaited | Fate::Lent { .. } => None,
        }
    }

    /// Nodes of a group that count for a promise as things are now.
    fn joined_by_now(&self, asker: usize) -> u32 {
        let machines = self.view.askers[asker].machines.iter();
        let there = machines.filter(|at| {
            self.view.machines[**at]
                .owner()
                .is_some_and(|owner| !owner.phase.is_cordoned())
        });
        u32::try_from(there.count()).unwrap_or(u32::MAX)
    }
}

impl Phase {
    fn is_cordoned(self) -> bool {
        matches!(self, Self::Cordoned { .. })
    }
}
