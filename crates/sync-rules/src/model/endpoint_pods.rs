//! The pods that may be endpoints of the tenant's Services, with what decides that: kept as pods change on either side, so that to make a connection
//! no pod is read.
//!
//! Labels and names of ports are kept as hashes: the tenant decides how long they are.

use super::{
    json,
    pod_addresses::{self, is_ready},
    resource::Name,
    store::Stored,
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher, RandomState},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

/// The pods, by namespace and name.
#[derive(Debug, Default)]
pub struct EndpointPods {
    by_namespace: HashMap<Arc<str>, BTreeMap<Arc<str>, EndpointPod>>,
    /// Nobody outside knows its keys, so that nobody can choose texts with the same hash.
    hasher: RandomState,
}

/// A pod that has an address on the host, and is the tenant's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EndpointPod {
    pub(crate) on_host: OnHost,
    pub(crate) in_tenant: InTenant,
}

/// What the host says of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OnHost {
    /// At least one, in their order.
    addresses: Box<[IpAddr]>,
    /// Whether it is ready, and is not being deleted.
    is_ready: bool,
}

impl OnHost {
    /// None of a pod without an address, such as one that has ended.
    pub(crate) fn of(host: &Stored) -> Option<Self> {
        let pod = host.object();
        let addresses: Box<[IpAddr]> = pod_addresses::of(&pod).into_iter().collect();
        (!addresses.is_empty()).then(|| Self {
            addresses,
            // The host may remove a pod that the tenant keeps.
            is_ready: is_ready(&pod) && host.deletion.is_none(),
        })
    }
}

/// What the tenant says of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InTenant {
    /// Hashes of its labels, in their order; none if it has more than a pod may have. The host has none of its labels then, and no Service selects it there.
    labels: Option<Box<[u64]>>,
    /// The ports of its containers that have names, by the hashes of these; 0 for one that is no port.
    ports: Box<[(u64, u16)]>,
}

/// Which pods are endpoints behind a port of a Service.
#[derive(Debug)]
pub(crate) struct Selection<'a> {
    /// The namespace of the Service.
    pub(crate) namespace: &'a str,
    /// Its selector, which selects something.
    pub(crate) selector: &'a BTreeMap<String, String>,
    /// Whether pods count that are not ready.
    pub(crate) even_unready: bool,
    /// The family of its addresses that comes first.
    pub(crate) family: Option<&'a str>,
    /// The port of the pods.
    pub(crate) port: TargetPort<'a>,
}

/// A port of pods, as a Service names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetPort<'a> {
    /// This one.
    Number(u16),
    /// The one with this name, in each pod.
    Name(&'a str),
}

impl EndpointPods {
    /// Removes a pod, and returns what was known of it.
    pub(crate) fn remove(&mut self, pod: &Name) -> Option<EndpointPod> {
        let pods = self.by_namespace.get_mut(&pod.namespace)?;
        let known = pods.remove(&pod.name);
        if pods.is_empty() {
            self.by_namespace.remove(&pod.namespace);
        }
        known
    }

    /// Sets what is known of a pod.
    pub(crate) fn set(&mut self, pod: &Name, known: EndpointPod) {
        let pods = self.by_namespace.entry(Arc::clone(&pod.namespace)).or_default();
        pods.insert(Arc::clone(&pod.name), known);
    }

    /// What a pod of the tenant says of itself. One with more than `most_labels` has none on the host.
    pub(crate) fn read(&self, pod: &Value, most_labels: usize) -> InTenant {
        let labels = json::strings(pod, &["metadata", "labels"]);
        let labels = (labels.len() <= most_labels).then(|| self.hash_labels(&labels));
        let containers = ["containers", "initContainers"].into_iter();
        let containers = containers.flat_map(|field| json::items(pod, &["spec", field]));
        let ports = containers.flat_map(|container| json::items(container, &["ports"]));
        let named = ports.filter_map(|port| {
            let name = json::text(port, &["name"])?;
            let number = port["containerPort"].as_u64();
            let number = number.and_then(|number| u16::try_from(number).ok());
            Some((self.hasher.hash_one(name), number.unwrap_or_default()))
        });
        let mut ports: Vec<(u64, u16)> = named.collect();
        // The first one of a name counts.
        ports.sort_by_key(|(name, _)| *name);
        ports.dedup_by_key(|(name, _)| *name);
        InTenant {
            labels,
            ports: ports.into(),
        }
    }

    fn hash_labels(&self, labels: &BTreeMap<String, String>) -> Box<[u64]> {
        let mut hashes: Vec<u64> = labels.iter().map(|label| self.hasher.hash_one(label)).collect();
        hashes.sort_unstable();
        hashes.into()
    }

    /// The addresses of the pods that a Service leads to, with their ports.
    pub(crate) fn select(&self, selection: &Selection<'_>) -> Vec<SocketAddr> {
        let selector = self.hash_labels(selection.selector);
        let port_name = match selection.port {
            TargetPort::Number(_) => None,
            TargetPort::Name(name) => Some(self.hasher.hash_one(name)),
        };
        let is_preferred = |address: &&IpAddr| {
            let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
            selection.family.is_none_or(|first| first == family)
        };
        let pods = self.by_namespace.get(selection.namespace).into_iter().flatten();
        pods.filter(|(_, pod)| selection.even_unready || pod.on_host.is_ready)
            .filter(|(_, pod)| pod.in_tenant.has_labels(&selector))
            .filter_map(|(_, pod)| {
                let port = match (selection.port, port_name) {
                    (TargetPort::Number(number), _) => Some(number),
                    (TargetPort::Name(_), name) => pod.in_tenant.port(name?),
                };
                let addresses = &pod.on_host.addresses;
                let address = addresses.iter().find(is_preferred).or(addresses.first())?;
                Some(SocketAddr::new(*address, port.filter(|port| *port != 0)?))
            })
            .collect()
    }
}

impl InTenant {
    /// Whether the pod has all of these labels.
    fn has_labels(&self, selector: &[u64]) -> bool {
        let labels = self.labels.as_deref();
        labels.is_some_and(|labels| selector.iter().all(|label| labels.binary_search(label).is_ok()))
    }

    /// The port with this name.
    fn port(&self, name: u64) -> Option<u16> {
        let found = self.ports.binary_search_by_key(&name, |(name, _)| *name).ok()?;
        self.ports.get(found).map(|(_, number)| *number)
    }
}
