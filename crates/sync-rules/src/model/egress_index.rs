//! What the tenant's API server may connect to, by what it names: kept as objects change, so that a connection costs the same however many there are.

use super::{index::Index, resource::Name};
use std::net::IpAddr;

/// The objects.
#[derive(Debug, Default)]
pub struct EgressIndex {
    /// The tenant's Services, by their addresses.
    pub services: Index<IpAddr>,
    /// The host's nodes of the tenant, by their addresses.
    pub nodes: Index<IpAddr>,
    /// The tenant's EndpointSlices, by their Services.
    pub slices: Index<Name>,
}
