//! Nodes that can be reserved now, and which of them to take. Whole domains are kept for gangs that need them, so nodes are
//! taken first from the domain that is left the fullest, or is not whole any more.

use crate::Topology;
use crate::load::Load;
use crate::taking::Taking;
use crate::view::{Kind, View};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Nodes by topology domain. Domains that are alike are searched once.
pub(crate) struct AvailableNodes {
    by_domain: Vec<DomainNodes>,
    alike: BTreeMap<Rc<Shape>, BTreeSet<usize>>,
    /// Number of domains. Nodes without a domain are in the last entry of `by_domain`.
    domains: usize,
    pub nodes: usize,
    pub gpus: u64,
}

/// Nodes of one domain.
#[derive(Clone, Default)]
struct DomainNodes {
    /// All nodes of the domain, assigned ones included.
    size: u32,
    /// By kind; the last of each list is the first by name.
    kinds: Vec<(usize, Vec<usize>)>,
    /// What follows from it.
    shape: Rc<Shape>,
}

/// What decides which requests a domain suits: how many available nodes it has, whether these are all of its nodes, and how
/// many there are of each kind.
type Shape = (u32, bool, Vec<(usize, u32)>);

/// What to search for.
pub(crate) struct Search<'s> {
    pub load: &'s Load,
    pub selector: usize,
    /// Domains in which the node group has nodes: those go first.
    pub preferred_domains: &'s BTreeSet<usize>,
    /// All of it in one domain.
    pub single_domain: bool,
    /// Only the first node is needed.
    pub first: bool,
}

/// Nodes that were found, and what could not be placed on them.
pub(crate) struct Found {
    pub nodes: Vec<usize>,
    pub unplaced: Load,
}

impl AvailableNodes {
    /// The nodes for which `counts` returns true.
    pub fn of(view: &View<'_>, counts: impl Fn(usize) -> bool) -> Self {
        let nodes = view.nodes.iter().enumerate().filter(|(at, _)| counts(*at));
        let nodes: Vec<(usize, usize, usize)> = nodes.map(|(at, node)| (at, node.kind, node.domain)).collect();
        let mut available = Self::new(view.count_nodes_by_domain());
        available.fill(nodes.into_iter(), &view.kinds);
        available
    }

    /// Whether all pods of a request fit on these nodes.
    pub fn fits(&self, request: usize, view: &View<'_>) -> bool {
        let spec = &view.requests[request];
        let search = Search {
            load: &spec.load,
            selector: spec.selector,
            preferred_domains: &BTreeSet::new(),
            single_domain: spec.demand.topology == Topology::SingleDomain,
            first: false,
        };
        self.find(&search, &view.kinds).unplaced.is_empty()
    }

    /// `sizes`: the number of all nodes of each domain; the last entry counts the nodes without a domain.
    fn new(sizes: Vec<u32>) -> Self {
        let by_domain: Vec<DomainNodes> = sizes
            .into_iter()
            .map(|size| DomainNodes {
                size,
                ..DomainNodes::default()
            })
            .collect();
        Self {
            domains: by_domain.len() - 1,
            by_domain,
            alike: BTreeMap::new(),
            nodes: 0,
            gpus: 0,
        }
    }

    /// Adds nodes as (node, kind, domain).
    fn fill(&mut self, nodes: impl DoubleEndedIterator<Item = (usize, usize, usize)>, kinds: &[Kind]) {
        for (node, kind, domain) in nodes.rev() {
            self.nodes += 1;
            self.gpus += kinds[kind].gpus;
            let of_domain = &mut self.by_domain[domain].kinds;
            match of_domain.binary_search_by_key(&kind, |(kind, _)| *kind) {
                Ok(at) => of_domain[at].1.push(node),
                Err(at) => of_domain.insert(at, (kind, vec![node])),
            }
        }
        for domain in 0..self.by_domain.len() {
            self.list_domain(domain);
        }
    }

    /// Puts a node back that was taken out.
    pub fn put_back(&mut self, node: usize, kind: usize, domain: usize, gpus: u64) {
        self.unlist_domain(domain);
        let of_domain = &mut self.by_domain[domain].kinds;
        match of_domain.binary_search_by_key(&kind, |(kind, _)| *kind) {
            Ok(at) => {
                let list = &mut of_domain[at].1;
                list.insert(list.partition_point(|other| *other > node), node);
            }
            Err(at) => of_domain.insert(at, (kind, vec![node])),
        }
        self.nodes += 1;
        self.gpus += gpus;
        self.list_domain(domain);
    }

