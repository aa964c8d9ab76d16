//! Deleting host pods of tenants so that they are gone in bounded time, whatever they do.
//!
//! | pod | next |
//! |---|---|
//! | is not terminating | it is deleted with its own grace period, or with the limit if that is shorter |
//! | is terminating with a longer grace period than the limit | it gets the limit |
//! | is overdue: its grace period has been over for a minute | it is removed although its kubelet has not reported its end |
//! | is removed, but finalizers hold it | controllers of the host set them: a tenant cannot set any. What waits for the pod decides for how long |
//! | is removed, and for two minutes Kueue's finalizer alone has held it | it loses the finalizer: a host without Kueue has nothing that removes it |

use crate::{
    apply::{is_status, only_this, remove_finalizers},
    error::{ReconcileError, api},
};
use berth_api::host_finalizers::KUEUE_MANAGED;
use berth_node_lifecycle::repair::REPORTED_WITHIN;
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};

/// The grace period of a pod that does not name one.
const DEFAULT_GRACE: i64 = 30;

/// Seconds for which a pod that has to go keeps the finalizer that a syncer may set. Kueue takes it off pods that have ended at once.
const RELEASED_AFTER: i64 = 120;

/// What to do with a pod that has to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionStep {
    /// Nothing: it has time left.
    Wait,
    /// Delete it with this grace period.
    Delete {
        /// Seconds.
        grace_seconds: u32,
    },
    /// It is overdue: remove it.
    Remove,
    /// It is overdue and removed as soon as its finalizers are.
    Held,
    /// The same, and the one finalizer that a syncer may set is left: take that off.
    Release,
}

/// The next step for a pod with a grace period of its own that may take `max_grace_seconds` to end.
pub fn next_step(
    metadata: &ObjectMeta,
    own_grace_seconds: Option<i64>,
    max_grace_seconds: i64,
    now: Timestamp,
) -> DeletionStep {
    // With 0 the pod would be gone before its kubelet has ended its containers.
    let max = max_grace_seconds.max(1);
    let delete = |seconds: i64| DeletionStep::Delete {
        grace_seconds: u32::try_from(seconds).unwrap_or(u32::MAX),
    };
    let Some(ends_at) = &metadata.deletion_timestamp else {
        return delete(own_grace_seconds.unwrap_or(DEFAULT_GRACE).clamp(1, max));
    };
    let grace = metadata.deletion_grace_period_seconds.unwrap_or_default();
    if grace > max {
        return delete(max);
    }
    if now.as_second() < ends_at.0.as_second().saturating_add(REPORTED_WITHIN) {
        return DeletionStep::Wait;
    }
    if !is_held(metadata, now) {
        return DeletionStep::Remove;
    }
    let is_forgotten = now.as_second() >= ends_at.0.as_second().saturating_add(RELEASED_AFTER);
    if is_forgotten && metadata.finalizers.as_deref() == Some(&[KUEUE_MANAGED.to_owned()]) {
        return DeletionStep::Release;
    }
    DeletionStep::Held
}

/// Whether a pod was removed more than a minute ago and finalizers alone hold it.
pub fn is_held(metadata: &ObjectMeta, now: Timestamp) -> bool {
    let is_overdue = metadata
        .deletion_timestamp
        .as_ref()
        .is_some_and(|ends_at| now.as_second() >= ends_at.0.as_second().saturating_add(REPORTED_WITHIN));
    let grace = metadata.deletion_grace_period_seconds.unwrap_or_default();
    is_overdue && grace == 0 && metadata.finalizers.as_ref().is_some_and(|all| !all.is_empty())
}

/// Deletes a pod with this grace period. That it is gone, or that another pod has its name, is no error.
///
/// # Errors
/// The API server refuses or does not answer.
pub async fn delete_pod(pods: &Api<Pod>, metadata: &ObjectMeta, grace_seconds: u32) -> Result<(), ReconcileError> {
    let params = DeleteParams::default()
        .grace_period(grace_seconds)
        .preconditions(only_this(metadata.uid.clone()));
    let name = metadata.name.as_deref().unwrap_or_default();
    match pods.delete(name, &params).await {
        Ok(_) => Ok(()),
        Err(error) if [404, 409].iter().any(|code| is_status(&error, *code)) => Ok(()),
        Err(error) => Err(api("delete a pod")(error)),
    }
}

/// Takes the finalizers off a pod that was read with them. That it is gone or has changed is no error: it is looked at again.
///
/// # Errors
/// The API server refuses or does not answer.
pub async fn release_pod(pods: &Api<Pod>, read: &ObjectMeta) -> Result<(), ReconcileError> {
    match remove_finalizers(pods, read).await {
        Ok(()) => {
            let namespace = read.namespace.as_deref().unwrap_or_default();
            let pod = read.name.as_deref().unwrap_or_default();
            tracing::warn!(
                namespace,
                pod,
                "Kueue's finalizer held a pod that was removed, and nothing took it off"
            );
            Ok(())
        }
        Err(error) => Err(api("take Kueue's finalizer off a pod")(error)),
    }
}

