//! Which nodes of one domain a load takes: the smallest node that holds the rest of it, else the largest.

use crate::load::Load;
use crate::view::Kind;

/// A load that is placed on nodes of one domain, and what is the same for each domain.
pub(crate) struct Taking<'s> {
    load: &'s Load,
    selector: usize,
    kinds: &'s [Kind],
    /// Only one node is taken.
    one: bool,
    /// If all pods are alike: how many of them fit on an empty node, by kind. None fit where they may not run. So domains are compared without placing a pod.
    fits: Option<Vec<u32>>,
}

impl<'s> Taking<'s> {
    /// A load, and the number of its selector. With `one`, only one node is taken.
    pub fn new(load: &'s Load, selector: usize, kinds: &'s [Kind], one: bool) -> Self {
        let fits = match load.parts.as_slice() {
            [part] => {
                let fits = |kind: &Kind| kind.matches[selector].then(|| part.fit_on(&kind.capacity));
                Some(kinds.iter().map(|kind| fits(kind).unwrap_or(0)).collect())
            }
            _ => None,
        };
        Self {
            load,
            selector,
            kinds,
            one,
            fits,
        }
    }

    /// How many nodes it takes at least, of whatever domain.
    pub fn least_nodes(&self) -> u32 {
        if self.one {
            return 1;
        }
        let least = if let (Some(fits), [part]) = (&self.fits, self.load.parts.as_slice()) {
            fits.iter()
                .max()
                .copied()
                .filter(|most| *most > 0)
                .map(|most| part.left.div_ceil(most))
        } else {
            let matching = self.kinds.iter().filter(|kind| kind.matches[self.selector]);
            matching.filter_map(|kind| self.load.nodes_of(&kind.capacity)).min()
        };
        least.unwrap_or(1)
    }

    /// How many nodes it takes of those that are `there`, by kind, and whether these are enough.
    pub fn count(&self, there: &[(usize, u32)]) -> (usize, bool) {
        let Some(fits) = &self.fits else {
            let (taken, rest) = self.take_by_placing(there);
            return (taken.len(), rest.is_empty() || self.one && !taken.is_empty());
        };
        let one_by_one = || {
            let mut taken = 0;
            let left = self.take_alike(there, fits, |_| taken += 1);
            (taken, left == 0 || self.one && taken > 0)
        };
        let Some(counted) = self.count_equal(there, fits) else {
            return one_by_one();
        };
        debug_assert_eq!(counted, one_by_one(), "nodes that are equal are counted");
        counted
    }

    /// The same if all nodes that are there hold as many pods; `None`: they do not.
    fn count_equal(&self, there: &[(usize, u32)], fits: &[u32]) -> Option<(usize, bool)> {
        let (mut fit, mut nodes) = (0, 0);
        for (kind, count) in there.iter().filter(|(kind, count)| fits[*kind] > 0 && *count > 0) {
            if nodes > 0 && fits[*kind] != fit {
                return None;
            }
            (fit, nodes) = (fits[*kind], nodes + count);
        }
        if nodes == 0 {
            return Some((0, false));
        }
        let needed = if self.one { 1 } else { self.load.count().div_ceil(fit) };
        Some((nodes.min(needed) as usize, nodes >= needed))
    }

    /// Kinds of the nodes to take of those that are `there`, one entry for each node, and what is left of the load.
    pub fn take(&self, there: &[(usize, u32)]) -> (Vec<usize>, Load) {
        let Some(fits) = &self.fits else {
            return self.take_by_placing(there);
        };
        let (mut taken, mut rest) = (Vec::new(), self.load.clone());
        let left = self.take_alike(there, fits, |kind| taken.push(kind));
        for part in &mut rest.parts {
            part.left = left;
        }
        rest.parts.retain(|part| part.left > 0);
        debug_assert_eq!(
            (taken.clone(), rest.clone()),
            self.take_by_placing(there),
            "pods that are alike take other nodes"
        );
        (taken, rest)
    }

    /// The nodes that are there and hold a pod, the smallest first.
    fn list_useful(&self, there: &[(usize, u32)], is_useful: impl Fn(usize) -> bool) -> Vec<(usize, u32)> {
        let there = there.iter().copied();
        let mut useful: Vec<(usize, u32)> = there.filter(|(kind, count)| *count > 0 && is_useful(*kind)).collect();
        useful.sort_unstable_by_key(|(kind, _)| (self.kinds[*kind].gpus, *kind));
        useful
    }

