//! Pods that wait, and how many of them fit on a node.

use std::rc::Rc;

/// Pods that still have to be placed. Amounts are by the resource numbers of the pool's [`View`](crate::view::View).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Load {
    /// Pods that are alike, the largest first.
    pub parts: Vec<Part>,
}

/// Pods that are alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Part {
    pub left: u32,
    pub each: Rc<[u64]>,
}

impl Part {
    /// How many of such pods fit into `free`.
    pub fn fit_on(&self, free: &[u64]) -> u32 {
        fit(&self.each, free)
    }
}

impl Load {
    /// Pods by amount; large ones are placed first, since small ones fit into what is left.
    pub fn new(mut pods: Vec<(u32, impl Ord + Into<Rc<[u64]>>)>) -> Self {
        pods.retain(|(count, _)| *count > 0);
        pods.sort_by(|a, b| b.1.cmp(&a.1));
        let mut parts: Vec<Part> = Vec::with_capacity(pods.len());
        for (count, each) in pods {
            let each = each.into();
            match parts.last_mut() {
                Some(last) if last.each == each => last.left += count,
                _ => parts.push(Part { left: count, each }),
            }
        }
        Self { parts }
    }

    /// Whether no pod is left.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Places as many pods as fit into `free` and returns their number.
    pub fn place(&mut self, free: &mut [u64]) -> u32 {
        let mut placed = 0;
        for part in &mut self.parts {
            let number = part.left.min(fit(&part.each, free));
            if number > 0 {
                for (left, each) in free.iter_mut().zip(part.each.iter()) {
                    *left -= each * u64::from(number);
                }
                part.left -= number;
                placed += number;
            }
        }
        if placed > 0 {
            self.parts.retain(|part| part.left > 0);
        }
        placed
    }

    /// Whether any pod of it fits into `free`.
    pub fn any_fits(&self, free: &[u64]) -> bool {
        // As a number that is not 0 of those that `fit`, without divisions: this is asked most of all.
        let fits = |part: &Part| part.each.iter().zip(free).all(|(each, free)| each <= free);
        self.parts.iter().any(fits)
    }

    /// Number of pods.
    pub fn count(&self) -> u32 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.left))
    }

    /// Places one pod on any node and returns the number of pods placed.
    pub fn place_one(&mut self) -> u32 {
        let Some(first) = self.parts.first_mut() else { return 0 };
        first.left -= 1;
        self.parts.retain(|part| part.left > 0);
        1
    }

    /// Takes one of the smallest pods out.
    pub fn drop_one(&mut self) {
        if let Some(last) = self.parts.last_mut() {
            last.left -= 1;
        }
        self.parts.retain(|part| part.left > 0);
    }

    /// The pods of this load that are not in `rest`.
    pub fn without(&self, rest: &Self) -> Self {
        let mut parts = self.parts.clone();
        for part in &mut parts {
            let same = rest.parts.iter().find(|other| other.each == part.each);
            part.left -= same.map_or(0, |same| same.left.min(part.left));
        }
        parts.retain(|part| part.left > 0);
        Self { parts }
    }

    /// Number of nodes of `capacity` that it takes; `None`: one of its pods fits on no such node.
    pub fn nodes_of(&self, capacity: &[u64]) -> Option<u32> {
        if let [part] = self.parts.as_slice() {
            return match fit(&part.each, capacity) {
                0 => None,
                fits => Some(part.left.div_ceil(fits)),
            };
        }
        let mut rest = self.clone();
        let mut nodes = 0;
        while !rest.is_empty() {
            if rest.place(&mut capacity.to_vec()) == 0 {
                return None;
            }
            nodes += 1;
        }
        Some(nodes)
    }
}

/// How often `each` fits into `free`. A pod that requests nothing fits any number of times.
fn fit(each: &[u64], free: &[u64]) -> u32 {
    each.iter()
        .zip(free)
        .filter(|(each, _)| **each > 0)
        .map(|(each, free)| u32::try_from(free / each).unwrap_or(u32::MAX))
        .min()
        .unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_pods_go_first_and_small_ones_fill_what_is_left() {
        let mut load = Load::new(vec![(3, vec![1, 0]), (1, vec![4, 0]), (1, vec![1, 0])]);
        assert_eq!(load.parts.len(), 2, "pods that are alike are one part");
        let mut free = [6, 9];
        assert_eq!(load.place(&mut free), 3);
        assert_eq!(free, [0, 9]);
        assert_eq!(load, Load::new(vec![(2, vec![1, 0])]));
    }

    #[test]
    fn every_resource_must_suffice() {
        let load = Load::new(vec![(5, vec![1, 60])]);
        assert_eq!(load.nodes_of(&[8, 130]), Some(3));
        assert_eq!(load.nodes_of(&[8, 59]), None);
        assert!(load.any_fits(&[1, 60]) && !load.any_fits(&[0, 600]));
    }

    #[test]
    fn pods_that_request_nothing_fit_anywhere() {
        assert_eq!(Load::new(vec![(500, vec![0])]).nodes_of(&[0]), Some(1));
    }

    #[test]
    fn pods_that_differ_share_nodes() {
        let load = Load::new(vec![(3, vec![8]), (1, vec![2])]);
        assert_eq!(load.nodes_of(&[8]), Some(4));
        assert_eq!(load.nodes_of(&[10]), Some(3));
    }
}
