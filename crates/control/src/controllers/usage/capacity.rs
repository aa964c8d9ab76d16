//! What pools have, with and without a tenant. What no tenant had is what tenants leave of it.

use super::nodes::count_gpus;
use berth_api::{HostNodePool, UsageResource, UsageTenant, names::TenantId};
use berth_metering::{Identity, Item, LineKey};
use berth_node_lifecycle::{Assignment, PoolSelectors};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// The pools that have records: those whose nodes are assigned. A pool is counted from its first observation on, as no object says which nodes it had before.
pub(super) fn identities(pools: &HashMap<String, Arc<HostNodePool>>, now: Timestamp) -> Vec<Identity> {
    let owners = pools.values().filter_map(|pool| owner_of(pool));
    owners.map(|tenant| Identity { tenant, created: now }).collect()
}

/// What the records of a pool say of it. None if it has none.
pub(super) fn owner_of(pool: &HostNodePool) -> Option<UsageTenant> {
    // Nodes of shared pools have no tenant.
    if pool.spec.is_shared() {
        return None;
    }
    let (name, uid) = (pool.name_any(), pool.uid()?);
    Some(UsageTenant {
        namespace: String::new(),
        slug: TenantId::new(&name, &uid).slug().to_owned(),
        name,
        uid,
    })
}

/// The nodes of pools, with their GPUs, each from its creation on. The meter counts none of it before the pool was observed, or before the record of the pool ends.
/// A node that is assigned or being cleaned is of the pool that this says, as the planner and its tenant's record see it, also if its labels are of another pool
/// meanwhile, or of several.
pub(super) fn items(nodes: &[Arc<Node>], pools: &HashMap<String, Arc<HostNodePool>>) -> Vec<Item> {
    let selectors = PoolSelectors::new(
        pools
            .iter()
            .map(|(name, pool)| (name.clone(), pool.spec.node_selector.clone())),
    );
    // Nodes and their GPUs, by pool and creation.
    let mut sums: BTreeMap<(&str, Option<Timestamp>), (i64, i64)> = BTreeMap::new();
    for node in nodes {
        let recorded = Assignment::read(node)
            .map(|assignment| assignment.pool)
            .filter(|pool| !pool.is_empty());
        let name = match &recorded {
            Some(recorded) => pools.get_key_value(recorded).map(|(name, _)| name.as_str()),
            // A node of several pools goes to no tenant.
            None => selectors.pool_of(node.labels()).ok().flatten(),
        };
        let Some(name) = name else { continue };
        let spec = pools.get(name).map(|pool| &pool.spec);
        let created = node.creation_timestamp().map(|time| time.0);
        let (count, gpus) = sums.entry((name, created)).or_default();
        *count = count.saturating_add(1);
        *gpus = gpus.saturating_add(count_gpus(node, spec));
    }
    let mut items = Vec::new();
    for ((name, since), (count, gpus)) in sums {
        let Some((pool, owner)) = pools.get(name).and_then(|pool| Some((pool, owner_of(pool)?))) else {
            continue;
        };
        for (resource, amount) in [(UsageResource::Node, count), (UsageResource::Gpu, gpus)] {
            items.push(Item {
                tenant_uid: owner.uid.clone(),
                key: LineKey {
                    pool_name: Some(name.to_owned()),
                    gpu_product: pool.spec.gpu_product.clone(),
                    ..LineKey::new(resource)
                },
                amount,
                since,
                until: None,
            });
        }
    }
    items
}
