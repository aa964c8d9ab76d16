//! What tests of answers share: bodies that come in parts, and how long reading them takes.

use http::Request;
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Bytes, Frame};
use kube::{Client, client::Body};
use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    task::JoinHandle,
    time::{Instant, Sleep, sleep},
};

/// A body whose parts come one after the other, each after so many seconds.
pub(crate) struct Parts {
    left: VecDeque<(u64, String)>,
    wait: Option<Pin<Box<Sleep>>>,
    /// Whether it ends after them; otherwise nothing more comes.
    ends: bool,
}

impl Parts {
    /// The seconds before each part, and the part.
    pub(crate) fn new<const COUNT: usize>(parts: [(u64, &str); COUNT], ends: bool) -> Self {
        Self {
            left: parts.map(|(after, part)| (after, part.to_owned())).into(),
            wait: None,
            ends,
        }
    }
}

impl HttpBody for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        let Some(after) = this.left.front().map(|(after, _)| *after) else {
            return if this.ends { Poll::Ready(None) } else { Poll::Pending };
        };
        if after > 0 {
            let wait = this
                .wait
                .get_or_insert_with(|| Box::pin(sleep(Duration::from_secs(after))));
            ready!(wait.as_mut().poll(context));
        }
        this.wait = None;
        let part = this.left.pop_front();
        Poll::Ready(part.map(|(_, part)| Ok(Frame::data(Bytes::from(part)))))
    }
}

/// Reads an answer to its end, and says how many bytes it has.
async fn read(client: &Client, path: &str) -> Result<usize, kube::Error> {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let answer = client.send(request).await?;
    Ok(answer.into_body().collect().await?.to_bytes().len())
}

/// The same, and how many seconds that took.
pub(crate) async fn time(client: &Client, path: &str) -> (Result<usize, kube::Error>, u64) {
    let start = Instant::now();
    let bytes = read(client, path).await;
    (bytes, (start.elapsed() + Duration::from_millis(500)).as_secs())
}

/// The same beside others.
pub(crate) fn spawn(client: &Client, path: &'static str) -> JoinHandle<(Result<usize, kube::Error>, u64)> {
    let client = client.clone();
    tokio::spawn(async move { time(&client, path).await })
}
