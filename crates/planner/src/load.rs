//! Pods that wait, and how many of them fit on a node.

use std::rc::Rc;

/// Pods that still have to be placed. Amounts are by the resource numbers of the pool's [`View`](crate::view::View).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Pods that are alike, the largest first.
    pub parts: Vec<Part>,
}

/// Pods that are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub left: u32,
    pub each: Rc<[u64]>,
}

impl Load {
    /// Pods by amount; large ones are placed first, since small ones fit into what is left.
    pub fn new(mut pods: Vec<(u32, Vec<u64>)>) -> Self {
        pods.retain(|(count, _)| *count > 0);
        pods.sort_by(|a, b| b.1.cmp(&a.1));
        let mut parts: Vec<Part> = Vec::with_capacity(pods.len());
        for (count, each) in pods {
            match parts.last_mut() {
                Some(last) if *last.each == *each => last.left += count,
                _ => parts.push(Part {
                    left: count,
                    each: each.into(),
                }),
            }
        }
        Self { parts }
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Places as many pods as fit into `room` and says how many that were.
    pub fn place(&mut self, room: &mut [u64]) -> u32 {
        let mut placed = 0;
        for part in &mut self.parts {
            let number = part.left.min(fit(&part.each, room));
            if number > 0 {
                for (left, each) in room.iter_mut().zip(part.each.iter()) {
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

    /// Whether any pod of it fits into `room`.
    pub fn any_fits(&self, room: &[u64]) -> bool {
        self.parts.iter().any(|part| fit(&part.each, room) > 0)
    }

    /// Pods of it.
    pub fn count(&self) -> u32 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.left))
    }

    /// Places one pod, wherever, and says how many that were.
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

    /// The pods of this load that `rest` has not.
    pub fn without(&self, rest: &Self) -> Self {
        let mut parts = self.parts.clone();
        for part in &mut parts {
            let same = rest.parts.iter().find(|other| other.each == part.each);
            part.left -= same.map_or(0, |same| same.left.min(part.left));
        }
        parts.retain(|part| part.left > 0);
        Self { parts }
    }

    /// Nodes with room for `capacity` each that it takes; `None`: a pod of it fits on none of them.
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

/// How often `each` fits into `room`. What asks for nothing fits without end.
fn fit(each: &[u64], room: &[u64]) -> u32 {
    each.iter()
        .zip(room)
        .filter(|(each, _)| **each > 0)
        .map(|(each, room)| u32::try_from(room / each).unwrap_or(u32::MAX))
        .min()
        .unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_pods_go_first_and_small_ones_fill_what_is_left() {
        let mut load = Load::new(vec![(3, vec![1, 0]), (1, vec![4, 0]), (1, vec![1, 0])]);
        assert_eq!(load.parts.len(), 2, "alike pods are one part");
        let mut room = [6, 9];
        assert_eq!(load.place(&mut room), 3);
        assert_eq!(room, [0, 9]);
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
    fn what_asks_for_nothing_fits_anywhere() {
        assert_eq!(Load::new(vec![(500, vec![0])]).nodes_of(&[0]), Some(1));
    }

    #[test]
    fn nodes_of_unlike_pods() {
        let load = Load::new(vec![(3, vec![8]), (1, vec![2])]);
        assert_eq!(load.nodes_of(&[8]), Some(4));
        assert_eq!(load.nodes_of(&[10]), Some(3));
    }
}