/// Deletes the pod with this name and UID with its own grace period, whatever disruption budgets say. Another pod of its name is a conflict (409).
///
/// # Errors
/// The API server refuses or does not answer.
pub async fn delete_in_its_time(pods: &Api<Pod>, name: &str, uid: Option<String>) -> kube::Result<()> {
    let params = DeleteParams::default().preconditions(only_this(uid));
    pods.delete(name, &params).await?;
    Ok(())
}

/// Evicts the pod with this name and UID, as `kubectl drain` does: disruption budgets and its grace period hold. Another pod of its name is a conflict
/// (409). The client of kube writes the options of an eviction under a name that API servers do not read, the UID with them.
///
/// # Errors
/// The API server refuses or does not answer.
pub async fn evict_pod(pods: &Api<Pod>, name: &str, uid: Option<String>) -> kube::Result<()> {
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name},
        "deleteOptions": {"preconditions": only_this(uid)},
    });
    let params = PostParams::default();
    let _: Value = pods.create_subresource("eviction", name, &params, &eviction).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use http::{Request, Response};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use kube::client::Body;
    use std::sync::{Arc, Mutex};
    use tower::service_fn;

    const MAX: i64 = 600;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A pod whose deletion with this grace period began at second 1000.
    fn terminating(grace: i64, finalizers: &[&str]) -> ObjectMeta {
        ObjectMeta {
            deletion_timestamp: Some(Time(at(1000 + grace))),
            deletion_grace_period_seconds: Some(grace),
            finalizers: Some(finalizers.iter().map(ToString::to_string).collect()),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn a_running_pod_has_its_own_grace_period_up_to_the_limit() {
        for (own, max, expected) in [
            (None, MAX, 30),
            (None, 5, 5),
            (Some(10), MAX, 10),
            (Some(0), MAX, 1),
            (Some(-1), MAX, 1),
            (Some(86_400), MAX, 600),
            (Some(i64::MAX), MAX, 600),
            (Some(10), 0, 1),
        ] {
            assert_eq!(
                next_step(&ObjectMeta::default(), own, max, at(1000)),
                DeletionStep::Delete {
                    grace_seconds: expected
                },
                "{own:?}, at most {max}"
            );
        }
    }

    #[test]
    fn a_terminating_pod_is_gone_in_bounded_time() {
        let limit = DeletionStep::Delete { grace_seconds: 600 };
        for (pod, now, expected) in [
            (terminating(86_400, &[]), 1001, limit),
            (terminating(86_400, &["a.example.com/f"]), 1001, limit),
            (terminating(600, &[]), 1001, DeletionStep::Wait),
            (terminating(600, &[]), 1659, DeletionStep::Wait),
            (terminating(600, &[]), 1660, DeletionStep::Remove),
            (terminating(30, &[]), 1090, DeletionStep::Remove),
            (terminating(30, &["a.example.com/f"]), 1090, DeletionStep::Remove),
            (terminating(0, &["a.example.com/f"]), 1060, DeletionStep::Held),
            (terminating(0, &["a.example.com/f"]), 9999, DeletionStep::Held),
            (terminating(0, &["kueue.x-k8s.io/managed"]), 1119, DeletionStep::Held),
            (terminating(0, &["kueue.x-k8s.io/managed"]), 1120, DeletionStep::Release),
            (terminating(30, &["kueue.x-k8s.io/managed"]), 1120, DeletionStep::Remove),
            (
                terminating(0, &["kueue.x-k8s.io/managed", "a.example.com/f"]),
                1120,
                DeletionStep::Held,
            ),
            // An API server that was cut off between the two steps of a deletion leaves it like this.
            (terminating(0, &[]), 1001, DeletionStep::Wait),
            (terminating(0, &[]), 1060, DeletionStep::Remove),
        ] {
            assert_eq!(next_step(&pod, None, MAX, at(now)), expected, "{pod:?} at {now}");
            assert_eq!(
                is_held(&pod, at(now)),
                matches!(expected, DeletionStep::Held | DeletionStep::Release),
                "{pod:?} at {now}"
            );
        }
    }

    #[tokio::test]
    async fn an_eviction_is_of_no_other_pod_with_the_name() {
        let sent = Arc::new(Mutex::new(Value::Null));
        let seen = Arc::clone(&sent);
        let client = testing::client_of(service_fn(move |request: Request<Body>| {
            let seen = Arc::clone(&seen);
            async move {
                let body = request.into_body().collect_bytes().await.unwrap();
                *seen.lock().unwrap() = serde_json::from_slice(&body).unwrap();
                let answer = json!({"kind": "Status", "status": "Success"}).to_string();
                Ok::<_, kube::Error>(Response::new(Body::from(answer.into_bytes())))
            }
        }));
        let pods = Api::namespaced(client, "berth-vision");
        evict_pod(&pods, "web-1", Some("uid-1".into())).await.unwrap();
        let sent = sent.lock().unwrap();
        assert_eq!(sent["metadata"]["name"], "web-1");
        assert_eq!(sent["deleteOptions"]["preconditions"]["uid"], "uid-1", "{sent}");
    }
}
