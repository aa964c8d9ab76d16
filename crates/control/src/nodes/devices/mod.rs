//! Devices by dynamic resource allocation (`resource.k8s.io/v1`): how many of which class each node has, and how many pods
//! ask for by their claims. Pure but for what is remembered of nodes.
//!
//! | of the host | becomes |
//! |---|---|
//! | devices of a node's ResourceSlices that a class selects | the node's amount `dra:<class>`, and of the class's extended resource |
//! | a pod's claims | amounts `dra:<class>`; of alternatives the first that any node has |
//! | selectors of a claim | a further amount, of the devices that they select |
//! | a claim of several pods | counts once: the first pod asks, the others go where it goes |
//! | a claim that has its devices | no demand: no other node helps |
//! | devices that several nodes reach | no node is needed for them |
//!
//! Devices that exclude each other (a GPU and its partitions) all count, and so do those whose selectors are not understood
//! (see [`selector`]): in doubt a pod is thought to find room where the scheduler finds none, and waits.

mod claims;
mod counts;
pub mod selector;

pub use claims::{Allocation, Ask, Claim, Class, Kind, Request};

use super::{
    ByNode,
    demand::{DRA, Place, Workload},
};
use berth_planner::Amounts;
use counts::{Counted, Counts};
use serde_json::Value;
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Prefix of the resource by which a pod gets devices of a class without a claim.
const IMPLICIT: &str = "deviceclass.resource.kubernetes.io/";
/// Selectors of claims that are looked at, of all tenants together. Of further ones the class alone counts.
const MOST_NARROW: usize = 64;

/// The host's classes, claims and slices.
#[derive(Default)]
pub struct Devices {
    /// The specs of `ResourceSlices` by node; those of devices that several nodes reach at the empty name.
    slices: Arc<ByNode<Value>>,
    known: Mutex<Known>,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Known {
    classes: HashMap<String, Arc<Class>>,
    claims: HashMap<String, Arc<Claim>>,
    templates: HashMap<String, Arc<Claim>>,
}

/// Pods with what their claims come to.
pub struct Resolved<'a> {
    /// The pods.
    pub workloads: Vec<Cow<'a, Workload>>,
    wanted: Wanted,
}

/// What of nodes is counted.
struct Wanted {
    classes: HashMap<String, Arc<Class>>,
    /// All classes, and what claims select of them.
    kinds: BTreeSet<Kind>,
    /// Resources by which pods get devices of a class without a claim.
    implicit: BTreeSet<String>,
}

/// What one claim of a pod comes to.
enum Found {
    /// It asks for devices.
    Asks(Arc<Claim>),
    /// It has devices of this node, or of none.
    Has(Arc<Claim>),
    /// It is not there yet.
    Missing,
}

