//! Placement of a job on its tenant's nodes, the same in both replays.

/// GPUs of a job on a node.
pub(super) type Part = (usize, u32);

/// Chooses nodes for a job among nodes with free GPUs, or none if it does not fit now. A job with more GPUs than a node takes
/// whole nodes, and the rest on one more; a part of a node is placed where the fewest GPUs are left over.
pub(super) fn place(gpus: u32, per_node: u32, nodes: impl Iterator<Item = Part> + Clone) -> Option<Vec<Part>> {
    let whole = (gpus / per_node) as usize;
    let rest = gpus % per_node;
    let mut parts: Vec<Part> = nodes
        .clone()
        .filter(|(_, free)| *free == per_node)
        .take(whole)
        .collect();
    if parts.len() < whole {
        return None;
    }
    if rest > 0 {
        let (node, _) = nodes
            .filter(|(node, free)| *free >= rest && parts.iter().all(|(taken, _)| taken != node))
            .min_by_key(|(node, free)| (*free, *node))?;
        parts.push((node, rest));
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(gpus: u32, nodes: &[Part]) -> Option<Vec<Part>> {
        place(gpus, 8, nodes.iter().copied())
    }

    #[test]
    fn small_jobs_go_where_the_least_is_left() {
        assert_eq!(on(2, &[(0, 8), (1, 3), (2, 2), (3, 1)]), Some(vec![(2, 2)]));
        assert_eq!(on(4, &[(1, 3), (2, 2)]), None);
    }

    #[test]
    fn gangs_take_whole_nodes_and_the_rest_on_one_more() {
        assert_eq!(on(8, &[(0, 7), (1, 8)]), Some(vec![(1, 8)]));
        assert_eq!(
            on(20, &[(0, 8), (1, 8), (2, 4), (3, 8)]),
            Some(vec![(0, 8), (1, 8), (2, 4)])
        );
        assert_eq!(on(20, &[(0, 8), (1, 8), (2, 3)]), None);
        assert_eq!(on(16, &[(0, 8), (2, 7)]), None);
    }
}
