//! What the syncer's servers have in common: each connection has a task of its own, and their number is limited. They
//! speak HTTP/1.1; the caller handles what follows an upgrade.

use axum::{
    body::Body,
    http::{Request, Response},
};
use berth_runtime::{locks::lock, sockets};
use hyper::{body::Incoming, server::conn::http1, service::service_fn, upgrade::Upgraded};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{
    convert::Infallible,
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore},
    task::JoinSet,
};

/// Pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes that are carried at a time: a few TLS records, so that busy streams wake fewer processes. As much as rustls takes
/// at once.
pub(crate) const BUFFER: usize = 64 << 10;

/// How long the far end of a tunnel may be silent after the near one has finished sending.
const LINGER: Duration = Duration::from_secs(30);

/// Bytes of the longest head of a request. The URL of `kubectl exec` has the whole command, and the `http` crate allows it 64 KiB.
const MAX_HEAD: usize = 80 << 10;

/// Listens on `address`, for whichever runtime serves there. A listener of tokio belongs to the runtime in which it was
/// made, so the runtime that serves makes one out of this.
///
/// # Errors
/// The address cannot be listened on.
pub async fn listen(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    TcpListener::bind(address).await?.into_std()
}

/// Accepts connections for ever, `most` at a time; `serve` gets each. Ends them all when it is dropped.
pub async fn accept<Done>(listener: TcpListener, most: usize, serve: impl Fn(TcpStream) -> Done)
where
    Done: Future<Output = ()> + Send + 'static,
{
    let permits = Arc::new(Semaphore::new(most));
    let mut connections = JoinSet::new();
    loop {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
            return;
        };
        let stream = tokio::select! {
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
        };
        sockets::tune(&stream);
        let done = serve(stream);
        connections.spawn(async move {
            done.await;
            drop(permit);
        });
    }
}

/// The answer to a request.
pub enum Answer<Next> {
    /// Just a response.
    Response(Response<Body>),
    /// A response after which the connection is no longer HTTP, and what it is for.
    Upgrade(Response<Body>, Next),
}