impl Devices {
    /// With the slices that are watched.
    pub fn new(slices: Arc<ByNode<Value>>) -> Self {
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

    /// Forgets what was counted of nodes whose slices changed.
    pub fn slices_changed(&self, nodes: &BTreeSet<String>) {
        self.counts().forget(nodes);
    }

    /// Sets what a class is; None if it is gone. Says whether that changed anything.
    pub fn put_class(&self, name: &str, class: Option<Class>) -> bool {
        let changed = put(&mut self.known().classes, name, class);
        if changed {
            self.counts().clear();
        }
        changed
    }

    /// Sets what a claim is, by namespace and name; None if it is gone. Says whether that changed anything.
    pub fn put_claim(&self, name: &str, claim: Option<Claim>) -> bool {
        put(&mut self.known().claims, name, claim)
    }

    /// The same for a template of claims.
    pub fn put_template(&self, name: &str, claim: Option<Claim>) -> bool {
        put(&mut self.known().templates, name, claim)
    }

    /// Forgets all classes but these. Says whether there were others.
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

    /// What pods ask for and hold, claims included.
    pub fn resolve<'a>(&self, workloads: &'a [Arc<Workload>]) -> Resolved<'a> {
        let (found, classes) = {
            let known = self.known();
            let found: Vec<Vec<(String, Found)>> = workloads.iter().map(|workload| known.found(workload)).collect();
            (found, known.classes.clone())
        };
        let wanted = Wanted::new(classes, &found, workloads);
        let extent = if found.iter().all(Vec::is_empty) {
            Extent::default()
        } else {
            self.extent(&wanted)
        };
        let holders = holders(workloads, &found);
        let each = workloads.iter().zip(found).enumerate();
        let workloads = each
            .map(|(index, (workload, found))| {
                if found.is_empty() {
                    return Cow::Borrowed(workload.as_ref());
                }
                let mut workload = workload.as_ref().clone();
                let holds = |claim: &str| holders.get(claim) == Some(&index);
                with_claims(&mut workload, &found, &extent, holds);
                Cow::Owned(workload)
            })
            .collect();
        Resolved { workloads, wanted }
    }

    /// What devices of claims a node has.
    pub fn of_node(&self, node: &str, resolved: &Resolved<'_>) -> Amounts {
        let wanted = &resolved.wanted;
        let mut amounts = Amounts::new();
        for (kind, count) in self.count(node, wanted).iter().filter(|(_, count)| **count > 0) {
            if kind.selectors.is_empty() {
                let class = wanted.classes.get(&kind.class);
                if let Some(resource) = class.and_then(|class| class.extended_resource.as_ref()) {
                    *amounts.entry(resource.clone()).or_default() += count;
                }
                let implicit = format!("{IMPLICIT}{}", kind.class);
                if wanted.implicit.contains(&implicit) {
                    amounts.insert(implicit, *count);
                }
            }
            amounts.insert(resource(kind), *count);
        }
        amounts
    }

    fn count(&self, node: &str, wanted: &Wanted) -> Counted {
        // Held while the slices are read: what was counted of older ones is forgotten afterwards.
        let mut counts = self.counts();
        counts.of(node, &wanted.kinds, &wanted.classes, || self.slices.of(node))
    }

    /// How many of each kind nodes have.
    fn extent(&self, wanted: &Wanted) -> Extent {
        let mut extent = Extent::default();
        for node in self.slices.nodes() {
            for (kind, count) in self.count(&node, wanted).iter().filter(|(_, count)| **count > 0) {
                if node.is_empty() {
                    extent.loose.insert(kind.clone());
                } else if let Some((least, most)) = extent.of.get_mut(kind) {
                    (*least, *most) = ((*least).min(*count), (*most).max(*count));
                } else {
                    extent.of.insert(kind.clone(), (*count, *count));
                }
            }
        }
        extent.kinds.clone_from(&wanted.kinds);
        extent
    }
}

impl Wanted {
    fn new(classes: HashMap<String, Arc<Class>>, found: &[Vec<(String, Found)>], workloads: &[Arc<Workload>]) -> Self {
        let mut by_tenant: BTreeMap<&str, BTreeSet<&Kind>> = BTreeMap::new();
        for (workload, found) in workloads.iter().zip(found) {
            let claims = found.iter().filter_map(|(_, found)| match found {
                Found::Asks(claim) | Found::Has(claim) => Some(claim),
                Found::Missing => None,
            });
            let kinds = claims
                .flat_map(|claim| claim.requests.iter().flat_map(|request| &request.0))
                .map(|ask| &ask.kind)
                .filter(|kind| !kind.selectors.is_empty());
            by_tenant.entry(&workload.tenant).or_default().extend(kinds);
        }
        // In turns, so that nobody's many leave no room for the few of others.
        let turn = |number: usize| by_tenant.values().filter_map(move |kinds| kinds.iter().nth(number));
        let narrow: BTreeSet<&Kind> = (0..MOST_NARROW).flat_map(turn).take(MOST_NARROW).copied().collect();
        let whole = classes.keys().map(|class| Kind::whole(class));
        Self {
            kinds: whole.chain(narrow.into_iter().cloned()).collect(),
            implicit: workloads
                .iter()
                .flat_map(|workload| workload.amounts.keys())
                .filter(|resource| resource.starts_with(IMPLICIT))
                .cloned()
                .collect(),
            classes,
        }
    }
}

/// How many devices of each kind nodes have.
#[derive(Default)]
struct Extent {
    /// Kinds that were counted.
    kinds: BTreeSet<Kind>,
    /// The fewest and the most on one node that has any.
    of: HashMap<Kind, (u64, u64)>,
    /// Kinds that several nodes reach.
    loose: HashSet<Kind>,
}

impl Extent {
    /// The kind by which an alternative is counted.
    fn kind(&self, ask: &Ask) -> Kind {
        if self.kinds.contains(&ask.kind) {
            ask.kind.clone()
        } else {
            Kind::whole(&ask.kind.class)
        }
    }

    /// Devices of an alternative that pods take of a node; None if no node has that many.
    fn amount(&self, ask: &Ask) -> Option<u64> {
        let kind = self.kind(ask);
        let Some((least, most)) = self.of.get(&kind) else {
            return self.loose.contains(&kind).then_some(0);
        };
        match ask.count {
            // Of nodes that differ, the smallest: more may be there when the pod comes.
            None => Some(*least),
            Some(count) => (*most >= count).then_some(count),
        }
    }
}

