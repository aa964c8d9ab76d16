//! Takes gates off, and says on pods why they wait. The syncers carry condition and Event into the tenants.

use super::{UserQuotasContext, Writes};
use crate::{
    apply::is_status,
    error::{ReconcileError, api},
    user_pods::ObservedUserPod,
};
use berth_api::{conditions::USER_LIMIT_EXCEEDED, labels};
use berth_quota::LimitExceeded;
use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::{
    Api,
    api::{Patch, PatchParams},
    runtime::events::{Event, EventType},
};
use serde_json::{Value, json};

/// Requests at the same time.
const AT_ONCE: usize = 16;
/// Pods of each sort that one pass writes.
const MOST: usize = 500;
/// Reason of the condition and of the Event of a pod that waits.
const EXCEEDED: &str = "UserLimitExceeded";
/// Reason of the condition when the pod does not wait any more.
const WITHIN: &str = "WithinUserLimit";

/// Writes all. Returns whether that was all: another pass writes the rest.
///
/// # Errors
/// The first failure. The other pods are written all the same.
pub(super) async fn write_all(context: &UserQuotasContext, writes: Writes) -> Result<bool, ReconcileError> {
    let Writes { open, warn, clear } = writes;
    let is_complete = [open.len(), warn.len(), clear.len()]
        .iter()
        .all(|length| *length <= MOST);
    let mut result = Ok(is_complete);
    let opened: Vec<_> = open.iter().take(MOST).map(|pod| open_gate(context, pod)).collect();
    let opened = run(opened).await;
    let cleared: Vec<_> = clear.iter().take(MOST).map(|pod| clear_pod(context, pod)).collect();
    let cleared = run(cleared).await;
    let warned = warn.iter().take(MOST);
    let warned: Vec<_> = warned.map(|(pod, why)| warn_pod(context, pod, why)).collect();
    let warned = run(warned).await;
    for written in opened.into_iter().chain(cleared).chain(warned) {
        result = result.and_then(|is_complete| written.map(|()| is_complete));
    }
    result
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
    ignore_gone(written, "let a pod start")
}

/// Says on a pod why it waits.
async fn warn_pod(
    context: &UserQuotasContext,
    pod: &ObservedUserPod,
    why: &LimitExceeded,
) -> Result<(), ReconcileError> {
    let message = why.to_string();
    let is_new = pod.condition.is_none();
    let condition = build_condition(true, EXCEEDED, &message, is_new);
    patch_status(context, pod, condition).await?;
    // Once: a message that changes with the limit is in the condition.
    if is_new {
        publish(context, pod, message).await;
    }
    Ok(())
}

/// Says on a pod that it does not wait any more.
async fn clear_pod(context: &UserQuotasContext, pod: &ObservedUserPod) -> Result<(), ReconcileError> {
    let condition = build_condition(false, WITHIN, "The pod is within the limits of its user.", true);
    patch_status(context, pod, condition).await
}

async fn patch_status(
    context: &UserQuotasContext,
    pod: &ObservedUserPod,
    condition: Value,
) -> Result<(), ReconcileError> {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &pod.namespace);
    let body = json!({"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}});
    let written = pods
        .patch_status(&pod.name, &PatchParams::default(), &Patch::Strategic(&body))
        .await;
    ignore_gone(written, "set a condition of a pod")
}

/// It is gone, or another pod has its name by now: API servers answer either that or that the UID cannot change.
fn ignore_gone(written: kube::Result<Pod>, what: &'static str) -> Result<(), ReconcileError> {
    match written {
        Ok(_) => Ok(()),
        Err(error) if [404, 409, 422].iter().any(|code| is_status(&error, *code)) => Ok(()),
        Err(error) => Err(api(what)(error)),
    }
}

fn build_condition(is_true: bool, reason: &str, message: &str, flips: bool) -> Value {
    let mut condition = json!({
        "type": USER_LIMIT_EXCEEDED,
        "status": if is_true { "True" } else { "False" },
        "reason": reason,
        "message": message,
    });
    if flips {
        condition["lastTransitionTime"] = Timestamp::now().to_string().into();
    }
    condition
}

async fn publish(context: &UserQuotasContext, pod: &ObservedUserPod, message: String) {
    let reference = ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        namespace: Some(pod.namespace.clone()),
        name: Some(pod.name.clone()),
        uid: Some(pod.uid.clone()),
        ..ObjectReference::default()
    };
    let event = Event {
        type_: EventType::Warning,
        reason: EXCEEDED.to_owned(),
        note: Some(message),
        action: "LimitUsers".to_owned(),
        secondary: None,
    };
    context.recorder.publish(&event, &reference).await;
}
