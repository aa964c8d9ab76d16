//! Devices of dynamic resource allocation (`resource.k8s.io/v1`): how many of each class a node has, and how many pods request
//! in their claims. The counts of nodes are cached.
//!
//! | of the host | becomes |
//! |---|---|
//! | devices of a node's ResourceSlices that a class selects | the node's amount `dra:<class>`, and of the class's extended resource |
//! | a pod's claims | amounts `dra:<class>`; of alternatives the first that any node has |
//! | selectors of a claim | a further amount, of the devices that they select |
//! | a claim of several pods | counts once, for one pod; the others must run on the same node |
//! | a claim that has its devices | no demand: no other node helps |
//! | devices that several nodes reach | no node is needed for them |
//!
//! Devices that exclude each other (a GPU and its partitions) all count, and so do those whose selectors are not understood
//! (see [`selector`]): in doubt a pod is taken to fit on a node; if the scheduler finds that it does not, it stays pending.

mod claims;
mod counts;
mod objects;
mod requested;
mod resolve;
pub mod selector;
mod slice_spec;
mod slices;

pub use claims::{Allocation, DeviceClaim, DeviceClass, DeviceKind, DeviceRequest, RequestAlternatives};
pub use objects::{ClaimSpec, ClaimStatus, ClassSpec, TemplateSpec};
pub use requested::RequestedDevices;
pub use slices::{MOST_BYTES, MOST_SLICES, Slice, Slices};

use crate::demand::{Claim, DRA_PREFIX, Workload};
use berth_api::{DEVICES_BY_CLASS, names};
use berth_planner::Amounts;
use counts::{Counted, Counts};
use resolve::{add_claim_amounts, find_claim_holders};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Maximum number of claims' selectors that are evaluated in a pass, of all tenants together. Of further claims only the class counts.
const MAX_CLAIM_SELECTORS: usize = 64;

/// The host's classes, claims and slices.
#[derive(Default)]
pub struct Devices {
    slices: Arc<Slices>,
    known: Mutex<Known>,
    counts: Mutex<Counts>,
    /// The tenant whose selectors are the first in the next pass.
    first: AtomicUsize,
}

#[derive(Default)]
struct Known {
    classes: HashMap<String, Arc<DeviceClass>>,
    claims: HashMap<String, Arc<DeviceClaim>>,
    templates: HashMap<String, Arc<DeviceClaim>>,
}

/// Pods with the amounts of their claims.
pub struct Resolved<'a> {
    pub workloads: Vec<Cow<'a, Workload>>,
    wanted: CountedKinds,
}

/// Kinds of devices that are counted on nodes.
struct CountedKinds {
    classes: HashMap<String, Arc<DeviceClass>>,
    /// All classes, and the selectors of claims.
    kinds: BTreeSet<DeviceKind>,
    /// Resources by which pods get devices of a class without a claim.
    implicit: BTreeSet<String>,
    /// Slugs of tenants with selectors, none of which is among the kinds.
    without_turn: BTreeSet<String>,
}

/// The state of a claim of a pod.
enum ClaimState {
    Unallocated(Arc<DeviceClaim>),
    /// It has devices of a node, or devices that no node owns.
    Allocated(Arc<DeviceClaim>),
    /// It does not exist yet.
    Missing,
}

