//! What tenants reserve of quotas: the limits of their classes.

use super::{Fixture, ORGANIZATION, PROJECT, tenant_path};
use crate::quota_ledger::{TenantUse, Verdict};
use berth_api::{ControlPlaneServiceType, TenantLimits, TreeResource};
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[tokio::test]
async fn a_tenant_that_runs_counts_with_the_limits_of_its_class_whatever_its_spec() {
    let mut fixture = Fixture::new(9);
    fixture.set_project(&json!({
        "namespaces": ["team"], "quotas": [{"resource": "pods", "nominalQuota": 10}],
    }));
    let class = json!({"metadata": {"name": "gold", "uid": "g", "generation": 1}, "spec": {"limits": {"pods": 7}}});
    fixture
        .host
        .insert("/apis/berth.dev/v1alpha1/tenantclasses/gold", class);
    let status = json!({"controlPlaneNamespace": "berth-cp-a", "className": "gold"});
    fixture.add_tenant("a", "team", 1, &status);
    let path = tenant_path("a", "team");
    fixture.change(&path, |cluster| {
        cluster["spec"]["className"] = "gold".into();
        cluster["spec"]["version"] = "v1.99.0".into();
    });
    fixture.reconcile().await;
    assert_eq!(fixture.status(PROJECT)["quotas"][0]["reserved"], 7);
}

/// It had a larger class before its namespace came to the Project.
#[tokio::test]
async fn a_tenant_that_comes_to_a_project_counts_with_what_exists_beyond_its_limits() {
    let mut fixture = Fixture::new(9);
    fixture.set_project(&json!({
        "namespaces": ["other"], "quotas": [{"resource": "pods", "nominalQuota": 100}],
    }));
    let class = json!({"metadata": {"name": "gold", "uid": "g", "generation": 1}, "spec": {"limits": {"pods": 7}}});
    fixture
        .host
        .insert("/apis/berth.dev/v1alpha1/tenantclasses/gold", class);
    for (name, second) in [("large", 1), ("small", 2)] {
        let status = json!({"controlPlaneNamespace": "berth-cp", "className": "gold"});
        fixture.add_tenant(name, "team", second, &status);
        fixture.change(&tenant_path(name, "team"), |cluster| {
            cluster["spec"]["className"] = "gold".into();
        });
    }
    let uses = |pods: u64| TenantUse {
        amounts: [(TreeResource::Pods, pods)].into(),
        has_no_project: true,
        ..TenantUse::default()
    };
    let measured = [("large".to_owned(), uses(50)), ("small".to_owned(), uses(3))];
    fixture.context.quotas.set_measured(measured.into());
    fixture.reconcile().await;
    assert!(fixture.reserved().is_empty(), "no quota applies");
    fixture.set_project(&json!({
        "namespaces": ["team"], "quotas": [{"resource": "pods", "nominalQuota": 100}],
    }));
    fixture.reconcile().await;
    let verdicts = fixture.context.quotas.verdicts();
    let of_pods = |uid: &str| {
        let reservation = verdicts[uid].reservation().unwrap();
        let amount = |amounts: &BTreeMap<String, u64>| amounts.get("pods").copied();
        (amount(&reservation.reserved), amount(&reservation.above_limits))
    };
    assert_eq!(of_pods("large"), (Some(50), Some(43)));
    assert_eq!(of_pods("small"), (Some(7), None));
    assert_eq!(fixture.status(PROJECT)["quotas"][0]["reserved"], 57);
}

