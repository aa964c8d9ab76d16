//! Takes gates off, and says on pods why they wait. The syncers carry condition and Event into the tenants.

use super::{UserQuotasContext, Writes};
use crate::{
    error::ReconcileError,
    host_pods::{HostPod, ignore_gone, pod_condition},
    user_pods::ObservedUserPod,
    user_quota_ledger::REFUSED_PAUSE,
};
use berth_api::{conditions::USER_LIMIT_EXCEEDED, labels};
use berth_quota::LimitExceeded;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{Patch, PatchParams},
    runtime::events::{Event, EventType},
};
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;

/// Requests at the same time.
const AT_ONCE: usize = 16;
/// Pods of each sort that one pass writes.
const MOST: usize = 500;
/// Pause before pods are written that one pass had no time for.
const NEXT_PASS: Duration = Duration::from_millis(100);
/// Reason of the condition and of the Event of a pod that waits.
const EXCEEDED: &str = "UserLimitExceeded";
/// Reason of the condition when the pod does not wait any more.
const WITHIN: &str = "WithinUserLimit";

/// Writes all but the pods that the host has just refused to change: they are tried again later, and nothing else waits for them. Returns when
/// another pass writes the rest.
///
/// # Errors
/// The first failure. The other pods are written all the same.
pub(super) async fn write_all(context: &UserQuotasContext, writes: Writes) -> Result<Option<Duration>, ReconcileError> {
    let Writes {
        mut open,
        mut warn,
        mut clear,
    } = writes;
    let refused = context.ledger.refused(Instant::now());
    open.retain(|pod| !refused.contains(&pod.uid));
    warn.retain(|(pod, _)| !refused.contains(&pod.uid));
    clear.retain(|pod| !refused.contains(&pod.uid));
    let is_complete = [open.len(), warn.len(), clear.len()]
        .iter()
        .all(|length| *length <= MOST);
    let mut result = Ok(if is_complete {
        (!refused.is_empty()).then_some(REFUSED_PAUSE)
    } else {
        Some(NEXT_PASS)
    });
    let turn = context.ledger.next_turn();
    let opened: Vec<_> = take_turn(&open, turn).map(|pod| open_gate(context, pod)).collect();
    let opened = run(opened).await;
    let cleared: Vec<_> = take_turn(&clear, turn).map(|pod| clear_pod(context, pod)).collect();
    let cleared = run(cleared).await;
    let warned = take_turn(&warn, turn);
    let warned: Vec<_> = warned.map(|(pod, why)| warn_pod(context, pod, why)).collect();
    let warned = run(warned).await;
    for written in opened.into_iter().chain(cleared).chain(warned) {
        result = result.and_then(|pause| written.map(|()| pause));
    }
    result
}

/// As many as one pass writes. Of more than that each pass begins at another place: those that fail each time keep no others back for ever.
fn take_turn<T>(all: &[T], turn: usize) -> impl Iterator<Item = &T> {
    let first = if all.len() > MOST {
        turn.wrapping_mul(MOST) % all.len()
    } else {
        0
    };
    all.iter().cycle().skip(first).take(all.len().min(MOST))
}

/// Makes requests, some at the same time.
async fn run<F: Future<Output = Result<(), ReconcileError>>>(requests: Vec<F>) -> Vec<Result<(), ReconcileError>> {
    stream::iter(requests).buffer_unordered(AT_ONCE).collect().await
}

/// Takes the gate off, unless another pod has the name by now.
async fn open_gate(context: &UserQuotasContext, pod: &ObservedUserPod) -> Result<(), ReconcileError> {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &pod.namespace);
    let body = json!({
        "metadata": {"uid": pod.uid},
        "spec": {"schedulingGates": [{"$patch": "delete", "name": labels::USER_QUOTA_GATE}]},
    });
    let written = pods
        .patch(&pod.name, &PatchParams::default(), &Patch::Strategic(&body))
        .await;
    note_refusal(context, pod, ignore_gone(written, "let a pod start"))
}

/// Notes the pod if the host refuses to change it.
fn note_refusal(
    context: &UserQuotasContext,
    pod: &ObservedUserPod,
    written: Result<(), ReconcileError>,
) -> Result<(), ReconcileError> {
    written.inspect_err(|error| {
        if error.refusal().is_some() {
            context.ledger.note_refused(&pod.uid, Instant::now());
        }
    })
}

/// Says on a pod why it waits.
async fn warn_pod(
    context: &UserQuotasContext,
    pod: &ObservedUserPod,
    why: &LimitExceeded,
) -> Result<(), ReconcileError> {
    let message = why.to_string();
    let is_new = pod.condition.is_none();
    set_condition(context, pod, true, (EXCEEDED, &message), is_new).await?;
    // Once: a message that changes with the limit is in the condition.
    if is_new {
        publish(context, pod, message).await;
    }
    Ok(())
}

/// Says on a pod that it does not wait any more.
async fn clear_pod(context: &UserQuotasContext, pod: &ObservedUserPod) -> Result<(), ReconcileError> {
    let why = (WITHIN, "The pod is within the limits of its user.");
    set_condition(context, pod, false, why, true).await
}

async fn set_condition(
    context: &UserQuotasContext,
    pod: &ObservedUserPod,
    is_true: bool,
    why: (&str, &str),
    flips: bool,
) -> Result<(), ReconcileError> {
    let condition = pod_condition(USER_LIMIT_EXCEEDED, is_true, why, flips.then(|| context.clock.now()));
    let written = host_pod(pod).set_condition(&context.client, &condition).await;
    note_refusal(context, pod, written)
}

fn host_pod(pod: &ObservedUserPod) -> HostPod<'_> {
    HostPod {
        namespace: &pod.namespace,
        name: &pod.name,
        uid: &pod.uid,
    }
}

async fn publish(context: &UserQuotasContext, pod: &ObservedUserPod, message: String) {
    let event = Event {
        type_: EventType::Warning,
        reason: EXCEEDED.to_owned(),
        note: Some(message),
        action: "LimitUsers".to_owned(),
        secondary: None,
    };
    context.recorder.publish(&event, &host_pod(pod).reference()).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_of_many_pods_has_its_turn() {
        let all: Vec<usize> = (0..2 * MOST + 200).collect();
        let first: Vec<&usize> = take_turn(&all, 0).collect();
        assert_eq!((first.len(), first[0]), (MOST, &0));
        let turns: BTreeSet<&usize> = (0..3).flat_map(|turn| take_turn(&all, turn)).collect();
        assert_eq!(turns.len(), all.len());
        let few: Vec<&usize> = take_turn(&all[..3], 7).collect();
        assert_eq!(few, [&0, &1, &2]);
        assert_eq!(take_turn(&all[..0], 1).count(), 0);
    }
}
