//! What tenants use at an instant, as the watches know it, and what has to be remembered from one pass to the next.

use super::{
    capacity,
    modes::RecordedModes,
    nodes::{self, Held, ObservedNodes, Proofs, Surroundings},
    sum::{CountedUntil, Sum},
};
use crate::{
    controllers::tenant_class::class_of,
    stores::Stores,
    tenant_state::{is_accepted, is_created},
};
use berth_api::{
    HostNodePool, NodeGroup, NodeMode, Project, SleepState, TenantCluster, UsageRecord, UsageResource, UsageTenant,
    names::TenantId,
};
use berth_metering::{Identity, Item};
use berth_quota::Projects;
use jiff::{SignedDuration, Timestamp};
use kube::{ResourceExt, runtime::reflector::ObjectRef};
use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

/// How long it is remembered whose slug it was, when a tenant is gone: until what it had has left it.
const REMEMBERED: SignedDuration = SignedDuration::from_hours(24);
/// The same of a tenant that was never seen to have anything. Those who may create tenants can create very many that are not accepted.
const UNUSED_REMEMBERED: SignedDuration = SignedDuration::from_mins(10);

/// What is remembered from one pass to the next. Without it a pass counts what objects prove.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Tenants by slug, also some that are gone.
    tenants: HashMap<String, Facts>,
    /// The nodes that served tenants.
    nodes: HashMap<String, Held>,
    /// Nodes that had left tenants before anything could be counted.
    proofs: Proofs,
    /// The shared pools of nodes.
    shared: HashMap<String, String>,
    /// The modes of nodes that a control before this one has counted.
    modes: RecordedModes,
    counted: CountedUntil,
    /// Slugs of the tenants whose control planes ran.
    running: HashSet<String>,
}

/// What is known of a tenant.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) tenant: UsageTenant,
    /// Where it belonged up to now: as at the last pass, if it was seen then. A change wakes a pass.
    pub(super) place: Place,
    /// Where it belongs from now on. None: no pass has seen it.
    next: Option<Place>,
    /// Whether something was created for it, as it was seen, or it has a record.
    has_been_used: bool,
    /// None: it is gone.
    cluster: Option<Arc<TenantCluster>>,
    /// When it was noticed that it is gone.
    gone_at: Option<Timestamp>,
}

/// What a pass has found.
pub(super) struct Collected {
    /// The tenants and pools that exist.
    pub(super) identities: Vec<Identity>,
    /// What they and others use, and what pools have.
    pub(super) items: Vec<Item>,
    /// How many ends of pods and claims were not kept, by slug of the tenant.
    pub(super) lost: BTreeMap<String, u64>,
}

/// Where a tenant belongs.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    pub(super) class: Option<String>,
    pub(super) project: Option<String>,
    pub(super) organization: Option<String>,
}

impl Facts {
    /// Whether its spec is accepted as it is.
    pub(super) fn is_accepted(&self) -> bool {
        self.cluster.as_deref().is_some_and(is_accepted)
    }

    /// The mode that its spec has for a node group with nodes of its own, of a pool; none if the spec has no such group.
    pub(super) fn mode_of_group(&self, group: &str, pool: &str) -> Option<NodeMode> {
        let mut groups = self.cluster.as_ref()?.spec.node_groups.iter();
        let group = groups.find(|of_tenant| of_tenant.name == group && of_tenant.pool_name == pool)?;
        Some(group.mode).filter(|mode| *mode != NodeMode::Shared)
    }

    /// How many nodes of a node group and pool are kept for it, whether it needs them or not. A tenant whose spec is not accepted keeps as many as the spec asks for,
    /// of those that it has, whatever the pool there: see `planner_groups` in `berth_node_lifecycle`.
    pub(super) fn minimum_of_group(&self, group: &str, pool: &str) -> usize {
        let groups = self.cluster.iter().flat_map(|cluster| &cluster.spec.node_groups);
        let mut groups = groups.filter(|of_tenant| of_tenant.pool_name == pool || !self.is_accepted());
        let minimum = groups.find(|of_tenant| of_tenant.name == group).map(NodeGroup::minimum);
        minimum
            .and_then(|nodes| usize::try_from(nodes).ok())
            .unwrap_or_default()
    }

    /// The mode of the first node group in its spec with nodes of a pool that has nodes of its own.
    pub(super) fn mode_of_pool(&self, pool: &str) -> Option<NodeMode> {
        let mut groups = self.cluster.as_ref()?.spec.node_groups.iter();
        let of_pool = groups.find(|group| group.pool_name == pool && group.mode != NodeMode::Shared);
        of_pool.map(|group| group.mode)
    }
}

