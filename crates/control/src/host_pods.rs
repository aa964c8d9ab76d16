//! What control writes about single pods on the host. Syncers carry conditions and Events into the tenants.

use crate::{
    apply::is_status,
    error::{ReconcileError, api},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

/// A pod on the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostPod<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) uid: &'a str,
}

impl HostPod<'_> {
    /// The pod, as Events name it.
    pub(crate) fn reference(self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            namespace: Some(self.namespace.to_owned()),
            name: Some(self.name.to_owned()),
            uid: Some(self.uid.to_owned()),
            ..ObjectReference::default()
        }
    }

    /// Sets a condition, unless another pod has the name by now.
    ///
    /// # Errors
    /// The host's API server refuses or does not answer.
    pub(crate) async fn set_condition(self, client: &Client, condition: &Value) -> Result<(), ReconcileError> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), self.namespace);
        let body = json!({"metadata": {"uid": self.uid}, "status": {"conditions": [condition]}});
        let written = pods
            .patch_status(self.name, &PatchParams::default(), &Patch::Strategic(&body))
            .await;
        ignore_gone(written, "set a condition of a pod")
    }
}

/// A condition of a pod. `flipped_at` is the time, if its status is another one than before.
pub(crate) fn pod_condition(
    type_: &str,
    is_true: bool,
    (reason, message): (&str, &str),
    flipped_at: Option<Timestamp>,
) -> Value {
    let mut condition = json!({
        "type": type_,
        "status": if is_true { "True" } else { "False" },
        "reason": reason,
        "message": message,
    });
    if let Some(now) = flipped_at {
        condition["lastTransitionTime"] = now.to_string().into();
    }
    condition
}

/// That the pod is gone is no error, or that another pod has its name by now: API servers answer either that or that the UID cannot change.
///
/// # Errors
/// The host's API server refuses or does not answer.
pub(crate) fn ignore_gone(written: kube::Result<Pod>, what: &'static str) -> Result<(), ReconcileError> {
    match written {
        Ok(_) => Ok(()),
        Err(error) if is_status(&error, 404) || is_status(&error, 409) || has_other_uid(&error) => Ok(()),
        Err(error) => Err(api(what)(error)),
    }
}

/// Whether an API server says that the UID cannot change. Admission policies answer with 422 as well, and what they reject is an error.
fn has_other_uid(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else {
        return false;
    };
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 422 && causes.any(|cause| cause.field == "metadata.uid")
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    #[test]
    fn a_pod_that_is_gone_or_another_one_is_no_error() {
        let uid = json!({"causes": [{"reason": "FieldValueInvalid", "message": "field is immutable", "field": "metadata.uid"}]});
        // As an admission policy rejects it.
        let policy = json!({"causes": [{"message": "denied"}]});
        for (code, details, is_ok) in [
            (404, None, true),
            (409, None, true),
            (422, Some(&uid), true),
            (422, Some(&policy), false),
            (422, None, false),
            (403, None, false),
            (500, Some(&uid), false),
        ] {
            let mut status = Status::failure("no", "Unknown").with_code(code);
            status.details = details.map(|details| serde_json::from_value(details.clone()).unwrap());
            let written = ignore_gone(Err(kube::Error::Api(status.boxed())), "patch a pod");
            assert_eq!(written.is_ok(), is_ok, "{code} {details:?}");
        }
        assert!(ignore_gone(Ok(Pod::default()), "patch a pod").is_ok());
    }

    #[test]
    fn a_condition_has_the_time_only_if_its_status_is_another_one() {
        let condition = |flipped_at| pod_condition("Idle", false, ("Used", "It is used."), flipped_at);
        let expected = json!({"type": "Idle", "status": "False", "reason": "Used", "message": "It is used."});
        assert_eq!(condition(None), expected);
        assert_eq!(
            condition(Some(Timestamp::UNIX_EPOCH))["lastTransitionTime"],
            "1970-01-01T00:00:00Z"
        );
    }
}
