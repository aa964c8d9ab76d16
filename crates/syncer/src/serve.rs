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
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
};

/// Pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);
/// Bytes that are carried at a time: a few TLS records, so that busy streams wake fewer processes. As much as rustls takes
/// at once.
pub(crate) const BUFFER: usize = 64 << 10;

/// Bytes of the longest head of a request. The URL of `kubectl exec` has the whole command, and the `http` crate allows it 64 KiB.
const MAX_HEAD: usize = 80 << 10;

/// Listens on `address`, for whichever runtime serves there. A listener of tokio belongs to the runtime in which it was
/// made, so the runtime that serves makes one out of this.
///
/// # Errors
/// The address cannot be listened on.
pub async fn listen(address: SocketAddr) -> std::io::Result<std::net::TcpListener> {
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

/// Carries bytes both ways until both ends have finished sending, or one is gone.
pub async fn tunnel(
    one: &mut (impl AsyncRead + AsyncWrite + Unpin),
    other: &mut (impl AsyncRead + AsyncWrite + Unpin),
) {
    if let Err(error) = tokio::io::copy_bidirectional_with_sizes(one, other, BUFFER, BUFFER).await {
        tracing::debug!(%error, "a tunnel ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

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

    #[tokio::test]
    async fn a_long_command_is_accepted_and_one_beyond_the_limit_is_not() {
        assert_eq!(ask(65_000, 8 << 10).await, "HTTP/1.1 200 OK");
        assert_eq!(
            ask(0, 2 * MAX_HEAD).await,
            "HTTP/1.1 431 Request Header Fields Too Large"
        );
    }
}
