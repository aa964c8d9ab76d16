//! The fleet as the planner wants it, from what the watches know. Pure but for what [`Idle`] remembers.

use super::{
    NodeRecord, State,
    demand::{self, GroupOf, HostNode, Needs, Place, Workload},
    idle::Idle,
    is_available, is_ready,
    requests::{self, Requests},
};
use berth_api::{NodeMode, NodePool, PoolOrder, TenantClass, TenantCluster, labels, names::TenantId};
use berth_planner::{
    Amounts, Fleet, Group, Node, NodeState, Order, Owner, Phase, Pool, Seconds, Share, Tenant, pool_of,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node as HostObject;
use kube::{Resource, ResourceExt};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

/// What the fleet is made of.
pub struct Input<'a> {
    /// The time.
    pub now: Timestamp,
    /// Host nodes.
    pub nodes: Vec<Arc<HostObject>>,
    /// Pools.
    pub pools: Vec<Arc<NodePool>>,
    /// Classes.
    pub classes: Vec<Arc<TenantClass>>,
    /// Tenants.
    pub tenants: Vec<TenantInput>,
    /// Their pods.
    pub workloads: Vec<Arc<Workload>>,
    /// What the platform's own pods take of a node.
    pub platform: &'a dyn Fn(&str) -> Requests,
    /// What claims come to, and what devices nodes have for claims.
    pub devices: &'a dyn Devices,
    /// Since when nodes are idle.
    pub idle: &'a Idle,
}

/// Devices that are asked for by claims.
pub trait Devices {
    /// What a pod's claims ask for.
    fn asked(&self, workload: &Workload) -> Amounts;
    /// What a node has.
    fn of_node(&self, node: &str) -> Amounts;
}

/// A tenant, and what is known of it besides its object.
pub struct TenantInput {
    /// The object.
    pub cluster: Arc<TenantCluster>,
    /// Whether its spec can be carried out.
    pub accepted: bool,
    /// Whether it is being deleted and nothing of it runs.
    pub gone: bool,
    /// The class that applies to it.
    pub class: Option<String>,
}

/// A node with what is on it.
struct Seen<'a> {
    object: &'a HostObject,
    name: String,
    record: Option<NodeRecord>,
    pool: String,
    overlap: Option<String>,
    capacity: Amounts,
    pods: Vec<&'a Workload>,
}

/// Makes the fleet.
pub fn build(input: &Input<'_>) -> Fleet {
    let now = input.now.as_second();
    let resolved: Vec<Cow<'_, Workload>> = input
        .workloads
        .iter()
        .map(|workload| with_claims(workload, input.devices))
        .collect();
    let mut pools: Vec<&NodePool> = input.pools.iter().map(Arc::as_ref).collect();
    pools.sort_by_key(|pool| pool.name_any());
    let seen = look(input, &pools, &resolved);
    let with_devices = pools_with_devices(&pools, &seen);

    let mut by_tenant: HashMap<&str, Vec<&Workload>> = HashMap::new();
    for workload in &resolved {
        by_tenant.entry(&workload.tenant).or_default().push(workload);
    }
    let host_nodes = host_nodes(&seen, &with_devices);
    let mut asked = Asked::default();
    let mut tenants: Vec<Tenant> = input
        .tenants
        .iter()
        .filter_map(|tenant| {
            let uid = tenant.cluster.uid()?;
            let slug = TenantId::new(&tenant.cluster.name_any(), &uid).slug().to_owned();
            let mut groups = groups(tenant, &uid, &seen);
            if tenant.accepted {
                let workloads = by_tenant.get(slug.as_str()).map(Vec::as_slice).unwrap_or_default();
                asked.add_demand(tenant, &uid, workloads, &seen, &host_nodes, &mut groups);
            }
            Some(Tenant {
                name: format!(
                    "{}/{}",
                    tenant.cluster.namespace().unwrap_or_default(),
                    tenant.cluster.name_any()
                ),
                created: tenant.cluster.creation_timestamp().map_or(0, |time| time.0.as_second()),
                share: tenant.class.clone(),
                weight: 1,
                groups,
                gone: tenant.gone,
                uid,
            })
        })
        .collect();
    tenants.sort_by(|a, b| a.uid.cmp(&b.uid));
    let nodes = seen
        .iter()
        .map(|node| planned(node, input, now, &pools, &with_devices, &asked))
        .collect();
    let mut shares: Vec<Share> = input.classes.iter().map(|class| share(class)).collect();
    shares.sort_by(|a, b| a.name.cmp(&b.name));
    Fleet {
        now,
        pools: pools.into_iter().map(pool).collect(),
        nodes,
        tenants,
        shares,
    }
}