    fn unlist_domain(&mut self, domain: usize) {
        let shape = &self.by_domain[domain].shape;
        if let Some(domains) = self.alike.get_mut(shape) {
            domains.remove(&domain);
            if domains.is_empty() {
                self.alike.remove(shape);
            }
        }
    }

    fn list_domain(&mut self, domain: usize) {
        let domain_nodes = &mut self.by_domain[domain];
        domain_nodes.shape = Rc::new(domain_nodes.shape());
        if !domain_nodes.kinds.is_empty() {
            let shape = domain_nodes.shape.clone();
            self.alike.entry(shape).or_default().insert(domain);
        }
    }

    /// Takes a node out.
    pub fn remove(&mut self, node: usize, kind: usize, domain: usize, gpus: u64) {
        self.unlist_domain(domain);
        let domain_nodes = &mut self.by_domain[domain];
        let Ok(at) = domain_nodes.kinds.binary_search_by_key(&kind, |(kind, _)| *kind) else {
            return;
        };
        let list = &mut domain_nodes.kinds[at].1;
        let Some(position) = list.iter().rposition(|other| *other == node) else {
            return;
        };
        list.remove(position);
        if list.is_empty() {
            domain_nodes.kinds.remove(at);
        }
        self.nodes -= 1;
        self.gpus -= gpus;
        self.list_domain(domain);
    }

    /// Nodes for a load, as far as there are any. With `single_domain`, nodes for all of it or none.
    pub fn find(&self, search: &Search<'_>, kinds: &[Kind]) -> Found {
        let mut found = Found {
            nodes: Vec::new(),
            unplaced: search.load.clone(),
        };
        let mut searched = BTreeSet::new();
        while !found.unplaced.is_empty() {
            let Some((domain, taken, rest)) = self.find_best_domain(search, &found.unplaced, &searched, kinds) else {
                break;
            };
            found.nodes.extend(self.by_domain[domain].first_nodes(&taken));
            found.unplaced = rest;
            searched.insert(domain);
            if search.first || search.single_domain {
                break;
            }
        }
        found
    }

    /// Nodes of one domain for a load, as far as there are any, and what could not be placed on them.
    pub fn find_in_domain(&self, domain: usize, load: &Load, selector: usize, kinds: &[Kind]) -> (Vec<usize>, Load) {
        let domain_nodes = &self.by_domain[domain];
        let (taken, rest) = Taking::new(load, selector, kinds, false).take(&domain_nodes.shape.2);
        (domain_nodes.first_nodes(&taken), rest)
    }

    /// The nodes of each domain, by name.
    pub fn list_by_domain(&self) -> impl Iterator<Item = (usize, Vec<usize>)> {
        let domains = self
            .alike
            .values()
            .flatten()
            .copied()
            .filter(|domain| *domain != self.domains);
        domains.map(|domain| {
            let lists = self.by_domain[domain].kinds.iter();
            let mut nodes: Vec<usize> = lists.flat_map(|(_, list)| list).copied().collect();
            nodes.sort_unstable();
            (domain, nodes)
        })
    }

    /// The best domain for a load: one where the tenant has nodes already, then the tightest that holds all of it without
    /// breaking up a whole domain, then the one that holds the most.
    fn find_best_domain(
        &self,
        search: &Search<'_>,
        load: &Load,
        searched: &BTreeSet<usize>,
        kinds: &[Kind],
    ) -> Option<(usize, Vec<usize>, Load)> {
        let one_is_enough = search.first && self.domains == 0;
        let taking = Taking::new(load, search.selector, kinds, one_is_enough);
        let preferred = self.list_preferred(search.preferred_domains, searched);
        let domain = self.choose_domain(search, &taking, &preferred).or_else(|| {
            let away = self.alike.iter().filter_map(|(shape, domains)| {
                let domain = domains.iter().find(|domain| !searched.contains(domain))?;
                Some((&**shape, *domain))
            });
            self.choose_domain(search, &taking, &away.collect::<Vec<_>>())
        })?;
        let (taken, rest) = taking.take(&self.by_domain[domain].shape.2);
        Some((domain, taken, rest))
    }

