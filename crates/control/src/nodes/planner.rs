//! Which node belongs to whom: a pure function from the state of the fleet to what should change.
//!
//! Rules:
//! * A node serves at most one tenant. Only nodes without an owner are assigned, and only from the one pool they
//!   match; a node that several pools claim is given to nobody.
//! * A tenant gets all the nodes it lacks, or none of them: a half-filled request would hold GPUs idle.
//! * Tenants are served in the order they were created.
//! * Nodes of one topology group (an NVLink domain, a rack) go to one tenant where that is possible, and the
//!   smallest group that is large enough is broken up, so that large groups stay whole for those who need them.
//! * A node is released when its tenant no longer asks for it or is gone. It is drained first while its tenant lives.

use std::collections::{BTreeMap, BTreeSet};

/// Everything the planner looks at.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    /// The pools.
    pub pools: Vec<Pool>,
    /// The host's nodes.
    pub nodes: Vec<Node>,
    /// Tenants whose spec was accepted, and those being deleted.
    pub tenants: Vec<Tenant>,
}

/// A pool as the planner sees it.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    /// Name.
    pub name: String,
    /// Labels that a node must carry.
    pub selector: BTreeMap<String, String>,
    /// Label that groups nodes which belong together.
    pub topology_key: Option<String>,
}

/// A node as the planner sees it.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Name.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// To whom it is assigned.
    pub owner: Option<Owner>,
    /// Whether it could be assigned now: Ready, not cordoned, not being deleted, no foreign `NoExecute` taint.
    pub available: bool,
}

/// The record on a node of whom it belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// UID of the `TenantCluster`.
    pub uid: String,
    /// The tenant's node group.
    pub group: String,
    /// The pool the node was assigned from.
    pub pool: String,
    /// Whether the node is being drained to be released.
    pub draining: bool,
}

/// A tenant as the planner sees it.
#[derive(Clone, Debug, Default)]
pub struct Tenant {
    /// UID of the `TenantCluster`.
    pub uid: String,
    /// Creation time in seconds since the epoch: who asked first is served first.
    pub created: i64,
    /// What it asks for; empty for one that is being deleted.
    pub groups: Vec<Group>,
    /// Whether it is being deleted and its pods are gone, so that its nodes can be released at once.
    pub gone: bool,
}

/// A node group of a tenant.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// Name, unique within the tenant.
    pub name: String,
    /// Pool the nodes come from.
    pub pool: String,
    /// Number of nodes.
    pub count: usize,
}

/// One change of one node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Give a free node to a tenant.
    Assign {
        /// The node.
        node: String,
        /// UID of the tenant.
        tenant: String,
        /// The tenant's node group.
        group: String,
        /// The pool.
        pool: String,
    },
    /// Empty an assigned node, so that it can be released.
    Drain {
        /// The node.
        node: String,
    },
    /// Keep a node after all that was being drained: the tenant asks for it again.
    Keep {
        /// The node.
        node: String,
    },
    /// Take the owner off a node whose tenant is gone. A node that is being drained is released by the executor once
    /// it is empty.
    Release {
        /// The node.
        node: String,
    },
}

/// What the planner decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Changes, in a stable order.
    pub actions: Vec<Action>,
    /// Tenants that lack nodes, by UID, with the reason in words.
    pub waiting: BTreeMap<String, String>,
}

/// The pool a node belongs to, by index; `Err` names the pools if several claim it.
pub fn pool_of(pools: &[Pool], labels: &BTreeMap<String, String>) -> Result<Option<usize>, Vec<String>> {
    let matching: Vec<usize> = pools
        .iter()
        .enumerate()
        .filter(|(_, pool)| !pool.selector.is_empty() && pool.selector.iter().all(|(k, v)| labels.get(k) == Some(v)))
        .map(|(index, _)| index)
        .collect();
    match matching.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(*one)),
        several => Err(several.iter().map(|index| pools[*index].name.clone()).collect()),
    }
}

/// Decides what to change. The result depends on nothing but `fleet`; applying it and planning again gives no action.
pub fn plan(fleet: &Fleet) -> Plan {
    let mut plan = Plan::default();
    let mut tenants: Vec<&Tenant> = fleet.tenants.iter().collect();
    tenants.sort_by(|a, b| (a.created, &a.uid).cmp(&(b.created, &b.uid)));
    let by_uid: BTreeMap<&str, &Tenant> = tenants.iter().map(|tenant| (tenant.uid.as_str(), *tenant)).collect();

    let held = review_owned(fleet, &by_uid, &mut plan);
    let mut free = free_by_pool(fleet);
    for tenant in tenants.iter().filter(|tenant| !tenant.gone) {
        serve(fleet, tenant, &held, &mut free, &mut plan);
    }
    plan.actions.sort();
    plan
}

/// Nodes that tenants keep, by (tenant UID, group).
type Held<'a> = BTreeMap<(&'a str, &'a str), Vec<&'a Node>>;

