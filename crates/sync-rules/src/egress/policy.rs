//! Where the tenant's API server may connect to. Every other target is denied, with a message that the
//! API server passes on to the client.
//!
//! | target | goes to |
//! |---|---|
//! | one of the syncer's own servers ([`Locals`]) | that server, in this process |
//! | a node of the tenant (name or address), port 10250 | the syncer's kubelet endpoint |
//! | a ClusterIP, or `<service>.<namespace>.svc`, of the tenant | the Service's ready pods, as the host knows them |
//! | an address of one of the tenant's pods | the pod, at any port |
//! | an address in a network that the class offers for endpoints | there, if the network is open (see [`endpoint_address`]) |
//! | a host that the class lists | there, if its address is none of the platform's |

use super::{
    local::Locals,
    services,
    target::{Host, Target},
};
use crate::{
    kinds::node::KUBELET_PORT,
    model::{Cache, KindId, resource::Name},
    translation::{
        endpoint_address::{self, Allowed, Denied, EndpointAddresses},
        workload_address,
    },
};
use http::StatusCode;
use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

/// Where a connection goes.
#[derive(Clone, Debug)]
pub enum Route<L> {
    /// To one of the syncer's own servers.
    Local(L),
    /// To the kubelet endpoint of a node.
    Kubelet(Name),
    /// To the first of these that answers.
    Addresses(&'static str, Vec<SocketAddr>),
    /// To an external host, whose address must be resolved and [checked](check_external).
    External(Target),
}

impl<L> Route<L> {
    /// For metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Local(_) => "local",
            Self::Kubelet(_) => "kubelet",
            Self::Addresses(kind, _) => kind,
            Self::External(_) => "external",
        }
    }

    /// Whether the API server connects there for a user's request to a pod or to a Service (`kubectl proxy`): it names the address of a pod then.
    /// Webhooks and aggregated APIs have that of a Service.
    pub fn is_for_users(&self) -> bool {
        matches!(self, Self::Kubelet(_) | Self::Addresses("pod" | "endpoint", _))
    }
}

/// Why a connection is not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectError {
    /// HTTP status code.
    pub status: StatusCode,
    /// Message for the tenant.
    pub message: String,
}

impl ConnectError {
    /// The connection is not allowed.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, message)
    }

    /// The target does not exist.
    pub fn unknown(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// The target is not available now.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }
}

/// Where a connection to `target` goes.
///
/// # Errors
/// Why the connection is not made.
pub fn route<L: Clone>(cache: &Cache, locals: &Locals<L>, target: &Target) -> Result<Route<L>, ConnectError> {
    if let Some(local) = locals.get(target) {
        return Ok(Route::Local(local));
    }
    if let Some(node) = node(cache, &target.host) {
        return if target.port == KUBELET_PORT {
            Ok(Route::Kubelet(node))
        } else {
            Err(ConnectError::forbidden(format!(
                "{target}: ports of nodes cannot be reached through the API server"
            )))
        };
    }
    match &target.host {
        Host::Address(address) => by_address(cache, *address, target),
        Host::Name(name) => match service_of(cache, name) {
            Some(service) => Ok(Route::Addresses(
                "service",
                services::endpoints(cache, &service, target.port)?,
            )),
            None if is_listed(cache, target) => Ok(Route::External(target.clone())),
            None => Err(ConnectError::forbidden(format!(
                "{target} is neither a Service of your cluster nor a host that your class lists in network.apiServerEgress.hosts; ask the \
                 platform team to list it"
            ))),
        },
    }
}