    /// Of some domains that are not searched yet the first one of each shape, by shape. Either each of these domains is looked at, or each shape, whichever are
    /// fewer: one group may have nodes in all domains.
    fn list_preferred(&self, domains: &BTreeSet<usize>, searched: &BTreeSet<usize>) -> Vec<(&Shape, usize)> {
        if domains.len() > self.alike.len() {
            let shapes = self.alike.iter();
            let first = shapes.filter_map(|(shape, alike)| Some((&**shape, find_in_both(domains, alike, searched)?)));
            return first.collect();
        }
        let mut preferred: BTreeMap<&Shape, usize> = BTreeMap::new();
        for domain in domains.iter().filter(|domain| !searched.contains(domain)) {
            let domain_nodes = &self.by_domain[*domain];
            if !domain_nodes.kinds.is_empty() {
                preferred.entry(&domain_nodes.shape).or_insert(*domain);
            }
        }
        preferred.into_iter().collect()
    }

    /// The best of `domains`, which are sorted by size, the smallest first.
    fn choose_domain(&self, search: &Search<'_>, taking: &Taking<'_>, domains: &[(&Shape, usize)]) -> Option<usize> {
        let is_domain = |domain: usize| !search.single_domain || domain != self.domains;
        let least = taking.least_nodes();
        // The tightest that holds all of it; one that would break up a whole domain only if there is no other.
        let mut breaks = None;
        let from = domains.partition_point(|(shape, _)| shape.0 < least);
        for (shape, domain) in domains[from..].iter().filter(|(_, domain)| is_domain(*domain)) {
            if breaks.is_some() && shape.1 && shape.0 > least {
                continue;
            }
            let (taken, is_enough) = taking.count(&shape.2);
            if is_enough {
                if shape.1 && taken < shape.0 as usize {
                    breaks.get_or_insert(*domain);
                } else {
                    return Some(*domain);
                }
            }
        }
        if breaks.is_some() || search.single_domain {
            return breaks;
        }
        // No domain holds all of it: the one that holds the most.
        let mut most: Option<(usize, usize)> = None;
        for (shape, domain) in domains.iter().rev() {
            let (already, first) = most.unwrap_or((0, usize::MAX));
            if (shape.0 as usize) < already {
                break;
            }
            let (taken, _) = taking.count(&shape.2);
            if taken > already || (taken > 0 && taken == already && *domain < first) {
                most = Some((taken, *domain));
            }
        }
        most.map(|(_, domain)| domain)
    }
}

impl DomainNodes {
    /// The first nodes by name, one for each kind in `wanted`.
    fn first_nodes(&self, wanted: &[usize]) -> Vec<usize> {
        let mut taken = vec![0; self.kinds.len()];
        let mut take = |kind: &usize| {
            let at = self.kinds.binary_search_by_key(kind, |(kind, _)| *kind).ok()?;
            taken[at] += 1;
            let list = &self.kinds[at].1;
            list.len().checked_sub(taken[at]).map(|last| list[last])
        };
        wanted.iter().filter_map(&mut take).collect()
    }

    fn shape(&self) -> Shape {
        let kinds: Vec<(usize, u32)> = self
            .kinds
            .iter()
            .map(|(kind, list)| (*kind, u32::try_from(list.len()).unwrap_or(u32::MAX)))
            .collect();
        let there = kinds.iter().map(|(_, count)| *count).sum::<u32>();
        (there, there == self.size, kinds)
    }
}

