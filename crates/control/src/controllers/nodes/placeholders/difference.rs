//! Which placeholders to create and which to delete.

use super::PlaceholderSet;
use berth_api::labels;
use berth_node_lifecycle::pod_phase::has_ended;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

#[derive(Debug, Default)]
pub(super) struct Difference {
    pub(super) delete: Vec<Arc<Pod>>,
    pub(super) create: Vec<Pod>,
    /// How many failed ones are kept for a while.
    pub(super) recently_ended: usize,
}

/// Seconds for which a failed placeholder is kept: a kubelet that rejects one rejects the next one as well, and they would follow
/// each other without a pause.
pub(super) const FAILED_POD_HOLD: i64 = 60;

/// Compares the existing placeholders with the wanted ones. Names of new ones follow from the existing ones, so that the same
/// decision made twice does not create a placeholder twice.
pub(super) fn compute_difference(existing: &[Arc<Pod>], wanted: &[PlaceholderSet], now: Timestamp) -> Difference {
    let mut by_kind: BTreeMap<&str, Vec<&Arc<Pod>>> = BTreeMap::new();
    for pod in existing {
        let kind = pod.labels().get(labels::PLACEHOLDER_KIND);
        by_kind
            .entry(kind.map(String::as_str).unwrap_or_default())
            .or_default()
            .push(pod);
    }
    let mut difference = Difference::default();
    for set in wanted {
        let mut current = by_kind.remove(set.kind.as_str()).unwrap_or_default();
        let names: BTreeSet<String> = current.iter().map(|pod| pod.name_any()).collect();
        current.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        let all = current.len();
        current.retain(|pod| !ended_recently(pod, now));
        let recently_ended = all - current.len();
        difference.recently_ended += recently_ended;
        // Pending ones are kept before those that have a node.
        current.sort_by_key(|pod| (has_ended(pod), has_node(pod), order(pod)));
        let count = current.iter().take_while(|pod| !has_ended(pod)).count();
        let keeps = count.min(set.count as usize);
        difference.delete.extend(current.split_off(keeps).into_iter().cloned());
        let free = (0..)
            .map(|number| set.name(number))
            .filter(|name| !names.contains(name));
        let missing = (set.count as usize - keeps).saturating_sub(recently_ended);
        difference.create.extend(free.take(missing).map(|name| set.pod(&name)));
    }
    let unwanted = by_kind.into_values().flatten();
    let unwanted = unwanted.filter(|pod| pod.metadata.deletion_timestamp.is_none());
    difference.delete.extend(unwanted.cloned());
    difference
}

/// `name-9` before `name-10`.
fn order(pod: &Pod) -> (usize, String) {
    let name = pod.name_any();
    (name.len(), name)
}

fn has_node(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())
}

/// Whether a placeholder ended and was created a short while ago.
fn ended_recently(pod: &Pod, now: Timestamp) -> bool {
    let age = pod.creation_timestamp().map_or(FAILED_POD_HOLD, |made| {
        now.as_second().saturating_sub(made.0.as_second())
    });
    has_ended(pod) && (0..FAILED_POD_HOLD).contains(&age)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn wanted(kind: &str, count: u32) -> PlaceholderSet {
        PlaceholderSet {
            pool: "h100".into(),
            kind: kind.into(),
            count,
            template: serde_json::from_value(json!({"metadata": {"labels": {labels::PLACEHOLDER_KIND: kind}}}))
                .unwrap(),
        }
    }

    fn pod(kind: &str, number: u32, more: &Value) -> Arc<Pod> {
        let mut pod = serde_json::to_value(wanted(kind, 1).pod(&wanted(kind, 1).name(number))).unwrap();
        for (key, value) in more.as_object().unwrap() {
            match pod[key].as_object_mut() {
                Some(fields) => fields.extend(value.as_object().unwrap().clone()),
                None => pod[key] = value.clone(),
            }
        }
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn diff(existing: &[Arc<Pod>], all: &[PlaceholderSet]) -> (Vec<String>, Vec<String>) {
        let difference = compute_difference(existing, all, "2026-01-01T00:01:00Z".parse().unwrap());
        let names = |pods: Vec<String>| pods.into_iter().map(|name| name.replace("h100-", "")).collect();
        (
            names(difference.delete.iter().map(|pod| pod.name_any()).collect()),
            names(difference.create.iter().map(ResourceExt::name_any).collect()),
        )
    }

    fn texts(of: &[&str]) -> Vec<String> {
        of.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn missing_placeholders_are_created_and_surplus_ones_deleted() {
        let none = json!({});
        assert_eq!(diff(&[], &[wanted("a", 2)]), (vec![], texts(&["a-0", "a-1"])));
        let two = [pod("a", 0, &none), pod("a", 3, &none)];
        assert_eq!(diff(&two, &[wanted("a", 2)]), (vec![], vec![]));
        assert_eq!(diff(&two, &[wanted("a", 4)]), (vec![], texts(&["a-1", "a-2"])));
        assert_eq!(diff(&two, &[wanted("a", 1)]), (texts(&["a-3"]), vec![]));
        assert_eq!(diff(&two, &[wanted("b", 1)]), (texts(&["a-0", "a-3"]), texts(&["b-0"])));
        assert_eq!(
            diff(&two, &[]),
            (texts(&["a-0", "a-3"]), vec![]),
            "autoscaling was switched off"
        );
    }

    #[test]
    fn a_placeholder_on_a_node_is_deleted_first() {
        let placed = json!({"spec": {"nodeName": "n1", "containers": []}});
        let existing = [pod("a", 0, &placed), pod("a", 1, &json!({}))];
        assert_eq!(diff(&existing, &[wanted("a", 1)]), (texts(&["a-0"]), vec![]));
    }

    #[test]
    fn a_finished_or_terminating_placeholder_is_replaced_under_another_name() {
        let ended = pod("a", 0, &json!({"status": {"phase": "Failed"}}));
        assert_eq!(diff(&[ended], &[wanted("a", 1)]), (texts(&["a-0"]), texts(&["a-1"])));
        let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        assert_eq!(
            diff(&[pod("a", 0, &going)], &[wanted("a", 1)]),
            (vec![], texts(&["a-1"]))
        );
        assert_eq!(diff(&[pod("a", 0, &going)], &[]), (vec![], vec![]));
    }

    #[test]
    fn a_placeholder_that_just_failed_is_kept_for_a_while() {
        let ended = |made: &str| {
            let fields = json!({"metadata": {"creationTimestamp": made}, "status": {"phase": "Failed"}});
            pod("a", 0, &fields)
        };
        let fresh = ended("2026-01-01T00:00:30Z");
        assert_eq!(diff(std::slice::from_ref(&fresh), &[wanted("a", 1)]), (vec![], vec![]));
        assert_eq!(
            diff(std::slice::from_ref(&fresh), &[wanted("a", 2)]),
            (vec![], texts(&["a-1"]))
        );
        assert_eq!(
            diff(&[fresh], &[]),
            (texts(&["a-0"]), vec![]),
            "it is not wanted at all"
        );
        let old = ended("2026-01-01T00:00:00Z");
        assert_eq!(diff(&[old], &[wanted("a", 1)]), (texts(&["a-0"]), texts(&["a-1"])));
    }

    #[test]
    fn the_difference_converges() {
        let all = [wanted("a", 3), wanted("b", 1)];
        let made: Vec<Arc<Pod>> = compute_difference(&[], &all, Timestamp::UNIX_EPOCH)
            .create
            .into_iter()
            .map(Arc::new)
            .collect();
        assert_eq!(diff(&made, &all), (vec![], vec![]));
    }
}
