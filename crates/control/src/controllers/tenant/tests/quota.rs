//! Quota: what is reserved before a tenant is created, and what waits for it.

use super::{
    super::error::TenantError,
    fixture::{Fixture, TENANT, UID},
};
use crate::quota_ledger::{TenantUse, Verdict};
use berth_api::{ControlPlaneServiceType, QuotaReservation, TenantLimits, TreeResource};
use berth_quota::OverQuota;
use serde_json::json;

/// A Project exists, and this was decided about the tenant.
pub(super) fn decide(fixture: &Fixture, verdict: Verdict) {
    let project = json!({"metadata": {"name": "p", "uid": "p"}, "spec": {"namespaces": ["team"]}});
    fixture.host.insert("/apis/berth.dev/v1alpha1/projects/p", project);
    keep_verdict(fixture, verdict);
}

fn keep_verdict(fixture: &Fixture, verdict: Verdict) {
    let quotas = &fixture.context.quotas;
    quotas
        .replace([(UID.to_owned(), verdict)].into(), &quotas.basis())
        .unwrap();
}

/// What a tenant of the default class reserves.
pub(super) fn reservation() -> QuotaReservation {
    let limits = TenantLimits::default();
    let reserved = TreeResource::RESERVED.into_iter();
    QuotaReservation {
        project_name: "p".into(),
        reserved: reserved
            .filter_map(|resource| {
                Some((
                    resource.as_str().to_owned(),
                    resource.reserved_by(&limits, ControlPlaneServiceType::ClusterIp)?,
                ))
            })
            .collect(),
        ..QuotaReservation::default()
    }
}

pub(super) fn reserved(reservation: QuotaReservation) -> Verdict {
    Verdict::Reserved {
        reservation,
        over: OverQuota::new(),
    }
}

pub(super) fn waiting(kept: Option<QuotaReservation>) -> Verdict {
    Verdict::Waiting {
        kept,
        over: OverQuota::new(),
        reason: "QuotaExceeded",
        message: "no quota is left".into(),
    }
}

#[tokio::test]
async fn without_quota_nothing_is_created() {
    let mut fixture = Fixture::new();
    decide(&fixture, waiting(None));
    fixture.reconcile().await.unwrap();
    let condition = fixture.condition("QuotaReserved").unwrap();
    assert_eq!(
        (&condition["status"], &condition["reason"]),
        (&json!("False"), &json!("QuotaExceeded"))
    );
    assert_eq!(fixture.condition("Ready").unwrap()["reason"], "QuotaExceeded");
    assert_eq!(fixture.status()["phase"], "Pending");
    assert!(fixture.host.find("/api/v1/namespaces/").is_empty());
    let finalizers = fixture.host.get(TENANT).unwrap()["metadata"]["finalizers"].clone();
    assert!(finalizers.is_null(), "{finalizers}");
}