fn by_address<L>(cache: &Cache, address: IpAddr, target: &Target) -> Result<Route<L>, ConnectError> {
    let endpoint = EndpointAddresses::new(cache).check(address);
    if endpoint == Ok(Allowed::OwnPod) {
        return Ok(Route::Addresses("pod", vec![SocketAddr::new(address, target.port)]));
    }
    if let Some(kind) = workload_address::special(address) {
        return Err(ConnectError::forbidden(format!(
            "{target} is {kind}; such an address cannot belong to your cluster"
        )));
    }
    if let Some(service) = services::by_address(cache, address) {
        return Ok(Route::Addresses(
            "service",
            services::endpoints(cache, &service, target.port)?,
        ));
    }
    if is_listed(cache, target) {
        return Ok(Route::External(target.clone()));
    }
    match endpoint {
        Ok(_) => Ok(Route::Addresses(
            "endpoint",
            vec![SocketAddr::new(address, target.port)],
        )),
        Err(Denied::Closed) => Err(ConnectError::forbidden(format!("{target} {}", Denied::Closed.why()))),
        Err(Denied::Foreign | Denied::NoWorkload) => Err(ConnectError::forbidden(format!(
            "{target} is no address of your pods or Services, nor one that your class lists in network.apiServerEgress.hosts; ask the platform \
             team to list it"
        ))),
    }
}

/// The namespace in the tenant of the pod to whose address a target leads; `None` if it is no pod's.
pub fn namespace_of_pod(cache: &Cache, target: &Target) -> Option<Arc<str>> {
    match target.host {
        Host::Address(address) => cache.pod_addresses().namespace(address),
        Host::Name(_) => None,
    }
}

/// The tenant's node with this name or address, as the host knows it.
fn node(cache: &Cache, host: &Host) -> Option<Name> {
    match host {
        Host::Name(name) => Some(Name::new("", name)).filter(|name| cache.stores.host(KindId::Node).contains(name)),
        Host::Address(address) => cache.egress_index().nodes.objects(address).next().cloned(),
    }
}

/// The Service for a DNS name of the tenant's cluster, whether it exists or not.
fn service_of(cache: &Cache, name: &str) -> Option<Name> {
    let suffix = format!(".svc.{}", cache.tenant.cluster_domain);
    let name = name.strip_suffix(&suffix).or_else(|| name.strip_suffix(".svc"))?;
    let (service, namespace) = name.split_once('.')?;
    (!namespace.contains('.')).then(|| Name::new(namespace, service))
}

/// Whether the class lists a host: `host` means port 443, `host:port` any other.
fn is_listed(cache: &Cache, target: &Target) -> bool {
    let listed = cache.tenant.network.api_server_hosts.iter();
    let mut listed = listed.filter_map(|text| {
        let target = Target::parse(text).or_else(|_| Target::parse(&format!("{text}:443")));
        target.ok()
    });
    listed.any(|listed| listed == *target)
}

/// The endpoints of a route without those at addresses of the host's API server, `platform`: a network that the class
/// offers may contain an address of it that is no node's, such as that of its load balancer.
///
/// # Errors
/// None is left.
pub fn without_platform(
    platform: &[IpAddr],
    target: &Target,
    mut addresses: Vec<SocketAddr>,
) -> Result<Vec<SocketAddr>, ConnectError> {
    addresses.retain(|address| !platform.contains(&address.ip()));
    if addresses.is_empty() {
        Err(ConnectError::forbidden(format!(
            "{target} may not be reached: its address is the platform's own"
        )))
    } else {
        Ok(addresses)
    }
}

/// Checks the address that the name of an external host was resolved to. `platform` are the addresses of the host's API
/// server.
///
/// # Errors
/// Why the address must not be reached.
pub fn check_external(
    cache: &Cache,
    platform: &[IpAddr],
    target: &Target,
    address: IpAddr,
) -> Result<(), ConnectError> {
    let is_closed = || {
        let closed = endpoint_address::closed_networks(cache);
        closed.iter().any(|network| network.contains(&address))
    };
    let why = if let Some(kind) = workload_address::special(address) {
        kind
    } else if platform.contains(&address) || node(cache, &Host::Address(address)).is_some() {
        "the platform's own"
    } else if is_closed() {
        "in a network of the platform"
    } else {
        return Ok(());
    };
    Err(ConnectError::forbidden(format!(
        "{target} may not be reached: its address is {why}"
    )))
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
