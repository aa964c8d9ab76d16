//! Nodes that can be given now, and which of them to take: whole domains for those who need them, so the domain that is
//! left the fullest, or is broken already, goes first.

use crate::packing::Load;
use crate::view::Kind;
use std::collections::{BTreeMap, BTreeSet};

/// Nodes by topology domain. Domains that look alike are searched once.
pub(crate) struct Supply {
    shelves: Vec<Shelf>,
    alike: BTreeMap<Look, BTreeSet<usize>>,
    /// Nodes without a domain stand on the last shelf, and are no domain.
    domains: usize,
    pub nodes: usize,
    pub gpus: u64,
}

/// Nodes of one domain.
#[derive(Clone, Default)]
struct Shelf {
    /// All nodes of the domain, whoever has them.
    size: u32,
    /// By kind; the last of each list is the first by name.
    kinds: Vec<(usize, Vec<usize>)>,
}

/// What decides whether a domain is good for something: how many nodes it has, whether these are all of its nodes, and how
/// many of each kind there are.
type Look = (u32, bool, Vec<(usize, u32)>);

/// What to look for.
pub(crate) struct Search<'s> {
    pub load: &'s Load,
    pub selector: usize,
    /// Domains in which the tenant is already: those go first.
    pub home: &'s BTreeSet<usize>,
    /// All of it in one domain.
    pub one_domain: bool,
    /// Only the first node is wanted.
    pub first: bool,
}

/// Nodes that were found, and what could not be placed on them.
pub(crate) struct Found {
    pub nodes: Vec<usize>,
    pub rest: Load,
}

impl Supply {
    /// `sizes`: nodes of each domain in all; the last entry counts those without a domain.
    pub fn new(sizes: Vec<u32>) -> Self {
        let shelves = sizes
            .into_iter()
            .map(|size| Shelf {
                size,
                kinds: Vec::new(),
            })
            .collect::<Vec<_>>();
        Self {
            domains: shelves.len() - 1,
            shelves,
            alike: BTreeMap::new(),
            nodes: 0,
            gpus: 0,
        }
    }

    /// Adds nodes as (machine, kind, domain).
    pub fn fill(&mut self, machines: impl DoubleEndedIterator<Item = (usize, usize, usize)>, kinds: &[Kind]) {
        for (machine, kind, domain) in machines.rev() {
            self.nodes += 1;
            self.gpus += kinds[kind].gpus;
            let of_domain = &mut self.shelves[domain].kinds;
            match of_domain.binary_search_by_key(&kind, |(kind, _)| *kind) {
                Ok(at) => of_domain[at].1.push(machine),
                Err(at) => of_domain.insert(at, (kind, vec![machine])),
            }
        }
        for (domain, shelf) in self
            .shelves
            .iter()
            .enumerate()
            .filter(|(_, shelf)| !shelf.kinds.is_empty())
        {
            self.alike.entry(shelf.look()).or_default().insert(domain);
        }
    }

    /// Puts a node back that was taken out.
    pub fn put_back(&mut self, machine: usize, kind: usize, domain: usize, gpus: u64) {
        self.forget(domain);
        let of_domain = &mut self.shelves[domain].kinds;
        match of_domain.binary_search_by_key(&kind, |(kind, _)| *kind) {
            Ok(at) => {
                let list = &mut of_domain[at].1;
                list.insert(list.partition_point(|other| *other > machine), machine);
            }
            Err(at) => of_domain.insert(at, (kind, vec![machine])),
        }
        self.nodes += 1;
        self.gpus += gpus;
        self.remember(domain);
    }

    fn forget(&mut self, domain: usize) {
        let look = self.shelves[domain].look();
        if let Some(domains) = self.alike.get_mut(&look) {
            domains.remove(&domain);
            if domains.is_empty() {
                self.alike.remove(&look);
            }
        }
    }

    fn remember(&mut self, domain: usize) {
        let shelf = &self.shelves[domain];
        if !shelf.kinds.is_empty() {
            self.alike.entry(shelf.look()).or_default().insert(domain);
        }
    }

    /// Takes a node out.
    pub fn take(&mut self, machine: usize, kind: usize, domain: usize, gpus: u64) {
        self.forget(domain);
        let shelf = &mut self.shelves[domain];
        let Ok(at) = shelf.kinds.binary_search_by_key(&kind, |(kind, _)| *kind) else {
            return;
        };
        let list = &mut shelf.kinds[at].1;
        let Some(position) = list.iter().rposition(|other| *other == machine) else {
            return;
        };
        list.remove(position);
        if list.is_empty() {
            shelf.kinds.remove(at);
        }
        self.nodes -= 1;
        self.gpus -= gpus;
        self.remember(domain);
    }

