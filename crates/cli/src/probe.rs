//! Asking control whether it is ready.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Whether the HTTP server on `127.0.0.1:<port>` answers `GET /readyz` with 200 within two seconds.
pub(crate) async fn is_ready(port: u16) -> bool {
    matches!(timeout(Duration::from_secs(2), status_line(port)).await, Ok(Ok(line)) if says_ok(&line))
}

async fn status_line(port: u16) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream
        .write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .await?;
    let mut answer = Vec::new();
    stream.take(64).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer)
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned())
}

fn says_ok(status_line: &str) -> bool {
    status_line.split(' ').nth(1) == Some("200")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_200_is_ready() {
        assert!(says_ok("HTTP/1.1 200 OK"));
        assert!(!says_ok("HTTP/1.1 503 Service Unavailable"));
        assert!(!says_ok(""));
    }
}
