//! Copies bytes between two connections.
//!
//! Most connections of a Kubernetes API are watches, which are idle most of the time, so an idle connection has no buffer: bytes are read
//! when there are some, into a buffer of the thread, and written at once. Only what the other side does not take at once is kept, in
//! memory of its own, and nothing more is read before it is written.

use berth_runtime::places::Places;
use prometheus_client::metrics::counter::Counter;
use rustix::{
    io::Errno,
    net::{Shutdown, shutdown},
};
use std::{
    cell::RefCell,
    io,
    pin::{Pin, pin},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use tokio::{net::TcpStream, task::coop::consume_budget, time::timeout};

/// Bytes that are read at a time: one of the largest TLS records. Also the maximum that a direction keeps whose reader has stalled.
pub(crate) const BUFFER: usize = 16 << 10;
/// How long the second side may be silent after the first has ended. Clients of Kubernetes and API servers close a connection whose other
/// side has ended; one that stays half open would keep its place for as long as somebody wants.
const HALF_OPEN: Duration = Duration::from_mins(1);

/// What ends a connection whose reader takes nothing.
#[derive(Clone, Copy, Debug)]
pub struct StallLimits<'a> {
    /// How long an API server may take nothing.
    pub timeout: Duration,
    /// Places of directions with bytes that wait for their reader. What is kept for each, here and in the kernel, is bounded, so that their
    /// number bounds the memory that they have together.
    pub places: &'a Places,
    /// Counts connections that left their place to another.
    pub displaced: &'a Counter,
}

thread_local! {
    static SHARED: RefCell<Box<[u8]>> = RefCell::new(vec![0; BUFFER].into_boxed_slice());
}

/// Copies bytes both ways until both sides have ended, or one breaks. The end of one side is passed on; the other may go on until it is
/// silent for a minute.
///
/// An API server that takes nothing for too long breaks the connection. Clients have the same limit in the kernel
/// ([`limit_stall`](berth_runtime::sockets::limit_stall)), which knows how much they take, however slowly. API servers do not have it there,
/// because it would replace that of keepalives, by which an API server whose node is gone is noticed sooner. If there are too many such
/// readers, either side breaks the connection if it is the one that has taken nothing for longest.
///
/// # Errors
/// A connection broke, stalled, or stayed half open.
pub async fn relay(
    client: &TcpStream,
    backend: &TcpStream,
    received: &Counter,
    sent: &Counter,
    limits: StallLimits<'_>,
) -> io::Result<()> {
    let moved = AtomicBool::new(false);
    let of_client = StallLimits {
        timeout: Duration::MAX,
        ..limits
    };
    let mut up = pin!(copy(client, backend, received, &moved, limits));
    let mut down = pin!(copy(backend, client, sent, &moved, of_client));
    let ended = tokio::select! {
        ended = up.as_mut() => match ended {
            Ok(()) => until_silent(down, &moved).await,
            broken => broken,
        },
        ended = down.as_mut() => match ended {
            Ok(()) => until_silent(up, &moved).await,
            broken => broken,
        },
    };
    if matches!(&ended, Err(error) if error.kind() == io::ErrorKind::TimedOut) {
        discard_unsent([client, backend]);
    }
    ended
}

/// Lets the kernel drop what was not taken when the connections are closed. Else it would keep it for minutes, for a reader that takes nothing.
fn discard_unsent(streams: [&TcpStream; 2]) {
    for stream in streams {
        if let Err(error) = stream.set_zero_linger() {
            tracing::debug!(%error, "cannot set options of a connection");
        }
    }
}