#[tokio::test]
async fn a_volume_that_is_larger_than_its_claim_lowers_the_limit_of_storage() {
    let mut fixture = Fixture::new();
    fixture.give_class(&json!({"limits": {"requestsStorage": "50Gi"}}));
    let claim = json!({
        "metadata": {"name": "data"}, "status": {"capacity": {"storage": "3Gi"}},
        "spec": {"storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}},
    });
    let claim = serde_json::from_value(claim).unwrap();
    let name = format!("{}/data", fixture.id.workload_namespace());
    fixture.context.stores.storage_claims.put_volume(&name, Some(&claim));
    fixture.reconcile_until_ready().await;
    let quotas = fixture.host.find("/resourcequotas/berth-limits");
    let hard = &quotas[0]["spec"]["hard"]["requests.storage"];
    assert_eq!(hard, &json!((48_u64 << 30).to_string()));
}

#[tokio::test]
async fn nothing_is_created_before_something_is_decided() {
    let mut fixture = Fixture::new();
    decide(&fixture, Verdict::NoProject);
    let quotas = &fixture.context.quotas;
    quotas.replace([].into(), &quotas.basis()).unwrap();
    fixture.reconcile().await.unwrap();
    assert!(fixture.host.find("/api/v1/namespaces/").is_empty());
}

const PROJECTS: &str = "/apis/berth.dev/v1alpha1/projects";

fn project(namespace: &str) -> serde_json::Value {
    json!({"metadata": {"name": "p", "uid": "p"}, "spec": {"namespaces": [namespace]}})
}

fn count_lists(fixture: &Fixture) -> usize {
    let calls = fixture.script.calls();
    let lists = calls.iter().filter(|call| call.text == format!("host GET {PROJECTS}"));
    lists.count()
}

#[tokio::test]
async fn a_project_that_the_watch_does_not_show_yet_counts() {
    for namespace in ["team", "*"] {
        let mut fixture = Fixture::new();
        fixture
            .reconcile_after_unseen(|host| host.insert(&format!("{PROJECTS}/p"), project(namespace)))
            .await
            .unwrap();
        assert!(fixture.host.find("/api/v1/namespaces/").is_empty());
        let finalizers = fixture.host.get(TENANT).unwrap()["metadata"]["finalizers"].clone();
        assert!(finalizers.is_null(), "{finalizers}");
        // The watch shows it, and quota is decided.
        decide(&fixture, waiting(None));
        fixture.reconcile().await.unwrap();
        assert_eq!(fixture.condition("QuotaReserved").unwrap()["reason"], "QuotaExceeded");
        assert!(fixture.host.find("/api/v1/namespaces/").is_empty());
    }
}

#[tokio::test]
async fn projects_are_listed_once_for_a_tenant_without_one() {
    let mut fixture = Fixture::new();
    fixture.host.insert(&format!("{PROJECTS}/p"), project("other"));
    keep_verdict(&fixture, Verdict::NoProject);
    assert!(fixture.reconcile_until_ready().await.is_empty());
    assert_eq!(count_lists(&fixture), 1);
    // A new process finds that it runs.
    fixture.context.tenants.forget(UID);
    fixture.reconcile().await.unwrap();
    assert_eq!(count_lists(&fixture), 1);
}

#[tokio::test]
async fn a_tenant_that_waited_waits_for_its_next_project() {
    let mut fixture = Fixture::new();
    decide(&fixture, waiting(None));
    fixture.reconcile().await.unwrap();
    // No Project names the namespace any more, and there is no other one.
    fixture.host.remove(&format!("{PROJECTS}/p"));
    for _ in 0..2 {
        fixture.reconcile().await.unwrap();
        let condition = fixture.condition("QuotaReserved").unwrap();
        assert_eq!(
            (&condition["status"], &condition["reason"]),
            (&json!("Unknown"), &json!("LeftProject"))
        );
        assert_eq!(fixture.condition("Ready").unwrap()["reason"], "LeftProject");
        assert_eq!(fixture.status()["phase"], "Pending");
        assert!(fixture.host.find("/api/v1/namespaces/").is_empty());
    }
    fixture.change_tenant(|cluster| {
        for condition in cluster["status"]["conditions"].as_array_mut().unwrap() {
            condition["lastTransitionTime"] = "2026-01-01T00:00:00Z".into();
        }
    });
    assert!(fixture.reconcile_until_ready().await.is_empty());
    let condition = fixture.condition("QuotaReserved").unwrap();
    assert_eq!(
        (&condition["status"], &condition["reason"]),
        (&json!("True"), &json!("NoProject"))
    );
}

#[tokio::test]
async fn a_tenant_of_a_project_needs_no_list() {
    let mut fixture = Fixture::new();
    decide(&fixture, reserved(reservation()));
    assert!(fixture.reconcile_until_ready().await.is_empty());
    assert_eq!(count_lists(&fixture), 0);
}

#[tokio::test]
async fn without_an_answer_about_projects_nothing_is_created() {
    let mut fixture = Fixture::new();
    fixture.script.fail_call(0);
    let error = fixture.reconcile().await.unwrap_err();
    assert!(matches!(error, TenantError::Quota(_)), "{error}");
    assert_eq!(fixture.script.failed().unwrap(), format!("host GET {PROJECTS}"));
    assert!(fixture.host.find("/api/v1/namespaces/").is_empty());
    assert!(fixture.reconcile_until_ready().await.is_empty());
}

#[tokio::test]
async fn a_reservation_is_in_the_status_before_anything_is_created() {
    let mut fixture = Fixture::new();
    decide(&fixture, reserved(reservation()));
    assert!(fixture.reconcile_until_ready().await.is_empty());
    let recorded = fixture
        .script
        .first("PATCH /apis/berth.dev/v1alpha1/namespaces/team/tenantclusters/vision/status");
    let created = fixture.script.first("PATCH /api/v1/namespaces/");
    assert!(recorded.unwrap() < created.unwrap());
    assert_eq!(fixture.status()["quota"]["reserved"]["tenantclusters"], 1);
    assert_eq!(fixture.condition("QuotaReserved").unwrap()["reason"], "Reserved");
}

#[tokio::test]
async fn a_class_that_allows_more_waits_for_quota_first() {
    let mut fixture = Fixture::new();
    let mut reservation = reservation();
    reservation.reserved.insert("pods".into(), 1);
    decide(&fixture, reserved(reservation));
    fixture.reconcile().await.unwrap();
    assert!(fixture.host.find("/api/v1/namespaces/").is_empty());
}

#[tokio::test]
async fn a_tenant_that_runs_is_ready_without_quota_for_more() {
    let mut fixture = Fixture::new();
    decide(&fixture, reserved(reservation()));
    assert!(fixture.reconcile_until_ready().await.is_empty());
    decide(&fixture, waiting(Some(reservation())));
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.condition("QuotaReserved").unwrap()["status"], "False");
    assert_eq!(fixture.condition("Ready").unwrap()["status"], "True");
    assert_eq!(fixture.status()["phase"], "Ready");
    assert_eq!(fixture.status()["quota"]["reserved"]["tenantclusters"], 1);
}

