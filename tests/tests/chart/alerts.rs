//! Expressions of alerts, evaluated by Prometheus' own tool.

use berth_tests::{files::documents, helm::chart};
use serde_json::{Value, json};
use std::{fs, process::Command};
use tempfile::TempDir;

/// The expression of an alert.
fn expression(alert: &str) -> String {
    let text = fs::read_to_string(chart().join("files/alerts.yaml")).unwrap();
    let documents = documents(&text);
    let rules = documents[0]["groups"][0]["rules"].as_array().unwrap();
    let rule = rules.iter().find(|rule| rule["alert"] == alert);
    let rule = rule.unwrap_or_else(|| panic!("there is no alert {alert}"));
    rule["expr"].as_str().unwrap().to_owned()
}

/// The counter of a policy exists from its first denial on, with the value 1.
#[test]
fn the_first_denial_of_a_policy_raises_the_alert_and_so_does_the_next() {
    let expression = expression("BerthAdmissionPolicyDenied");
    let denied_at = |time: &str, is_denied: bool| {
        let samples = if is_denied {
            json!([{"labels": "{policy=\"berth-pods\"}", "value": 1}])
        } else {
            json!([])
        };
        // Whether there is a sample decides; `increase` extrapolates its value.
        let expr = format!("({expression}) * 0 + 1");
        json!({"expr": expr, "eval_time": time, "exp_samples": samples})
    };
    let counter = |policy: &str, action: &str, values: &str| {
        let labels = format!("policy=\"{policy}\", enforcement_action=\"{action}\"");
        json!({"series": format!("apiserver_validating_admission_policy_check_total{{{labels}}}"), "values": values})
    };
    let tests: Value = json!({"evaluation_interval": "30s", "tests": [{
        "interval": "30s",
        "input_series": [
            // The first after 5 minutes, the second after 35.
            counter("berth-pods", "deny", "_x10 1x59 2x60"),
            counter("berth-pods", "allow", "0+1x120"),
            counter("berth-event-sizes", "deny", "0+1x120"),
            counter("of-others", "deny", "0+1x120"),
        ],
        "promql_expr_test": [
            denied_at("4m", false), denied_at("6m", true), denied_at("14m", true), denied_at("25m", false),
            denied_at("36m", true), denied_at("55m", false),
        ],
    }]});
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("tests.yaml");
    fs::write(&file, tests.to_string()).unwrap();
    let output = Command::new("promtool").args(["test", "rules"]).arg(&file).output();
    let output = output.expect("promtool is in the package prometheus");
    assert!(output.status.success(), "{output:?}");
}
