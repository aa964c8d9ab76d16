//! What the API server of a tenant says of a request of control's that failed. Servers and webhooks of the team write parts of it.

use berth_api::text::printable_start;
use berth_runtime::answers::{MAX_ANSWER, MAX_TREE, is_too_long};
use kube::Error;

/// Bytes of a message that are kept.
pub(crate) const MAX_MESSAGE: usize = 1000;

/// What an API server says, without the kind of the error. Such texts end up in a status on the host: with one that is too long for it,
/// nothing could be written there any more.
pub(crate) fn message(error: &Error) -> String {
    let text = match error {
        Error::Api(status) => status.message.clone(),
        error if is_too_long(error) => format!(
            "what the tenant's API server answers is longer than Berth reads ({} MiB, or {} MiB of memory; 1 MiB for a list of kinds); look at the object in the \
             tenant, and at the server of its API group if the group has an APIService there",
            MAX_ANSWER >> 20,
            MAX_TREE >> 20
        ),
        error => error.to_string(),
    };
    printable_start(&text, MAX_MESSAGE)
}
