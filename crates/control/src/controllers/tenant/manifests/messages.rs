//! What the condition says of objects that are not in the tenant as the manifests say. Servers and webhooks of the team write parts of it.

pub(super) use crate::tenant_errors::{MAX_MESSAGE, message};
use berth_runtime::answers::is_too_long;
use kube::{Error, api::GroupVersionKind};

/// What is wrong with a kind that is not waited for any longer.
pub(super) const SLOW: &str = "the server of its API group in the tenant did not answer in time; look there for an APIService of the group, and for \
                               webhooks, also of its CustomResourceDefinition, that do not answer. Berth tries again";
/// What is wrong with a kind for which other kinds left no time.
pub(super) const LATE: &str = "there was no time left for its kind, as other kinds took all of it. Berth tries again, and asks those last that \
                               did not answer in time";

/// [`message`] of a request for the kinds of a group.
pub(super) fn message_of_list(kind: &GroupVersionKind, error: &Error) -> String {
    if !is_too_long(error) {
        return message(error);
    }
    format!(
        "the list of kinds of {} in the tenant is longer than Berth reads; look there for an APIService of the group, whose server makes \
         the list",
        kind.api_version()
    )
}

/// Why it is not certain what the tenant has, by the name of an APIService.
pub(super) fn foreign_server(name: &str) -> String {
    format!(
        "the APIService {name} in the tenant leads to another server, which may hide the object; delete the APIService: the API server makes \
         its own"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{BodyExt, Full, Limited};
    use kube::core::Status;

    /// The error of an answer that is too long.
    async fn too_long() -> Error {
        let body = Limited::new(Full::new(&b"long"[..]), 1);
        Error::Service(body.collect().await.unwrap_err())
    }

    #[tokio::test]
    async fn an_answer_that_is_too_long_says_what_it_is_about_and_what_to_do() {
        let error = too_long().await;
        let text = message(&error);
        assert!(
            text.contains("16 MiB") && text.contains("look at the object in the tenant"),
            "{text}"
        );
        let kind = GroupVersionKind::gvk("platform.example", "v1", "Guard");
        let text = message_of_list(&kind, &error);
        assert!(
            text.starts_with("the list of kinds of platform.example/v1 in the tenant is longer"),
            "{text}"
        );
        assert!(text.contains("APIService"), "{text}");
    }

    #[test]
    fn what_an_api_server_says_is_kept_as_it_is() {
        let refused = Error::Api(Status::failure("no such luck", "Forbidden").with_code(403).boxed());
        assert_eq!(message(&refused), "no such luck");
        let kind = GroupVersionKind::gvk("platform.example", "v1", "Guard");
        assert_eq!(message_of_list(&kind, &refused), "no such luck");
    }
}
