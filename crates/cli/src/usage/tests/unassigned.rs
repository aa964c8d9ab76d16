//! What no tenant had.

use super::*;

/// The two tenants, and the two pools whose nodes they had.
fn records_with_pools() -> Vec<UsageRecord> {
    let of_pool = |name: &str, gpus: i64| {
        let lines = json!([
            {"resource": "GPU", "poolName": name, "gpuProduct": name.to_uppercase(), "daily": [gpus * 86_400, gpus * 86_400, gpus * 86_400]},
            {"resource": "Node", "poolName": name, "gpuProduct": name.to_uppercase(), "daily": [2 * 86_400, 2 * 86_400, 2 * 86_400]},
        ]);
        let mut record = record(name, "2026-11-03T12:05:00Z", true, &lines);
        record.spec.tenant.namespace = String::new();
        record
    };
    let mut all = records();
    all.extend([of_pool("h100", 16), of_pool("l40s", 8)]);
    all
}

fn unassigned(line: &str) -> Usage {
    unassigned_of(&records_with_pools(), line)
}

fn unassigned_of(records: &[UsageRecord], line: &str) -> Usage {
    let arguments = arguments(line);
    let request = Request {
        period: Period::new(
            arguments.month,
            arguments.from,
            arguments.to,
            day_of(at("2026-11-03T12:10:00Z")),
        )
        .unwrap(),
        group_by: arguments.unassigned_group_by().unwrap(),
        months_without_records: Vec::new(),
        without_costs: None,
    };
    Usage::of_unassigned(records, &read::read_prices(&[card()], None).unwrap(), request)
}

#[test]
fn what_no_tenant_had_is_shown_by_pool_for_whole_days() {
    // h100: 16 GPUs on two days, of which a tenant had 8 and then 4; nodes: 4 node-days less 1.5.
    let expected = "\
Without a tenant from 2026-11-01 to 2026-11-03 (UTC), recorded up to 2026-11-03T00:00:00Z

POOL   GPU-HOURS  NODE-HOURS  EUR
h100   480.0      60.0        1008.00
l40s   380.0      96.0        342.00
total  860.0      156.0       1350.00

Only days before 2026-11-03T00:00:00Z are in the report: on later ones, not everything that tenants used is recorded yet.";
    assert_eq!(describe(&unassigned("berth usage --unassigned")), expected);
    let table = write_csv(&unassigned("berth usage --unassigned --by pool,day")).unwrap();
    assert_eq!(table.lines().count(), 5, "{table}");
    assert!(table.starts_with("pool,day,gpu_hours,"), "{table}");
    let value = serde_json::to_value(unassigned("berth usage --unassigned --by resource")).unwrap();
    assert_eq!(value["unassigned"], true);
    assert_eq!(value["rows"][0]["group"]["resource"], "GPU");
}

#[test]
fn what_cannot_be_subtracted_is_said() {
    // As many lines as say of which pool they are, and one that does not.
    let of_pools =
        (0..506).map(|number| json!({"resource": "GPU", "poolName": format!("pool-{number}"), "daily": [1]}));
    let lines: Vec<Value> = of_pools.chain([json!({"resource": "GPU", "daily": [1]})]).collect();
    let mut records = records_with_pools();
    records[0] = record("vision", "2026-11-03T12:00:00Z", true, &json!(lines));
    let text = describe(&unassigned_of(&records, "berth usage --unassigned"));
    let expected = "A record has too many lines, of team-vision/vision: some of what was used is recorded without its pool, and looks here as if no \
                    tenant had it.";
    assert!(text.contains(expected), "{text}");
    assert!(!describe(&unassigned("berth usage --unassigned")).contains("too many lines"));
}

#[test]
fn what_no_tenant_had_has_no_tenant_and_no_class() {
    for by in [
        "tenant",
        "tenant,pool",
        "namespace",
        "project",
        "organization",
        "class",
        "mode",
    ] {
        let error = arguments(&format!("berth usage --unassigned --by {by}"))
            .unassigned_group_by()
            .unwrap_err();
        assert!(
            error.to_string().starts_with("nodes that no tenant had have no "),
            "{error}"
        );
        assert_eq!(error.exit_code(), 2, "{error}");
    }
}

#[test]
fn records_of_pools_are_no_usage_of_tenants() {
    let of_tenants = read::of_tenants(records_with_pools());
    assert_eq!(of_tenants, records());
    let line = "berth usage --by tenant,resource";
    let (with, without) = (
        usage_of(&records_with_pools(), &[card()], line, "2026-11-03T12:10:00Z"),
        usage_of(&records(), &[card()], line, "2026-11-03T12:10:00Z"),
    );
    assert_eq!(describe(&with), describe(&without));
}