    /// Calls `take` with the kind of each node to take for pods that are alike. Returns how many pods are left.
    fn take_alike(&self, there: &[(usize, u32)], fits: &[u32], mut take: impl FnMut(usize)) -> u32 {
        let mut useful = self.list_useful(there, |kind| fits[kind] > 0);
        let mut left = self.load.count();
        while left > 0 {
            let holds_all = useful.iter().position(|(kind, _)| fits[*kind] >= left);
            let Some(at) = holds_all.or_else(|| useful.len().checked_sub(1)) else {
                break;
            };
            let (kind, count) = &mut useful[at];
            take(*kind);
            left = left.saturating_sub(fits[*kind]);
            *count -= 1;
            if *count == 0 {
                useful.remove(at);
            }
            if self.one {
                break;
            }
        }
        left
    }

    /// As [`Self::take`], whatever the pods are: each node is filled.
    fn take_by_placing(&self, there: &[(usize, u32)]) -> (Vec<usize>, Load) {
        let mut useful = self.list_useful(there, |kind| self.kinds[kind].matches[self.selector]);
        let (mut taken, mut rest) = (Vec::new(), self.load.clone());
        while !rest.is_empty() && (!self.one || taken.is_empty()) {
            useful.retain(|(kind, count)| *count > 0 && rest.any_fits(&self.kinds[*kind].capacity));
            let holds_all = |kind: usize| rest.nodes_of(&self.kinds[kind].capacity) == Some(1);
            let choice = useful.iter().position(|(kind, _)| holds_all(*kind));
            let Some(at) = choice.or_else(|| useful.len().checked_sub(1)) else {
                break;
            };
            let kind = useful[at].0;
            rest.place(&mut self.kinds[kind].capacity.clone());
            useful[at].1 -= 1;
            taken.push(kind);
        }
        (taken, rest)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Nodes with 8, 4 and 8 GPUs; the first selector matches all, the second only the first ones.
    pub(crate) fn kinds() -> Vec<Kind> {
        let kind = |gpus: u64, matches: [bool; 2]| Kind {
            capacity: vec![gpus, 1],
            gpus,
            matches: matches.to_vec(),
        };
        vec![kind(8, [true, true]), kind(4, [true, false]), kind(8, [true, false])]
    }

    /// The kinds of the nodes that are taken, and the number of pods left.
    fn take(pods: &[(u32, u64)], selector: usize, there: &[(usize, u32)], one: bool) -> (Vec<usize>, u32) {
        let load = Load::new(pods.iter().map(|(count, each)| (*count, vec![*each, 0])).collect());
        let kinds = kinds();
        let taking = Taking::new(&load, selector, &kinds, one);
        let (taken, rest) = taking.take(there);
        let is_enough = rest.is_empty() || one && !taken.is_empty();
        assert_eq!(taking.count(there), (taken.len(), is_enough), "counted without placing");
        (taken, rest.count())
    }

    #[test]
    fn the_smallest_node_that_holds_the_rest_is_taken_else_the_largest() {
        let there = [(0, 2), (1, 2), (2, 1)];
        for (pods, taken, left) in [
            (vec![(2, 2)], vec![1], 0),
            (vec![(3, 2)], vec![0], 0),
            (vec![(6, 2)], vec![2, 1], 0),
            (vec![(9, 2)], vec![2, 0, 1], 0),
            (vec![(20, 2)], vec![2, 0, 0, 1, 1], 4),
            (vec![(1, 9)], vec![], 1),
            (vec![(1, 8), (2, 2)], vec![2, 1], 0),
        ] {
            assert_eq!(take(&pods, 0, &there, false), (taken, left), "{pods:?}");
        }
    }

    #[test]
    fn nodes_that_do_not_match_are_left() {
        assert_eq!(take(&[(20, 2)], 1, &[(0, 2), (1, 2)], false), (vec![0, 0], 12));
        assert_eq!(take(&[(1, 2)], 1, &[(1, 2)], false), (vec![], 1));
    }

    #[test]
    fn one_node_is_enough_where_only_the_first_counts() {
        assert_eq!(take(&[(20, 2)], 0, &[(0, 2)], true), (vec![0], 16));
    }

    #[test]
    fn the_least_number_of_nodes_is_of_the_largest_that_match() {
        let kinds = kinds();
        let least = |pods: Vec<(u32, Vec<u64>)>, one: bool| Taking::new(&Load::new(pods), 0, &kinds, one).least_nodes();
        assert_eq!(least(vec![(9, vec![2, 0])], false), 3);
        assert_eq!(least(vec![(9, vec![2, 0])], true), 1);
        assert_eq!(least(vec![(1, vec![9, 0])], false), 1, "none holds a pod");
        assert_eq!(least(vec![(2, vec![8, 0]), (1, vec![2, 0])], false), 3);
    }
}