#[tokio::test]
async fn a_reservation_is_not_written_over_a_newer_object() {
    let mut fixture = Fixture::new();
    decide(&fixture, reserved(reservation()));
    let queued = fixture.context.queue.len();
    fixture
        .reconcile_after_unseen(|host| {
            let mut cluster = host.get(TENANT).unwrap();
            cluster["status"]["quota"] = json!({"projectName": "other", "reserved": {"tenantclusters": 1}});
            host.insert(TENANT, cluster);
        })
        .await
        .unwrap();
    assert_eq!(fixture.status()["quota"]["projectName"], "other");
    assert!(fixture.host.find("/api/v1/namespaces/").is_empty());
    assert!(fixture.context.queue.len() > queued, "quotas are decided again");
    assert!(fixture.reconcile_until_ready().await.is_empty());
    assert_eq!(fixture.status()["quota"]["projectName"], "p");
}

#[tokio::test]
async fn what_exists_above_the_limits_is_reported_after_they_are_enforced() {
    let mut fixture = Fixture::new();
    decide(&fixture, reserved(reservation()));
    assert!(fixture.reconcile_until_ready().await.is_empty());
    let at_most = |fixture: &Fixture| fixture.context.quotas.basis().at_most(UID);
    assert!(at_most(&fixture).is_empty(), "nothing is reserved above the limits");
    let mut above = reservation();
    let limit = above.reserved["pods"];
    above.reserved.insert("pods".into(), limit + 8);
    above.above_limits.insert("pods".into(), 8);
    decide(&fixture, reserved(above));
    fixture.reconcile().await.unwrap();
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.condition("QuotaReserved").unwrap()["reason"], "AboveLimits");
    assert_eq!(fixture.status()["quota"]["aboveLimits"]["pods"], 8);
    assert_eq!(
        at_most(&fixture).get(&TreeResource::Pods),
        None,
        "the host has not counted"
    );
    let path = format!(
        "/api/v1/namespaces/{}/resourcequotas/berth-limits",
        fixture.id.workload_namespace()
    );
    let mut quota = fixture.host.get(&path).unwrap();
    quota["status"] = json!({"hard": quota["spec"]["hard"], "used": {"count/pods": (limit + 3).to_string()}});
    fixture.host.insert(&path, quota);
    let pause = fixture.reconcile().await.unwrap();
    assert_eq!(at_most(&fixture)[&TreeResource::Pods], limit + 3);
    assert!(pause.unwrap() <= super::super::reported_use::PAUSE);
}

pub(super) fn hard(fixture: &Fixture, resource: &str) -> serde_json::Value {
    let path = format!(
        "/api/v1/namespaces/{}/resourcequotas/berth-limits",
        fixture.id.workload_namespace()
    );
    fixture.host.get(&path).unwrap()["spec"]["hard"][resource].clone()
}