impl Memory {
    /// Slugs of the tenants that are remembered.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> Vec<&str> {
        self.tenants.keys().map(String::as_str).collect()
    }

    /// Takes the tenant of a stored record. It may be gone, and a node may not have left it yet.
    pub(super) fn remember(&mut self, record: &UsageRecord) {
        let tenant = &record.spec.tenant;
        let line = record.spec.lines.last();
        self.modes.remember(record);
        self.tenants.entry(tenant.slug.clone()).or_insert_with(|| Facts {
            tenant: tenant.clone(),
            place: Place {
                class: line.and_then(|line| line.class_name.clone()),
                project: line.and_then(|line| line.project_name.clone()),
                organization: line.and_then(|line| line.organization_name.clone()),
            },
            next: None,
            has_been_used: true,
            cluster: None,
            gone_at: None,
        });
    }

    /// Keeps what nodes prove that have left their tenants, until the first pass collects it.
    pub(super) fn keep_proofs(&mut self, stores: &Stores) {
        self.proofs.keep(stores.nodes.state());
    }

    /// Collects what tenants use now, and what they used since the last pass and do not use any more.
    pub(super) fn collect(&mut self, stores: &Stores, now: Timestamp) -> Collected {
        let mut identities = self.update_tenants(stores, now);
        let pools: HashMap<String, Arc<HostNodePool>> = { stores.pools.state().into_iter() }
            .map(|pool| (pool.name_any(), pool))
            .collect();
        let current = stores.nodes.state();
        let of_pools = capacity::items(&current, &pools);
        let mut all_nodes = self.proofs.take_besides(&current);
        all_nodes.extend(current);
        let observed = nodes::observe(
            &all_nodes,
            &Surroundings {
                now,
                tenants: &self.tenants,
                pools: &pools,
                before: &self.nodes,
                modes: &self.modes,
            },
        );
        let mut sum = Sum::new(&self.tenants);
        add_nodes(&mut sum, &observed, &self.nodes);
        let running = add_control_planes(&mut sum, &self.tenants, &self.running);
        let mut lost = stores.metered.pods.read(|using, until| {
            let pod = &using.amount;
            // A node that is gone was in its pool when its pods ended.
            let pool = observed.shared.get(&pod.node).or_else(|| self.shared.get(&pod.node));
            let Some(pool) = pool else { return };
            for (resource, amount) in [
                (UsageResource::Cpu, pod.millicores),
                (UsageResource::Memory, pod.mebibytes),
            ] {
                let key = (resource, Some(Cow::Borrowed(pool.as_str())), Some(NodeMode::Shared));
                sum.add_one_of_many(&self.counted, &using.tenant, key, amount, (using.since, until));
            }
        });
        let of_claims = stores.metered.claims.read(|using, until| {
            let class = using.amount.class.clone().map(Cow::Owned);
            let key = (UsageResource::Storage, class, None);
            sum.add_one_of_many(
                &self.counted,
                &using.tenant,
                key,
                using.amount.mebibytes,
                (using.since, until),
            );
        });
        for (tenant, count) in of_claims {
            let of_tenant = lost.entry(tenant).or_default();
            *of_tenant = of_tenant.saturating_add(count);
        }
        let mut items = sum.items(&pools);
        items.extend(of_pools);
        let ObservedNodes { held, shared, .. } = observed;
        (self.nodes, self.shared, self.running) = (held, shared, running);
        let uids = identities.iter().map(|identity: &Identity| identity.tenant.uid.clone());
        self.counted.advance(now, uids.collect());
        identities.extend(capacity::identities(&pools, now));
        Collected {
            identities,
            items,
            lost,
        }
    }

    /// Updates what is known of tenants. Returns those that exist.
    fn update_tenants(&mut self, stores: &Stores, now: Timestamp) -> Vec<Identity> {
        for facts in self.tenants.values_mut() {
            facts.cluster = None;
            if let Some(next) = &facts.next {
                facts.place = next.clone();
            }
        }
        let all_projects = stores.projects.state();
        let projects = Projects::new(all_projects.iter().map(AsRef::as_ref));
        let by_name: HashMap<&str, &Project> = { all_projects.iter() }
            .filter_map(|project| Some((project.metadata.name.as_deref()?, project.as_ref())))
            .collect();
        let mut identities = Vec::new();
        for cluster in stores.tenants.state() {
            let Some(uid) = cluster.uid() else { continue };
            let (namespace, name) = (cluster.namespace().unwrap_or_default(), cluster.name_any());
            let slug = TenantId::new(&name, &uid).slug().to_owned();
            let project = projects.of(&namespace);
            let organization = project.and_then(|project| by_name.get(project)?.spec.organization_name.clone());
            let running = cluster.status.as_ref().and_then(|status| status.class_name.clone());
            let exists = |class: &str| stores.classes.get(&ObjectRef::new(class)).is_some();
            let place = Place {
                class: running.or_else(|| class_of(&cluster, exists)),
                project: project.map(ToOwned::to_owned),
                organization,
            };
            let known = self.tenants.get(&slug).filter(|known| known.next.is_some());
            let facts = Facts {
                place: known.map_or_else(|| place.clone(), |known| known.place.clone()),
                next: Some(place),
                tenant: UsageTenant {
                    namespace,
                    name,
                    uid,
                    slug: slug.clone(),
                },
                has_been_used: is_created(&cluster) || self.tenants.get(&slug).is_some_and(|known| known.has_been_used),
                cluster: Some(Arc::clone(&cluster)),
                gone_at: None,
            };
            identities.push(Identity {
                tenant: facts.tenant.clone(),
                created: cluster.creation_timestamp().map_or(now, |time| time.0),
            });
            self.tenants.insert(slug, facts);
        }
        self.tenants.retain(|_, facts| {
            let gone_at = *facts.gone_at.get_or_insert(now);
            let remembered = if facts.has_been_used {
                REMEMBERED
            } else {
                UNUSED_REMEMBERED
            };
            facts.cluster.is_some() || now.duration_since(gone_at) < remembered
        });
        self.modes.retain(&self.tenants);
        identities
    }
}

