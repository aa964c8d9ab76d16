//! Checks whether control or the gateway works.

use berth_runtime::http::{self, StatusCode};
use std::time::Duration;

/// Whether the HTTP server on `127.0.0.1:<port>` answers `GET /readyz` with 200 within two seconds, and names nothing that it works without. Control
/// that has just been started is ready without its lease until its predecessor's has ended, and is not ready for a moment then.
pub(crate) async fn is_ready(port: u16) -> bool {
    let answer = http::get("127.0.0.1", port, "/readyz", Duration::from_secs(2)).await;
    answer
        .is_ok_and(|(status, text)| status == StatusCode::OK && !text.lines().any(|line| line.starts_with("without ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    /// The port of a server that gives one answer and closes the connection.
    async fn serve(answer: &'static str) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            assert!(stream.read(&mut request).await.unwrap() > 0);
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        port
    }

    #[tokio::test]
    async fn only_200_without_remarks_is_ready() {
        let ready = serve("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        assert!(is_ready(ready).await);
        let waits = serve("HTTP/1.1 200 OK\r\ncontent-length: 23\r\n\r\nok\nwithout the lease, x").await;
        assert!(!is_ready(waits).await);
        let unavailable = serve("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n").await;
        assert!(!is_ready(unavailable).await);
        let silent = serve("").await;
        assert!(!is_ready(silent).await);
    }
}
