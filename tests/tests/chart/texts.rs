//! Texts of the chart: its README lists every value, alerts and dashboards use only metrics that exist.

use berth_control::{
    metrics::{
        ActionLabels, EncryptionLabels, Metrics, PoolLabels, ReconcileLabels, TenantLabels, UnrequestedGpuLabels,
    },
    syncer_report::SyncerReport,
};
use berth_tests::helm::chart;
use prometheus_client::{encoding::text::encode, registry::Registry};
use serde_json::Value;
use std::collections::BTreeSet;

fn read(path: &str) -> String {
    std::fs::read_to_string(chart().join(path)).unwrap()
}

/// Paths of values; a map without entries and a list are values of their own.
fn leaves(path: &str, value: &Value, found: &mut BTreeSet<String>) {
    // Whole structures of Kubernetes' own are one value.
    let is_whole = path.ends_with(".resources") || path.ends_with("dashboards.labels");
    match value.as_object().filter(|map| !map.is_empty() && !is_whole) {
        None => {
            found.insert(path.into());
        }
        Some(map) => {
            for (key, value) in map {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                leaves(&path, value, found);
            }
        }
    }
}

#[test]
fn every_value_is_in_the_readme_and_nothing_else() {
    let values: Value = serde_saphyr::from_str(&read("values.yaml")).unwrap();
    let mut expected = BTreeSet::new();
    leaves("", &values, &mut expected);
    let readme = read("README.md");
    let rows = readme.lines().filter(|line| line.starts_with("| `"));
    let first = rows.map(|row| row.trim_start_matches("| ").split(" | ").next().unwrap());
    let described: BTreeSet<String> = first
        .flat_map(|cell| {
            cell.split('`')
                .skip(1)
                .step_by(2)
                .map(ToOwned::to_owned)
                .collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(described, expected);
}

#[test]
fn notes_warn_of_values_that_take_protection_away() {
    let notes = read("templates/NOTES.txt");
    for value in [
        "admissionPolicies.enabled is false",
        "admissionPolicies.requireUse is false",
        "networkPolicies.enabled is false",
        "tenants.withoutClass is BuiltInDefaults",
        "gpuMetrics.allowInsecureToken is true",
        "snapshots.allowHTTP is true",
    ] {
        assert!(notes.contains(&format!("WARNING: {value}. ")), "{value}");
    }
}

#[test]
fn every_value_has_the_same_description_in_the_schema_and_in_values_yaml() {
    let values: Value = serde_saphyr::from_str(&read("values.yaml")).unwrap();
    let schema: Value = serde_json::from_str(&read("values.schema.json")).unwrap();
    // Comments are wrapped.
    let text = read("values.yaml");
    let comments = text.lines().map(|line| line.trim().trim_start_matches("# "));
    let comments = comments.collect::<Vec<_>>().join(" ");
    let mut paths = BTreeSet::new();
    leaves("", &values, &mut paths);
    for path in paths {
        let pointer = format!("/properties/{}/description", path.replace('.', "/properties/"));
        let description = schema.pointer(&pointer).and_then(Value::as_str);
        let description = description.unwrap_or_else(|| panic!("{path} has no description in the schema"));
        assert!(
            comments.contains(description),
            "{path}: values.yaml does not say {description:?}"
        );
    }
}

/// Words of a text that look like metrics of Berth.
fn metrics(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words
        .filter(|word| word.starts_with("berth_control_") || word.starts_with("berth_syncer_"))
        .map(ToOwned::to_owned)
        .collect()
}

#[test]
fn alerts_and_dashboards_use_metrics_that_exist() {
    let mut registry = Registry::default();
    let metrics_of_control = Metrics::new(&mut registry);
    // Families without members are not encoded.
    let labels = ReconcileLabels {
        kind: "tenant",
        result: "ok",
    };
    metrics_of_control.reconciles.get_or_create(&labels).inc();
    let labels = ActionLabels { action: "assign" };
    metrics_of_control.node_actions.get_or_create(&labels).inc();
    let labels = TenantLabels {
        tenant_namespace: "team".into(),
        tenant: "vision".into(),
    };
    metrics_of_control.datastore_used.get_or_create(&labels).set(1);
    metrics_of_control.host_used.get_or_create(&labels).set(1);
    metrics_of_control.audit_errors.get_or_create(&labels).inc();
    let not_encrypted = EncryptionLabels {
        tenant_namespace: "team".into(),
        tenant: "vision".into(),
        reason: "Rewriting".into(),
    };
    metrics_of_control
        .encryption
        .not_encrypted
        .set_all([(not_encrypted, 1)]);
    let report = SyncerReport {
        is_ready: true,
        ..SyncerReport::default()
    };
    metrics_of_control.syncers.record(&labels, Some(report));
    metrics_of_control.syncers.record_asleep(&labels, Some(true));
    metrics_of_control.snapshots.scheduled_overdue.set_all([(labels, 1)]);
    let pool = String::from("h100");
    let unrequested = UnrequestedGpuLabels {
        tenant_namespace: "team".into(),
        tenant: "vision".into(),
        pool: pool.clone(),
        node: "idle",
    };
    metrics_of_control.unrequested_gpus.set_all([(unrequested, 8)]);
    let pool = PoolLabels { pool };
    metrics_of_control.repair.not_ready_nodes.set_all([(pool.clone(), 1)]);
    metrics_of_control.repair.repair_allowed.set_all([(pool, 1)]);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let declared: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
    let exists = |metric: &str| {
        declared.iter().any(|line| {
            let (name, kind) = line.split_once(' ').unwrap();
            match kind {
                "counter" => metric == format!("{name}_total"),
                "histogram" => metric == format!("{name}_bucket") || metric == name,
                _ => metric == name,
            }
        })
    };
    let used = metrics(&(read("files/alerts.yaml") + &read("files/dashboard.json")));
    assert!(used.len() > 4, "{used:?}");
    for metric in used {
        assert!(exists(&metric), "there is no metric {metric}: {text}");
    }
}
