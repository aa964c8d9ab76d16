//! TCP ports for processes on the loopback interface.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::Error;

/// Below the range that Linux gives to outgoing connections: a port from that range could be taken by any client
/// while the process that owns it restarts. Also below the node ports of Kubernetes.
const FIRST: u16 = 16_000;
const LAST: u16 = 29_999;

/// Ports already handed out by this process, whose owners may not listen yet.
static HANDED_OUT: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);

/// A TCP port on 127.0.0.1 that no process listens on, and that this process has not handed out before.
///
/// # Errors
/// [`Error::NoPort`] when all are taken.
pub fn free_port() -> Result<u16, Error> {
    let count = LAST - FIRST + 1;
    // Any start will do, as long as two processes that look at the same time begin at different places.
    let start = u16::try_from(RandomState::new().hash_one(std::process::id()) % u64::from(count)).unwrap_or(0);
    let mut handed_out = HANDED_OUT.lock().unwrap_or_else(PoisonError::into_inner);
    for offset in 0..count {
        let port = FIRST + (start + offset) % count;
        if !handed_out.contains(&port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            handed_out.insert(port);
            return Ok(port);
        }
    }
    Err(Error::NoPort(FIRST, LAST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_handed_out_twice() {
        let ports: HashSet<_> = (0..100).map(|_| free_port().unwrap()).collect();
        assert_eq!(ports.len(), 100);
        assert!(ports.iter().all(|port| (FIRST..=LAST).contains(port)));
    }
}