#[tokio::test]
async fn resources_by_name_are_reserved_and_a_class_without_the_limit_waits() {
    let mut fixture = Fixture::new(9);
    fixture.set_project(&json!({
        "namespaces": ["team"], "quotas": [{"resource": "requests.memory", "nominalQuota": "10Gi"}],
    }));
    let limits = json!({"resources": [
        {"resource": "requests.memory", "quantity": "7Gi"}, {"resource": "requests.cpu", "quantity": 8},
    ]});
    let class = json!({"metadata": {"name": "gold", "uid": "g", "generation": 1}, "spec": {"limits": limits}});
    fixture
        .host
        .insert("/apis/berth.dev/v1alpha1/tenantclasses/gold", class);
    for (name, second, class) in [("a", 1, Some("gold")), ("b", 2, Some("gold")), ("c", 3, None)] {
        fixture.add_tenant(name, "team", second, &Value::Null);
        let path = tenant_path(name, "team");
        fixture.change(&path, |cluster| {
            cluster["spec"]["className"] = class.into();
        });
    }
    fixture.reconcile().await;
    assert_eq!(fixture.reserved(), ["a"]);
    let verdicts = fixture.context.quotas.verdicts();
    let reserved = &verdicts["a"].reservation().unwrap().reserved;
    assert_eq!((reserved["requests.memory"], reserved["requests.cpu"]), (7 << 30, 8));
    let reason = |name: &str| match &verdicts[name] {
        Verdict::Waiting { reason, .. } => *reason,
        other => panic!("{other:?}"),
    };
    assert_eq!((reason("b"), reason("c")), ("QuotaExceeded", "ClassWithoutLimit"));
    assert_eq!(fixture.status(PROJECT)["quotas"][0]["reserved"], 7_u64 << 30);
    // The next process reads what this one wrote.
    let status = json!({"quota": verdicts["a"].reservation()});
    fixture.change(&tenant_path("a", "team"), |cluster| {
        cluster["status"] = status;
    });
    let quotas = &fixture.context.quotas;
    quotas.replace(BTreeMap::new(), &quotas.basis()).unwrap();
    fixture.reconcile().await;
    assert_eq!(fixture.reserved(), ["a"]);
}

#[tokio::test]
async fn a_resource_that_no_class_limits_is_in_the_condition_of_the_level() {
    const TYPO: &str = "requests.nvidia.com/gppu";
    let mut fixture = Fixture::new(9);
    let quotas = json!([{"resource": "tenantclusters", "nominalQuota": 9}, {"resource": TYPO, "nominalQuota": 8}]);
    fixture.set_project(&json!({"namespaces": ["team"], "quotas": quotas}));
    fixture.change(ORGANIZATION, |level| level["spec"] = json!({ "quotas": quotas }));
    fixture.add_tenant("a", "team", 1, &Value::Null);
    fixture.reconcile().await;
    for path in [PROJECT, ORGANIZATION] {
        let ready = fixture.condition(path, "Ready").unwrap();
        assert_eq!(ready["reason"], "ResourceWithoutLimit", "{path}");
        let message = ready["message"].as_str().unwrap();
        assert!(
            message.contains("spec.quotas[1].resource") && message.contains(TYPO),
            "{message}"
        );
    }
    let Verdict::Waiting { message, .. } = &fixture.context.quotas.verdicts()["a"] else {
        panic!("no class limits it")
    };
    assert!(message.contains("correct the name in spec.quotas"), "{message}");
    let class = json!({"limits": {"resources": [{"resource": TYPO, "quantity": 4}]}});
    fixture.host.insert(
        "/apis/berth.dev/v1alpha1/tenantclasses/gold",
        json!({"metadata": {"name": "gold", "uid": "g", "generation": 1}, "spec": class}),
    );
    fixture.reconcile().await;
    for path in [PROJECT, ORGANIZATION] {
        assert_eq!(fixture.condition(path, "Ready").unwrap()["reason"], "Ready", "{path}");
    }
}

