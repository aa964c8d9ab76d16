//! The phase of a pod.

use k8s_openapi::api::core::v1::Pod;

/// Whether no container of a pod will run any more: it succeeded or failed, which includes that it was evicted, or rejected by its kubelet.
pub fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}
