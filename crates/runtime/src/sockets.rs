//! Options of TCP connections that may be idle for long.

use socket2::{SockRef, TcpKeepalive};
use std::{io, time::Duration};
use tokio::net::TcpStream;

/// Idle time before the first keepalive probe, and the number of unanswered probes.
const KEEPALIVE: Duration = Duration::from_secs(30);
const PROBES: u32 = 4;
/// Bytes that the kernel takes and has not sent yet: enough to go on while the program that writes is woken.
pub const UNSENT: u32 = 64 << 10;
/// Bytes that the kernel keeps of what came and was not read. It reckons twice of it, for its own use: as much as it begins with by default,
/// instead of the many megabytes that it grows to.
pub const UNREAD: usize = 128 << 10;
/// The same for peers that may be far away. It is also what they may send in one round trip.
pub const UNREAD_OF_FAR: usize = 2 * UNREAD;
/// Bytes that the kernel keeps of what was sent to peers that may be far away, until they acknowledge it. It reckons twice of it, as with
/// [`UNREAD_OF_FAR`], and it is what they get in one round trip.
pub const UNACKNOWLEDGED: usize = UNREAD_OF_FAR;

/// Small packets are sent at once, and a peer that vanished without closing the connection is noticed.
pub fn tune(stream: &TcpStream) {
    let probes = TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE / PROBES)
        .with_retries(PROBES);
    set(stream, |socket| {
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_keepalive(&probes)
    });
}

/// Breaks a connection once what was sent on it makes no progress for so long: the peer does not acknowledge it, or acknowledges it and reads
/// nothing. Without, a peer that only answers the kernel's probes keeps a connection, and what its buffers hold, for ever. Nothing happens to a
/// connection on which nothing is sent, except that a peer that vanished is noticed after this time instead of that of [`tune`], if it is
/// longer (tcp(7), `TCP_USER_TIMEOUT`).
pub fn limit_stall(stream: &TcpStream, limit: Duration) {
    set(stream, |socket| socket.set_tcp_user_timeout(Some(limit)));
}

/// Bounds what the kernel keeps for a peer that reads nothing. How much may be on its way to one that reads is not affected.
pub fn limit_unsent(stream: &TcpStream) {
    set(stream, |socket| socket.set_tcp_notsent_lowat(UNSENT));
}

/// Bounds what the kernel keeps for a peer that may be far away and acknowledges nothing. Without, it grows to several megabytes for one that
/// has taken much before (tcp(7), `tcp_wmem`). It also bounds what may be on its way: about half a megabyte in a round trip.
pub fn limit_unacknowledged(stream: &TcpStream) {
    set(stream, |socket| socket.set_send_buffer_size(UNACKNOWLEDGED));
}

/// Bounds what the kernel keeps of what a peer sends and nobody reads. It also bounds what may be on its way, so this is for near peers.
pub fn limit_unread(stream: &TcpStream) {
    set(stream, |socket| socket.set_recv_buffer_size(UNREAD));
}

/// The same for peers that may be far away: they can send about half a megabyte in a round trip.
pub fn limit_unread_of_far(stream: &TcpStream) {
    set(stream, |socket| socket.set_recv_buffer_size(UNREAD_OF_FAR));
}

fn set(stream: &TcpStream, option: impl FnOnce(&SockRef<'_>) -> io::Result<()>) {
    if let Err(error) = option(&SockRef::from(stream)) {
        tracing::debug!(%error, "cannot set options of a connection");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{net::TcpListener, time::timeout};

    const MIB: usize = 1 << 20;

    /// Both ends of a connection.
    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (near, far) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        (near.unwrap(), far.unwrap().0)
    }

    /// Writes for as long as it is taken.
    async fn fill(stream: &TcpStream) -> usize {
        let mut written = 0;
        while timeout(Duration::from_millis(300), stream.writable()).await.is_ok() {
            match stream.try_write(&[1; 16 << 10]) {
                Ok(length) => written += length,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        written
    }

    /// Reads this many bytes that the other end writes.
    async fn pass(from: &TcpStream, to: &TcpStream, length: usize) {
        let mut buffer = vec![0; 64 << 10];
        let mut read = 0;
        while read < length {
            let _ = from.try_write(&buffer);
            to.readable().await.unwrap();
            read += to.try_read(&mut buffer).unwrap_or_default();
        }
    }

    #[tokio::test]
    async fn little_is_taken_for_a_peer_that_reads_nothing() {
        let (near, far) = pair().await;
        // So that the peer takes little as well.
        limit_unread(&far);
        limit_unsent(&near);
        let taken = fill(&near).await;
        assert!(taken < MIB / 2, "{taken} bytes");
    }

    #[tokio::test]
    async fn little_is_kept_of_what_nobody_acknowledges() {
        let (near, far) = pair().await;
        limit_unacknowledged(&near);
        // The kernel lets buffers grow while much is taken.
        pass(&near, &far, 64 * MIB).await;
        let most = SockRef::from(&near).send_buffer_size().unwrap();
        assert!(most <= 2 * UNACKNOWLEDGED, "{most} bytes");
    }

    #[tokio::test]
    async fn little_is_kept_of_what_nobody_reads() {
        for (limit, most) in [(limit_unread as fn(&TcpStream), MIB / 2), (limit_unread_of_far, MIB)] {
            let (near, far) = pair().await;
            limit(&far);
            // The kernel lets buffers grow while much is read.
            pass(&near, &far, 64 * MIB).await;
            fill(&near).await;
            let kept = far.peek(&mut vec![0; 64 * MIB]).await.unwrap();
            assert!(kept < most, "{kept} bytes");
        }
    }

    #[tokio::test]
    async fn a_peer_that_reads_nothing_breaks_the_connection_and_an_idle_one_does_not() {
        let limit = Duration::from_secs(2);
        let ((stalled, far), (idle, _other)) = (pair().await, pair().await);
        for stream in [&stalled, &idle] {
            limit_stall(stream, limit);
        }
        fill(&stalled).await;
        // Nothing is left to write, and the connection breaks all the same.
        let error = timeout(20 * limit, async {
            loop {
                stalled.readable().await.unwrap();
                match stalled.try_read(&mut [0]) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    ended => return ended,
                }
            }
        });
        assert_eq!(error.await.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(idle.try_write(&[1]).unwrap(), 1);
        drop(far);
    }
}