#[tokio::test]
async fn what_a_tenant_still_has_stays_reserved_when_its_limits_get_lower() {
    let mut fixture = Fixture::new(9);
    fixture.set_project(&json!({
        "namespaces": ["team"], "quotas": [{"resource": "pods", "nominalQuota": 10}],
    }));
    let class = "/apis/berth.dev/v1alpha1/tenantclasses/gold";
    let set_limit = |fixture: &Fixture, pods: u32| {
        let metadata = json!({"name": "gold", "uid": "g", "generation": pods});
        let spec = json!({"limits": {"pods": pods}});
        fixture.host.insert(class, json!({"metadata": metadata, "spec": spec}));
    };
    set_limit(&fixture, 10);
    for (name, second) in [("a", 1), ("b", 2)] {
        fixture.add_tenant(name, "team", second, &Value::Null);
        fixture.change(&tenant_path(name, "team"), |cluster| {
            cluster["spec"]["className"] = "gold".into();
        });
    }
    fixture.reconcile().await;
    assert_eq!(fixture.reserved(), ["a"]);
    set_limit(&fixture, 2);
    fixture.reconcile().await;
    let of_pods = |fixture: &Fixture| {
        let verdicts = fixture.context.quotas.verdicts();
        let reservation = verdicts["a"].reservation().unwrap();
        let amount = |amounts: &BTreeMap<String, u64>| amounts.get("pods").copied();
        (amount(&reservation.reserved), amount(&reservation.above_limits))
    };
    assert_eq!(of_pods(&fixture), (Some(10), Some(8)), "what it uses is not known");
    assert_eq!(fixture.reserved(), ["a"]);
    let report = |fixture: &Fixture, pods: u64| {
        let at_most = [(TreeResource::Pods, pods)].into();
        fixture.context.quotas.report_at_most("a", at_most)
    };
    assert!(report(&fixture, 9));
    fixture.reconcile().await;
    assert_eq!(of_pods(&fixture), (Some(9), Some(7)));
    assert_eq!(fixture.reserved(), ["a"], "the other tenant requests 2");
    assert!(report(&fixture, 3));
    fixture.reconcile().await;
    assert_eq!(of_pods(&fixture), (Some(3), Some(1)));
    assert_eq!(fixture.reserved(), ["a", "b"]);
    assert_eq!(fixture.status(PROJECT)["quotas"][0]["reserved"], 5);
}

const MEMORY: &str = "requests.memory";

/// What is reserved of memory for a tenant.
fn memory(fixture: &Fixture, uid: &str) -> Option<u64> {
    let verdicts = fixture.context.quotas.verdicts();
    verdicts[uid].reservation()?.reserved.get(MEMORY).copied()
}

/// Resources of a tenant that the host has not counted.
fn uncounted(fixture: &Fixture, uid: &str) -> Vec<String> {
    let verdicts = fixture.context.quotas.verdicts();
    let reservation = verdicts.get(uid).and_then(Verdict::reservation);
    reservation
        .map(|reservation| reservation.uncounted.clone())
        .unwrap_or_default()
}

/// The host has counted so much memory of the tenant `runs`.
fn count(fixture: &Fixture, amount: u64) {
    let used = TenantUse {
        amounts: [(TreeResource::from(MEMORY.to_owned()), amount)].into(),
        ..TenantUse::default()
    };
    fixture.context.quotas.set_measured([("runs".to_owned(), used)].into());
}

#[tokio::test]
async fn a_tenant_that_runs_without_a_limit_has_what_the_host_counts() {
    for is_accepted in [true, false] {
        let mut fixture = Fixture::new(9);
        let class = json!({"limits": {"resources": [{"resource": MEMORY, "quantity": 4}]}});
        fixture.host.insert(
            "/apis/berth.dev/v1alpha1/tenantclasses/gold",
            json!({"metadata": {"name": "gold", "uid": "g", "generation": 1}, "spec": class}),
        );
        // It came before the quota, and its class has no limit.
        let quota = json!({"projectName": "vision", "reserved": {"tenantclusters": 1}});
        let status = json!({"controlPlaneNamespace": "berth-cp", "quota": quota});
        fixture.add_tenant("runs", "team", 1, &status);
        fixture.set_project(&json!({
            "namespaces": ["team"], "quotas": [{"resource": MEMORY, "nominalQuota": 10}],
        }));
        fixture.add_tenant("new", "team", 2, &Value::Null);
        fixture.change(&tenant_path("new", "team"), |cluster| {
            cluster["spec"]["className"] = "gold".into();
        });
        if !is_accepted {
            fixture.change(&tenant_path("runs", "team"), |cluster| {
                cluster["spec"]["version"] = "v1.99.0".into();
            });
        }
        fixture.reconcile().await;
        assert_eq!(memory(&fixture, "runs"), None);
        assert_eq!(uncounted(&fixture, "runs"), [MEMORY], "the host is to count it");
        let Verdict::Waiting { message, .. } = &fixture.context.quotas.verdicts()["new"] else {
            panic!("nobody gets more until it has")
        };
        assert!(
            message.contains("not counted yet") && message.contains("team/runs"),
            "{message}"
        );
        count(&fixture, 7);
        fixture.reconcile().await;
        assert_eq!(memory(&fixture, "runs"), Some(7));
        assert!(uncounted(&fixture, "runs").is_empty());
        let Verdict::Waiting { message, .. } = &fixture.context.quotas.verdicts()["new"] else {
            panic!("3 are left")
        };
        assert!(message.contains("3 are left"), "{message}");
        assert_eq!(fixture.status(PROJECT)["quotas"][0]["reserved"], 7);
        // Without the limit it would have grown.
        count(&fixture, 2);
        fixture.reconcile().await;
        assert_eq!(memory(&fixture, "runs"), Some(7));
        fixture.set_project(&json!({
            "namespaces": ["team"], "quotas": [{"resource": MEMORY, "nominalQuota": 11}],
        }));
        fixture.reconcile().await;
        assert_eq!(memory(&fixture, "new"), Some(4));
        let over = fixture.context.quotas.verdicts()["runs"].over();
        assert!(over.is_empty(), "{over:?}");
    }
}

