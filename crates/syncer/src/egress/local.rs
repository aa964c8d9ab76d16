//! Servers of the syncer's own that the tenant's API server reaches through the broker: no other port is open for them,
//! and nobody else can reach them.

use super::target::Target;
use axum::Router;
use std::{collections::BTreeMap, fmt, net::SocketAddr};

/// A server of the syncer's own.
#[derive(Clone)]
pub enum Local {
    /// It listens at this address.
    At(SocketAddr),
    /// It has no address: the broker speaks TLS for it, with a certificate for this DNS name.
    Routes(String, Router),
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(address) => write!(f, "At({address})"),
            Self::Routes(name, _) => write!(f, "Routes({name})"),
        }
    }
}

/// The servers of the syncer's own, by the target that means them.
#[derive(Clone, Debug, Default)]
pub struct Locals(BTreeMap<Target, Local>);

impl Locals {
    /// Adds a server.
    pub fn add(&mut self, target: Target, local: Local) {
        self.0.insert(target, local);
    }

    /// The server that a target means.
    pub fn get(&self, target: &Target) -> Option<Local> {
        self.0.get(target).cloned()
    }
}
