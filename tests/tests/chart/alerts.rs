//! Expressions of alerts and of the dashboard, evaluated by Prometheus' own tool.

use berth_tests::{files::documents, helm::chart};
use serde_json::{Value, json};
use std::{fs, process::Command};
use tempfile::TempDir;

/// The expression of an alert.
fn alert_expression(alert: &str) -> String {
    let text = fs::read_to_string(chart().join("files/alerts.yaml")).unwrap();
    let documents = documents(&text);
    let rules = documents[0]["groups"][0]["rules"].as_array().unwrap();
    let rule = rules.iter().find(|rule| rule["alert"] == alert);
    let rule = rule.unwrap_or_else(|| panic!("there is no alert {alert}"));
    rule["expr"].as_str().unwrap().to_owned()
}

/// The expression of a panel of the dashboard.
fn panel_expression(title: &str) -> String {
    let text = fs::read_to_string(chart().join("files/dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let panel = panels.iter().find(|panel| panel["title"] == title);
    let panel = panel.unwrap_or_else(|| panic!("there is no panel {title}"));
    panel["targets"][0]["expr"].as_str().unwrap().to_owned()
}

/// A counter of requests that policies checked. It exists from its first request on, with the value 1: `values` has a sample every 30 seconds.
fn counter(policy: &str, action: &str, values: &str) -> Value {
    let labels = format!("policy=\"{policy}\", enforcement_action=\"{action}\"");
    json!({"series": format!("apiserver_validating_admission_policy_check_total{{{labels}}}"), "values": values})
}

/// Denials of `berth-pods`: the first after 5 minutes, the second after 35.
fn two_denials() -> Value {
    counter("berth-pods", "deny", "_x10 1x59 2x60")
}

/// The labels of `berth-pods`.
const PODS: &str = "{policy=\"berth-pods\"}";

/// What an expression evaluates to at a time: this value with these labels, or nothing.
fn evaluates_to(expression: &str, time: &str, labels: &str, value: Option<u8>) -> Value {
    let samples: Vec<Value> = value
        .map(|value| json!({"labels": labels, "value": value}))
        .into_iter()
        .collect();
    json!({"expr": expression, "eval_time": time, "exp_samples": samples})
}

/// Lets Prometheus' own tool evaluate expressions.
fn evaluate(input_series: &[Value], expected: &[Value]) {
    let tests = json!({"evaluation_interval": "30s", "tests": [{
        "interval": "30s", "input_series": input_series, "promql_expr_test": expected,
    }]});
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("tests.yaml");
    fs::write(&file, tests.to_string()).unwrap();
    let output = Command::new("promtool").args(["test", "rules"]).arg(&file).output();
    let output = output.expect("promtool is in the package prometheus");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn the_first_denial_of_a_policy_raises_the_alert_and_so_does_the_next() {
    // Whether there is a sample decides; `increase` extrapolates its value.
    let expression = format!("({}) * 0 + 1", alert_expression("BerthAdmissionPolicyDenied"));
    let raised_at = |time: &str, is_raised: bool| evaluates_to(&expression, time, PODS, is_raised.then_some(1));
    evaluate(
        &[
            two_denials(),
            counter("berth-pods", "allow", "0+1x120"),
            counter("berth-event-sizes", "deny", "0+1x120"),
            counter("of-others", "deny", "0+1x120"),
        ],
        &[
            raised_at("4m", false),
            raised_at("6m", true),
            raised_at("14m", true),
            raised_at("25m", false),
            raised_at("36m", true),
            raised_at("55m", false),
        ],
    );
}

#[test]
fn the_dashboard_shows_the_first_denial_of_a_policy_and_the_next() {
    let expression = format!("({}) > bool 0", panel_expression("Denied by admission policies"));
    let shown_at = |time: &str, value: Option<u8>| evaluates_to(&expression, time, PODS, value);
    evaluate(
        &[
            two_denials(),
            counter("berth-pods", "allow", "0+1x120"),
            counter("of-others", "deny", "0+1x120"),
        ],
        &[
            shown_at("4m", None),
            shown_at("6m", Some(1)),
            shown_at("9m", Some(1)),
            shown_at("25m", Some(0)),
            shown_at("36m", Some(1)),
            shown_at("55m", Some(0)),
        ],
    );
}

#[test]
fn a_syncer_that_adds_series_without_end_raises_the_alert_and_one_that_often_starts_does_not() {
    let expression = format!("({}) * 0 + 1", alert_expression("BerthSyncerSeriesChurn"));
    let added =
        |labels: &str, values: &str| json!({"series": format!("scrape_series_added{{{labels}}}"), "values": values});
    let job = "job=\"berth-system/berth-syncers\", tenant_namespace=\"team\"";
    let starts = ["3500 0x8"; 24].join(" ");
    let speech = "{tenant_namespace=\"team\", tenant=\"speech\"}";
    let raised_at = |time: &str, is_raised: bool| evaluates_to(&expression, time, speech, is_raised.then_some(1));
    evaluate(
        &[
            // Ten minutes, in two pods.
            added(&format!("{job}, tenant=\"speech\", pod=\"a\""), "20000x9 0x230"),
            added(&format!("{job}, tenant=\"speech\", pod=\"b\""), "_x9 20000x9 0x220"),
            added(&format!("{job}, tenant=\"vision\", pod=\"c\""), &starts),
            added(
                "job=\"of-others\", tenant_namespace=\"team\", tenant=\"other\"",
                "20000x240",
            ),
        ],
        &[
            raised_at("30s", false),
            raised_at("1m", true),
            raised_at("9m", true),
            raised_at("60m", true),
            raised_at("75m", false),
        ],
    );
}

#[test]
fn many_streams_at_the_hosts_api_servers_raise_the_alert() {
    let expression = format!("({}) * 0 + 1", alert_expression("BerthManyPodStreams"));
    let open = |instance: &str, resource: &str, subresource: &str, values: &str| {
        let labels = format!("instance=\"{instance}\", resource=\"{resource}\", subresource=\"{subresource}\"");
        json!({"series": format!("apiserver_longrunning_requests{{{labels}}}"), "values": values})
    };
    let raised_at =
        |time: &str, is_raised: bool| evaluates_to(&expression, time, "{subresource=\"log\"}", is_raised.then_some(1));
    evaluate(
        &[
            open("a", "pods", "log", "600x40"),
            open("b", "pods", "log", "300x9 500x30"),
            open("a", "pods", "exec", "1000x40"),
            // Watches, and what kubelets answer themselves.
            open("a", "pods", "", "9000x40"),
            open("a", "nodes", "proxy", "9000x40"),
        ],
        &[raised_at("4m", false), raised_at("6m", true)],
    );
}

#[test]
fn a_scheduler_that_looks_for_devices_for_long_raises_the_alert_and_one_that_starts_many_pods_does_not() {
    let expression = format!("({}) * 0 + 1", alert_expression("BerthDeviceSearchesSlow"));
    // Seconds that a tenth of the attempts took, each 30 seconds.
    let series = |plugin: &str, point: &str, values: &str| {
        let labels = format!("plugin=\"{plugin}\", extension_point=\"{point}\", status=\"Error\"");
        json!({"series": format!("scheduler_plugin_execution_duration_seconds_sum{{{labels}}}"), "values": values})
    };
    evaluate(
        &[
            // First a hundred pods a second, each with a millisecond; then half of the time.
            series("DynamicResources", "Filter", "0+0.3x60 18+1.5x60"),
            series("DynamicResources", "PreBind", "0+9x120"),
            series("NodeAffinity", "Filter", "0+9x120"),
        ],
        &[
            evaluates_to(&expression, "25m", "{}", None),
            evaluates_to(&expression, "50m", "{}", Some(1)),
        ],
    );
}

#[test]
fn a_pool_raises_alerts_while_nodes_are_not_ready_and_while_none_is_replaced() {
    let (stopped, not_ready) = ("BerthPoolRepairStopped", "BerthNodesNotReady");
    let is_raised = |alert: &str| format!("({}) * 0 + 1", alert_expression(alert));
    let of = |metric: &str, pool: &str, values: &str| {
        let series = format!("berth_control_{metric}{{pool=\"{pool}\", pod=\"berth-control-1\"}}");
        json!({"series": series, "values": values})
    };
    let series = [
        of("repair_allowed", "h100", "1x9 0x9 1x20"),
        of("not_ready_nodes", "h100", "0x4 2x4 9x9 0x20"),
        of("repair_allowed", "l40s", "1x40"),
        of("not_ready_nodes", "l40s", "0x40"),
    ];
    let at = |alert: &str, time: &str, raised: bool| {
        evaluates_to(&is_raised(alert), time, "{pool=\"h100\"}", raised.then_some(1))
    };
    evaluate(
        &series,
        &[
            at(stopped, "1m", false),
            at(not_ready, "1m", false),
            at(stopped, "4m", false),
            at(not_ready, "4m", true),
            at(stopped, "7m", true),
            at(not_ready, "7m", true),
            at(stopped, "15m", false),
            at(not_ready, "15m", false),
        ],
    );
}

#[test]
fn only_gpus_of_nodes_of_which_none_is_requested_raise_the_alert() {
    let expression = alert_expression("BerthGPUsNotRequested");
    let of = |tenant: &str, node: &str, pod: &str, values: &str| {
        let labels =
            format!("tenant_namespace=\"team\", tenant=\"{tenant}\", pool=\"h100\", node=\"{node}\", pod=\"{pod}\"");
        json!({"series": format!("berth_control_unrequested_gpus{{{labels}}}"), "values": values})
    };
    let vision = "{tenant_namespace=\"team\", tenant=\"vision\", pool=\"h100\"}";
    evaluate(
        &[
            // Another pod of control has values from 28 minutes on.
            of("vision", "idle", "a", "0x9 16x40 stale"),
            of("vision", "idle", "b", "_x56 16x40"),
            of("vision", "in_use", "a", "7x90"),
            of("speech", "idle", "a", "0x90"),
            of("speech", "in_use", "a", "7x90"),
        ],
        &[
            evaluates_to(&expression, "2m", vision, None),
            // Five minutes before, none of its nodes was idle.
            evaluates_to(&expression, "8m", vision, None),
            evaluates_to(&expression, "21m", vision, Some(16)),
            evaluates_to(&expression, "27m", vision, Some(16)),
            evaluates_to(&expression, "40m", vision, Some(16)),
        ],
    );
}

#[test]
fn certificates_of_etcd_that_nothing_checks_raise_the_alert() {
    // Seconds since 1970, and the test begins at 0: sixteen days have passed after a minute and a half.
    const SIXTEEN_DAYS_BEFORE: &str = "-1382310+0x20";
    let expression = format!("({}) * 0 + 1", alert_expression("BerthDatastoreCertificatesNotChecked"));
    let of = |metric: &str, cronjob: &str, values: &str| {
        let labels = format!("namespace=\"berth-system\", cronjob=\"{cronjob}\"");
        json!({"series": format!("kube_cronjob_{metric}{{{labels}}}"), "values": values})
    };
    let long_ago = "-9000000+0x20";
    let certificates = "berth-certificates";
    let raised_at = |time: &str, is_raised: bool| evaluates_to(&expression, time, "{}", is_raised.then_some(1));
    for series in [
        vec![
            of("created", certificates, long_ago),
            of("status_last_successful_time", certificates, SIXTEEN_DAYS_BEFORE),
            of("status_last_successful_time", "of-others", long_ago),
        ],
        // It has never succeeded.
        vec![of("created", certificates, SIXTEEN_DAYS_BEFORE)],
    ] {
        evaluate(&series, &[raised_at("1m", false), raised_at("2m", true)]);
    }
}

#[test]
fn usage_that_is_not_recorded_for_an_hour_raises_the_alert() {
    let expression = format!("({}) * 0 + 1", alert_expression("BerthUsageNotRecorded"));
    let age = |pod: &str, values: &str| json!({"series": format!("berth_control_usage_unrecorded_seconds{{pod=\"{pod}\"}}"), "values": values});
    let raised_at = |time: &str, is_raised: bool| evaluates_to(&expression, time, "{}", is_raised.then_some(1));
    evaluate(
        &[
            // Written every 15 minutes, and then no more.
            age("a", "0+30x30 0+30x30 0+30x180"),
            // It waits for the lease.
            age("b", "0x250"),
        ],
        &[
            raised_at("15m", false),
            raised_at("60m", false),
            raised_at("90m", false),
            raised_at("92m", true),
        ],
    );
}

#[test]
fn a_tenant_that_is_not_encrypted_raises_the_alert_whatever_the_reason_but_sleep() {
    let expression = alert_expression("BerthTenantNotEncrypted");
    let of = |tenant: &str, reason: &str, values: &str| {
        let labels = format!("tenant_namespace=\"team\", tenant=\"{tenant}\", reason=\"{reason}\", pod=\"a\"");
        json!({"series": format!("berth_control_tenant_not_encrypted{{{labels}}}"), "values": values})
    };
    let vision = "{tenant_namespace=\"team\", tenant=\"vision\"}";
    evaluate(
        &[
            // The alert is the same one when the reason changes.
            of("vision", "Writing", "1x9 stale"),
            of("vision", "Rewriting", "_x10 1x9 stale"),
            of("speech", "Sleeping", "1x40"),
        ],
        &[
            evaluates_to(&expression, "1m", vision, Some(1)),
            evaluates_to(&expression, "5m", vision, Some(1)),
            evaluates_to(&expression, "9m", vision, Some(1)),
            evaluates_to(&expression, "11m", vision, None),
        ],
    );
}

#[test]
fn events_that_are_not_in_an_audit_log_raise_the_alert_and_a_restart_of_control_does_not() {
    let expression = format!("({}) * 0 + 1", alert_expression("BerthAuditEventsNotLogged"));
    let errors = |tenant: &str, pod: &str, values: &str| {
        let labels = format!("tenant_namespace=\"team\", tenant=\"{tenant}\", pod=\"{pod}\"");
        json!({"series": format!("berth_control_audit_errors_total{{{labels}}}"), "values": values})
    };
    let vision = "{tenant_namespace=\"team\", tenant=\"vision\"}";
    let raised_at = |time: &str, is_raised: bool| evaluates_to(&expression, time, vision, is_raised.then_some(1));
    evaluate(
        &[
            // An event after five minutes. Another control counts from the beginning.
            errors("vision", "a", "0x9 1x49 stale"),
            errors("vision", "b", "_x60 0x60"),
            errors("speech", "a", "3x120"),
        ],
        &[
            raised_at("4m", false),
            raised_at("6m", true),
            raised_at("19m", true),
            raised_at("22m", false),
            raised_at("40m", false),
        ],
    );
}

#[test]
fn a_tenant_without_snapshots_of_its_schedule_raises_the_alert() {
    let expression = alert_expression("BerthScheduledSnapshotOverdue");
    let of = |tenant: &str, pod: &str, values: &str| {
        let labels = format!("tenant_namespace=\"team\", tenant=\"{tenant}\", pod=\"{pod}\"");
        json!({"series": format!("berth_control_scheduled_snapshot_overdue{{{labels}}}"), "values": values})
    };
    let vision = "{tenant_namespace=\"team\", tenant=\"vision\"}";
    evaluate(
        &[
            // Another pod of control goes on from 20 minutes on.
            of("vision", "a", "0x19 1x19 stale"),
            of("vision", "b", "_x40 1x19 0x20"),
            of("speech", "a", "0x90"),
        ],
        &[
            evaluates_to(&expression, "9m", vision, None),
            evaluates_to(&expression, "11m", vision, Some(1)),
            evaluates_to(&expression, "25m", vision, Some(1)),
            evaluates_to(&expression, "35m", vision, None),
        ],
    );
}

#[test]
fn a_store_of_snapshots_that_cannot_be_used_raises_the_alert_whichever_control_leads() {
    let expression = alert_expression("BerthSnapshotStoreFailing");
    let of = |pod: &str, values: &str| {
        let labels = format!("namespace=\"berth-system\", pod=\"{pod}\"");
        json!({"series": format!("berth_control_snapshot_store_failing{{{labels}}}"), "values": values})
    };
    let namespace = "{namespace=\"berth-system\"}";
    evaluate(
        &[
            // One that does not lead checks nothing.
            of("a", "0x19 1x39 stale"),
            of("b", "0x59 1x19 0x40"),
        ],
        &[
            evaluates_to(&expression, "5m", namespace, None),
            evaluates_to(&expression, "11m", namespace, Some(1)),
            evaluates_to(&expression, "35m", namespace, Some(1)),
            evaluates_to(&expression, "45m", namespace, None),
        ],
    );
}

#[test]
fn a_restore_that_is_tried_again_and_again_raises_the_alert() {
    let expression = format!("({}) * 0 + 1", alert_expression("BerthRestoreFailing"));
    let reconciles = |kind: &str, result: &str, values: &str| {
        let labels = format!("namespace=\"berth-system\", pod=\"a\", kind=\"{kind}\", result=\"{result}\"");
        json!({"series": format!("berth_control_reconciles_total{{{labels}}}"), "values": values})
    };
    let raised_at = |time: &str, is_raised: bool| {
        evaluates_to(
            &expression,
            time,
            "{namespace=\"berth-system\"}",
            is_raised.then_some(1),
        )
    };
    evaluate(
        &[
            // Every five minutes, as a restore that fails for long, and no more after 20.
            reconciles("tenant", "Restoring", "1x9 2x9 3x9 4x9 5x60"),
            reconciles("tenant", "ok", "0+1x100"),
            reconciles("snapshots", "HostApiError", "0+1x100"),
        ],
        &[
            raised_at("4m", false),
            raised_at("6m", true),
            raised_at("25m", true),
            raised_at("37m", false),
        ],
    );
}
