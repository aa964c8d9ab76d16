//! What tenants use of what they have reserved.

use super::{Fixture, ORGANIZATION, PROJECT};
use crate::{
    controllers::quotas::Pace,
    metrics::Metrics,
    quota_ledger::{MeasuredUse, TenantUse},
};
use berth_api::TreeResource;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use std::sync::Arc;

/// Tenants of the Project use so many pods, by UID.
fn pods(tenants: &[(&str, u64)]) -> MeasuredUse {
    let measured = tenants.iter().map(|(uid, pods)| {
        let used = TenantUse {
            amounts: [(TreeResource::Pods, *pods), (TreeResource::TenantClusters, 1)].into(),
            ..TenantUse::default()
        };
        ((*uid).to_owned(), used)
    });
    measured.collect()
}

#[tokio::test]
async fn what_tenants_use_is_shown_beside_what_is_reserved() {
    let mut fixture = Fixture::new(9);
    for (path, spec) in [
        (PROJECT, json!({"organizationName": "lab", "namespaces": ["team"]})),
        (
            ORGANIZATION,
            json!({"quotas": [{"resource": "pods", "nominalQuota": 100_000}]}),
        ),
    ] {
        fixture.change(path, |level| level["spec"] = spec);
    }
    for (name, second) in [("a", 1), ("b", 2)] {
        fixture.add_tenant(name, "team", second, &Value::Null);
    }
    fixture.reconcile().await;
    let reserved = 2 * u64::from(berth_api::TenantLimits::default().pods);
    let amounts = |fixture: &Fixture, path: &str| {
        let quota = fixture.status(path)["quotas"][0].clone();
        (quota["reserved"].clone(), quota["used"].clone())
    };
    for path in [PROJECT, ORGANIZATION] {
        assert_eq!(
            amounts(&fixture, path),
            (json!(reserved), Value::Null),
            "it is not measured yet"
        );
    }
    let decisions = fixture.context.pace.decisions();
    assert!(fixture.context.quotas.set_measured(pods(&[("a", 3), ("b", 4)])));
    fixture.reconcile().await;
    for path in [PROJECT, ORGANIZATION] {
        assert_eq!(amounts(&fixture, path), (json!(reserved), json!(7)), "{path}");
    }
    // The same measurement is no reason to decide or to write.
    let calls = fixture.script.calls().len();
    fixture.reconcile().await;
    assert!(!fixture.context.quotas.set_measured(pods(&[("a", 3), ("b", 4)])));
    fixture.reconcile().await;
    assert_eq!(fixture.script.calls().len(), calls);
    assert!(fixture.context.pace.decisions() > decisions);
    // The next process does not know yet what is used. The status says what it said.
    fixture.context.quotas = Arc::default();
    fixture.context.pace = Pace::default();
    fixture.reconcile().await;
    for path in [PROJECT, ORGANIZATION] {
        assert_eq!(amounts(&fixture, path).1, json!(7), "{path}");
    }
}

#[tokio::test]
async fn metrics_have_all_levels_and_tenants() {
    let mut fixture = Fixture::new(9);
    let mut registry = Registry::default();
    fixture.context.metrics = Metrics::new(&mut registry);
    fixture.add_tenant("a", "team", 1, &Value::Null);
    fixture.context.quotas.set_measured(pods(&[("a", 3)]));
    fixture.reconcile().await;
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for line in [
        r#"quota_reserved{level="root",name="",resource="tenantclusters",pool="",product=""} 1"#,
        r#"quota_used{level="root",name="",resource="tenantclusters",pool="",product=""} 1"#,
        r#"quota_nominal{level="root",name="",resource="tenantclusters",pool="",product=""} 9"#,
        r#"quota_used{level="project",name="vision",resource="tenantclusters",pool="",product=""} 1"#,
        r#"quota_borrowed{level="project",name="vision",resource="tenantclusters",pool="",product=""} 0"#,
        r#"tenant_quota_reserved{tenant_namespace="team",tenant="a",resource="tenantclusters",pool=""} 1"#,
        r#"tenant_quota_used{tenant_namespace="team",tenant="a",resource="tenantclusters",pool=""} 1"#,
    ] {
        assert!(text.contains(&format!("berth_control_{line}")), "{line}: {text}");
    }
    assert!(!text.contains(r#"resource="pods""#), "no level limits pods");
}