/// Nodes of pools, and nodes that somebody owns or owned, in the order of their names.
fn look<'a>(input: &'a Input<'_>, pools: &[&NodePool], workloads: &'a [Cow<'_, Workload>]) -> Vec<Seen<'a>> {
    let mut on: HashMap<&str, Vec<&Workload>> = HashMap::new();
    for workload in workloads {
        if let Place::On(node) = &workload.place {
            on.entry(node).or_default().push(workload);
        }
    }
    let names: Vec<(String, &BTreeMap<String, String>)> = pools
        .iter()
        .map(|pool| (pool.name_any(), &pool.spec.node_selector))
        .collect();
    let mut seen: Vec<Seen<'_>> = input
        .nodes
        .iter()
        .filter_map(|object| {
            let record = NodeRecord::read(object);
            let selectors = names.iter().map(|(name, selector)| (name.as_str(), *selector));
            let (by_labels, overlap) = match pool_of(selectors, object.labels()) {
                Ok(pool) => (pool.map(ToOwned::to_owned), None),
                Err(several) => (
                    several.first().map(|&name| name.to_owned()),
                    Some(format!("it matches several pools: {}", several.join(", "))),
                ),
            };
            let recorded = record
                .as_ref()
                .map(|record| record.pool.clone())
                .filter(|pool| !pool.is_empty());
            let name = object.name_any();
            Some(Seen {
                pool: recorded.or(by_labels)?,
                overlap,
                capacity: capacity(object, input),
                pods: on.get(name.as_str()).cloned().unwrap_or_default(),
                object,
                record,
                name,
            })
        })
        .collect();
    seen.sort_by(|a, b| a.name.cmp(&b.name));
    seen
}

/// What the node holds for its tenant when the platform's own pods have had theirs.
fn capacity(node: &HostObject, input: &Input<'_>) -> Amounts {
    let status = node.status.as_ref();
    let mut all = requests::amounts(status.and_then(|status| status.allocatable.as_ref()));
    for (resource, used) in (input.platform)(&node.name_any()) {
        if let Some(amount) = all.get_mut(&resource) {
            *amount -= used;
        }
    }
    let mut capacity = demand::available(&all);
    capacity.extend(input.devices.of_node(&node.name_any()));
    capacity
}

fn with_claims<'a>(workload: &'a Workload, devices: &dyn Devices) -> Cow<'a, Workload> {
    if workload.claims.is_empty() {
        return Cow::Borrowed(workload);
    }
    let mut workload = workload.clone();
    for (resource, amount) in devices.asked(&workload) {
        *workload.amounts.entry(resource).or_default() += amount;
    }
    Cow::Owned(workload)
}