impl Devices {
    /// No classes, claims and templates yet. `slices` are filled by their own watch.
    pub fn new(slices: Arc<Slices>) -> Self {
        Self {
            slices,
            ..Self::default()
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether drivers publish more slices of a node than are kept, so that its devices are not known.
    pub fn exceed_limits(&self, node: &str) -> bool {
        self.slices.exceed_limits(node)
    }

    /// Removes the counts of nodes whose slices changed.
    pub fn slices_changed(&self, nodes: &BTreeSet<String>) {
        self.counts().forget(nodes);
    }

    /// Sets a class; none if it is gone. Returns whether it changed.
    pub fn put_class(&self, name: &str, class: Option<DeviceClass>) -> bool {
        let changed = put(&mut self.known().classes, name, class);
        if changed {
            self.counts().clear();
        }
        changed
    }

    /// Sets a claim, by namespace and name; none if it is gone. Returns whether it changed.
    pub fn put_claim(&self, name: &str, claim: Option<DeviceClaim>) -> bool {
        put(&mut self.known().claims, name, claim)
    }

    /// The same for a template of claims.
    pub fn put_template(&self, name: &str, claim: Option<DeviceClaim>) -> bool {
        put(&mut self.known().templates, name, claim)
    }

    /// Removes all classes except these. Returns whether any were removed.
    pub fn retain_classes(&self, names: &HashSet<String>) -> bool {
        let changed = retain(&mut self.known().classes, names);
        if changed {
            self.counts().clear();
        }
        changed
    }

    /// The same for claims.
    pub fn retain_claims(&self, names: &HashSet<String>) -> bool {
        retain(&mut self.known().claims, names)
    }

    /// The same for templates.
    pub fn retain_templates(&self, names: &HashSet<String>) -> bool {
        retain(&mut self.known().templates, names)
    }

    /// The claims of tenants that have devices of a node, as `namespace/name`. Those of the platform are in other namespaces, and may stay.
    pub fn find_claims_of_tenants(&self, node: &str) -> Vec<String> {
        let is_of_tenant = |name: &str| {
            let namespace = name.split_once('/').map(|(namespace, _)| namespace);
            namespace.is_some_and(names::is_like_tenant_namespace)
        };
        let known = self.known();
        let has_device = |claim: &DeviceClaim| claim.allocation.as_ref().is_some_and(|on| on.is_on_node(node));
        let of_tenants = known
            .claims
            .iter()
            .filter(|(name, claim)| has_device(claim) && is_of_tenant(name));
        let mut found: Vec<String> = of_tenants.map(|(name, _)| name.clone()).collect();
        found.sort();
        found
    }

    /// Adds the amounts of their claims to pods.
    pub fn resolve<'a>(&self, workloads: &'a [Arc<Workload>]) -> Resolved<'a> {
        let (found, classes) = {
            let known = self.known();
            let found: Vec<Vec<(String, ClaimState)>> =
                workloads.iter().map(|workload| known.found(workload)).collect();
            (found, known.classes.clone())
        };
        let first = self.first.fetch_add(MAX_CLAIM_SELECTORS, Ordering::Relaxed);
        let wanted = CountedKinds::new(classes, &found, workloads, first);
        let fleet_devices = if found.iter().all(Vec::is_empty) {
            FleetDevices::default()
        } else {
            self.fleet_devices(&wanted)
        };
        let holders = find_claim_holders(workloads, &found);
        let each = workloads.iter().zip(found).enumerate();
        let workloads = each
            .map(|(index, (workload, found))| {
                if found.is_empty() {
                    return Cow::Borrowed(workload.as_ref());
                }
                let mut workload = workload.as_ref().clone();
                let holds = |claim: &str| holders.get(claim) == Some(&index);
                add_claim_amounts(&mut workload, &found, &fleet_devices, holds);
                Cow::Owned(workload)
            })
            .collect();
        Resolved { workloads, wanted }
    }

    /// Devices of a node that claims can get.
    pub fn of_node(&self, node: &str, resolved: &Resolved<'_>) -> Amounts {
        let wanted = &resolved.wanted;
        let mut amounts = Amounts::new();
        for (kind, count) in self.count(node, wanted).iter().filter(|(_, count)| **count > 0) {
            if kind.selectors.is_empty() {
                let class = wanted.classes.get(&kind.class);
                if let Some(resource) = class.and_then(|class| class.extended_resource.as_ref()) {
                    *amounts.entry(resource.clone()).or_default() += count;
                }
                let implicit = format!("{DEVICES_BY_CLASS}{}", kind.class);
                if wanted.implicit.contains(&implicit) {
                    amounts.insert(implicit, *count);
                }
            }
            amounts.insert(amount_name(kind), *count);
        }
        amounts
    }

