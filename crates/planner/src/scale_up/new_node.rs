//! What is known about nodes that do not exist yet.

use crate::load::{Load, Part};
use crate::pass::PlanningPass;
use crate::{MAX_NODE_GPUS, ScaleUpLimits};
use std::collections::BTreeMap;

/// A node that does not exist yet.
pub(super) struct NewNode {
    /// None: unknown.
    pub capacity: Option<Vec<u64>>,
    pub gpus: u64,
}

impl NewNode {
    /// Counts the nodes that a load takes. Where their capacity is unknown, every pod counts as a node.
    pub fn count_for(&self, load: &Load) -> u32 {
        let known = self.capacity.as_ref().and_then(|capacity| load.nodes_of(capacity));
        known.unwrap_or_else(|| load.count())
    }

    /// Places the pods that fit on one node.
    pub fn place(&self, load: &mut Load) {
        match &self.capacity {
            Some(capacity) => load.place(&mut capacity.clone()),
            None => load.place_one(),
        };
    }
}

impl PlanningPass<'_> {
    /// The kind of node of which a request takes the fewest.
    pub(super) fn choose_new_node(&self, request: usize, load: &Load, limits: &ScaleUpLimits) -> NewNode {
        let selector = self.view.requests[request].selector;
        if self.knows_a_node() {
            let kinds = self.view.kinds.iter().filter(|kind| kind.matches[selector]);
            let fitting = kinds.filter_map(|kind| Some((load.nodes_of(&kind.capacity)?, kind)));
            if let Some((_, kind)) = fitting.min_by_key(|(nodes, kind)| (*nodes, kind.gpus)) {
                return NewNode {
                    capacity: Some(kind.capacity.clone()),
                    gpus: kind.gpus,
                };
            }
        }
        let capacity = limits.node_capacity.as_ref();
        let of_pods = self.largest_pod_gpus(load).max(self.view.pool.least_gpus);
        NewNode {
            capacity: capacity.map(|amounts| self.number_capacity(amounts)),
            gpus: self.smallest_new_node_gpus(limits).max(of_pods),
        }
    }

    /// A capacity by resource number. A resource that is missing in `amounts` does not limit what fits.
    fn number_capacity(&self, amounts: &BTreeMap<String, u64>) -> Vec<u64> {
        const UNLIMITED: u64 = u64::MAX / 4;
        let resources = &self.view.resources;
        let mut capacity = vec![UNLIMITED; resources.len() + 1];
        for (name, number) in resources {
            if let Some(amount) = amounts.get(*name) {
                capacity[*number] = *amount;
            }
        }
        capacity[resources.len()] = 1;
        capacity
    }

    pub(super) fn smallest_new_node_gpus(&self, limits: &ScaleUpLimits) -> u64 {
        let known = self.view.nodes.iter().filter(|node| !node.object.starting);
        let least = known.map(|node| self.view.kinds[node.kind].gpus).min();
        least.or_else(|| self.declared_gpus(limits)).unwrap_or(1)
    }

    /// The GPUs that a placeholder for a whole new node requests. Where nodes have another number once they are assigned, it would fit on none
    /// with that number.
    pub(super) fn unassigned_node_gpus(&self, limits: &ScaleUpLimits) -> u64 {
        if self.view.pool.least_gpus == 0 {
            return self.smallest_new_node_gpus(limits);
        }
        self.declared_gpus(limits).unwrap_or(1)
    }

    /// The GPUs of a new node, as the pool says.
    fn declared_gpus(&self, limits: &ScaleUpLimits) -> Option<u64> {
        let capacity = limits.node_capacity.as_ref()?;
        capacity.get(self.view.pool.gpu_resource_name.as_ref()?).copied()
    }

    fn largest_pod_gpus(&self, load: &Load) -> u64 {
        let parts = load.parts.iter().map(|part| self.pod_gpus(&part.each));
        parts.max().unwrap_or_default()
    }

    pub(super) fn count_gpus(&self, load: &Load) -> u64 {
        let add = |sum: u64, part: &Part| {
            let gpus = self.pod_gpus(&part.each).saturating_mul(part.left.into());
            sum.saturating_add(gpus)
        };
        load.parts.iter().fold(0, add)
    }

    /// The pool's own resource is the first; a node without GPUs counts as one GPU, and so does a pod. As long as no node is known, a pod may request
    /// any number, and sums of these must not overflow.
    fn pod_gpus(&self, each: &[u64]) -> u64 {
        let resource = self.view.pool.gpu_resource_name.as_ref();
        resource.map_or(1, |_| each[0].min(MAX_NODE_GPUS))
    }
}