/// Pools whose nodes have devices of any kind.
fn pools_with_devices(pools: &[&NodePool], seen: &[Seen<'_>]) -> BTreeSet<String> {
    let declared = pools.iter().filter(|pool| pool.spec.resource.is_some());
    let mut found: BTreeSet<String> = declared.map(|pool| pool.name_any()).collect();
    for node in seen {
        if node.capacity.keys().any(|resource| demand::is_device(resource)) {
            found.insert(node.pool.clone());
        }
    }
    found
}

/// The nodes of each pool as pods look at them, and whether the pool has devices.
type HostNodes<'a> = BTreeMap<&'a str, (Vec<HostNode<'a>>, bool)>;

fn host_nodes<'a>(seen: &'a [Seen<'a>], with_devices: &BTreeSet<String>) -> HostNodes<'a> {
    let mut nodes = HostNodes::new();
    for node in seen {
        let of_pool = nodes
            .entry(&node.pool)
            .or_insert_with(|| (Vec::new(), with_devices.contains(&node.pool)));
        of_pool.0.push(host_node(node));
    }
    nodes
}

fn host_node<'a>(node: &'a Seen<'a>) -> HostNode<'a> {
    HostNode {
        name: &node.name,
        labels: Some(node.object.labels()),
        capacity: node.capacity.clone(),
    }
}

/// What a tenant asks for besides its pods' demand. One that is being deleted, or whose spec cannot be carried out, keeps
/// what it has: a mistake in a spec must not cost a running tenant its nodes.
fn groups(tenant: &TenantInput, uid: &str, seen: &[Seen<'_>]) -> Vec<Group> {
    if tenant.accepted && tenant.cluster.meta().deletion_timestamp.is_none() {
        let own = tenant.cluster.spec.nodes.iter();
        return own
            .filter(|group| group.mode != NodeMode::Shared)
            .map(|group| Group {
                name: group.name.clone(),
                pool: group.pool.clone(),
                min: group.floor(),
                max: group.ceiling(),
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
        .map(|((name, pool), count)| Group {
            name: name.into(),
            pool: pool.into(),
            min: count,
            max: count,
            demand: Vec::new(),
        })
        .collect()
}

/// What of nodes the demand of all tenants asks about, by pool.
#[derive(Default)]
struct Asked {
    /// Labels that are asked for by their value.
    labels: BTreeMap<String, BTreeSet<String>>,
    /// Affinities, and what stands behind them.
    affinities: BTreeMap<String, BTreeSet<String>>,
    needs: Needs,
    alone: BTreeMap<String, BTreeSet<String>>,
}

impl Asked {
    fn add_demand(
        &mut self,
        tenant: &TenantInput,
        uid: &str,
        workloads: &[&Workload],
        seen: &[Seen<'_>],
        nodes: &HostNodes<'_>,
        groups: &mut [Group],
    ) {
        let spec = &tenant.cluster.spec.nodes;
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
        let needs = demand::translate(
            &demand::Tenant {
                groups: spec
                    .iter()
                    .map(|group| GroupOf {
                        name: &group.name,
                        pool: &group.pool,
                        is_dynamic: group.mode == NodeMode::Dynamic,
                    })
                    .collect(),
                workloads: workloads.to_vec(),
                own: own
                    .iter()
                    .map(|(group, node, used)| (*group, node, used.clone()))
                    .collect(),
            },
            nodes,
        );
        let Needs {
            demand,
            affinities,
            alone,
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
            self.alone
                .entry(group.pool.clone())
                .or_default()
                .extend(alone.iter().cloned());
            group.demand = demand;
        }
        self.needs.affinities.extend(affinities);
    }

    /// The labels of a node that demand asks for.
    fn labels(&self, node: &Seen<'_>) -> BTreeMap<String, String> {
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

/// What pods hold of a node.
fn used(pods: &[&Workload]) -> Amounts {
    let mut sum = Amounts::new();
    for pod in pods {
        for (resource, amount) in &pod.amounts {
            *sum.entry(resource.clone()).or_default() += amount;
        }
        if let Some(alone) = &pod.alone {
            sum.insert(format!("{}{alone}", demand::ALONE), 1);
        }
    }
    sum
}

fn planned(
    node: &Seen<'_>,
    input: &Input<'_>,
    now: Seconds,
    pools: &[&NodePool],
    with_devices: &BTreeSet<String>,
    asked: &Asked,
) -> Node {
    let key = pools
        .iter()
        .find(|pool| pool.name_any() == node.pool)
        .and_then(|pool| pool.spec.topology_key.as_ref());
    let state = state(node, now);
    let has_devices = with_devices.contains(&node.pool);
    let using: Vec<&&Workload> = node.pods.iter().filter(|pod| demand::uses(pod, has_devices)).collect();
    let idle_since = if let NodeState::Owned(owner) = &state {
        input.idle.note(node.object, !using.is_empty(), owner.since, now)
    } else {
        input.idle.forget(&node.name);
        None
    };
    let mut capacity = node.capacity.clone();
    for resource in asked.alone.get(&node.pool).into_iter().flatten() {
        capacity.insert(resource.clone(), 1);
    }
    Node {
        pool: node.pool.clone(),
        domain: key.and_then(|key| node.object.labels().get(key).cloned()),
        labels: asked.labels(node),
        capacity,
        used: used(&node.pods),
        pods: u32::try_from(node.pods.len()).unwrap_or(u32::MAX),
        idle_since,
        priority: using.iter().map(|pod| pod.priority).max().unwrap_or_default(),
        broken: matches!(state, NodeState::Owned(_)) && is_broken(node),
        state,
        name: node.name.clone(),
    }
}

/// Whether a node with an owner is of no use now. Berth's own cordon is part of its state.
fn is_broken(node: &Seen<'_>) -> bool {
    let cordoned_by_berth = node
        .record
        .as_ref()
        .is_some_and(|record| record.state == State::Cordoned);
    if cordoned_by_berth {
        !is_ready(node.object)
    } else {
        !is_available(node.object)
    }
}

fn state(node: &Seen<'_>, now: Seconds) -> NodeState {
    let second = |time: Option<Timestamp>| time.map_or(now, Timestamp::as_second);
    let Some(record) = &node.record else {
        return match unavailable(node) {
            None => NodeState::Free,
            Some(why) => NodeState::Unavailable { why },
        };
    };
    let phase = match record.state {
        State::Reserved => Phase::Reserved {
            of: record.reserved_with,
        },
        State::Joining => Phase::Joining,
        State::Assigned => Phase::Assigned,
        State::Cordoned => Phase::Cordoned {
            until: second(record.cordoned_until),
        },
        State::Draining | State::Scrubbing | State::Validating => {
            return NodeState::Returning {
                from: record.slug.clone(),
                since: second(record.since),
            };
        }
        State::Quarantined => {
            return NodeState::Unavailable {
                why: format!("quarantined: {}", record.reason),
            };
        }
    };
    NodeState::Owned(Owner {
        tenant: record.uid.clone(),
        group: record.group.clone(),
        since: second(record.owned_since.or(record.since)),
        phase,
    })
}

/// Why a node without an owner cannot be given to anybody.
fn unavailable(node: &Seen<'_>) -> Option<String> {
    if let Some(overlap) = &node.overlap {
        return Some(overlap.clone());
    }
    let why = if !is_ready(node.object) {
        "it is not Ready"
    } else if node.object.metadata.deletion_timestamp.is_some() {
        "it is being deleted"
    } else if node.object.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true) {
        "it is cordoned"
    } else if !is_available(node.object) {
        "it is shared by several tenants, or has a NoExecute taint"
    } else {
        return None;
    };
    Some(why.into())
}

fn pool(pool: &NodePool) -> Pool {
    let policy = &pool.spec.policy;
    Pool {
        name: pool.name_any(),
        resource: pool.spec.resource.clone(),
        has_domains: pool.spec.topology_key.is_some(),
        minimum_tenure: policy.minimum_tenure(),
        idle_after: policy.idle_after(),
        reclaim_grace: policy.reclaim_grace(),
        order: match policy.order {
            PoolOrder::FairShare => Order::FairShare,
            PoolOrder::Fifo => Order::Fifo,
        },
        ..Pool::default()
    }
}

fn share(class: &TenantClass) -> Share {
    let share = &class.spec.share;
    Share {
        name: class.name_any(),
        parent: None,
        weight: share.weight,
        guaranteed: share.guaranteed.clone(),
        lendable: share.lendable.clone(),
        limit: share.limit.clone(),
    }
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