    fn count(&self, node: &str, wanted: &CountedKinds) -> Counted {
        // Locked while the slices are read: counts of older slices are removed afterwards.
        let mut counts = self.counts();
        counts.of(node, &wanted.kinds, &wanted.classes, || self.slices.of(node))
    }

    /// How many devices of each kind nodes have.
    fn fleet_devices(&self, wanted: &CountedKinds) -> FleetDevices {
        let mut fleet_devices = FleetDevices::default();
        for node in self.slices.nodes() {
            for (kind, count) in self.count(&node, wanted).iter().filter(|(_, count)| **count > 0) {
                if node.is_empty() {
                    fleet_devices.off_node.insert(kind.clone());
                } else if let Some((least, most)) = fleet_devices.of.get_mut(kind) {
                    (*least, *most) = ((*least).min(*count), (*most).max(*count));
                } else {
                    fleet_devices.of.insert(kind.clone(), (*count, *count));
                }
            }
        }
        fleet_devices.kinds.clone_from(&wanted.kinds);
        fleet_devices
    }
}

impl Resolved<'_> {
    /// Whether a tenant, by its slug, has claims with selectors of which none was evaluated: it may get a node that its pods cannot use.
    pub fn is_without_turn(&self, tenant: &str) -> bool {
        self.wanted.without_turn.contains(tenant)
    }

    /// How many devices a pod takes that are an extended resource: those that its containers request under this name, and those of classes that
    /// stand for it.
    pub fn count_devices(&self, workload: &Workload, resource: &str) -> u64 {
        let amount = |name: &str| workload.amounts.get(name).copied().unwrap_or_default();
        let classes = self.wanted.classes.iter();
        let of_classes = classes
            .filter(|(_, class)| class.extended_resource.as_deref() == Some(resource))
            .map(|(name, _)| {
                amount(&amount_name(&DeviceKind::whole(name)))
                    .saturating_add(amount(&format!("{DEVICES_BY_CLASS}{name}")))
            });
        of_classes.fold(amount(resource), u64::saturating_add)
    }
}

impl CountedKinds {
    fn new(
        classes: HashMap<String, Arc<DeviceClass>>,
        found: &[Vec<(String, ClaimState)>],
        workloads: &[Arc<Workload>],
        first: usize,
    ) -> Self {
        let mut by_tenant: BTreeMap<&str, BTreeSet<&DeviceKind>> = BTreeMap::new();
        for (workload, found) in workloads.iter().zip(found) {
            let claims = found.iter().filter_map(|(_, found)| match found {
                ClaimState::Unallocated(claim) | ClaimState::Allocated(claim) => Some(claim),
                ClaimState::Missing => None,
            });
            let kinds = claims
                .flat_map(|claim| claim.requests.iter().flat_map(|request| &request.0))
                .map(|ask| &ask.kind)
                .filter(|kind| !kind.selectors.is_empty());
            by_tenant.entry(&workload.tenant).or_default().extend(kinds);
        }
        by_tenant.retain(|_, kinds| !kinds.is_empty());
        let narrow = take_turns(by_tenant.values(), first);
        let is_without_turn = |kinds: &BTreeSet<&DeviceKind>| kinds.is_disjoint(&narrow);
        let without_turn = by_tenant.iter().filter(|(_, kinds)| is_without_turn(kinds));
        let without_turn = without_turn.map(|(tenant, _)| (*tenant).to_owned()).collect();
        let whole = classes.keys().map(|class| DeviceKind::whole(class));
        Self {
            kinds: whole.chain(narrow.into_iter().cloned()).collect(),
            without_turn,
            implicit: workloads
                .iter()
                .flat_map(|workload| workload.amounts.keys())
                .filter(|resource| resource.starts_with(DEVICES_BY_CLASS))
                .cloned()
                .collect(),
            classes,
        }
    }
}