/// A Project with a quota of 10 of a resource, and a tenant `runs` with this status that came before the quota and a tenant `new`. The class of
/// both has a limit of 4.
fn with_limit_and_quota(resource: &str, status: &Value) -> Fixture {
    let fixture = Fixture::new(9);
    let class = json!({"limits": {"resources": [{"resource": resource, "quantity": 4}]}});
    fixture.host.insert(
        "/apis/berth.dev/v1alpha1/tenantclasses/gold",
        json!({"metadata": {"name": "gold", "uid": "g", "generation": 1}, "spec": class}),
    );
    fixture.set_project(&json!({
        "namespaces": ["team"], "quotas": [{"resource": resource, "nominalQuota": 10}],
    }));
    for (name, second, status) in [("runs", 1, status), ("new", 2, &Value::Null)] {
        fixture.add_tenant(name, "team", second, status);
        fixture.change(&tenant_path(name, "team"), |cluster| {
            cluster["spec"]["className"] = "gold".into();
        });
    }
    fixture
}

fn created(reserved: &Value) -> Value {
    json!({"controlPlaneNamespace": "berth-cp", "className": "gold", "quota": {"projectName": "vision", "reserved": reserved}})
}

/// What a tenant of a class without limits by name has.
fn without_memory() -> BTreeMap<String, u64> {
    let limits = TenantLimits::default();
    let resources = TreeResource::RESERVED.into_iter();
    resources
        .filter_map(|resource| {
            let amount = resource.reserved_by(&limits, ControlPlaneServiceType::ClusterIp)?;
            Some((resource.as_str().to_owned(), amount))
        })
        .collect()
}

#[tokio::test]
async fn a_limit_that_comes_with_the_quota_waits_until_the_host_has_counted() {
    let mut fixture = with_limit_and_quota(MEMORY, &created(&json!(without_memory())));
    for round in 0..3 {
        fixture.reconcile().await;
        assert_eq!(memory(&fixture, "runs"), None, "{round}");
        assert_eq!(uncounted(&fixture, "runs"), [MEMORY], "{round}");
        assert!(fixture.reserved().is_empty(), "{round}");
        if round == 1 {
            restart(&fixture);
        }
        fixture.context.pace.repeat();
    }
    count(&fixture, 9);
    fixture.reconcile().await;
    assert_eq!(memory(&fixture, "runs"), Some(9));
    assert_eq!(fixture.reserved(), ["runs"], "1 is left");
    let verdicts = fixture.context.quotas.verdicts();
    assert_eq!(verdicts["runs"].reservation().unwrap().above_limits[MEMORY], 5);
}