#[tokio::test]
async fn a_lowered_quota_stops_growth_at_once_and_takes_nothing_away() {
    let mut fixture = Fixture::new();
    decide(&fixture, reserved(reservation()));
    assert!(fixture.reconcile_until_ready().await.is_empty());
    let limit = hard(&fixture, "count/pods");
    let uses = |fixture: &Fixture, pods: u64| {
        let used = TenantUse {
            amounts: [(TreeResource::Pods, pods)].into(),
            ..TenantUse::default()
        };
        fixture.context.quotas.set_measured([(UID.to_owned(), used)].into());
    };
    uses(&fixture, 9);
    let over = OverQuota::from([(TreeResource::Pods, 4), (TreeResource::TenantClusters, 0)]);
    let lowered = Verdict::Reserved {
        reservation: reservation(),
        over: over.clone(),
    };
    decide(&fixture, lowered.clone());
    fixture.reconcile().await.unwrap();
    assert_eq!(hard(&fixture, "count/pods"), "9");
    let condition = fixture.condition("QuotaReserved").unwrap();
    assert_eq!(
        (&condition["status"], &condition["reason"]),
        (&json!("True"), &json!("OverQuota"))
    );
    assert_eq!(fixture.status()["usage"]["resources"]["pods"], 9);
    // What is deleted does not come back, down to what the quota allows.
    for (used, ceiling) in [(6, "6"), (1, "4")] {
        uses(&fixture, used);
        fixture.reconcile().await.unwrap();
        assert_eq!(hard(&fixture, "count/pods"), ceiling);
    }
    // Neither a class that allows more, nor a spec that is not accepted, nor a new process raises it again.
    let mut more = waiting(Some(reservation()));
    if let Verdict::Waiting { over: of_waiting, .. } = &mut more {
        of_waiting.clone_from(&over);
    }
    decide(&fixture, more);
    fixture.reconcile().await.unwrap();
    assert_eq!(hard(&fixture, "count/pods"), "4");
    decide(&fixture, lowered);
    fixture.change_tenant(|cluster| cluster["spec"]["version"] = "v1.99.0".into());
    fixture.reconcile().await.unwrap();
    assert_eq!(hard(&fixture, "count/pods"), "4");
    let quotas = &fixture.context.quotas;
    quotas.replace([].into(), &quotas.basis()).unwrap();
    fixture.context.tenants.forget(UID);
    fixture.reconcile().await.unwrap();
    assert_eq!(hard(&fixture, "count/pods"), "4");
    // The quota is raised.
    decide(&fixture, reserved(reservation()));
    fixture.reconcile().await.unwrap();
    assert_eq!(hard(&fixture, "count/pods"), limit);
}

#[tokio::test]
async fn what_the_class_does_not_limit_is_counted_by_the_host_and_does_not_grow() {
    const CPU: &str = "requests.cpu";
    let mut fixture = Fixture::new();
    decide(&fixture, reserved(reservation()));
    assert!(fixture.reconcile_until_ready().await.is_empty());
    assert_eq!(hard(&fixture, CPU), json!(null), "no quota limits it");
    let limits_cpu = |fixture: &Fixture| {
        let ranges = fixture.host.find("/limitranges/berth-limits");
        !ranges[0]["spec"]["limits"][0]["defaultRequest"]["cpu"].is_null()
    };
    assert!(!limits_cpu(&fixture));
    // A quota limits it now. The host has not counted it.
    let mut kept = reservation();
    kept.uncounted = vec![CPU.into()];
    decide(&fixture, waiting(Some(kept.clone())));
    // In the reconcile that records it already.
    for _ in 0..2 {
        fixture.reconcile().await.unwrap();
        assert_eq!(hard(&fixture, CPU), "0");
        assert!(limits_cpu(&fixture), "pods without requests are created");
    }
    assert_eq!(fixture.status()["quota"]["uncounted"], json!([CPU]));
    // Then it has.
    kept.uncounted.clear();
    kept.reserved.insert(CPU.into(), 7);
    decide(&fixture, waiting(Some(kept)));
    for limit in ["0", "7"] {
        fixture.reconcile().await.unwrap();
        assert_eq!(hard(&fixture, CPU), limit, "it is recorded first");
    }
    assert_eq!(fixture.status()["quota"]["reserved"][CPU], 7);
    assert!(fixture.status()["quota"]["uncounted"].is_null());
    assert_eq!(fixture.condition("Ready").unwrap()["status"], "True");
    // It goes with the quota.
    decide(&fixture, reserved(reservation()));
    for _ in 0..2 {
        fixture.reconcile().await.unwrap();
    }
    assert!(fixture.status()["quota"]["reserved"][CPU].is_null());
}

#[tokio::test]
async fn the_status_follows_use_at_intervals() {
    let mut fixture = Fixture::new();
    decide(&fixture, reserved(reservation()));
    assert!(fixture.reconcile_until_ready().await.is_empty());
    assert!(fixture.status()["usage"].is_null());
    let mut shown = Vec::new();
    for pods in 1..=7_u64 {
        let used = TenantUse {
            amounts: [(TreeResource::Pods, pods)].into(),
            ..TenantUse::default()
        };
        fixture.context.quotas.set_measured([(UID.to_owned(), used)].into());
        fixture.reconcile().await.unwrap();
        shown.push(fixture.status()["usage"]["resources"]["pods"].clone());
    }
    assert_eq!(shown, [1, 1, 1, 1, 1, 6, 6].map(|pods| json!(pods)));
}

#[tokio::test]
async fn reconciles_do_not_count_the_nodes_of_pools_again() {
    let mut fixture = Fixture::new();
    assert!(fixture.reconcile_until_ready().await.is_empty());
    let computed = || fixture.context.stores.pools_with_nodes.computed();
    let before = computed();
    for _ in 0..10 {
        fixture.reconcile_without_change().await.unwrap();
    }
    assert!(computed() - before <= 1, "{before} {}", computed());
}
