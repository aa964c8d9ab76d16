//! Host nodes: who owns which, decided by a pure [`planner`] and carried out by an [`executor`].
//!
//! The Node object is the only record of its owner: an annotation with the `TenantCluster`'s UID, and a label and a
//! `NoExecute` taint with the tenant's slug, all set in one patch that fails if the node changed meanwhile.

mod by_node;
pub mod demand;
pub mod executor;
pub mod jobs;
pub mod planner;
pub mod record;
pub mod requests;
pub mod shared;
pub mod step;

pub use by_node::ByNode;
pub use record::{NodeRecord, State, is_available, is_ready};

use crate::context::Context;
use berth_api::{TenantCluster, labels};
use kube::{Resource, ResourceExt};
use planner::{Fleet, Group, Node, Pool, Tenant};
use std::collections::BTreeMap;

/// The fleet as the watches know it.
pub fn fleet(context: &Context) -> Fleet {
    let nodes: Vec<Node> = context
        .stores
        .nodes
        .state()
        .iter()
        .map(|node| Node {
            name: node.name_any(),
            labels: node.labels().clone(),
            owner: NodeRecord::read(node)
                .filter(|record| !record.uid.is_empty() && record.state != State::Draining)
                .map(|record| planner::Owner {
                    draining: record.is_leaving(),
                    uid: record.uid,
                    group: record.group,
                    pool: record.pool,
                }),
            available: is_available(node) && NodeRecord::read(node).is_none_or(|record| !record.uid.is_empty()),
        })
        .collect();
    let tenants = context
        .stores
        .tenants
        .state()
        .iter()
        .filter_map(|cluster| tenant(context, cluster, &nodes))
        .collect();
    Fleet {
        pools: pools(context),
        nodes,
        tenants,
    }
}

/// The pools, as the planner wants them.
pub fn pools(context: &Context) -> Vec<Pool> {
    let mut pools: Vec<Pool> = context
        .stores
        .pools
        .state()
        .iter()
        .map(|pool| Pool {
            name: pool.name_any(),
            selector: pool.spec.node_selector.clone(),
            topology_key: pool.spec.topology_key.clone(),
        })
        .collect();
    pools.sort_by(|a, b| a.name.cmp(&b.name));
    pools
}

fn tenant(context: &Context, cluster: &TenantCluster, nodes: &[Node]) -> Option<Tenant> {
    let uid = cluster.uid()?;
    let created = cluster.creation_timestamp().map_or(0, |time| time.0.as_second());
    let groups = if cluster.meta().deletion_timestamp.is_some() {
        held_groups(&uid, nodes)
    } else if crate::tenant::accepts(context, cluster) {
        let groups = cluster.spec.nodes.iter();
        groups
            .map(|group| Group {
                name: group.name.clone(),
                pool: group.pool.clone(),
                count: usize::try_from(group.floor()).unwrap_or(usize::MAX),
            })
            .collect()
    } else {
        // A spec that cannot be carried out must not cost a running tenant its nodes.
        held_groups(&uid, nodes)
    };
    let gone = cluster.meta().deletion_timestamp.is_some() && context.tenants.workloads_gone(&uid);
    Some(Tenant {
        uid,
        created,
        groups,
        gone,
    })
}

/// The groups that ask for just what the tenant has.
fn held_groups(uid: &str, nodes: &[Node]) -> Vec<Group> {
    let mut held: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for owner in nodes
        .iter()
        .filter_map(|node| node.owner.as_ref())
        .filter(|o| o.uid == uid && !o.draining)
    {
        *held.entry((&owner.group, &owner.pool)).or_default() += 1;
    }
    held.into_iter()
        .map(|((name, pool), count)| Group {
            name: name.into(),
            pool: pool.into(),
            count,
        })
        .collect()
}

/// Whether a label of a host node is shown to the tenant it is assigned to: what describes hardware and topology, and
/// Berth's own pool and group.
pub fn is_visible_label(key: &str, topology_key: Option<&str>) -> bool {
    const KEYS: [&str; 8] = [
        "kubernetes.io/hostname",
        "kubernetes.io/arch",
        "kubernetes.io/os",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        "node.kubernetes.io/instance-type",
        labels::POOL,
        labels::SHARED_POOL,
    ];
    const PREFIXES: [&str; 5] = [
        "nvidia.com/",
        "amd.com/",
        "gpu.intel.com/",
        "feature.node.kubernetes.io/",
        "topology.berth.dev/",
    ];
    KEYS.contains(&key)
        || key == labels::NODE_GROUP
        || topology_key == Some(key)
        || PREFIXES.iter().any(|prefix| key.starts_with(prefix))
}
