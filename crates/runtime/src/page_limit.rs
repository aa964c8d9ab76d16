//! How long a page of a list may be that the host's API server sends.
//!
//! Each object has up to 1.5 MiB, which tenants and kubelets decide on, and JSON makes six times as much of some characters. A page is in memory
//! three times while it is read, and a program has dozens of lists. Who asks for pages asks again for a [smaller one](crate::watched).

use crate::answers::parameters;
use http::{Request, Response, Uri};
use http_body_util::Limited;
use hyper::body::{Body as HttpBody, Bytes};
use kube::client::Body;
use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};
use tower::{BoxError, Layer, Service};

/// Bytes of a page of several objects. Fifty pods, or nodes, of honest tenants have a third of it.
pub const MAX_PAGE: usize = 4 << 20;

/// Ends pages of lists with an error after [`MAX_PAGE`] bytes, for which [`is_too_long`](crate::answers::is_too_long) is true. Pages of one object, lists
/// that were not asked for in pages, and all other answers pass.
#[derive(Clone, Copy, Debug)]
pub struct LimitPages;

impl<S> Layer<S> for LimitPages {
    type Service = Limit<S>;

    fn layer(&self, inner: S) -> Limit<S> {
        Limit { inner }
    }
}

/// A client whose pages are limited.
#[derive(Clone, Debug)]
pub struct Limit<S> {
    inner: S,
}

impl<S, B> Service<Request<Body>> for Limit<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Response = Response<Limited<B>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let limit = if is_for_several(request.uri()) {
            MAX_PAGE
        } else {
            usize::MAX
        };
        let answer = self.inner.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| Limited::new(body, limit))) })
    }
}

/// Whether a request is for a page that may have more than one object.
fn is_for_several(uri: &Uri) -> bool {
    let mut limits = parameters(uri).filter_map(|one| one.strip_prefix("limit="));
    limits.any(|limit| limit != "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_several_objects_are_limited() {
        for (uri, expected) in [
            ("/api/v1/pods?&limit=50&continue=a", true),
            ("/api/v1/pods?&limit=1", false),
            ("/api/v1/pods?&watch=true", false),
            ("/api/v1/pods", false),
            ("/api/v1/pods?fieldSelector=limit%3D2", false),
        ] {
            assert_eq!(is_for_several(&uri.parse().unwrap()), expected, "{uri}");
        }
    }
}