fn add_nodes<'a>(sum: &mut Sum<'a>, observed: &'a ObservedNodes, before: &HashMap<String, Held>) {
    let mut add = |node: &'a Held, mode: Option<NodeMode>, until: Option<Timestamp>| {
        for (resource, amount) in [(UsageResource::Node, 1), (UsageResource::Gpu, node.gpus)] {
            let pool = Some(Cow::Borrowed(node.pool.as_str())).filter(|pool| !pool.is_empty());
            sum.add(&node.slug, (resource, pool, mode), amount, node.since, until);
        }
    };
    for (name, node) in &observed.held {
        add(node, node.mode_until_now(before.get(name)), None);
    }
    for (node, until) in &observed.left {
        add(node, node.mode, Some(*until));
    }
}

/// Returns the slugs of the tenants whose control planes run. One that ran at the last pass as well has run since then: a tenant that begins to fall asleep and
/// is woken again and again is awake only since the last time.
fn add_control_planes(
    sum: &mut Sum<'_>,
    tenants: &HashMap<String, Facts>,
    before: &HashSet<String>,
) -> HashSet<String> {
    let mut running = HashSet::new();
    for (slug, facts) in tenants {
        let Some(cluster) = facts.cluster.as_deref() else {
            continue;
        };
        let Some((mut since, until)) = when_control_plane_runs(cluster) else {
            continue;
        };
        if before.contains(slug) {
            since = cluster.creation_timestamp().map(|time| time.0);
        }
        sum.add(slug, (UsageResource::ControlPlane, None, None), 1, since, until);
        if until.is_none() {
            running.insert(slug.clone());
        }
    }
    running
}

/// Since when, and until when, the control plane of a tenant is meant to run. When it was woken before it fell asleep is not recorded any more: then it counts as
/// awake from its creation on, or rather from where its record ends.
fn when_control_plane_runs(cluster: &TenantCluster) -> Option<(Option<Timestamp>, Option<Timestamp>)> {
    if !is_created(cluster) {
        return None;
    }
    let sleep = cluster.status.as_ref().and_then(|status| status.sleep.as_ref());
    let changed = sleep.and_then(|sleep| sleep.since.as_ref()).map(|time| time.0);
    let created = cluster.creation_timestamp().map(|time| time.0);
    let deleted = cluster.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    let (since, until) = match cluster.sleep_state() {
        SleepState::Awake | SleepState::Waking => (created.max(changed), None),
        SleepState::FallingAsleep => (created, None),
        // In Enforcing it runs for the platform, for a limited time that is not recorded.
        SleepState::Sleeping | SleepState::Enforcing => (created, Some(changed?)),
    };
    Some((since, [until, deleted].into_iter().flatten().min()))
}
