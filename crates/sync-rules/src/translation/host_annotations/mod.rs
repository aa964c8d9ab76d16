//! Annotations that programs on a host act on: the network of its nodes, container runtimes, devices, load balancers,
//! webhooks, agents. Only annotations on an allow-list reach the host (see [`metadata`](super::metadata)); these tables say
//! for which of the others the tenant gets an answer.
//!
//! | table | what the annotation asks for | without it |
//! |---|---|---|
//! | [`LOAD_BALANCERS`] | another address, or less exposure, from a load balancer | a Service of type LoadBalancer is denied: it could be open to the internet instead of internal. Services of other types have no load balancer: an Event |
//! | [`DENIED`] | more of the node, or something other than the object says: a network, a device, a hypervisor's option, an identity. Only the platform's programs could do it | the object would be another one than the tenant asked for: denied |
//! | [`IGNORED`] | less (no eviction, no sidecar), or something beside the object that a program in the tenant can do as well: a sidecar, a DNS record, a log parser | the object works as on a cluster without that program: an Event |
//! | none | something of the tenant's own tools (kubectl, Helm, Argo CD, Prometheus, checksums) | nothing is lost: no Event |
//!
//! Keys that read as harmless but make programs of the host execute commands or connect to addresses (checks of monitoring
//! agents, hooks of backups) are in [`IGNORED`] because the object works without them. The allow-list is what protects the host;
//! a row that is missing here costs a message.

mod denied;
mod ignored;
mod load_balancers;

pub use denied::DENIED;
pub use ignored::IGNORED;
pub use load_balancers::LOAD_BALANCERS;

/// Annotations of one domain that a program on the host acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostAnnotation {
    /// The domain, with all domains below it, or a whole key.
    pub key: &'static str,
    /// Why it does not reach the host, as a message for the tenant.
    pub why: &'static str,
    /// Where the program documents it.
    pub source: &'static str,
}

const fn row(key: &'static str, why: &'static str, source: &'static str) -> HostAnnotation {
    HostAnnotation { key, why, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_source_and_tables_do_not_repeat_keys() {
        let rows: Vec<&HostAnnotation> = [DENIED, LOAD_BALANCERS, IGNORED].into_iter().flatten().collect();
        for row in &rows {
            assert!(row.source.starts_with("https://"), "{}", row.key);
        }
        let mut keys: Vec<&str> = rows.iter().map(|row| row.key).collect();
        keys.sort_unstable();
        let count = keys.len();
        keys.dedup();
        assert_eq!(keys.len(), count);
        for row in rows {
            assert!(!row.why.ends_with('.') && row.why.len() < 120, "{}", row.key);
        }
    }
}
