//! HTTP/1.1: a plain client for the admin servers of Berth's own programs, and what their servers have in common.

pub use axum::http::StatusCode;

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, Uri},
};
use hyper::server::conn::http1;
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use std::{io, time::Duration};
use tokio::io::{AsyncRead, AsyncWrite};

/// Maximum size of an answer.
const MAX_ANSWER: usize = 16 << 20;

/// How long a connection may lie idle between requests, or take for the head of one. API servers give theirs up after 90 seconds.
const IDLE: Duration = Duration::from_mins(2);
/// Bytes of the longest head of a request, and those that a connection keeps. By default each keeps up to 400 KiB after a large request.
const BUFFER: usize = 64 << 10;

/// Serves HTTP/1.1 by routes on a connection until it ends.
pub async fn serve_routes<S>(stream: S, router: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection ended");
    }
}

/// Gets `path` from the HTTP server at `host`:`port`, within `timeout`.
///
/// # Errors
/// The server does not answer in time, or the answer is not text.
pub async fn get(host: &str, port: u16, path: &str, timeout: Duration) -> io::Result<(StatusCode, String)> {
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    let uri: Uri = format!("http://{host}:{port}{path}")
        .parse()
        .map_err(io::Error::other)?;
    // Without a connection pool: a kept connection would outlive the server process.
    let client = Client::builder(TokioExecutor::new())
        .pool_max_idle_per_host(0)
        .build_http();
    let request = Request::get(uri).body(Body::empty()).map_err(io::Error::other)?;
    let answer = async {
        let answer = client.request(request).await.map_err(io::Error::other)?;
        let status = answer.status();
        let body = to_bytes(Body::new(answer.into_body()), MAX_ANSWER)
            .await
            .map_err(io::Error::other)?;
        Ok((status, String::from_utf8(body.to_vec()).map_err(io::Error::other)?))
    };
    tokio::time::timeout(timeout, answer).await?
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    const SOON: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn status_and_text_are_returned() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let router = Router::new().route("/readyz", routing::get(|| async { "ok\n" })).route(
            "/busy",
            routing::get(|| async { (StatusCode::SERVICE_UNAVAILABLE, "wait\n") }),
        );
        let server = tokio::spawn(axum::serve(listener, router).into_future());
        let get = async |path: &str| get("127.0.0.1", port, path, SOON).await.unwrap();
        assert_eq!(get("/readyz").await, (StatusCode::OK, "ok\n".to_owned()));
        assert_eq!(
            get("/busy").await,
            (StatusCode::SERVICE_UNAVAILABLE, "wait\n".to_owned())
        );
        server.abort();
    }

    #[tokio::test]
    async fn a_server_that_does_not_answer_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let error = get("127.0.0.1", port, "/readyz", Duration::from_millis(50))
            .await
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(listener);
        assert!(get("127.0.0.1", port, "/readyz", SOON).await.is_err());
    }

    /// What a server answers to the first bytes of a connection that then stays open and silent.
    async fn answer_to(head: &str) -> String {
        let (mut client, server) = tokio::io::duplex(4 * BUFFER);
        let serving = tokio::spawn(serve_routes(server, Router::new()));
        client.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(2 * IDLE, client.read_to_end(&mut answer)).await;
        assert!(ended.is_ok(), "the connection is kept");
        serving.await.unwrap();
        String::from_utf8(answer).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn heads_that_are_slow_or_long_end_their_connection() {
        for slow in ["", "GET /met", "GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n"] {
            let answer = answer_to(slow).await;
            assert_eq!(
                answer.starts_with("HTTP/1.1 404"),
                slow.ends_with("\r\n\r\n"),
                "{answer}"
            );
        }
        let long = format!("GET /metrics HTTP/1.1\r\nx: {}", "a".repeat(2 * BUFFER));
        assert!(answer_to(&long).await.starts_with("HTTP/1.1 431"));
    }
}
