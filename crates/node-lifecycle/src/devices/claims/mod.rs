//! Device classes and claims, as far as they matter for nodes.

use super::{
    objects::{AllocationStatus, Alternative, ClaimSpec, ClaimStatus, ClassSpec, Request, expressions},
    selector::Selector,
};
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

/// Alternatives that are kept of a claim, of all its requests. Tenants' claims have no more: `berth-resource-claims` rejects them.
const MOST_ALTERNATIVES: usize = 64;
/// Maximum length of the selectors of an alternative; longer ones are ignored.
const MAX_SELECTOR_LENGTH: usize = 512;
/// Bytes that selectors of a claim take, with what each text takes besides its characters; further ones are ignored.
const MOST_SELECTOR_BYTES: usize = 4096;
/// Devices of one claim that are read (`AllocationResultsMaxSize` in Kubernetes).
const MOST_RESULTS: usize = 32;

/// A `DeviceClass`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceClass {
    /// All must select a device.
    pub selectors: Vec<Selector>,
    /// The extended resource by which pods can request its devices.
    pub extended_resource: Option<String>,
}

/// A `ResourceClaim`, or one that a template creates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceClaim {
    pub requests: Vec<RequestAlternatives>,
    pub allocation: Option<Allocation>,
}

/// The alternatives of one request of a claim: the first available one is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestAlternatives(pub Vec<DeviceRequest>);

/// Devices that a claim requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceRequest {
    pub kind: DeviceKind,
    /// How many. None: all that the node has.
    pub count: Option<u64>,
    /// How many are allocated to it.
    pub held: u64,
}

/// Devices of a class, or some of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceKind {
    pub class: String,
    /// Expressions of the claim that restrict the selection.
    pub selectors: Arc<[String]>,
}

/// Devices that were allocated to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The node of the devices. None: several nodes reach them.
    pub node: Option<String>,
    /// Names of the pools that the devices are of.
    pub pools: BTreeSet<String>,
}

impl Allocation {
    /// Whether a device of this node is allocated. Its pools have the name of the node, or this name, a slash and another one.
    pub fn is_on_node(&self, node: &str) -> bool {
        let is_of_node = |pool: &String| {
            let rest = pool.strip_prefix(node);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.node.as_deref() == Some(node) || self.pools.iter().any(is_of_node)
    }
}

impl DeviceKind {
    /// All devices of a class.
    pub fn whole(class: &str) -> Self {
        Self {
            class: class.to_owned(),
            selectors: Arc::default(),
        }
    }
}

impl DeviceClass {
    /// Reads the `spec` of a class.
    pub fn read(spec: Option<ClassSpec>) -> Self {
        let ClassSpec {
            selectors,
            extended_resource_name,
        } = spec.unwrap_or_default();
        Self {
            selectors: expressions(selectors.as_deref()).map(Selector::new).collect(),
            extended_resource: extended_resource_name,
        }
    }
}

impl DeviceClaim {
    /// Reads `spec` and `status` of a claim. A template has the `spec` of its claims within its own. What is kept has a [bound](MOST_ALTERNATIVES).
    pub fn read(spec: Option<&ClaimSpec>, status: Option<&ClaimStatus>) -> Self {
        let allocation = status.and_then(|status| status.allocation.as_ref());
        let mut reader = ClaimReader {
            held: count_held(allocation),
            alternatives: MOST_ALTERNATIVES,
            selector_bytes: MOST_SELECTOR_BYTES,
        };
        let requests = spec.into_iter().flat_map(ClaimSpec::requests);
        Self {
            requests: requests.filter_map(|request| reader.read(request)).collect(),
            allocation: allocation.map(|allocation| {
                let pools = allocation.results().filter_map(|result| result.pool.clone());
                Allocation {
                    node: allocation.node().cloned(),
                    pools: pools.take(MOST_RESULTS).collect(),
                }
            }),
        }
    }
}

/// How many devices each request has, by its name, or that of the request and the alternative.
fn count_held(allocation: Option<&AllocationStatus>) -> HashMap<String, u64> {
    let results = allocation.into_iter().flat_map(AllocationStatus::results);
    let mut held = HashMap::new();
    for request in results.filter_map(|result| result.request.clone()).take(MOST_RESULTS) {
        *held.entry(request).or_default() += 1;
    }
    held
}

/// Reads requests, as far as there is room for them.
struct ClaimReader {
    held: HashMap<String, u64>,
    /// Alternatives that have room.
    alternatives: usize,
    /// Bytes of selectors that have room.
    selector_bytes: usize,
}

impl ClaimReader {
    fn read(&mut self, request: &Request) -> Option<RequestAlternatives> {
        let name = &request.name;
        if name.is_empty() {
            return None;
        }
        let mut asks = Vec::new();
        let one = request.exactly.iter().map(|one| (name.clone(), one));
        let several = request.first_available.iter().flatten();
        let several = several.map(|alternative| (format!("{name}/{}", alternative.name), alternative));
        for (name, alternative) in one.chain(several) {
            asks.extend(self.read_alternative(&name, alternative));
        }
        (!asks.is_empty()).then_some(RequestAlternatives(asks))
    }

    fn read_alternative(&mut self, name: &str, alternative: &Alternative) -> Option<DeviceRequest> {
        // Administrative access does not take a device from others.
        if alternative.admin_access == Some(true) {
            return None;
        }
        let class = alternative.device_class_name.clone()?;
        self.alternatives = self.alternatives.checked_sub(1)?;
        let is_all = alternative.allocation_mode.as_deref() == Some("All");
        let count = alternative.count.and_then(|count| u64::try_from(count).ok());
        Some(DeviceRequest {
            kind: DeviceKind {
                class,
                selectors: self.read_selectors(alternative),
            },
            count: (!is_all).then(|| count.unwrap_or(1)),
            held: self.held.get(name).copied().unwrap_or_default(),
        })
    }

    /// The selectors of an alternative; none if they are long or many, so that the class alone counts: tenants write them, and they are kept for every
    /// node.
    fn read_selectors(&mut self, alternative: &Alternative) -> Arc<[String]> {
        let all = || expressions(alternative.selectors.as_deref());
        let length: usize = all().map(str::len).sum();
        let bytes = length + all().count() * size_of::<String>();
        let left = self.selector_bytes.checked_sub(bytes);
        let Some(left) = left.filter(|_| length <= MAX_SELECTOR_LENGTH) else {
            return Arc::default();
        };
        self.selector_bytes = left;
        all().map(ToOwned::to_owned).collect()
    }
}

#[cfg(test)]
pub(super) mod tests;