/// Speaks HTTP/1.1 on a connection until it ends. `idle_timeout` limits the time until each request's headers have
/// arrived, and so how long the connection may lie idle. After an upgrade, returns the connection and what it is for.
pub async fn http<S, Next, Answering>(
    stream: S,
    idle_timeout: Duration,
    handle: impl Fn(Request<Incoming>) -> Answering,
) -> Option<(TokioIo<Upgraded>, Next)>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    Answering: Future<Output = Answer<Next>>,
{
    let upgrade = Mutex::new(None);
    let keep = |upgrading, next| {
        *lock(&upgrade) = Some((upgrading, next));
    };
    let service = service_fn(|mut request: Request<Incoming>| {
        let upgrading = hyper::upgrade::on(&mut request);
        let answering = handle(request);
        let keep = &keep;
        async move {
            let (response, next) = match answering.await {
                Answer::Response(response) => (response, None),
                Answer::Upgrade(response, next) => (response, Some(next)),
            };
            keep(upgrading, next);
            Ok::<_, Infallible>(response)
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(idle_timeout)
        // By default each connection keeps up to 400 KiB.
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection ended");
    }
    let (upgrading, next) = upgrade.into_inner().unwrap_or_else(PoisonError::into_inner)?;
    let mut upgraded = TokioIo::new(upgrading.await.ok()?);
    if next.is_none() {
        // A CONNECT that was denied: hyper hands the connection back all the same.
        drop(upgraded.shutdown().await);
    }
    Some((upgraded, next?))
}

/// Carries bytes both ways until both ends have finished sending, or one is gone. The `near` end is that of the API server, which closes a connection
/// as a whole and takes nothing more then. So the far end, which may be a user's pod, keeps it for [`LINGER`] at most. If the near end still takes
/// what comes, the answer may be as long as it likes.
pub async fn tunnel(near: &mut (impl AsyncRead + AsyncWrite + Unpin), far: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    let (ended, taken) = (Notify::new(), Notify::new());
    let mut near = Near {
        stream: near,
        ended: &ended,
        taken: &taken,
    };
    let is_left = async {
        ended.notified().await;
        while tokio::time::timeout(LINGER, taken.notified()).await.is_ok() {}
    };
    tokio::select! {
        carried = tokio::io::copy_bidirectional_with_sizes(&mut near, far, BUFFER, BUFFER) => {
            if let Err(error) = carried {
                tracing::debug!(%error, "a tunnel ended");
            }
        }
        () = is_left => tracing::debug!("the far end of a tunnel has not closed it, and it was closed"),
    }
}

/// The near end of a tunnel, which says when it has finished sending, and when it has taken something.
struct Near<'a, S> {
    stream: &'a mut S,
    ended: &'a Notify,
    taken: &'a Notify,
}

impl<S: AsyncRead + Unpin> AsyncRead for Near<'_, S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let read = Pin::new(&mut *this.stream).poll_read(context, buffer);
        if matches!(read, Poll::Ready(Ok(()))) && buffer.filled().len() == before {
            this.ended.notify_one();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Near<'_, S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut *this.stream).poll_write(context, bytes);
        if matches!(written, Poll::Ready(Ok(_))) {
            this.taken.notify_one();
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{
        io::{AsyncReadExt, DuplexStream},
        task::JoinHandle,
    };

    /// The first line of the answer to a request whose query and header have so many bytes.
    async fn ask(query: usize, header: usize) -> String {
        let (mut client, server) = tokio::io::duplex(BUFFER);
        let handle = |_| async { Answer::<()>::Response(Response::new(Body::empty())) };
        let serving = tokio::spawn(async move {
            http(server, Duration::from_secs(60), handle).await;
        });
        let (query, header) = ("a".repeat(query), "b".repeat(header));
        let head = format!("GET /exec?{query} HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx: {header}\r\n\r\n");
        // One that is too long is not read to its end.
        let _ = client.write_all(head.as_bytes()).await;
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        serving.await.unwrap();
        String::from_utf8_lossy(&answer)
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned()
    }

    /// A tunnel, with its two ends and the task that carries.
    fn tunneled() -> (DuplexStream, DuplexStream, JoinHandle<()>) {
        let ((api_server, mut near), (mut far, pod)) = (tokio::io::duplex(BUFFER), tokio::io::duplex(BUFFER));
        let carrying = tokio::spawn(async move { tunnel(&mut near, &mut far).await });
        (api_server, pod, carrying)
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_does_not_keep_a_tunnel_that_the_api_server_has_closed() {
        let (mut api_server, mut pod, carrying) = tunneled();
        api_server.write_all(b"hello").await.unwrap();
        drop(api_server);
        let mut received = Vec::new();
        pod.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, b"hello");
        // It never answers, and closes nothing.
        let ended = tokio::time::timeout(2 * LINGER, carrying).await;
        assert!(ended.is_ok(), "the tunnel is kept");
        assert!(pod.write_all(b"late").await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_sends_now_and_then_does_not_keep_such_a_tunnel() {
        let (api_server, mut pod, carrying) = tunneled();
        drop(api_server);
        let sending = async {
            while pod.write_all(b"still here").await.is_ok() {
                tokio::time::sleep(LINGER / 2).await;
            }
        };
        let ended = tokio::time::timeout(4 * LINGER, async { tokio::join!(carrying, sending) }).await;
        assert!(ended.is_ok(), "the tunnel is kept");
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends_no_tunnel_and_a_long_answer_may_come_later() {
        let (mut api_server, mut pod, carrying) = tunneled();
        tokio::time::sleep(100 * LINGER).await;
        api_server.write_all(b"ask").await.unwrap();
        api_server.shutdown().await.unwrap();
        let mut asked = Vec::new();
        pod.read_to_end(&mut asked).await.unwrap();
        for part in [b"a ", b"lo", b"ng", b" a", b"ns", b"we", b"r."] {
            tokio::time::sleep(LINGER / 2).await;
            pod.write_all(part).await.unwrap();
        }
        drop(pod);
        let mut answer = Vec::new();
        api_server.read_to_end(&mut answer).await.unwrap();
        assert_eq!(
            (asked.as_slice(), answer.as_slice()),
            (&b"ask"[..], &b"a long answer."[..])
        );
        carrying.await.unwrap();
    }

    #[tokio::test]
    async fn a_long_command_is_accepted_and_one_beyond_the_limit_is_not() {
        assert_eq!(ask(65_000, 8 << 10).await, "HTTP/1.1 200 OK");
        assert_eq!(
            ask(0, 2 * MAX_HEAD).await,
            "HTTP/1.1 431 Request Header Fields Too Large"
        );
    }
}
