//! Nodes that a tenant has whatever happens: those of private groups, and the floors of others. The oldest tenant goes
//! first, and gets all that it lacks of a pool or nothing.

use crate::round::{Fate, Round};
use crate::supply::Search;
use crate::view::ANY;
use crate::words::Why;

impl Round<'_> {
    /// Fills what groups lack of their floors. What cannot be filled keeps nodes from demand, not from other floors.
    pub fn fill_floors(&mut self) {
        let mut short = Vec::new();
        let mut from = 0;
        while from < self.view.askers.len() {
            let tenant = self.view.askers[from].tenant;
            let to = from
                + self.view.askers[from..]
                    .iter()
                    .take_while(|asker| asker.tenant == tenant)
                    .count();
            for asker in from..to {
                self.keep_for_floor(asker);
            }
            let missing: u32 = (from..to).map(|asker| self.lacks(asker)).sum();
            if missing > 0 && !self.fill(from, to, missing) {
                short.push((from, to));
            }
            from = to;
        }
        for (from, to) in short {
            self.wait_for_floor(from, to);
        }
    }

    fn lacks(&self, asker: usize) -> u32 {
        self.view.askers[asker]
            .group
            .min_nodes
            .saturating_sub(self.holdings[asker].kept)
    }

    fn keep_for_floor(&mut self, asker: usize) {
        for at in self.holdings[asker].cordoned.clone() {
            let (tenant, gpus) = (self.view.askers[asker].tenant, self.view.gpus(at));
            if self.lacks(asker) > 0 && self.fates[at] == Fate::Open && self.tree.may_stay(tenant, gpus) {
                self.keep(at, format!("{} asks for it again", self.view.askers[asker].of.name));
                // Demand may be placed on it.
                let room = self.view.room(at);
                self.add_room(asker, at, room);
            }
        }
    }

    /// Gives the groups of a tenant all they lack, if there is enough.
    fn fill(&mut self, from: usize, to: usize, missing: u32) -> bool {
        let tenant = self.view.askers[from].tenant;
        let least = self.view.kinds.iter().map(|kind| kind.gpus).min().unwrap_or(1);
        if let Err(why) = self.limited(tenant, least * u64::from(missing)) {
            for asker in from..to {
                self.holdings[asker].floor_why = Some(why.clone());
            }
            return false;
        }
        if self.supply.nodes < missing as usize {
            return false;
        }
        let mut plan = Vec::new();
        for asker in from..to {
            let lacks = self.lacks(asker);
            let nodes = self.free_nodes(asker, lacks);
            let gpus = nodes.iter().map(|at| self.view.gpus(*at)).sum();
            let allowed = self.limited(tenant, gpus).and_then(|()| self.is_lent(tenant, gpus));
            if let Err(why) = allowed {
                // A tenant that is given nothing does not lose what was given to its other groups a moment ago: those
                // nodes are promised in the next plan.
                for (node, asker) in plan {
                    self.undo_reserve(node, asker);
                }
                self.holdings[asker].floor_why = Some(why);
                return false;
            }
            for node in nodes {
                let why = format!(
                    "{} asks for {} nodes",
                    self.view.askers[asker].of.name, self.view.askers[asker].group.min_nodes
                );
                self.reserve(node, asker, true, why);
                plan.push((node, asker));
            }
        }
        for (node, asker) in plan {
            let room = self.view.room(node);
            self.add_room(asker, node, room);
        }
        true
    }

    /// Free nodes for a group, whichever there are.
    fn free_nodes(&self, asker: usize, number: u32) -> Vec<usize> {
        let search = Search {
            load: &self.view.whole_nodes(number),
            selector: ANY,
            home: &self.holdings[asker].home,
            one_domain: false,
            first: false,
        };
        self.supply.find(&search, &self.view.kinds).nodes
    }

    fn limited(&self, tenant: usize, gpus: u64) -> Result<(), Why> {
        match self.tree.limit(tenant, gpus) {
            Some((share, limit)) => Err(Why::Limit {
                share: share.to_string(),
                limit,
            }),
            None => Ok(()),
        }
    }

    /// A floor that cannot be filled now: nodes that were promised for it go back, and what is free or on its way is kept
    /// for it, if the pool can have enough once others give back what follows demand.
    fn wait_for_floor(&mut self, from: usize, to: usize) {
        let barred = (from..to).any(|asker| self.holdings[asker].floor_why.is_some());
        for asker in from..to {
            let kept = self.holdings[asker].kept;
            for at in self.view.askers[asker].machines.clone() {
                let incomplete = self.view.machines[at].reserved_of().is_some_and(|of| of > kept);
                if incomplete && self.lacks(asker) > 0 && self.fates[at] == Fate::Open {
                    self.unreserve(at, "the others that were promised with it are not there".into());
                    self.expect(at);
                }
            }
            self.holdings[asker].missing = self.lacks(asker);
            if self.lacks(asker) > 0 {
                self.holdings[asker].floor_why.get_or_insert(Why::NoneFree);
            }
        }
        let missing: u32 = (from..to).map(|asker| self.lacks(asker)).sum();
        if barred || self.within_reach() < missing as usize {
            return;
        }
        for asker in from..to {
            let mut left = self.lacks(asker) as usize;
            let free = self.free_nodes(asker, self.lacks(asker));
            for at in free.into_iter().chain(self.coming.clone()) {
                if left == 0 {
                    break;
                }
                if self.comes(at, asker) {
                    if self.is_expired(at) && self.fates[at] == Fate::Open {
                        self.release_as_idle(at);
                    }
                    self.await_node(at, asker);
                    self.holdings[asker].awaited_for_floor.push(at);
                    left -= 1;
                }
            }
            if left == 0 {
                self.holdings[asker].floor_why = Some(Why::Coming);
            } else {
                self.short.push((asker, left));
            }
        }
    }

    /// A node that demand has taken from a borrower goes to a floor that waits, if there is one: it would come first as soon
    /// as the node is on its way.
    pub fn pass_to_floor(&mut self, machine: usize) -> bool {
        let Some((asker, left)) = self.short.first_mut() else {
            return false;
        };
        let asker = *asker;
        *left -= 1;
        if *left == 0 {
            self.short.remove(0);
            self.holdings[asker].floor_why = Some(Why::Coming);
        }
        self.await_node(machine, asker);
        self.holdings[asker].awaited_for_floor.push(machine);
        true
    }

    /// Nodes that a floor may hope for: free ones, those on their way, and those that others have because of their demand.
    fn within_reach(&self) -> usize {
        let of_demand: u32 = (0..self.view.askers.len())
            .map(|asker| {
                self.holdings[asker]
                    .kept
                    .saturating_sub(self.view.askers[asker].group.min_nodes)
            })
            .sum();
        let coming = self
            .coming
            .iter()
            .filter(|at| self.fates[**at] != Fate::Open || !self.is_expired(**at));
        self.supply.nodes + coming.count() + of_demand as usize
    }
}
