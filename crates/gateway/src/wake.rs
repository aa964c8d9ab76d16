//! Asks control to wake a tenant: an annotation of its TenantCluster, which is all that the gateway may write.

use crate::{
    hold::HoldState,
    metrics::TenantMetrics,
    routes::Tenant,
    sleep_state::{REQUEST_INTERVAL, WakeRequests},
};
use berth_api::{TenantCluster, labels, system};
use berth_runtime::locks::lock;
use futures::future::BoxFuture;
use jiff::Timestamp;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use std::sync::{Arc, MutexGuard};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

/// Requests to the host that are made at the same time, so that connections to many sleepers do not become a burst.
const AT_ONCE: usize = 16;

/// Where requests to wake tenants go.
pub trait RequestWake: Send + Sync {
    /// Asks to wake the tenant of this namespace and name. `at` is the time of the request. The error says why that failed.
    fn request_wake(&self, namespace: &str, name: &str, at: Timestamp) -> BoxFuture<'static, Result<(), String>>;
}

/// To the host's API server.
pub struct HostRequests(pub Client);

impl RequestWake for HostRequests {
    fn request_wake(&self, namespace: &str, name: &str, at: Timestamp) -> BoxFuture<'static, Result<(), String>> {
        let tenants: Api<TenantCluster> = Api::namespaced(self.0.clone(), namespace);
        let name = name.to_owned();
        Box::pin(async move {
            let params = PatchParams {
                field_manager: Some(system::GATEWAY.into()),
                ..PatchParams::default()
            };
            let patch = Patch::Merge(build_patch(at));
            let patched = tenants.patch_metadata(&name, &params, &patch).await;
            patched.map(|_| ()).map_err(|error| error.to_string())
        })
    }
}

/// The annotation and nothing else: the admission policy `berth-gateway` rejects the rest.
fn build_patch(at: Timestamp) -> Value {
    json!({"metadata": {"annotations": {labels::WAKE_REQUESTED_AT: format!("{at:.6}")}}})
}

/// Makes requests, at most one at a time for each sleep of a tenant, however many connections need it.
pub struct Waker {
    requests: Arc<dyn RequestWake>,
    permits: Arc<Semaphore>,
}

impl Waker {
    /// One that sends its requests there.
    pub fn new(requests: Arc<dyn RequestWake>) -> Self {
        Self {
            requests,
            permits: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Asks to wake a tenant, unless that was done a short while ago or control knows already. Returns at once; the request goes on also if
    /// the connection that needs it ends.
    pub fn ask(&self, tenant: &Arc<Tenant>) {
        let (state, clock) = (tenant.hold.sleep_state(), Timestamp::now());
        if !requests_of(&tenant.hold).take(&state, Instant::now(), clock) {
            return;
        }
        let at = state.request_time(clock);
        let (requests, permits, tenant) = (
            Arc::clone(&self.requests),
            Arc::clone(&self.permits),
            Arc::clone(tenant),
        );
        tokio::spawn(async move {
            let TenantMetrics {
                labels,
                wakes_requested,
                wakes_failed,
                ..
            } = &tenant.metrics;
            let (namespace, name) = (&labels.tenant_namespace, &labels.tenant);
            let request = async {
                let _permit = permits.acquire().await.map_err(|error| error.to_string())?;
                requests.request_wake(namespace, name, at).await
            };
            // No longer than until the next one, so that there is one at a time for a sleep.
            let outcome = timeout(REQUEST_INTERVAL, request).await;
            match outcome.unwrap_or_else(|_| Err("the host's API server does not answer".into())) {
                Ok(()) => {
                    wakes_requested.inc();
                    tracing::info!(namespace, tenant = name, "asked control to wake the tenant");
                }
                Err(error) => {
                    requests_of(&tenant.hold).fail(Instant::now());
                    wakes_failed.inc();
                    tracing::warn!(namespace, tenant = name, error, "cannot ask control to wake the tenant");
                }
            }
        });
    }
}

fn requests_of(hold: &HoldState) -> MutexGuard<'_, WakeRequests> {
    lock(&hold.requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_patch_has_the_annotation_only() {
        let at: Timestamp = "2027-01-15T08:00:07.25Z".parse().unwrap();
        let expected =
            json!({"metadata": {"annotations": {"berth.dev/wake-requested-at": "2027-01-15T08:00:07.250000Z"}}});
        assert_eq!(build_patch(at), expected);
    }
}
