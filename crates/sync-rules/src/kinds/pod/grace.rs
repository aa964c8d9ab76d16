//! Times that a pod may take to end: at most what the class allows. A node that is reclaimed and a tenant that is deleted wait
//! for their pods.

use crate::{model::json, translation::fields::FieldIssues};
use serde_json::{Map, Value};

const FIELD: &str = "terminationGracePeriodSeconds";
/// What an API server sets in a pod that says nothing.
const DEFAULT_SECONDS: i64 = 30;
/// Fields of containers that keep one from ending. A handler must not sleep longer than its pod has to end: the host's API server
/// would reject the pod.
const OF_CONTAINERS: [&[&str]; 4] = [
    &["livenessProbe", FIELD],
    &["startupProbe", FIELD],
    &["lifecycle", "preStop", "sleep", "seconds"],
    &["lifecycle", "postStart", "sleep", "seconds"],
];

/// Lowers what exceeds the limit of the class in the spec of a host pod.
pub fn limit(max_seconds: u32, spec: &mut Map<String, Value>, issues: &mut FieldIssues) {
    let max = i64::from(max_seconds);
    let wanted = spec.get(FIELD).and_then(Value::as_i64).unwrap_or(DEFAULT_SECONDS);
    if wanted > max {
        spec.insert(FIELD.into(), max.into());
        issues.ignore(format!("spec.{FIELD}"), lowered(wanted, max));
    }
    for list in ["initContainers", "containers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for (index, container) in containers.into_iter().flatten().enumerate() {
            for path in OF_CONTAINERS {
                let wanted = json::at(container, path).and_then(Value::as_i64).unwrap_or_default();
                if wanted > max {
                    json::set(container, path, max);
                    let field = format!("spec.{list}[{index}].{}", path.join("."));
                    issues.ignore(field, lowered(wanted, max));
                }
            }
        }
    }
}

fn lowered(wanted: i64, max: i64) -> String {
    format!("{wanted} seconds are more than the class of this tenant allows, so {max} seconds apply")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn limited(max_seconds: u32, spec: Value) -> (Value, Vec<String>) {
        let Value::Object(mut spec) = spec else {
            panic!("no object: {spec}");
        };
        let mut issues = FieldIssues::default();
        limit(max_seconds, &mut spec, &mut issues);
        assert!(issues.denied.is_empty(), "the pod works with less");
        let fields = issues.ignored.into_iter().map(|ignored| ignored.field).collect();
        (spec.into(), fields)
    }

    #[test]
    fn a_grace_period_beyond_the_limit_is_lowered_and_reported() {
        for (wanted, applied) in [(0, 0), (30, 30), (600, 600), (601, 600), (1_000_000_000, 600)] {
            let (spec, fields) = limited(600, json!({FIELD: wanted}));
            assert_eq!(spec[FIELD], applied, "{wanted}");
            assert_eq!(fields.len(), usize::from(wanted != applied), "{wanted}: {fields:?}");
        }
        assert_eq!(
            limited(600, json!({})).0,
            json!({}),
            "the default of Kubernetes is allowed"
        );
        assert_eq!(limited(5, json!({})).0, json!({FIELD: 5}));
    }

    #[test]
    fn probes_and_handlers_keep_to_the_limit_as_well() {
        let container = json!({
            "livenessProbe": {FIELD: 9000}, "startupProbe": {FIELD: 10}, "readinessProbe": {"periodSeconds": 9000},
            "lifecycle": {"preStop": {"sleep": {"seconds": 8000}}, "postStart": {"exec": {"command": ["a"]}}},
        });
        let (spec, fields) = limited(
            60,
            json!({"containers": [{"name": "a"}, container], "initContainers": [container]}),
        );
        for applied in [&spec["containers"][1], &spec["initContainers"][0]] {
            let expected = json!({
                "livenessProbe": {FIELD: 60}, "startupProbe": {FIELD: 10}, "readinessProbe": {"periodSeconds": 9000},
                "lifecycle": {"preStop": {"sleep": {"seconds": 60}}, "postStart": {"exec": {"command": ["a"]}}},
            });
            assert_eq!(applied, &expected);
        }
        assert_eq!(
            fields,
            [
                "spec.initContainers[0].livenessProbe.terminationGracePeriodSeconds",
                "spec.initContainers[0].lifecycle.preStop.sleep.seconds",
                "spec.containers[1].livenessProbe.terminationGracePeriodSeconds",
                "spec.containers[1].lifecycle.preStop.sleep.seconds",
            ]
        );
    }
}
