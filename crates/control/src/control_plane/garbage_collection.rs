//! How early programs of a control plane collect garbage. Most tenants are idle most of the time, so that their memory counts more than
//! the processor time of collections (docs/contributing/benchmarks.md has both).

use std::collections::BTreeMap;

/// Growth of the heap before Go collects, in percent: of kube-apiserver. Go's default is 100. An idle server has 8 MiB less private
/// memory than with 50, and collects a quarter more often while it is written to. With 30 it would have another 10 MiB less, and need
/// a quarter more processor time until it is ready.
pub(super) const API_SERVER_GROWTH: u32 = 40;

/// That of kube-controller-manager, whose heap is a quarter as large: less would save a MiB or two.
pub(super) const CONTROLLER_MANAGER_GROWTH: u32 = 50;

/// Environment of a Go program that collects when its heap has grown by `growth` percent.
pub(super) fn environment(growth: u32) -> BTreeMap<String, String> {
    BTreeMap::from([("GOGC".into(), growth.to_string())])
}
