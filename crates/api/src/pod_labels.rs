//! Keys of the labels of tenants' pods on the host. Programs of the host take some labels for orders: the queue of a scheduler, a sidecar, a class
//! of service. So host pods carry the labels of tenants under keys that mean nothing to anybody.
//!
//! | key in the tenant | key on the host |
//! |---|---|
//! | [`OF_CONTROLLERS`] | the same: controllers of Kubernetes set them, and they are no orders. Network plug-ins know that they tell replicas apart, and give pods that differ in nothing else one identity |
//! | [`BOUND`] | the same: each side's API server sets them when the pod is bound |
//! | `app` | `pod.berth.dev/app` |
//! | `app.kubernetes.io/name` | `pod.berth.dev/app.kubernetes.io__name`: a key has one slash only, and no domain has an underscore |
//! | what is too long for that, or has two underscores and no domain | `hash.pod.berth.dev/…` with a readable part and a hash |

use crate::{
    labels::{HASHED_POD_LABELS, POD_LABELS},
    names::{MAX_NAME, host_name},
};
use std::collections::BTreeMap;

/// Stands for the slash.
const SLASH: &str = "__";

/// Labels by which controllers of Kubernetes know and number the pods that they make.
pub const OF_CONTROLLERS: &[&str] = &[
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-completion-index",
    "batch.kubernetes.io/job-name",
    "controller-revision-hash",
    "controller-uid",
    "job-name",
    "pod-template-generation",
    "pod-template-hash",
    "statefulset.kubernetes.io/pod-name",
];

/// Labels that an API server copies from the node when a pod is bound.
pub const BOUND: &[&str] = &["topology.kubernetes.io/region", "topology.kubernetes.io/zone"];

/// The key on the host of a label of the tenant's pod.
pub fn host_key(key: &str) -> String {
    if OF_CONTROLLERS.contains(&key) || BOUND.contains(&key) {
        return key.into();
    }
    let name = match key.split_once('/') {
        None if !key.contains(SLASH) => Some(key.to_owned()),
        None => None,
        Some((domain, name)) => Some(format!("{domain}{SLASH}{name}")),
    };
    match name.filter(|name| name.len() <= MAX_NAME) {
        Some(name) => format!("{POD_LABELS}{name}"),
        None => format!("{HASHED_POD_LABELS}{}", host_name("Label", "", key)),
    }
}

/// Whether a label of a host pod stands for one of the tenant's pod, and for nothing else.
pub fn is_host_key(key: &str) -> bool {
    key.starts_with(POD_LABELS) || key.starts_with(HASHED_POD_LABELS)
}

/// The labels of the tenant's pod, from those of the host pod: without those with [`HASHED_POD_LABELS`], and with those that the host pod has besides.
pub fn tenant_labels(host: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let (own, others): (Vec<_>, Vec<_>) = host.iter().partition(|(key, _)| key.starts_with(POD_LABELS));
    let own = own.into_iter().filter_map(|(key, value)| {
        let key = key.strip_prefix(POD_LABELS)?;
        Some((key.replacen(SLASH, "/", 1), value.clone()))
    });
    // Last, so that they count.
    let others = others.into_iter().map(|(key, value)| (key.clone(), value.clone()));
    others.chain(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::labels::is_reserved;

    #[test]
    fn keys_of_tenants_mean_nothing_on_the_host_and_can_be_read_there() {
        for (key, on_host) in [
            ("app", "pod.berth.dev/app"),
            ("grafana_dashboard", "pod.berth.dev/grafana_dashboard"),
            ("app.kubernetes.io/name", "pod.berth.dev/app.kubernetes.io__name"),
            ("berth.dev/tenant", "pod.berth.dev/berth.dev__tenant"),
            ("pod.berth.dev/app", "pod.berth.dev/pod.berth.dev__app"),
            ("example.com/a__b", "pod.berth.dev/example.com__a__b"),
            ("a__b", "hash.pod.berth.dev/a-b-k44a4zxqxdvwv"),
            ("job-name", "job-name"),
            ("topology.kubernetes.io/zone", "topology.kubernetes.io/zone"),
        ] {
            assert_eq!(host_key(key), on_host);
        }
        let long = host_key(&format!("{}.example.com/{}", "a".repeat(60), "b".repeat(63)));
        assert!(
            long.starts_with(HASHED_POD_LABELS) && long.len() <= HASHED_POD_LABELS.len() + MAX_NAME,
            "{long}"
        );
        assert!(is_reserved(&long) && is_reserved(&host_key("app")));
    }

    #[test]
    fn the_tenants_keys_are_read_back() {
        let keys = [
            "app",
            "app.kubernetes.io/name",
            "example.com/a__b",
            "berth.dev/tenant",
            "job-name",
        ];
        let labels: BTreeMap<String, String> = keys.iter().map(|key| ((*key).to_owned(), "v".to_owned())).collect();
        let mut host: BTreeMap<String, String> = labels
            .iter()
            .map(|(key, value)| (host_key(key), value.clone()))
            .collect();
        assert_eq!(tenant_labels(&host), labels);
        // What the class lists is there twice, and what the tenant's pod has counts.
        host.insert("berth.dev/tenant".into(), "host".into());
        host.insert("injected".into(), "by-host".into());
        let read = tenant_labels(&host);
        assert_eq!(
            (read["berth.dev/tenant"].as_str(), read["injected"].as_str()),
            ("v", "by-host")
        );
    }

    #[test]
    fn different_keys_have_different_keys_on_the_host() {
        let mut keys: Vec<String> = ["a__b", "a/b", "a.b/c", "a-b/c", "a.b__c", "a", "x/a"]
            .map(ToOwned::to_owned)
            .to_vec();
        // A key that looks like the one of another.
        let of_others: Vec<String> = keys.iter().map(|key| host_key(key)).collect();
        keys.extend(of_others);
        let on_host: std::collections::BTreeSet<String> = keys.iter().map(|key| host_key(key)).collect();
        assert_eq!(on_host.len(), keys.len(), "{on_host:?}");
    }
}
