//! How large labels and annotations of a pod may be. A pod that is too large is denied in words. Were it the host that rejects it, a running
//! pod would not follow policies any more: they reach it by its labels.

use super::status_changes;
use crate::{model::json, translation::fields::FieldIssues};
use berth_api::{
    labels::{self, is_reserved},
    pod_labels::is_host_key,
};
use serde_json::Value;

/// Most labels of a pod. On the host, keys are up to 82 bytes long.
pub(super) const MAX_LABELS: usize = 250;

/// Most bytes of a host pod's annotations, keys and values. API servers take 256 KiB; the rest is for Berth, and for network plug-ins and
/// webhooks of the host.
const MAX_ANNOTATION_BYTES: usize = 240 * 1024;

fn annotation_bytes(host: &Value) -> usize {
    let annotations = json::strings(host, &["metadata", "annotations"]);
    annotations.iter().map(|(key, value)| key.len() + value.len()).sum()
}

/// Most bytes that the annotations of a tenant's pod may have on the host, if so many are more.
fn exceeded_by(bytes: usize, pod: &Value) -> Option<usize> {
    // Most pods have few, and need not be measured.
    if bytes <= status_changes::ALWAYS {
        return None;
    }
    let most = MAX_ANNOTATION_BYTES.min(status_changes::most_annotation_bytes(pod));
    (bytes > most).then_some(most)
}

fn label_count(pod: &Value) -> usize {
    json::strings(pod, &["metadata", "labels"]).len()
}

/// Denies labels and annotations that are too large for the host. `host` is what becomes of the tenant's `pod`.
pub fn check(pod: &Value, host: &Value, issues: &mut FieldIssues) {
    let count = label_count(pod);
    if count > MAX_LABELS {
        let why = format!("there are {count}, and a pod may have at most {MAX_LABELS}");
        issues.deny("metadata.labels", why);
    }
    let bytes = annotation_bytes(host);
    if let Some(most) = exceeded_by(bytes, pod) {
        let probes = if most < MAX_ANNOTATION_BYTES {
            ". The status of this pod can change often: more is allowed if readinessProbe is tried less often"
        } else {
            ""
        };
        let why = format!(
            "with what Berth adds for the downward API they become {bytes} bytes on the host, and may have at most {most} \
             there: shorten labels and annotations, or select single ones in fieldRef{probes}"
        );
        issues.deny("metadata.annotations", why);
    }
}

/// Leaves out of the host's object what is too large: the tenant's labels, of which [`labels::LABELS_LEFT_OUT`] says so, or its annotations and the values
/// of the downward API.
pub fn reduce(pod: &Value, host: &mut Value) {
    let retain = |host: &mut Value, map: &str, is_kept: &dyn Fn(&str) -> bool| {
        if let Some(entries) = host["metadata"].get_mut(map).and_then(Value::as_object_mut) {
            entries.retain(|key, _| is_kept(key));
        }
    };
    if label_count(pod) > MAX_LABELS {
        retain(host, "labels", &|key| is_reserved(key) && !is_host_key(key));
        host["metadata"]["labels"][labels::LABELS_LEFT_OUT] = "true".into();
    }
    if exceeded_by(annotation_bytes(host), pod).is_some() {
        retain(host, "annotations", &|key| {
            is_reserved(key) && !key.starts_with(labels::DOWNWARD_FIELDS)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::resource::Name;
    use crate::{kinds::pod::build, model::tenant::test_tenant, registry};
    use serde_json::json;

    fn pod(annotation: &str, labels: usize) -> Value {
        let labels: serde_json::Map<String, Value> =
            (0..labels).map(|number| (format!("l{number}"), "".into())).collect();
        json!({"metadata": {"name": "p", "uid": "u", "labels": labels, "annotations": {"note": annotation}}, "spec": {
            "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "info", "downwardAPI": {"items": [
                {"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}}]}}]}})
    }

    fn denied(pod: &Value) -> Vec<String> {
        let mut issues = FieldIssues::default();
        build::host_pod(
            &registry::new_cache(test_tenant()),
            &Name::new("shop", "p"),
            pod,
            &mut issues,
        );
        issues.denied.into_iter().map(|denied| denied.field).collect()
    }

    #[test]
    fn what_the_host_would_reject_is_denied_in_words() {
        assert_eq!(denied(&pod("short", MAX_LABELS)), [""; 0]);
        // Quotes are escaped in the file of the downward API.
        assert_eq!(denied(&pod(&"\"".repeat(200 * 1024), 1)), ["metadata.annotations"]);
        assert_eq!(denied(&pod(&"a".repeat(200 * 1024), 1)), [""; 0]);
        assert_eq!(denied(&pod("short", MAX_LABELS + 1)), ["metadata.labels"]);
    }

    #[test]
    fn the_reference_page_has_the_limits() {
        let page = include_str!("../../../../../docs/reference/object-sizes.md");
        assert_eq!((MAX_LABELS, MAX_ANNOTATION_BYTES), (250, 245_760));
        assert!(page.contains(" 250 labels") && page.contains(" 245,760 bytes"));
    }

    #[test]
    fn what_is_too_large_is_left_out_of_a_pod_that_runs() {
        let cache = registry::new_cache(test_tenant());
        let reduced = |pod: &Value| build::metadata_of_running(&cache, &Name::new("shop", "p"), pod, &json!({}));
        let long = reduced(&pod(&"\"".repeat(200 * 1024), 1));
        assert!(annotation_bytes(&long) < 1024, "{long}");
        assert_eq!(long["metadata"]["labels"][berth_api::pod_labels::host_key("l0")], "");
        assert_eq!(long["metadata"]["labels"][berth_api::labels::NETWORK_EGRESS], "open");
        let wide = reduced(&pod("short", MAX_LABELS + 1));
        let has_pod_labels = json::strings(&wide, &["metadata", "labels"])
            .keys()
            .any(|key| is_host_key(key));
        assert!(!has_pod_labels, "{wide}");
        let left_out = |host: &Value| host["metadata"]["labels"].get(labels::LABELS_LEFT_OUT).cloned();
        assert_eq!((left_out(&wide), left_out(&long)), (Some("true".into()), None));
        let applied = wide["metadata"]["annotations"][labels::APPLIED_KEYS].as_str().unwrap();
        assert!(applied.contains(berth_api::labels::NETWORK_EGRESS), "{applied}");
    }
}
