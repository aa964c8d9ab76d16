//! When a lease was renewed last. The manager of the lease does not say it, and keeps its holder in office while its requests fail or hang.

use crate::locks::lock;
use http::Request;
use kube::client::{Body, Client};
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant, SystemTime},
};
use tower::BoxError;

/// Time for one request about the lease: after a request that hangs there must be time for another one.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// What the body of a request has that sets the time of the renewal. A release removes it.
const RENEWAL: &[u8] = b"\"renewTime\":\"";

/// A time by two clocks. The monotonic one may stand still while a machine sleeps, and somebody may set the other one.
#[derive(Clone, Copy, Debug)]
struct Moment {
    monotonic: Instant,
    wall: SystemTime,
}

impl Moment {
    fn now() -> Self {
        Self {
            monotonic: Instant::now(),
            wall: SystemTime::now(),
        }
    }

    /// Time since then, by the clock that says more.
    fn age(self) -> Duration {
        self.monotonic.elapsed().max(self.wall.elapsed().unwrap_or_default())
    }
}

/// When a lease was renewed last.
#[derive(Clone, Debug)]
pub(super) struct Renewals(Arc<Mutex<Moment>>);

impl Default for Renewals {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Moment::now())))
    }
}

impl Renewals {
    /// Time since the last renewal began.
    pub(super) fn age(&self) -> Duration {
        lock(&self.0).age()
    }

    /// A client whose requests are all about the lease. It notes those that set the time of the renewal, which succeed only for the holder of the
    /// lease, and for who becomes it.
    pub(super) fn observe(&self, client: Client) -> Client {
        let namespace = client.default_namespace().to_owned();
        let renewals = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (renewals, client) = (renewals.clone(), client.clone());
            async move {
                // The manager takes the time that it writes just before.
                let began = Moment::now();
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await?;
                let renews = body.windows(RENEWAL.len()).any(|part| part == RENEWAL);
                let request = Request::from_parts(head, Body::from(body));
                let response = tokio::time::timeout(REQUEST_TIMEOUT, client.send(request)).await??;
                if renews && response.status().is_success() {
                    *lock(&renewals.0) = began;
                }
                Ok::<_, BoxError>(response)
            }
        });
        Client::new(service, namespace)
    }
}
