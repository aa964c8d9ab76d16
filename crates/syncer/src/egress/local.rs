//! Servers of the syncer's own that the tenant's API server reaches through the broker: no other port is open for them,
//! and nobody else can reach them.

use axum::Router;
use std::{fmt, net::SocketAddr};

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