/// Copies what is left, for as long as bytes move.
async fn until_silent(mut rest: Pin<&mut impl Future<Output = io::Result<()>>>, moved: &AtomicBool) -> io::Result<()> {
    loop {
        moved.store(false, Ordering::Relaxed);
        match timeout(HALF_OPEN, rest.as_mut()).await {
            Ok(ended) => return ended,
            Err(_) if moved.load(Ordering::Relaxed) => {}
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

/// What one read found.
enum Moved {
    /// Nothing: the connection was not readable after all.
    Nothing,
    /// So many bytes, all of which were written.
    All(usize),
    /// So many bytes, of which these are still to be written.
    Part(usize, Vec<u8>),
    /// The end.
    End,
}

async fn copy(
    from: &TcpStream,
    to: &TcpStream,
    count: &Counter,
    moved: &AtomicBool,
    limits: StallLimits<'_>,
) -> io::Result<()> {
    loop {
        from.readable().await?;
        let length = match move_once(from, to)? {
            Moved::Nothing => 0,
            Moved::All(length) => length,
            Moved::Part(length, rest) => {
                write_all(to, &rest, limits).await?;
                length
            }
            Moved::End => return end(to),
        };
        if length > 0 {
            count.inc_by(length as u64);
            moved.store(true, Ordering::Relaxed);
        }
        // A connection that is always readable and writable would keep its thread for itself.
        consume_budget().await;
    }
}

/// Reads once, and writes as much as is taken at once.
fn move_once(from: &TcpStream, to: &TcpStream) -> io::Result<Moved> {
    SHARED.with_borrow_mut(|buffer| {
        let length = match from.try_read(buffer) {
            Ok(0) => return Ok(Moved::End),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Moved::Nothing),
            Err(error) => return Err(error),
        };
        let written = match to.try_write(&buffer[..length]) {
            Ok(written) => written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        Ok(if written == length {
            Moved::All(length)
        } else {
            Moved::Part(length, buffer[written..length].to_vec())
        })
    })
}

/// Writes what was kept, for as long as some of it is taken in time, and its place is not needed for a connection that has waited for a
/// shorter time.
async fn write_all(to: &TcpStream, mut bytes: &[u8], limits: StallLimits<'_>) -> io::Result<()> {
    let mut place = limits.places.take();
    while !bytes.is_empty() {
        let written = tokio::select! {
            biased;
            written = timeout(limits.timeout, write_some(to, bytes)) => written??,
            () = place.displaced() => {
                limits.displaced.inc();
                return Err(io::ErrorKind::TimedOut.into());
            }
        };
        bytes = &bytes[written..];
        place.renew();
    }
    Ok(())
}

async fn write_some(to: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    loop {
        to.writable().await?;
        match to.try_write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            written => return written,
        }
    }
}

/// Says that no more bytes follow. The other side may have closed the connection already.
fn end(to: &TcpStream) -> io::Result<()> {
    match shutdown(to, Shutdown::Write) {
        Ok(()) | Err(Errno::NOTCONN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_runtime::sockets;
    use futures::poll;
    use std::time::Duration;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
        task::JoinHandle,
        time::{Instant, timeout},
    };

    const STALL: Duration = Duration::from_secs(300);

    fn limits<'a>(places: &'a Places, displaced: &'a Counter) -> StallLimits<'a> {
        StallLimits {
            timeout: STALL,
            places,
            displaced,
        }
    }

    /// Both ends of a connection.
    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (near, far) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        (near.unwrap(), far.unwrap().0)
    }

    /// A client and a server with a relay between them.
    async fn relayed() -> (TcpStream, TcpStream, JoinHandle<io::Result<(u64, u64)>>) {
        relayed_with(&Places::new(10), &Counter::default()).await
    }

    /// With a relay whose readers have these places while they take nothing.
    async fn relayed_with(
        places: &Places,
        displaced: &Counter,
    ) -> (TcpStream, TcpStream, JoinHandle<io::Result<(u64, u64)>>) {
        let ((client, near), (far, server)) = (pair().await, pair().await);
        let (places, displaced) = (places.clone(), displaced.clone());
        let relay = tokio::spawn(async move {
            let (received, sent) = (Counter::default(), Counter::default());
            relay(&near, &far, &received, &sent, limits(&places, &displaced)).await?;
            Ok((received.get(), sent.get()))
        });
        (client, server, relay)
    }

    #[tokio::test]
    async fn many_bytes_arrive_in_order_although_the_reader_is_slow() {
        const LENGTH: usize = 8 << 20;
        let (mut client, mut server, relay) = relayed().await;
        let sent: Vec<u8> = (0..=250_u8).cycle().take(LENGTH).collect();
        let expected = sent.clone();
        let writer = tokio::spawn(async move {
            client.write_all(&sent).await.unwrap();
            client.shutdown().await.unwrap();
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            answer
        });
        // The sockets' buffers fill up meanwhile.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let mut received = Vec::new();
        server.read_to_end(&mut received).await.unwrap();
        assert!(received == expected, "bytes differ");
        // The end of one direction leaves the other open.
        server.write_all(b"done").await.unwrap();
        drop(server);
        assert_eq!(writer.await.unwrap(), b"done");
        assert_eq!(relay.await.unwrap().unwrap(), (LENGTH as u64, 4));
    }

    #[tokio::test]
    async fn a_side_that_breaks_ends_the_other() {
        let (client, mut server, relay) = relayed().await;
        client.set_zero_linger().unwrap();
        drop(client);
        assert!(relay.await.unwrap().is_err());
        let mut rest = Vec::new();
        // Whether as an end or as an error: the server learns of it.
        let _ = timeout(Duration::from_secs(10), server.read_to_end(&mut rest))
            .await
            .expect("the server's connection stays open");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_does_not_stay_half_open() {
        let (mut client, server, relay) = relayed().await;
        client.shutdown().await.unwrap();
        let error = relay.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(server);
    }

    #[tokio::test(start_paused = true)]
    async fn the_second_side_goes_on_for_as_long_as_bytes_move() {
        let (mut client, mut server, relay) = relayed().await;
        client.shutdown().await.unwrap();
        for _ in 0..4 {
            tokio::time::sleep(HALF_OPEN / 2).await;
            server.write_all(b"more").await.unwrap();
            let mut more = [0; 4];
            client.read_exact(&mut more).await.unwrap();
        }
        drop(server);
        assert_eq!(relay.await.unwrap().unwrap(), (0, 16));
    }

    /// Sends for as long as somebody takes it.
    async fn fill(stream: &TcpStream) {
        while timeout(Duration::from_secs(1), stream.writable()).await.is_ok() {
            // The kernel may say so too early.
            let _ = stream.try_write(&[1; 4096]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_takes_nothing_breaks_the_connection() {
        let (client, server, relay) = relayed().await;
        fill(&client).await;
        let start = Instant::now();
        // Behind so many bytes nobody sees that the client is gone.
        drop(client);
        let error = relay.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(start.elapsed() <= STALL, "{:?}", start.elapsed());
        drop(server);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_nothing_makes_room_for_the_next() {
        let (places, displaced) = (Places::new(1), Counter::default());
        let (mut client, server, relay) = relayed_with(&places, &displaced).await;
        fill(&server).await;
        assert!(!relay.is_finished());
        let (_other_client, other_server, other) = relayed_with(&places, &displaced).await;
        let start = Instant::now();
        fill(&other_server).await;
        let error = timeout(STALL, relay).await.unwrap().unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(start.elapsed() < STALL / 2, "{:?}", start.elapsed());
        assert_eq!(displaced.get(), 1);
        assert!(!other.is_finished());
        // The kernel keeps nothing for it any longer.
        let error = timeout(STALL, client.read_to_end(&mut Vec::new()))
            .await
            .unwrap()
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn a_reader_that_takes_something_does_not_make_room() {
        const LENGTH: usize = 32 << 20;
        let (near, mut far) = pair().await;
        // So that the kernel does not take all of it.
        sockets::limit_unread(&far);
        let (places, displaced) = (Places::new(2), Counter::default());
        let bytes = vec![1; LENGTH];
        let mut writing = pin!(write_all(&near, &bytes, limits(&places, &displaced)));
        assert!(poll!(writing.as_mut()).is_pending());
        let mut second = places.take();
        // More than the kernel takes.
        let mut half = vec![0; LENGTH / 2];
        tokio::select! {
            ended = writing.as_mut() => panic!("{ended:?}"),
            read = far.read_exact(&mut half) => assert_eq!(read.unwrap(), half.len()),
        }
        let _third = places.take();
        timeout(Duration::from_secs(10), second.displaced()).await.unwrap();
        assert!(poll!(writing.as_mut()).is_pending());
        assert_eq!(displaced.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn little_is_kept_of_what_is_not_taken() {
        let ((near, far), (source, sink)) = (pair().await, pair().await);
        fill(&near).await;
        fill(&sink).await;
        source.readable().await.unwrap();
        match move_once(&source, &near).unwrap() {
            Moved::Part(_, rest) => assert!(rest.len() <= 16 << 10, "{} bytes", rest.len()),
            _ => panic!("it is taken"),
        }
        drop(far);
    }

    #[tokio::test]
    async fn an_idle_connection_needs_little_memory() {
        let ((_client, near), (far, _server)) = (pair().await, pair().await);
        let (received, sent) = (Counter::default(), Counter::default());
        let (places, displaced) = (Places::new(1), Counter::default());
        let relay = relay(&near, &far, &received, &sent, limits(&places, &displaced));
        assert!(size_of_val(&relay) < 2048, "{} bytes", size_of_val(&relay));
    }
}
