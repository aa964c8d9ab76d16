//! Which tenants get quota, and how long they keep it.

use super::{Fixture, ORGANIZATION, PROJECT, reconcile, tenant_path};
use crate::{metrics::QuotaLabels, quota_ledger::Verdict};
use berth_api::TreeResource;
use serde_json::{Value, json};

#[tokio::test]
async fn of_many_tenants_at_once_the_oldest_get_the_quota() {
    let mut fixture = Fixture::new(10);
    for number in 0..50_u32 {
        fixture.add_tenant(&format!("t{number:02}"), "team", 59 - number, &Value::Null);
    }
    fixture.add_tenant("other", "elsewhere", 0, &Value::Null);
    fixture.reconcile().await;
    let oldest: Vec<String> = (40..50).map(|number| format!("t{number}")).collect();
    assert_eq!(fixture.reserved(), oldest);
    assert_eq!(fixture.context.quotas.verdicts()["other"], Verdict::NoProject);
    let status = fixture.status(PROJECT);
    assert_eq!(
        (
            &status["tenants"],
            &status["waitingTenants"],
            &status["quotas"][0]["reserved"]
        ),
        (&json!(50), &json!(40), &json!(10))
    );
    assert_eq!(fixture.status(ORGANIZATION)["tenants"], 50);
    let calls = fixture.script.calls().len();
    fixture.reconcile().await;
    assert_eq!(fixture.script.calls().len(), calls, "nothing changed");
}

#[tokio::test]
async fn a_decision_counts_before_the_watches_show_it() {
    let mut fixture = Fixture::new(1);
    fixture.add_tenant("young", "team", 9, &Value::Null);
    fixture.reconcile().await;
    assert_eq!(fixture.reserved(), ["young"]);
    // The status of the first is not written yet when an older one appears.
    fixture.add_tenant("old", "team", 1, &Value::Null);
    fixture.reconcile().await;
    assert_eq!(fixture.reserved(), ["young"]);
}

#[tokio::test]
async fn metrics_of_quotas_are_never_removed_while_they_have_a_value() {
    let mut fixture = Fixture::new(10);
    fixture.add_tenant("a", "team", 1, &Value::Null);
    fixture.reconcile().await;
    let metrics = fixture.context.metrics.clone();
    let labels = QuotaLabels {
        level: "project",
        name: "vision".into(),
        resource: "tenantclusters".into(),
        pool: String::new(),
        product: String::new(),
    };
    let reserved = metrics.quota_reserved.family.get(&labels).unwrap().clone();
    assert_eq!(reserved.get(), 1);
    assert!(
        metrics.quota_used.family.get(&labels).is_none(),
        "it is not measured yet"
    );
    fixture.add_tenant("b", "team", 2, &Value::Null);
    fixture.reconcile().await;
    assert_eq!(reserved.get(), 2, "a scrape finds the same gauge all the time");
    for path in [PROJECT, ORGANIZATION] {
        fixture.host.remove(path);
    }
    fixture.reconcile().await;
    assert!(metrics.quota_reserved.family.get(&labels).is_none());
}

#[tokio::test]
async fn a_new_process_reads_reservations_from_the_status() {
    let mut fixture = Fixture::new(1);
    fixture.add_tenant("old", "team", 1, &Value::Null);
    let quota = json!({"quota": {"projectName": "vision", "reserved": {"tenantclusters": 1}}});
    fixture.add_tenant("young", "team", 9, &quota);
    fixture.reconcile().await;
    assert_eq!(fixture.reserved(), ["young"]);
    let verdicts = fixture.context.quotas.verdicts();
    let Verdict::Waiting { kept: None, reason, .. } = &verdicts["old"] else {
        panic!("{verdicts:?}")
    };
    assert_eq!(*reason, "QuotaExceeded");
}

#[tokio::test]
async fn tenants_that_run_count_when_their_namespace_comes_to_a_project() {
    let mut fixture = Fixture::new(1);
    let runs = json!({"controlPlaneNamespace": "berth-cp-a"});
    fixture.add_tenant("a", "team", 1, &runs);
    fixture.add_tenant("b", "team", 2, &runs);
    fixture.add_tenant("new", "team", 0, &Value::Null);
    fixture.reconcile().await;
    assert_eq!(fixture.reserved(), ["a", "b"]);
    let status = fixture.status(PROJECT);
    assert_eq!(status["quotas"][0]["reserved"], 2);
    assert_eq!(status["quotas"][0]["borrowed"], 1);
    let conditions = status["conditions"].as_array().unwrap();
    let within = conditions
        .iter()
        .find(|condition| condition["type"] == "WithinQuota")
        .unwrap();
    assert_eq!(within["reason"], "OverQuota");
    let message = within["message"].as_str().unwrap();
    assert!(message.contains("tenantclusters (team/b)"), "{message}");
    let allowed = fixture.context.quotas.verdicts()["b"].over();
    assert_eq!(allowed, [(TreeResource::TenantClusters, 0)].into());
}

#[tokio::test]
async fn finalizers_that_a_user_sets_do_not_make_a_tenant_run() {
    let mut fixture = Fixture::new(0);
    fixture.add_tenant("a", "team", 1, &Value::Null);
    let path = tenant_path("a", "team");
    fixture.change(&path, |cluster| {
        cluster["metadata"]["finalizers"] = json!([berth_api::labels::FINALIZER]);
    });
    fixture.reconcile().await;
    assert!(fixture.reserved().is_empty());
}

#[tokio::test]
async fn a_deleted_tenant_keeps_its_reservation_until_it_is_gone() {
    let mut fixture = Fixture::new(1);
    fixture.add_tenant("a", "team", 1, &Value::Null);
    fixture.reconcile().await;
    fixture.add_tenant("b", "team", 2, &Value::Null);
    let path = tenant_path("a", "team");
    fixture.change(&path, |cluster| {
        cluster["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:00Z".into();
    });
    fixture.reconcile().await;
    assert_eq!(fixture.reserved(), ["a"]);
    fixture.host.remove(&path);
    fixture.reconcile().await;
    assert_eq!(fixture.reserved(), ["b"]);
}

#[tokio::test]
async fn quotas_are_decided_only_after_a_change() {
    let mut fixture = Fixture::new(10);
    for number in 0..10_u32 {
        fixture.add_tenant(&format!("t{number}"), "team", number, &Value::Null);
    }
    // The status and the finalizer that control writes are changes, too.
    for _ in 0..3 {
        fixture.reconcile().await;
    }
    let (decisions, calls) = (fixture.context.pace.decisions(), fixture.script.calls().len());
    let pools = fixture.context.stores.pools_with_nodes.computed();
    for _ in 0..100 {
        reconcile(&fixture.context).await.unwrap();
    }
    assert_eq!(fixture.context.pace.decisions(), decisions);
    assert_eq!(fixture.script.calls().len(), calls);
    assert_eq!(fixture.context.stores.pools_with_nodes.computed(), pools);
    // What a tenant uses is a reason.
    fixture
        .context
        .quotas
        .report_at_most("t1", [(TreeResource::Pods, 1)].into());
    reconcile(&fixture.context).await.unwrap();
    assert_eq!(fixture.context.pace.decisions(), decisions + 1);
    assert_eq!(fixture.context.stores.pools_with_nodes.computed(), pools);
}