    /// Nodes for a load, as far as there are any. With `one_domain` all of it or nothing.
    pub fn find(&self, search: &Search<'_>, kinds: &[Kind]) -> Found {
        let mut found = Found {
            nodes: Vec::new(),
            rest: search.load.clone(),
        };
        let mut searched = BTreeSet::new();
        while !found.rest.is_empty() {
            let Some((domain, taken, rest)) = self.best(search, &found.rest, &searched, kinds) else {
                break;
            };
            found.nodes.extend(self.shelves[domain].first(&taken));
            found.rest = rest;
            searched.insert(domain);
            if search.first || search.one_domain {
                break;
            }
        }
        found
    }

    /// Nodes of one domain for a load, as far as there are any, and what could not be placed on them.
    pub fn in_domain(&self, domain: usize, load: &Load, selector: usize, kinds: &[Kind]) -> (Vec<usize>, Load) {
        let shelf = &self.shelves[domain];
        let (taken, rest) = take_from(&shelf.look().2, load, selector, kinds, false);
        (shelf.first(&taken), rest)
    }

    /// The best domain for a load: where the tenant is already, then the tightest that holds all of it without breaking up
    /// a whole one, then the one that holds the most.
    fn best(
        &self,
        search: &Search<'_>,
        load: &Load,
        searched: &BTreeSet<usize>,
        kinds: &[Kind],
    ) -> Option<(usize, Vec<usize>, Load)> {
        let mut homes: BTreeMap<Look, usize> = BTreeMap::new();
        for domain in search.home.iter().filter(|domain| !searched.contains(domain)) {
            if !self.shelves[*domain].kinds.is_empty() {
                homes.entry(self.shelves[*domain].look()).or_insert(*domain);
            }
        }
        let homes: Vec<(&Look, usize)> = homes.iter().map(|(look, domain)| (look, *domain)).collect();
        self.best_of(search, load, &homes, kinds).or_else(|| {
            let away = self.alike.iter().filter_map(|(look, domains)| {
                let domain = domains.iter().find(|domain| !searched.contains(domain))?;
                Some((look, *domain))
            });
            self.best_of(search, load, &away.collect::<Vec<_>>(), kinds)
        })
    }

    /// The best of some domains, which come with the smallest first.
    fn best_of(
        &self,
        search: &Search<'_>,
        load: &Load,
        domains: &[(&Look, usize)],
        kinds: &[Kind],
    ) -> Option<(usize, Vec<usize>, Load)> {
        let one_is_enough = search.first && self.domains == 0;
        let is_domain = |domain: usize| !search.one_domain || domain != self.domains;
        let matching = kinds.iter().filter(|kind| kind.matches[search.selector]);
        let least = matching.filter_map(|kind| load.nodes_of(&kind.capacity)).min();
        let least = if one_is_enough { 1 } else { least.unwrap_or(1) };
        // The tightest that holds all of it; one that would break up a whole domain only if there is no other.
        let mut breaks = None;
        let from = domains.partition_point(|(look, _)| look.0 < least);
        for (look, domain) in domains[from..].iter().filter(|(_, domain)| is_domain(*domain)) {
            if breaks.is_some() && look.1 && look.0 > least {
                continue;
            }
            let (taken, rest) = take_from(&look.2, load, search.selector, kinds, one_is_enough);
            if rest.is_empty() || (one_is_enough && !taken.is_empty()) {
                if look.1 && taken.len() < look.0 as usize {
                    breaks.get_or_insert((*domain, taken, rest));
                } else {
                    return Some((*domain, taken, rest));
                }
            }
        }
        if breaks.is_some() || search.one_domain {
            return breaks;
        }
        // None does: the one that holds the most.
        let mut most: Option<(usize, Vec<usize>, Load)> = None;
        for (look, domain) in domains.iter().rev() {
            let already = most.as_ref().map_or(0, |(_, taken, _)| taken.len());
            if (look.0 as usize) < already {
                break;
            }
            let (taken, rest) = take_from(&look.2, load, search.selector, kinds, false);
            let first = most.as_ref().map_or(usize::MAX, |most| most.0);
            if taken.len() > already || (!taken.is_empty() && taken.len() == already && *domain < first) {
                most = Some((*domain, taken, rest));
            }
        }
        most
    }
}

impl Shelf {
    /// The first nodes by name, one for each entry of `wanted`, which are kinds.
    fn first(&self, wanted: &[usize]) -> Vec<usize> {
        let mut lists: BTreeMap<usize, _> = self
            .kinds
            .iter()
            .map(|(kind, list)| (*kind, list.iter().rev()))
            .collect();
        wanted
            .iter()
            .filter_map(|kind| lists.get_mut(kind)?.next().copied())
            .collect()
    }

    fn look(&self) -> Look {
        let kinds: Vec<(usize, u32)> = self
            .kinds
            .iter()
            .map(|(kind, list)| (*kind, u32::try_from(list.len()).unwrap_or(u32::MAX)))
            .collect();
        let there = kinds.iter().map(|(_, count)| *count).sum::<u32>();
        (there, there == self.size, kinds)
    }
}