/// The first domain that is in both sets and not searched yet.
fn find_in_both(one: &BTreeSet<usize>, other: &BTreeSet<usize>, searched: &BTreeSet<usize>) -> Option<usize> {
    let mut from = 0;
    loop {
        let domain = *one.range(from..).next()?;
        from = *other.range(domain..).next()?;
        if from == domain {
            if !searched.contains(&domain) {
                return Some(domain);
            }
            from += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::taking::tests::kinds;

    /// Domains by the kinds of their free nodes and the number of those that are taken; nodes are numbered through.
    fn available(domains: &[(&[usize], u32)]) -> AvailableNodes {
        let free = |kinds: &[usize]| u32::try_from(kinds.len()).unwrap();
        let mut sizes: Vec<u32> = domains.iter().map(|(kinds, taken)| free(kinds) + taken).collect();
        sizes.push(0);
        let of_domains = domains.iter().enumerate();
        let nodes = of_domains.flat_map(|(domain, (kinds, _))| kinds.iter().map(move |kind| (*kind, domain)));
        let nodes: Vec<(usize, usize, usize)> = nodes
            .enumerate()
            .map(|(at, (kind, domain))| (at, kind, domain))
            .collect();
        let mut nodes_left = AvailableNodes::new(sizes);
        nodes_left.fill(nodes.into_iter(), &kinds());
        nodes_left
    }

    fn find(
        available: &AvailableNodes,
        pods: u32,
        each: u64,
        selector: usize,
        domains: &[usize],
        single: bool,
    ) -> Vec<usize> {
        let load = Load::new(vec![(pods, vec![each, 0])]);
        let search = Search {
            load: &load,
            selector,
            preferred_domains: &domains.iter().copied().collect(),
            single_domain: single,
            first: false,
        };
        available.find(&search, &kinds()).nodes
    }

    #[test]
    fn the_tightest_domain_goes_first_and_a_whole_one_last() {
        let available = available(&[(&[0, 0, 0], 1), (&[0, 0], 2), (&[0, 0], 0)]);
        assert_eq!(
            find(&available, 2, 8, 0, &[], false),
            [3, 4],
            "not whole any more, and the tightest"
        );
        assert_eq!(find(&available, 1, 8, 0, &[], false), [3]);
        assert_eq!(find(&available, 3, 8, 0, &[], true), [0, 1, 2]);
        assert_eq!(find(&available, 4, 8, 0, &[], true), Vec::<usize>::new());
        assert_eq!(
            find(&available, 4, 8, 0, &[], false).len(),
            4,
            "as few domains as possible"
        );
    }

    #[test]
    fn domains_of_the_group_go_first() {
        let available = available(&[(&[0], 1), (&[0, 0], 1)]);
        assert_eq!(find(&available, 1, 8, 0, &[], false), [0]);
        assert_eq!(find(&available, 1, 8, 0, &[1], false), [1]);
    }

    #[test]
    fn of_many_domains_of_a_group_the_first_one_that_is_alike_is_found() {
        // More domains than shapes, and one domain without free nodes.
        let available = available(&[(&[0], 1), (&[], 2), (&[0], 1), (&[0], 1), (&[0, 0], 0)]);
        assert_eq!(find(&available, 1, 8, 0, &[1, 2, 3], false), [1]);
        assert_eq!(
            find(&available, 2, 8, 0, &[1, 2, 3], false),
            [1, 2],
            "one after the other"
        );
        assert_eq!(find(&available, 3, 8, 0, &[1, 2, 3], false), [1, 2, 0]);
        let in_both = |one: &[usize], other: &[usize], searched: &[usize]| {
            let [one, other, searched] = [one, other, searched].map(|set| set.iter().copied().collect());
            find_in_both(&one, &other, &searched)
        };
        assert_eq!(in_both(&[1, 4, 7, 9], &[2, 7, 9], &[]), Some(7));
        assert_eq!(in_both(&[1, 4, 7, 9], &[2, 7, 9], &[7]), Some(9));
        assert_eq!(in_both(&[1, 4], &[2, 7], &[]), None);
        assert_eq!(in_both(&[], &[0], &[]), None);
    }

    #[test]
    fn the_smallest_matching_node_that_holds_the_rest_is_taken() {
        let available = available(&[(&[0, 1], 0)]);
        assert_eq!(find(&available, 1, 4, 0, &[], false), [1]);
        assert_eq!(find(&available, 1, 4, 1, &[], false), [0]);
        assert_eq!(find(&available, 3, 4, 0, &[], false).len(), 2);
        assert_eq!(find(&available, 1, 9, 0, &[], false), Vec::<usize>::new());
    }

    #[test]
    fn a_node_that_is_put_back_is_found_as_before() {
        let mut available = available(&[(&[0, 0, 0], 0)]);
        available.remove(1, 0, 0, 8);
        assert_eq!((available.nodes, available.gpus), (2, 16));
        assert_eq!(find(&available, 9, 8, 0, &[], false), [0, 2]);
        available.put_back(1, 0, 0, 8);
        assert_eq!((available.nodes, available.gpus), (3, 24));
        assert_eq!(find(&available, 9, 8, 0, &[], false), [0, 1, 2], "by name again");
    }
}