/// Lets the next process decide, which reads what this one wrote of the tenant `runs`.
fn restart(fixture: &Fixture) {
    let verdicts = fixture.context.quotas.verdicts();
    let recorded = json!(verdicts["runs"].reservation());
    fixture.change(&tenant_path("runs", "team"), |cluster| {
        cluster["status"]["quota"] = recorded;
    });
    let quotas = &fixture.context.quotas;
    quotas.replace(BTreeMap::new(), &quotas.basis()).unwrap();
    fixture.context.pace.repeat();
}

#[tokio::test]
async fn a_limit_that_comes_before_the_quota_waits_for_nothing_and_is_no_count() {
    for is_counted_first in [true, false] {
        let mut fixture = with_limit_and_quota(MEMORY, &created(&json!(without_memory())));
        let with_quota = fixture.host.get(PROJECT).unwrap()["spec"].clone();
        fixture.set_project(
            &json!({"namespaces": ["team"], "quotas": [{"resource": "tenantclusters", "nominalQuota": 1}]}),
        );
        fixture.reconcile().await;
        assert_eq!(fixture.reserved(), ["runs"]);
        assert_eq!(memory(&fixture, "runs"), Some(4));
        assert_eq!(uncounted(&fixture, "runs"), [MEMORY]);
        let verdicts = fixture.context.quotas.verdicts();
        let limits: TenantLimits =
            serde_json::from_value(json!({"resources": [{"resource": MEMORY, "quantity": 4}]})).unwrap();
        assert!(verdicts["runs"].allows(&limits, ControlPlaneServiceType::ClusterIp));
        if is_counted_first {
            count(&fixture, 9);
            fixture.reconcile().await;
            assert_eq!(memory(&fixture, "runs"), Some(9));
            assert!(uncounted(&fixture, "runs").is_empty());
        }
        restart(&fixture);
        fixture.set_project(&with_quota);
        fixture.reconcile().await;
        if !is_counted_first {
            assert_eq!(memory(&fixture, "runs"), None);
            assert_eq!(uncounted(&fixture, "runs"), [MEMORY]);
            assert!(fixture.reserved().is_empty(), "nobody gets more until it is counted");
            count(&fixture, 9);
            fixture.reconcile().await;
        }
        assert_eq!(memory(&fixture, "runs"), Some(9));
        assert_eq!(fixture.reserved(), ["runs"], "1 is left");
    }
}

#[tokio::test]
async fn a_tenant_of_which_nothing_can_be_counted_holds_up_nobody() {
    let mut not_created = created(&json!(without_memory()));
    not_created["controlPlaneNamespace"] = Value::Null;
    for (status, is_deleted) in [(not_created, false), (created(&json!(without_memory())), true)] {
        let mut fixture = with_limit_and_quota(MEMORY, &status);
        if is_deleted {
            fixture.change(&tenant_path("runs", "team"), |cluster| {
                cluster["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:00Z".into();
            });
        }
        fixture.reconcile().await;
        assert!(uncounted(&fixture, "runs").is_empty(), "{is_deleted}");
        assert_eq!(memory(&fixture, "new"), Some(4), "{is_deleted}");
    }
}

#[tokio::test]
async fn pods_without_requests_can_be_replaced() {
    const CPU: &str = "requests.cpu";
    let mut fixture = with_limit_and_quota(CPU, &created(&json!({"tenantclusters": 1})));
    let class = json!({"metadata": {"name": "gold", "uid": "g", "generation": 2}, "spec": {}});
    fixture
        .host
        .insert("/apis/berth.dev/v1alpha1/tenantclasses/gold", class);
    let cpu = |fixture: &Fixture| {
        let verdicts = fixture.context.quotas.verdicts();
        verdicts["runs"].reservation()?.reserved.get(CPU).copied()
    };
    fixture.reconcile().await;
    assert_eq!(cpu(&fixture), None);
    // The default of each is a hundredth of a CPU. It is added once.
    for counted in [0, 1] {
        let amounts = [(TreeResource::from(CPU.to_owned()), counted), (TreeResource::Pods, 20)];
        let used = TenantUse {
            amounts: amounts.into(),
            ..TenantUse::default()
        };
        fixture.context.quotas.set_measured([("runs".to_owned(), used)].into());
        fixture.reconcile().await;
        assert_eq!(cpu(&fixture), Some(1), "{counted}");
    }
}
