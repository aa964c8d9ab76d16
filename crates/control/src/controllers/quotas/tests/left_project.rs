//! Tenants whose namespace no Project names any more.

use super::{Fixture, PROJECT, tenant_path};
use crate::{
    controllers::quotas::Pace,
    quota_ledger::{LEFT_PROJECT, Verdict},
};
use berth_api::{TenantCluster, conditions::QUOTA_RESERVED};
use kube::runtime::reflector::ObjectRef;
use serde_json::{Value, json};
use std::sync::Arc;

impl Fixture {
    /// What the reconcile of a tenant of the namespace `team` gets.
    fn verdict(&self, name: &str) -> Option<Verdict> {
        let stores = &self.context.stores;
        let cluster = stores
            .tenants
            .get(&ObjectRef::<TenantCluster>::new(name).within("team"))?;
        self.context.quotas.verdict(stores, &cluster, self.context.clock.now())
    }

    fn set_condition(&self, name: &str, (status, reason, since): (&str, &str, &str)) {
        self.change(&tenant_path(name, "team"), |cluster| {
            cluster["status"]["conditions"] = json!([{
                "type": QUOTA_RESERVED, "status": status, "reason": reason, "message": "", "lastTransitionTime": since,
            }]);
        });
    }
}

fn waits_until_named(verdict: Option<&Verdict>) -> bool {
    matches!(
        verdict,
        Some(Verdict::Waiting {
            kept: None,
            reason: LEFT_PROJECT,
            ..
        })
    )
}

const LONG_AGO: &str = "2025-01-01T00:00:00Z";

#[tokio::test]
async fn a_namespace_between_two_projects_lets_no_tenant_through() {
    let mut fixture = Fixture::new(1);
    fixture.add_tenant("runs", "team", 1, &json!({"controlPlaneNamespace": "berth-cp"}));
    fixture.add_tenant("waits", "team", 2, &Value::Null);
    fixture.reconcile().await;
    fixture.change(PROJECT, |project| project["spec"]["namespaces"] = json!([]));
    fixture.add_tenant("new", "team", 3, &Value::Null);
    fixture.reconcile().await;
    assert_eq!(fixture.verdict("runs"), Some(Verdict::NoProject));
    assert!(waits_until_named(fixture.verdict("waits").as_ref()));
    assert_eq!(
        fixture.verdict("new"),
        Some(Verdict::NoProject),
        "it never had a Project"
    );
    // The next control knows it from the condition.
    fixture.set_condition("waits", ("False", "QuotaExceeded", LONG_AGO));
    fixture.context.quotas = Arc::default();
    fixture.context.pace = Pace::default();
    fixture.reconcile().await;
    assert!(waits_until_named(fixture.verdict("waits").as_ref()));
    // Another Project names it: the tenant that runs counts there.
    let other = json!({
        "metadata": {"name": "other", "uid": "other", "generation": 1},
        "spec": {"namespaces": ["team"], "quotas": [{"resource": "tenantclusters", "nominalQuota": 1, "borrowingLimit": 0}]},
    });
    fixture.host.insert("/apis/berth.dev/v1alpha1/projects/other", other);
    fixture.host.remove(&tenant_path("new", "team"));
    fixture.reconcile().await;
    assert_eq!(fixture.reserved(), ["runs"]);
}

#[tokio::test]
async fn without_any_project_tenants_that_waited_wait_ten_minutes() {
    let mut fixture = Fixture::new(0);
    fixture.add_tenant("a", "team", 1, &Value::Null);
    fixture.add_tenant("b", "team", 2, &Value::Null);
    fixture.reconcile().await;
    assert!(fixture.reserved().is_empty());
    fixture.set_condition("a", ("False", "QuotaExceeded", LONG_AGO));
    fixture.host.remove(PROJECT);
    fixture.reconcile().await;
    for name in ["a", "b"] {
        assert!(waits_until_named(fixture.verdict(name).as_ref()), "{name}");
    }
    // Nothing is decided yet by the next control. It knows what the status says.
    fixture.context.quotas = Arc::default();
    assert!(waits_until_named(fixture.verdict("a").as_ref()));
    fixture.set_condition("a", ("Unknown", LEFT_PROJECT, LONG_AGO));
    fixture.reconcile().await;
    assert_eq!(fixture.verdict("a"), Some(Verdict::NoProject));
}
