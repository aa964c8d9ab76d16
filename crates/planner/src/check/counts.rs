//! Nodes of node groups and GPUs of quotas, counted before a plan and after it.

use super::{claim::Claim, index::Index};
use crate::{MAX_NODE_GPUS, Node, Pool};

/// Nodes of a node group.
#[derive(Clone, Default)]
pub(super) struct GroupCounts {
    pub(super) held: u32,
    /// Those of them that are not cordoned.
    pub(super) staying: u32,
    /// Reserved ones, with the number of nodes that their group must have.
    pub(super) reserved: Vec<(String, u32)>,
}

impl GroupCounts {
    fn add(&mut self, node: &Node, claim: &Claim<'_>) {
        let Claim::Owned { required, cordoned, .. } = claim else {
            return;
        };
        self.held += 1;
        self.staying += u32::from(!cordoned);
        self.reserved
            .extend(required.map(|required| (node.name.clone(), required)));
    }

    pub(super) fn count_incomplete(&self) -> u32 {
        let incomplete = self.reserved.iter().filter(|(_, required)| *required > self.staying);
        u32::try_from(incomplete.count()).unwrap_or(u32::MAX)
    }
}

/// Nodes of node groups and GPUs of quotas.
pub(super) struct Counts {
    pub(super) of_group: Vec<GroupCounts>,
    /// GPUs of the nodes of groups, by quota and pool.
    pub(super) of_quota: Vec<Vec<u64>>,
    /// GPUs of those of them that are not cordoned.
    pub(super) staying_of_quota: Vec<Vec<u64>>,
    /// GPUs of nodes that belong to no group any more and on which pods may still run, by quota and pool.
    pub(super) without_group: Vec<Vec<u64>>,
}

impl Counts {
    pub(super) fn new(index: &Index<'_>) -> Self {
        Self {
            of_group: vec![GroupCounts::default(); index.groups.len()],
            of_quota: vec![vec![0; index.pools.len()]; index.quotas.len()],
            staying_of_quota: vec![vec![0; index.pools.len()]; index.quotas.len()],
            without_group: vec![vec![0; index.pools.len()]; index.quotas.len()],
        }
    }

    pub(super) fn add(&mut self, index: &Index<'_>, node: &Node, claim: &Claim<'_>) {
        let (tenant, group) = match claim {
            Claim::Owned { tenant, node_group, .. } => {
                let named = index.by_name.get(&(*tenant, *node_group)).copied();
                (
                    *tenant,
                    named.filter(|group| index.groups[*group].spec.pool == node.pool),
                )
            }
            Claim::Draining { tenant } => (*tenant, None),
            Claim::None | Claim::Free => return,
        };
        if let Some(group) = group {
            self.of_group[group].add(node, claim);
        }
        let Some(pool) = index.pool_numbers.get(node.pool.as_str()).copied() else {
            return;
        };
        let gpus = count_gpus(node, index.pools[pool]);
        let counts = match group {
            Some(_) => &mut self.of_quota,
            None => &mut self.without_group,
        };
        let stays = group.is_some() && matches!(claim, Claim::Owned { cordoned: false, .. });
        for quota in index.quotas_of_tenant.get(tenant).into_iter().flatten() {
            counts[*quota][pool] += gpus;
            if stays {
                self.staying_of_quota[*quota][pool] += gpus;
            }
        }
    }
}

/// GPUs that a node counts for in quotas: a node without any counts as one. Not what plans are made with, which is what is checked.
fn count_gpus(node: &Node, pool: &Pool) -> u64 {
    let gpus = pool.gpu_resource_name.as_ref();
    let reported = gpus.and_then(|name| node.capacity.get(name)).copied();
    let recorded = gpus.map_or(0, |_| node.recorded_gpus);
    reported.unwrap_or_default().max(recorded).clamp(1, MAX_NODE_GPUS)
}