/// Kinds of the nodes to take, one entry a node, and what is left of the load. The smallest node that holds the rest is
/// taken, else the largest.
fn take_from(there: &[(usize, u32)], load: &Load, selector: usize, kinds: &[Kind], one: bool) -> (Vec<usize>, Load) {
    let mut there: Vec<(usize, u32)> = there
        .iter()
        .copied()
        .filter(|(kind, _)| kinds[*kind].matches[selector])
        .collect();
    there.sort_by_key(|(kind, _)| (kinds[*kind].gpus, *kind));
    let (mut taken, mut rest) = (Vec::new(), load.clone());
    while !rest.is_empty() && (!one || taken.is_empty()) {
        there.retain(|(kind, count)| *count > 0 && rest.any_fits(&kinds[*kind].capacity));
        let holds_all = |kind: usize| rest.nodes_of(&kinds[kind].capacity) == Some(1);
        let choice = there.iter().position(|(kind, _)| holds_all(*kind));
        let Some(at) = choice.or_else(|| there.len().checked_sub(1)) else {
            break;
        };
        let kind = there[at].0;
        rest.place(&mut kinds[kind].capacity.clone());
        there[at].1 -= 1;
        taken.push(kind);
    }
    (taken, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes with 8 and with 4 GPUs; the first selector matches both, the second only the large ones.
    fn kinds() -> Vec<Kind> {
        let kind = |gpus: u64, matches: [bool; 2]| Kind {
            capacity: vec![gpus, 1],
            gpus,
            matches: matches.to_vec(),
        };
        vec![kind(8, [true, true]), kind(4, [true, false])]
    }

    /// Domains by the kinds of their free nodes and the number of those that are taken; nodes are numbered through.
    fn supply(domains: &[(&[usize], u32)]) -> Supply {
        let free = |kinds: &[usize]| u32::try_from(kinds.len()).unwrap();
        let mut sizes: Vec<u32> = domains.iter().map(|(kinds, taken)| free(kinds) + taken).collect();
        sizes.push(0);
        let of_domains = domains.iter().enumerate();
        let nodes = of_domains.flat_map(|(domain, (kinds, _))| kinds.iter().map(move |kind| (*kind, domain)));
        let nodes: Vec<(usize, usize, usize)> = nodes
            .enumerate()
            .map(|(at, (kind, domain))| (at, kind, domain))
            .collect();
        let mut supply = Supply::new(sizes);
        supply.fill(nodes.into_iter(), &kinds());
        supply
    }

    fn find(supply: &Supply, pods: u32, each: u64, selector: usize, home: &[usize], one_domain: bool) -> Vec<usize> {
        let load = Load::new(vec![(pods, vec![each, 0])]);
        let search = Search {
            load: &load,
            selector,
            home: &home.iter().copied().collect(),
            one_domain,
            first: false,
        };
        supply.find(&search, &kinds()).nodes
    }

    #[test]
    fn the_tightest_domain_that_holds_all_goes_first_and_a_whole_one_last() {
        let supply = supply(&[(&[0, 0, 0], 1), (&[0, 0], 2), (&[0, 0], 0)]);
        assert_eq!(
            find(&supply, 2, 8, 0, &[], false),
            [3, 4],
            "a broken one, and the tightest"
        );
        assert_eq!(find(&supply, 1, 8, 0, &[], false), [3]);
        assert_eq!(find(&supply, 3, 8, 0, &[], true), [0, 1, 2]);
        assert_eq!(find(&supply, 4, 8, 0, &[], true), Vec::<usize>::new());
        assert_eq!(
            find(&supply, 4, 8, 0, &[], false).len(),
            4,
            "as few domains as possible"
        );
    }

    #[test]
    fn where_the_group_is_already_goes_before() {
        let supply = supply(&[(&[0], 1), (&[0, 0], 1)]);
        assert_eq!(find(&supply, 1, 8, 0, &[], false), [0]);
        assert_eq!(find(&supply, 1, 8, 0, &[1], false), [1]);
    }

    #[test]
    fn the_smallest_node_that_holds_the_rest_and_only_what_is_selected() {
        let supply = supply(&[(&[0, 1], 0)]);
        assert_eq!(find(&supply, 1, 4, 0, &[], false), [1]);
        assert_eq!(find(&supply, 1, 4, 1, &[], false), [0]);
        assert_eq!(find(&supply, 3, 4, 0, &[], false).len(), 2);
        assert_eq!(find(&supply, 1, 9, 0, &[], false), Vec::<usize>::new());
    }

    #[test]
    fn what_is_taken_and_put_back_is_as_it_was() {
        let mut supply = supply(&[(&[0, 0, 0], 0)]);
        supply.take(1, 0, 0, 8);
        assert_eq!((supply.nodes, supply.gpus), (2, 16));
        assert_eq!(find(&supply, 9, 8, 0, &[], false), [0, 2]);
        supply.put_back(1, 0, 0, 8);
        assert_eq!((supply.nodes, supply.gpus), (3, 24));
        assert_eq!(find(&supply, 9, 8, 0, &[], false), [0, 1, 2], "by name again");
    }
}
