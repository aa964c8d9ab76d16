//! An API server for tests of watches, behind a client without a connection.

use http::{Request, Response};
use hyper::body::{Body as HttpBody, Bytes, Frame};
use kube::{Client, client::Body};
use serde_json::Value;
use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    sync::Mutex,
    task::{Context, Poll},
};

/// Lines of a watch, and then nothing for ever.
struct Lines(Option<String>);

impl HttpBody for Lines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut().0.take() {
            Some(lines) => Poll::Ready(Some(Ok(Frame::data(Bytes::from(lines))))),
            None => Poll::Pending,
        }
    }
}

/// A client of an API server that answers its requests, all of which must be for watches, with these lines, one after the other, and later
/// ones with none. It never ends a watch.
pub(crate) fn watch_server(answers: Vec<String>) -> Client {
    let answers = Mutex::new(VecDeque::from(answers));
    let service = tower::service_fn(move |_: Request<Body>| {
        let lines = answers.lock().unwrap().pop_front();
        async move { Ok::<_, Infallible>(Response::new(Lines(lines))) }
    });
    Client::new(service, "default")
}

/// The lines of a watch that lists these objects and no others.
pub(crate) fn list(objects: &[Value]) -> String {
    // The type comes first, as from every API server.
    let added = |object: &Value| format!("{{\"type\":\"ADDED\",\"object\":{object}}}\n");
    let mut lines: String = objects.iter().map(added).collect();
    lines.push_str(concat!(
        r#"{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"Pod","metadata":{"resourceVersion":"9","#,
        r#""annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
        "\n"
    ));
    lines
}
