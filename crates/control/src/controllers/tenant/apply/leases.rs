//! The Leases of components that ended when their tenant fell asleep, or that ran when the snapshot was taken to which it was set back.
//!
//! A component that is elected waits for as long as a Lease lasts after it has seen it first, however old it is. Its predecessor could not
//! give it back, because its API server ended with it. So after each wake and each restore no Deployment, Job or CronJob would do anything for 15 seconds.

use super::super::target::Tenant;
use crate::{
    apply::{delete_same, is_status, optional},
    control_plane::{CONTROLLER_MANAGER, SCHEDULER},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, ResourceExt};
use std::time::Duration;

/// Namespace of the Leases.
const NAMESPACE: &str = "kube-system";
/// How much longer than it lasts a Lease must be over: clocks differ.
const MARGIN: SignedDuration = SignedDuration::from_secs(15);
/// Time for all requests. Without them the components wait, and no more.
const LIMIT: Duration = Duration::from_secs(3);

/// Deletes the Leases of the controller manager and the scheduler that are over at `now`. One that somebody renews is left alone.
pub(super) async fn release(tenant: &Tenant, api_server: &Client, now: Timestamp) {
    match tenant.slot.lend(LIMIT, delete_expired(api_server, now)).await {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::debug!(%error, "cannot delete the Leases of components that ended"),
        None => tracing::debug!("a tenant does not delete the Leases of components that ended"),
    }
}

async fn delete_expired(api_server: &Client, now: Timestamp) -> kube::Result<()> {
    let leases: Api<Lease> = Api::namespaced(api_server.clone(), NAMESPACE);
    for name in [CONTROLLER_MANAGER, SCHEDULER] {
        let Some(lease) = optional(leases.get(name).await)?.filter(|lease| is_expired(lease, now)) else {
            continue;
        };
        // The next component may have it already.
        if let Err(error) = delete_same(&leases, &lease.metadata, lease.resource_version()).await
            && !is_status(&error, 409)
        {
            return Err(error);
        }
    }
    Ok(())
}

/// Whether the holder of a Lease has not renewed it for longer than it lasts.
fn is_expired(lease: &Lease, now: Timestamp) -> bool {
    let Some(spec) = &lease.spec else { return false };
    let duration = spec
        .lease_duration_seconds
        .map(|seconds| SignedDuration::from_secs(seconds.into()));
    match (&spec.renew_time, duration) {
        (Some(renewed), Some(duration)) => now.duration_since(renewed.0) > duration + MARGIN,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Script, ScriptedApi};
    use serde_json::{Value, json};

    fn lease(name: &str, renewed: &str) -> Value {
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": renewed}})
    }

    #[tokio::test]
    async fn only_leases_that_nobody_renews_are_deleted() {
        const OTHER: &str = "of-an-operator";
        let tenant = ScriptedApi::new("tenant", &Script::default());
        let path = |name: &str| format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{name}");
        let (over, alive) = ("2026-05-05T12:00:00.000000Z", "2026-05-05T12:00:01.000000Z");
        for (name, renewed) in [(CONTROLLER_MANAGER, over), (SCHEDULER, alive), (OTHER, over)] {
            tenant.insert(&path(name), lease(name, renewed));
        }
        let now = "2026-05-05T12:00:30.5Z".parse().unwrap();
        delete_expired(&tenant.client(), now).await.unwrap();
        assert_eq!(tenant.paths(), [path(SCHEDULER), path(OTHER)]);
        // There is none any more.
        delete_expired(&tenant.client(), now).await.unwrap();
    }

    #[test]
    fn what_is_not_known_is_no_end() {
        let now = "2026-05-05T12:00:30Z".parse().unwrap();
        for spec in [
            json!(null),
            json!({}),
            json!({"renewTime": "2020-01-01T00:00:00.000000Z"}),
        ] {
            let lease: Lease = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
            assert!(!is_expired(&lease, now), "{spec}");
        }
    }
}