impl Known {
    fn found(&self, workload: &Workload) -> Vec<(String, Found)> {
        let claims = workload.claims.iter();
        claims
            .map(|claim| {
                let of_pod = claim.generated.as_ref().filter(|_| claim.is_template);
                let name = format!("{}/{}", claim.namespace, of_pod.unwrap_or(&claim.name));
                let own = (!claim.is_template || of_pod.is_some())
                    .then(|| self.claims.get(&name))
                    .flatten();
                let found = match own {
                    Some(claim) if claim.allocation.is_some() => Found::Has(Arc::clone(claim)),
                    Some(claim) => Found::Asks(Arc::clone(claim)),
                    None => {
                        let template = format!("{}/{}", claim.namespace, claim.name);
                        let template = self.templates.get(&template).filter(|_| claim.is_template);
                        template.map_or(Found::Missing, |template| Found::Asks(Arc::clone(template)))
                    }
                };
                // Each pod has its own claim of a template.
                let name = if claim.is_template { String::new() } else { name };
                (name, found)
            })
            .collect()
    }
}

/// Which pod a claim is counted for: one that is on a node, else the one that has waited longest.
fn holders(workloads: &[Arc<Workload>], found: &[Vec<(String, Found)>]) -> HashMap<String, usize> {
    let rank = |index: usize| {
        let workload = &workloads[index];
        let place = match workload.place {
            Place::On(_) => 0,
            Place::Waiting => 1,
            Place::Held | Place::Done => 2,
        };
        (place, workload.since, workload.name.clone())
    };
    let mut holders: HashMap<String, usize> = HashMap::new();
    for (index, claims) in found.iter().enumerate() {
        for (claim, _) in claims.iter().filter(|(claim, _)| !claim.is_empty()) {
            let holder = holders.entry(claim.clone()).or_insert(index);
            if rank(index) < rank(*holder) {
                *holder = index;
            }
        }
    }
    holders
}

/// Adds what its claims come to to a pod. One that goes where its devices are, or whose claim is not there, waits without
/// asking for a node.
fn with_claims(workload: &mut Workload, found: &[(String, Found)], extent: &Extent, holds: impl Fn(&str) -> bool) {
    let waits = workload.place == Place::Waiting;
    let is_of_gang = workload.gang.as_ref().is_some_and(|gang| gang.size > 1);
    for (name, found) in found {
        let is_counted = name.is_empty() || holds(name);
        let claim = match found {
            Found::Missing if waits => {
                workload.place = Place::Held;
                continue;
            }
            Found::Missing => continue,
            Found::Has(claim) if waits => {
                let node = claim
                    .allocation
                    .as_ref()
                    .and_then(|allocation| allocation.node.as_ref());
                if node.is_some() {
                    workload.place = Place::Held;
                }
                continue;
            }
            // Of a gang all pods are counted together, whoever of them the claim is counted for.
            Found::Asks(_) if waits && !is_counted && !is_of_gang => {
                workload.place = Place::Held;
                continue;
            }
            Found::Has(_) | Found::Asks(_) if !is_counted => continue,
            Found::Has(claim) | Found::Asks(claim) => claim,
        };
        for request in &claim.requests {
            let Some((ask, amount)) = chosen(request, claim, extent) else {
                continue;
            };
            for kind in BTreeSet::from([Kind::whole(&ask.kind.class), extent.kind(ask)]) {
                let known = workload.amounts.entry(resource(&kind)).or_default();
                *known = known.saturating_add(amount);
            }
        }
    }
}

/// The alternative that a request comes to, and how many devices of a node that is. Nothing if it is no node's.
fn chosen<'c>(request: &'c Request, claim: &Claim, extent: &Extent) -> Option<(&'c Ask, u64)> {
    let allocated = claim.allocation.as_ref();
    let got = allocated.and_then(|allocation| request.0.iter().find(|ask| allocation.requests.contains(&ask.name)));
    let possible = || request.0.iter().find(|ask| extent.amount(ask).is_some());
    let ask = got.or_else(possible).or_else(|| request.0.first())?;
    // How many all are is known once they are there.
    let held = allocated.map(|allocation| allocation.requests.iter().filter(|name| **name == ask.name).count());
    let held = held.and_then(|held| u64::try_from(held).ok());
    let of_all = held.filter(|held| *held > 0 && ask.count.is_none());
    let amount = of_all.or_else(|| extent.amount(ask)).or(ask.count).unwrap_or(1);
    (amount > 0).then_some((ask, amount))
}

/// The name of the amount of such devices.
fn resource(kind: &Kind) -> String {
    if kind.selectors.is_empty() {
        format!("{DRA}{}", kind.class)
    } else {
        format!("{DRA}{} where {}", kind.class, kind.selectors.join(" && "))
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
