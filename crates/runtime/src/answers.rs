//! Answers of API servers: how long those may be that others fill, as a tenant serves part of its API by itself, and their time.

use http::{Request, Response};
use http_body_util::Limited;
use jiff::{Timestamp, fmt::rfc2822::DateTimeParser};
use kube::client::Body;
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};
use tower::{Layer, Service};

/// Bytes of an answer that are read. One object has at most 1.5 MiB in etcd, and lists are read in pages.
pub const MAX_ANSWER: usize = 16 << 20;

/// The only path whose answer may be longer. The API server itself serves it, and it is read line by line.
const METRICS: &str = "/metrics";

/// The time of the server, in whole seconds, from the header `Date` of an answer. `None` if there is none that can be read.
pub fn read_time<B>(answer: &Response<B>) -> Option<Timestamp> {
    let date = answer.headers().get(http::header::DATE)?;
    DateTimeParser::new().parse_timestamp(date.to_str().ok()?).ok()
}

/// Ends answers with an error after [`MAX_ANSWER`] bytes. The client collects an answer, also that of an error, before it looks at it.
#[derive(Clone, Copy, Debug)]
pub struct LimitAnswers;

impl<S> Layer<S> for LimitAnswers {
    type Service = Limit<S>;

    fn layer(&self, inner: S) -> Limit<S> {
        Limit { inner }
    }
}

/// A client whose answers are limited.
#[derive(Clone, Debug)]
pub struct Limit<S> {
    inner: S,
}

impl<S, B> Service<Request<Body>> for Limit<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = Response<Limited<B>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let is_limited = request.uri().path() != METRICS;
        let limit = if is_limited { MAX_ANSWER } else { usize::MAX };
        let answer = self.inner.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| Limited::new(body, limit))) })
    }
}

#[cfg(test)]
mod tests {
    use crate::client;
    use http::Request;
    use std::time::Duration;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
    };

    /// A server whose answers have no end, with this status; also what a client of it is made from.
    async fn endless(status: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, status));
            }
        });
        format!(
            "{{apiVersion: v1, kind: Config, clusters: [{{name: a, cluster: {{server: 'http://{address}'}}}}], users: [{{name: a, user: {{}}}}], \
             contexts: [{{name: a, context: {{cluster: a, user: a}}}}], current-context: a}}"
        )
    }

    async fn answer(mut stream: TcpStream, status: &str) {
        let mut request = [0; 4096];
        let _ = stream.read(&mut request).await;
        let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\n\r\n");
        let _ = stream.write_all(head.as_bytes()).await;
        let part = vec![b'['; 1 << 16];
        // The client hangs up.
        while stream.write_all(&part).await.is_ok() {}
    }

    async fn read(status: &'static str, path: &str) -> String {
        let client = client::for_tenant(&endless(status).await).await.unwrap();
        let request = Request::get(path).body(Vec::new()).unwrap();
        let answer = tokio::time::timeout(Duration::from_mins(1), client.request_text(request)).await;
        answer.expect("reading ends").unwrap_err().to_string()
    }

    #[tokio::test]
    async fn an_answer_without_end_is_an_error() {
        crate::install_crypto();
        for status in ["200 OK", "500 Internal Server Error"] {
            let error = read(status, "/apis/evil.example.com/v1").await;
            assert!(error.contains("length limit exceeded"), "{status}: {error}");
        }
    }
}
