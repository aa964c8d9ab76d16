//! The downward API: metadata of the tenant's pod, which the host's kubelet does not know.
//!
//! | where | `metadata.*`, `spec.serviceAccountName` | `spec.nodeName`, `status.*` |
//! |---|---|---|
//! | environment | the value itself; a label or annotation as for volumes | kept: the host's kubelet knows |
//! | volumes | an annotation of the host pod, brought up to date when labels or annotations change | kept |

use crate::model::json;
use berth_api::{labels::DOWNWARD_FIELDS, names::hash};
use serde_json::Value;
use std::fmt::Write;

/// The value of a field of the tenant's pod; `None` if the host's kubelet provides it.
pub fn literal(pod: &Value, field: &str) -> Option<String> {
    let text = |path: &[&str]| json::text(pod, path).unwrap_or_default().to_owned();
    if let Some((map, key)) = subscript(field) {
        return matches!(map, "metadata.labels" | "metadata.annotations")
            .then(|| text(&["metadata", map.trim_start_matches("metadata."), key]));
    }
    match field {
        "metadata.name" => Some(text(&["metadata", "name"])),
        "metadata.namespace" => Some(text(&["metadata", "namespace"])),
        "metadata.uid" => Some(text(&["metadata", "uid"])),
        "metadata.labels" | "metadata.annotations" => Some(lines(pod, field.trim_start_matches("metadata."))),
        "spec.serviceAccountName" => Some(text(&["spec", "serviceAccountName"])),
        _ => None,
    }
}

/// Whether a field is a label or an annotation, which can change while the pod runs.
pub fn can_change(field: &str) -> bool {
    subscript(field).is_some_and(|(map, _)| matches!(map, "metadata.labels" | "metadata.annotations"))
}

/// Key of the annotation that carries a field for volumes, and for variables if it can change.
pub fn annotation(field: &str) -> String {
    format!("{DOWNWARD_FIELDS}{}", hash(&[field]))
}

/// `metadata.labels['a']` → (`metadata.labels`, `a`).
fn subscript(field: &str) -> Option<(&str, &str)> {
    field.strip_suffix("']")?.split_once("['")
}

/// Labels or annotations as a kubelet writes them to a file: sorted lines of `key="value"`.
fn lines(pod: &Value, map: &str) -> String {
    let mut text = String::new();
    for (key, value) in json::strings(pod, &["metadata", map]) {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&key);
        text.push('=');
        quote(&value, &mut text);
    }
    text
}

/// Quotes as Go's `%q` does.
fn quote(value: &str, text: &mut String) {
    text.push('"');
    for c in value.chars() {
        match c {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\u{7}' => text.push_str("\\a"),
            '\u{8}' => text.push_str("\\b"),
            '\u{c}' => text.push_str("\\f"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\u{b}' => text.push_str("\\v"),
            // Writing to a String cannot fail.
            c if c.is_ascii_control() => drop(write!(text, "\\x{:02x}", c as u32)),
            c if c.is_control() => drop(write!(text, "\\u{:04x}", c as u32)),
            c => text.push(c),
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_of_the_tenants_pod_are_literal() {
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"b": "2", "a": "x\"y\n"},
            "annotations": {"example.com/k": "v"}}, "spec": {"serviceAccountName": "sa"}});
        assert_eq!(literal(&pod, "metadata.name").as_deref(), Some("p"));
        assert_eq!(literal(&pod, "metadata.labels['b']").as_deref(), Some("2"));
        assert_eq!(
            literal(&pod, "metadata.annotations['example.com/k']").as_deref(),
            Some("v")
        );
        assert_eq!(literal(&pod, "metadata.labels['missing']").as_deref(), Some(""));
        assert_eq!(
            literal(&pod, "metadata.labels").as_deref(),
            Some("a=\"x\\\"y\\n\"\nb=\"2\"")
        );
        assert_eq!(literal(&pod, "spec.serviceAccountName").as_deref(), Some("sa"));
        assert_eq!(literal(&pod, "status.podIP"), None);
        assert_eq!(literal(&pod, "spec.nodeName"), None);
    }
}