/// The kinds that are counted, of those of each tenant. Tenants take turns, so that one with many selectors does not displace the others, and each pass
/// begins with others, so that many tenants with few do not either.
fn take_turns<'k, 's>(
    by_tenant: impl Iterator<Item = &'s BTreeSet<&'k DeviceKind>> + Clone,
    first: usize,
) -> BTreeSet<&'k DeviceKind>
where
    'k: 's,
{
    let tenants = by_tenant.clone().count();
    let order = by_tenant.cycle().skip(first.checked_rem(tenants).unwrap_or_default());
    let order: Vec<_> = order.take(tenants).collect();
    let turn = |number: usize| order.iter().filter_map(move |kinds| kinds.iter().nth(number));
    let all = (0..MAX_CLAIM_SELECTORS).flat_map(turn);
    all.take(MAX_CLAIM_SELECTORS).copied().collect()
}

/// How many devices of each kind nodes have.
#[derive(Default)]
struct FleetDevices {
    /// Kinds that were counted.
    kinds: BTreeSet<DeviceKind>,
    /// The fewest and the most on one node that has any.
    of: HashMap<DeviceKind, (u64, u64)>,
    /// Kinds of devices that several nodes reach.
    off_node: HashSet<DeviceKind>,
}

impl FleetDevices {
    /// The kind by which an alternative is counted.
    fn kind(&self, ask: &DeviceRequest) -> DeviceKind {
        if self.kinds.contains(&ask.kind) {
            ask.kind.clone()
        } else {
            DeviceKind::whole(&ask.kind.class)
        }
    }

    /// The number of a node's devices that an alternative takes; None if no node has that many.
    fn amount(&self, ask: &DeviceRequest) -> Option<u64> {
        let kind = self.kind(ask);
        let Some((least, most)) = self.of.get(&kind) else {
            return self.off_node.contains(&kind).then_some(0);
        };
        match ask.count {
            // If nodes differ, the smallest: the pod may get a larger one.
            None => Some(*least),
            Some(count) => (*most >= count).then_some(count),
        }
    }
}

impl Known {
    fn found(&self, workload: &Workload) -> Vec<(String, ClaimState)> {
        let claims = workload.claims.iter();
        claims
            .map(|claim| {
                // Each pod has its own claim of a template.
                let name = if claim.is_template {
                    String::new()
                } else {
                    format!("{}/{}", claim.namespace, claim.name)
                };
                (name, self.find(claim))
            })
            .collect()
    }

    /// A claim of a pod; its template, as long as the host has made no claim of it.
    fn find(&self, claim: &Claim) -> ClaimState {
        let of_pod = claim.generated.as_ref().filter(|_| claim.is_template);
        let own = (!claim.is_template || of_pod.is_some())
            .then(|| format!("{}/{}", claim.namespace, of_pod.unwrap_or(&claim.name)))
            .and_then(|name| self.claims.get(&name));
        match own {
            Some(claim) if claim.allocation.is_some() => ClaimState::Allocated(Arc::clone(claim)),
            Some(claim) => ClaimState::Unallocated(Arc::clone(claim)),
            None => {
                let template = format!("{}/{}", claim.namespace, claim.name);
                let template = self.templates.get(&template).filter(|_| claim.is_template);
                template.map_or(ClaimState::Missing, |template| {
                    ClaimState::Unallocated(Arc::clone(template))
                })
            }
        }
    }
}

/// The name of the amount that counts devices of a kind.
fn amount_name(kind: &DeviceKind) -> String {
    if kind.selectors.is_empty() {
        format!("{DRA_PREFIX}{}", kind.class)
    } else {
        format!("{DRA_PREFIX}{} where {}", kind.class, kind.selectors.join(" && "))
    }
}

fn put<V: PartialEq>(all: &mut HashMap<String, Arc<V>>, name: &str, value: Option<V>) -> bool {
    match value {
        Some(value) if all.get(name).is_some_and(|known| **known == value) => false,
        Some(value) => {
            all.insert(name.to_owned(), Arc::new(value));
            true
        }
        None => all.remove(name).is_some(),
    }
}

fn retain<V>(all: &mut HashMap<String, V>, names: &HashSet<String>) -> bool {
    let before = all.len();
    all.retain(|name, _| names.contains(name));
    all.len() != before
}

#[cfg(test)]
mod tests;
