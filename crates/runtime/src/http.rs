//! A plain HTTP client for the admin servers of Berth's own programs.

pub use axum::http::StatusCode;

use axum::{
    body::{Body, to_bytes},
    http::{Request, Uri},
};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use std::{io, time::Duration};

/// Maximum size of an answer.
const MAX_ANSWER: usize = 16 << 20;

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
    use axum::{Router, routing};
    use tokio::net::TcpListener;

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
}