/// Goes through nodes that have an owner: releases those of vanished tenants, drains those in excess.
fn review_owned<'a>(fleet: &'a Fleet, tenants: &BTreeMap<&str, &Tenant>, plan: &mut Plan) -> Held<'a> {
    let mut held = Held::new();
    for node in &fleet.nodes {
        let Some(owner) = &node.owner else { continue };
        match tenants.get(owner.uid.as_str()) {
            Some(tenant) if !tenant.gone => held.entry((&owner.uid, &owner.group)).or_default().push(node),
            _ => plan.actions.push(Action::Release {
                node: node.name.clone(),
            }),
        }
    }
    for ((uid, group), nodes) in &mut held {
        let wanted = tenants.get(uid).map_or(0, |tenant| {
            tenant
                .groups
                .iter()
                .find(|asked| asked.name == *group)
                .map_or(0, |asked| asked.count)
        });
        // Nodes that are being drained already go first, then those that are broken, then the last by name.
        nodes.sort_by_key(|node| {
            (
                node.owner.as_ref().is_some_and(|owner| owner.draining),
                !node.available,
                node.name.clone(),
            )
        });
        for excess in nodes.split_off(wanted.min(nodes.len())) {
            if !excess.owner.as_ref().is_some_and(|owner| owner.draining) {
                plan.actions.push(Action::Drain {
                    node: excess.name.clone(),
                });
            }
        }
        for kept in nodes
            .iter()
            .filter(|node| node.owner.as_ref().is_some_and(|owner| owner.draining))
        {
            plan.actions.push(Action::Keep {
                node: kept.name.clone(),
            });
        }
    }
    held
}

/// Free nodes by pool name.
fn free_by_pool(fleet: &Fleet) -> BTreeMap<&str, Vec<&Node>> {
    let mut free: BTreeMap<&str, Vec<&Node>> = BTreeMap::new();
    for node in fleet.nodes.iter().filter(|node| node.owner.is_none() && node.available) {
        if let Ok(Some(pool)) = pool_of(&fleet.pools, &node.labels) {
            free.entry(&fleet.pools[pool].name).or_default().push(node);
        }
    }
    for nodes in free.values_mut() {
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
    }
    free
}

/// Gives a tenant every node it lacks, or says why not.
fn serve<'a>(
    fleet: &'a Fleet,
    tenant: &Tenant,
    held: &Held<'a>,
    free: &mut BTreeMap<&'a str, Vec<&'a Node>>,
    plan: &mut Plan,
) {
    let empty = Vec::new();
    let mut lacking: BTreeMap<&str, usize> = BTreeMap::new();
    let mut wants = Vec::new();
    for group in &tenant.groups {
        let has = held.get(&(tenant.uid.as_str(), group.name.as_str())).unwrap_or(&empty);
        let missing = group.count.saturating_sub(has.len());
        if missing > 0 {
            *lacking.entry(&group.pool).or_default() += missing;
            wants.push((group, has, missing));
        }
    }
    let short: Vec<String> = lacking
        .iter()
        .filter_map(|(pool, missing)| {
            let available = free.get(pool).map_or(0, Vec::len);
            (available < *missing)
                .then(|| format!("pool {pool} has {available} free nodes and {missing} more are needed"))
        })
        .collect();
    if !short.is_empty() {
        plan.waiting.insert(tenant.uid.clone(), short.join("; "));
        return;
    }
    for (group, has, missing) in wants {
        let Some(candidates) = free.get_mut(group.pool.as_str()) else {
            continue;
        };
        let topology_key = fleet
            .pools
            .iter()
            .find(|pool| pool.name == group.pool)
            .and_then(|pool| pool.topology_key.as_deref());
        for node in choose(candidates, has, missing, topology_key) {
            candidates.retain(|candidate| candidate.name != node.name);
            plan.actions.push(Action::Assign {
                node: node.name.clone(),
                tenant: tenant.uid.clone(),
                group: group.name.clone(),
                pool: group.pool.clone(),
            });
        }
    }
}

/// Chooses `count` of `candidates` (sorted by name, at least `count` of them).
fn choose<'a>(candidates: &[&'a Node], has: &[&Node], count: usize, topology_key: Option<&str>) -> Vec<&'a Node> {
    let domain_of = |node: &Node| topology_key.and_then(|key| node.labels.get(key).cloned());
    let home: BTreeSet<String> = has.iter().filter_map(|node| domain_of(node)).collect();
    let mut domains: BTreeMap<Option<String>, Vec<&'a Node>> = BTreeMap::new();
    for node in candidates {
        domains.entry(domain_of(node)).or_default().push(node);
    }
    let mut order: Vec<(Option<String>, Vec<&'a Node>)> = domains.into_iter().collect();
    let mut chosen = Vec::new();
    while chosen.len() < count && !order.is_empty() {
        let needed = count - chosen.len();
        // Where the tenant is already, then the tightest domain that holds the rest, then the largest.
        order.sort_by_key(|(domain, nodes)| {
            let fits = nodes.len() >= needed;
            let size = i64::try_from(nodes.len()).unwrap_or(i64::MAX);
            (
                !domain.as_ref().is_some_and(|domain| home.contains(domain)),
                !fits,
                if fits { size } else { -size },
                domain.clone(),
            )
        });
        let (_, nodes) = order.remove(0);
        chosen.extend(nodes.into_iter().take(needed));
    }
    chosen
}

#[cfg(test)]
#[path = "planner_tests.rs"]
mod tests;
