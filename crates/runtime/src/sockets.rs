//! Options of TCP connections that may be idle for long.

use rustix::net::sockopt;
use std::time::Duration;
use tokio::net::TcpStream;

/// Idle time before the first keepalive probe, and the number of unanswered probes.
const KEEPALIVE: Duration = Duration::from_secs(30);
const PROBES: u32 = 4;

/// Small packets are sent at once, and a peer that vanished without closing the connection is noticed.
pub fn tune(stream: &TcpStream) {
    let tuned = stream.set_nodelay(true).and_then(|()| {
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, KEEPALIVE)?;
        sockopt::set_tcp_keepintvl(stream, KEEPALIVE / PROBES)?;
        sockopt::set_tcp_keepcnt(stream, PROBES)?;
        Ok(())
    });
    if let Err(error) = tuned {
        tracing::debug!(%error, "cannot set options of a connection");
    }
}
