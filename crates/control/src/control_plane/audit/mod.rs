//! The audit log of the API server: lines of JSON on its standard output, as the tenant's class says. Its own messages go to standard error.
//!
//! Events wait in a buffer, so that a log that is written slowly does not slow the requests of the tenant, or of others on the same node. Their
//! number and size limit what they cost in memory. An event beyond them is not lost: the API server counts it and writes one line of text with its
//! metadata to standard error. There is no limit of their rate: who makes many requests would move the event of one of them from the audit log
//! to such a line, which is as long as the event.

mod policy;
mod validate;

pub use validate::find_error;

use super::{
    component::{file_flag, flag},
    encryption::Encryption,
};
use berth_api::ClassAudit;
use std::collections::BTreeMap;

/// File of the API server with its audit policy. With the ending `.yaml` or `.json` it would be read as an admission policy.
const FILE: &str = "audit.conf";
/// Events that wait to be written: about 64 MiB of memory at most, with [`MAX_EVENT_BYTES`].
const BUFFERED_EVENTS: u32 = 1000;
/// Size of an event, in bytes, above which the content of its request and answer is left out. One that is still larger is not in the log.
const MAX_EVENT_BYTES: u32 = 64 * 1024;

/// The files and flags of an API server with this encryption; none without an audit log.
pub(super) fn for_api_server(
    audit: Option<&ClassAudit>,
    encryption: &Encryption,
    files: &mut BTreeMap<String, String>,
) -> Vec<String> {
    let Some(audit) = audit else { return Vec::new() };
    // The list of the class, as far as the tenant has begun to follow it: its change replaces the API servers once, not twice.
    let encrypted = encryption.target().into_iter().flat_map(|(_, resources)| resources);
    let encrypted: Vec<&str> = encrypted.map(String::as_str).collect();
    files.insert(FILE.into(), policy::policy(audit, &encrypted).to_string());
    vec![
        file_flag("audit-policy-file", FILE),
        flag("audit-log-path", "-"),
        flag("audit-log-mode", "batch"),
        flag("audit-log-batch-buffer-size", BUFFERED_EVENTS),
        // A batch of one waits for no other event.
        flag("audit-log-batch-max-size", 1),
        flag("audit-log-batch-throttle-enable", false),
        flag("audit-log-truncate-enabled", true),
        flag("audit-log-truncate-max-event-size", MAX_EVENT_BYTES),
    ]
}

#[cfg(test)]
mod tests;
