//! What tenants ask for: floors and ceilings of their groups, and the demand of their pods.

use super::{
    TenantInput,
    nodes::{HostNodes, Seen, host_node, used},
};
use crate::nodes::{
    State,
    demand::{self, GroupOf, HostNode, Needs, Place, Workload},
    is_available,
};
use berth_api::{NodeGroup, NodeMode};
use berth_planner::{self as planner, Amounts};
use kube::{Resource, ResourceExt};
use std::collections::{BTreeMap, BTreeSet};

/// What a tenant asks for besides its pods' demand. One that is being deleted, or whose spec cannot be carried out, keeps
/// what it has: a mistake in a spec must not cost a running tenant its nodes.
pub(super) fn groups(tenant: &TenantInput, uid: &str, seen: &[Seen<'_>]) -> Vec<planner::NodeGroup> {
    if tenant.accepted && tenant.cluster.meta().deletion_timestamp.is_none() {
        let own = tenant.cluster.spec.node_groups.iter();
        return own
            .filter(|group| group.mode != NodeMode::Shared)
            .map(|group| planner::NodeGroup {
                name: group.name.clone(),
                pool: group.pool_name.clone(),
                min_nodes: group.minimum(),
                max_nodes: group.maximum(),
                demand: Vec::new(),
            })
            .collect();
    }
    let mut held: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for node in seen {
        let Some(record) = &node.record else { continue };
        let keeps = matches!(record.state, State::Reserved | State::Joining | State::Assigned);
        if record.uid == uid && keeps {
            *held.entry((&record.group, &record.pool)).or_default() += 1;
        }
    }
    held.into_iter()
        .map(|((name, pool), count)| planner::NodeGroup {
            name: name.into(),
            pool: pool.into(),
            min_nodes: count,
            max_nodes: count,
            demand: Vec::new(),
        })
        .collect()
}

/// What of nodes the demand of all tenants asks about, by pool.
#[derive(Default)]
pub(super) struct Asked {
    /// Labels that are asked for by their value.
    labels: BTreeMap<String, BTreeSet<String>>,
    /// Affinities, and what stands behind them.
    affinities: BTreeMap<String, BTreeSet<String>>,
    pub(super) needs: Needs,
    /// Resources that keep pods apart, and how much of them every node has.
    pub(super) limits: BTreeMap<String, BTreeMap<String, u64>>,
}

impl Asked {
    pub(super) fn add_demand(
        &mut self,
        tenant: &TenantInput,
        uid: &str,
        workloads: &[&Workload],
        seen: &[Seen<'_>],
        nodes: &HostNodes<'_>,
        groups: &mut [planner::NodeGroup],
    ) {
        let spec = &tenant.cluster.spec.node_groups;
        let dynamic = spec.iter().any(|group| group.mode == NodeMode::Dynamic);
        if !dynamic || !workloads.iter().any(|workload| workload.place == Place::Waiting) {
            return;
        }
        let own: Vec<(&str, HostNode<'_>, Amounts)> = seen
            .iter()
            .filter_map(|node| {
                let record = node.record.as_ref()?;
                let serves = record.uid == uid && record.state == State::Assigned && is_available(node.object);
                serves.then(|| (record.group.as_str(), host_node(node), used(&node.pods)))
            })
            .collect();
        let mut held: BTreeMap<&str, u32> = BTreeMap::new();
        let mut coming: Vec<(&str, HostNode<'_>)> = Vec::new();
        for node in seen {
            let Some(record) = node.record.as_ref().filter(|record| record.uid == uid) else {
                continue;
            };
            let is_coming = matches!(record.state, State::Reserved | State::Joining);
            if is_coming {
                coming.push((&record.group, host_node(node)));
            }
            if is_coming || record.state == State::Assigned {
                *held.entry(&record.group).or_default() += 1;
            }
        }
        let left = |group: &NodeGroup| {
            let held = held.get(group.name.as_str()).copied().unwrap_or_default();
            group.maximum().saturating_sub(held)
        };
        let needs = demand::translate(
            &demand::Tenant {
                groups: spec
                    .iter()
                    .map(|group| GroupOf {
                        name: &group.name,
                        pool: &group.pool_name,
                        is_dynamic: group.mode == NodeMode::Dynamic,
                        left: left(group),
                    })
                    .collect(),
                workloads: workloads.to_vec(),
                own: own
                    .iter()
                    .map(|(group, node, used)| (*group, node, used.clone()))
                    .collect(),
                coming: coming.iter().map(|(group, node)| (*group, node)).collect(),
            },
            nodes,
        );
        let Needs {
            demand,
            affinities,
            limits,
        } = needs;
        for (name, demand) in demand {
            let Some(group) = groups.iter_mut().find(|group| group.name == name) else {
                continue;
            };
            for key in demand.iter().flat_map(|demand| demand.selector.keys()) {
                let keys = if affinities.contains_key(key) {
                    &mut self.affinities
                } else {
                    &mut self.labels
                };
                keys.entry(group.pool.clone()).or_default().insert(key.clone());
            }
            let of_pool = self.limits.entry(group.pool.clone()).or_default();
            of_pool.extend(limits.iter().map(|(resource, limit)| (resource.clone(), *limit)));
            group.demand = demand;
        }
        self.needs.affinities.extend(affinities);
    }

    /// The labels of a node that demand asks for.
    pub(super) fn labels(&self, node: &Seen<'_>) -> BTreeMap<String, String> {
        let mut labels = BTreeMap::new();
        for key in self.labels.get(&node.pool).into_iter().flatten() {
            if let Some(value) = node.object.labels().get(key) {
                labels.insert(key.clone(), value.clone());
            }
        }
        for key in self.affinities.get(&node.pool).into_iter().flatten() {
            if self.needs.satisfies(key, &node.pool, &host_node(node)) {
                labels.insert(key.clone(), demand::SATISFIED.into());
            }
        }
        labels
    }
}
