//! Tenants that wait for something else than quota that others have.

use super::{Fixture, ORGANIZATION, PROJECT, tenant_path};
use crate::{control_plane::Form, quota_ledger::Verdict, testing::ScriptedRuntime};
use serde_json::{Value, json};
use std::sync::Arc;

impl Fixture {
    /// Why a tenant waits, and with what it has.
    fn waits(&self, uid: &str) -> (&'static str, Option<u64>) {
        let verdicts = self.context.quotas.verdicts();
        match &verdicts[uid] {
            Verdict::Waiting { kept, reason, .. } => {
                let kept = kept.as_ref();
                (
                    *reason,
                    kept.and_then(|kept| kept.reserved.get("tenantclusters").copied()),
                )
            }
            other => panic!("{uid}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn without_its_organization_a_project_keeps_what_it_has() {
    let mut fixture = Fixture::new(9);
    fixture.add_tenant("runs", "team", 1, &json!({"controlPlaneNamespace": "berth-cp"}));
    fixture.reconcile().await;
    fixture.host.remove(ORGANIZATION);
    fixture.add_tenant("new", "team", 2, &Value::Null);
    fixture.reconcile().await;
    assert_eq!(fixture.reserved(), ["runs"]);
    assert_eq!(fixture.waits("new"), ("UnknownOrganization", None));
    let ready = fixture.condition(PROJECT, "Ready").unwrap();
    assert_eq!(
        (&ready["status"], &ready["reason"]),
        (&json!("False"), &json!("UnknownOrganization"))
    );
    let message = ready["message"].as_str().unwrap();
    assert!(message.contains("keep what they have and get no more"), "{message}");
    fixture.host.insert(
        ORGANIZATION,
        json!({"metadata": {"name": "lab", "uid": "o2", "generation": 1}, "spec": {}}),
    );
    fixture.reconcile().await;
    assert_eq!(fixture.reserved(), ["new", "runs"]);
}

#[tokio::test]
async fn a_load_balancer_of_an_api_server_needs_quota() {
    let mut fixture = Fixture::new(9);
    // Load balancers need pods.
    let mut runtime = ScriptedRuntime::new(&fixture.script);
    runtime.form = Form::Pods { replicas: 1 };
    fixture.context.runtime = Arc::new(runtime);
    let class = json!({"limits": {"loadBalancers": 0}});
    fixture.host.insert(
        "/apis/berth.dev/v1alpha1/tenantclasses/gold",
        json!({"metadata": {"name": "gold", "uid": "g", "generation": 1}, "spec": class}),
    );
    fixture.set_project(&json!({
        "namespaces": ["team"],
        "quotas": [{"resource": "services.loadbalancers", "nominalQuota": 0, "borrowingLimit": 0}],
    }));
    for (name, second, kind) in [("a", 1, "ClusterIP"), ("b", 2, "LoadBalancer")] {
        fixture.add_tenant(name, "team", second, &Value::Null);
        fixture.change(&tenant_path(name, "team"), |cluster| {
            cluster["spec"]["className"] = "gold".into();
            cluster["spec"]["controlPlane"] = json!({"replicas": 1, "service": {"type": kind}});
        });
    }
    fixture.reconcile().await;
    assert_eq!(fixture.reserved(), ["a"]);
    assert_eq!(fixture.waits("b"), ("QuotaExceeded", None));
    // A tenant that runs waits with what it has.
    fixture.change(&tenant_path("a", "team"), |cluster| {
        cluster["spec"]["controlPlane"]["service"]["type"] = "LoadBalancer".into();
        cluster["metadata"]["generation"] = 2.into();
    });
    fixture.reconcile().await;
    assert_eq!(fixture.waits("a"), ("QuotaExceeded", Some(1)));
}
