//! The syncer's own servers, which the tenant's API server reaches through the broker: no other port is open for them,
//! and no other client can reach them.

use axum::Router;
use std::{fmt, net::SocketAddr};

/// One of the syncer's own servers.
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
