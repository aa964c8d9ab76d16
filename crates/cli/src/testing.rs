//! What tests of commands use instead of a host.

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use std::convert::Infallible;

/// A client whose API server answers each request with what `answer` makes of it: a status code, and an object.
pub(crate) fn client(answer: impl Fn(&Request<Body>) -> (u16, Value) + Send + 'static) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let (code, body) = answer(&request);
        let response = Response::builder()
            .status(code)
            .body(Body::from(body.to_string().into_bytes()));
        async move { Ok::<_, Infallible>(response.unwrap()) }
    });
    Client::new(service, "default")
}

/// The answer of an API server that refuses a request with this code, for this reason, which is also the message.
pub(crate) fn refusal(code: u16, reason: &str) -> (u16, Value) {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": reason, "reason": reason,
    });
    (code, status)
}
