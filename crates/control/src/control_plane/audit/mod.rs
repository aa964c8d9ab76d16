//! The audit log of the API server: lines of JSON on its standard output, as the tenant's class says. Its own messages go to standard error.
//!
//! Events wait in a buffer, so that a log that is written slowly does not slow the requests of the tenant, or of others on the same node. The
//! sizes and rates here limit what a team's requests cost in memory and on the disk of the node. An event beyond them is not lost: the API server
//! counts it and writes one line of text with its metadata to standard error.

mod policy;
mod validate;

pub use validate::find_error;

use super::component::{file_flag, flag};
use berth_api::ClassAudit;
use std::collections::BTreeMap;

/// File of the API server with its audit policy. With the ending `.yaml` or `.json` it would be read as an admission policy.
const FILE: &str = "audit.conf";
/// Events that wait to be written: 64 MiB of memory at most, with [`MAX_EVENT_BYTES`].
const BUFFERED_EVENTS: u32 = 1000;
/// Size of an event, in bytes, above which the content of its request and answer is left out.
const MAX_EVENT_BYTES: u32 = 64 * 1024;
/// Events that are written in a second, if they go on for longer.
const EVENTS_PER_SECOND: u32 = 200;
/// Events that are written at once before that counts.
const EVENTS_AT_ONCE: u32 = 2000;

/// The files and flags of an API server; none without an audit log.
pub(super) fn for_api_server(audit: Option<&ClassAudit>, files: &mut BTreeMap<String, String>) -> Vec<String> {
    let Some(audit) = audit else { return Vec::new() };
    files.insert(FILE.into(), policy::policy(audit).to_string());
    vec![
        file_flag("audit-policy-file", FILE),
        flag("audit-log-path", "-"),
        flag("audit-log-mode", "batch"),
        flag("audit-log-batch-buffer-size", BUFFERED_EVENTS),
        // A batch of one waits for no other event.
        flag("audit-log-batch-max-size", 1),
        flag("audit-log-batch-throttle-enable", true),
        flag("audit-log-batch-throttle-qps", EVENTS_PER_SECOND),
        flag("audit-log-batch-throttle-burst", EVENTS_AT_ONCE),
        flag("audit-log-truncate-enabled", true),
        flag("audit-log-truncate-max-event-size", MAX_EVENT_BYTES),
    ]
}

#[cfg(test)]
mod tests;
