//! GPUs, which the planner keeps within the quotas.

use super::{Fixture, ORGANIZATION, PROJECT};
use crate::quota_ledger::{GpuUse, TenantUse};
use serde_json::{Value, json};
use std::collections::BTreeMap;

#[tokio::test]
async fn gpus_of_assigned_nodes_are_reported() {
    let mut fixture = Fixture::new(1);
    fixture.set_project(&json!({
        "namespaces": ["team"], "quotas": [{"resource": "gpus", "poolName": "h100", "nominalQuota": 8}],
    }));
    fixture.add_tenant("a", "team", 1, &Value::Null);
    let used = GpuUse::from([("a".to_owned(), BTreeMap::from([("h100".to_owned(), 16)]))]);
    assert!(fixture.context.quotas.set_gpu_use(used));
    fixture.reconcile().await;
    let quota = fixture.status(PROJECT)["quotas"][0].clone();
    assert_eq!((&quota["reserved"], &quota["borrowed"]), (&json!(16), &json!(8)));
    let summary = json!({"gpus": "16/8", "fullest": "gpus of h100 16/8"});
    assert_eq!(fixture.status(PROJECT)["quotaSummary"], summary, "columns of kubectl");
    assert_eq!(fixture.reserved(), ["a"], "the planner limits GPUs");
    let within = fixture.condition(PROJECT, "WithinQuota").unwrap();
    assert_eq!(within["status"], "True", "it may borrow");
}

#[tokio::test]
async fn gpus_beyond_a_lowered_limit_are_reported_with_what_follows() {
    let mut fixture = Fixture::new(1);
    let set_limit = |fixture: &Fixture, borrowing: u32| {
        fixture.set_project(&json!({"organizationName": "lab", "namespaces": ["team"], "quotas": [
            {"resource": "gpus", "poolName": "h100", "nominalQuota": 8, "borrowingLimit": borrowing},
        ]}));
        fixture.change(PROJECT, |project| {
            project["metadata"]["generation"] = (borrowing + 1).into();
        });
    };
    set_limit(&fixture, 8);
    fixture.add_tenant("a", "team", 1, &Value::Null);
    let used = GpuUse::from([("a".to_owned(), BTreeMap::from([("h100".to_owned(), 16)]))]);
    assert!(fixture.context.quotas.set_gpu_use(used));
    fixture.reconcile().await;
    assert_eq!(fixture.condition(PROJECT, "WithinQuota").unwrap()["status"], "True");
    set_limit(&fixture, 0);
    fixture.reconcile().await;
    let within = fixture.condition(PROJECT, "WithinQuota").unwrap();
    assert_eq!(
        (&within["status"], &within["reason"]),
        (&json!("False"), &json!("OverQuota"))
    );
    let message = within["message"].as_str().unwrap();
    for part in [
        "16 of pool h100, at most 8",
        "reclaimGracePeriod",
        "least important work first",
    ] {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
    // The Organization does not limit them.
    assert_eq!(
        fixture.condition(ORGANIZATION, "WithinQuota").unwrap()["status"],
        "True"
    );
}

#[tokio::test]
async fn gpus_of_several_pools_are_reported_in_all_and_by_product() {
    let mut fixture = Fixture::new(1);
    fixture.set_project(&json!({
        "namespaces": ["team"], "quotas": [
            {"resource": "gpus", "nominalQuota": 64, "borrowingLimit": 0},
            {"resource": "gpus", "gpuProduct": "H100", "nominalQuota": 32, "borrowingLimit": 0},
        ],
    }));
    for (name, product, gpus) in [
        ("a", Some("H100"), true),
        ("b", Some("H100"), true),
        ("c", None, true),
        ("d", None, false),
    ] {
        let mut spec = json!({"nodeSelector": {"pool": name}});
        if gpus {
            spec["gpuResourceName"] = "nvidia.com/gpu".into();
        }
        if let Some(product) = product {
            spec["gpuProduct"] = product.into();
        }
        let pool = json!({"metadata": {"name": name, "uid": name}, "spec": spec});
        fixture
            .host
            .insert(&format!("/apis/berth.dev/v1alpha1/hostnodepools/{name}"), pool);
    }
    fixture.add_tenant("t", "team", 1, &Value::Null);
    let pools = [("a", 8), ("b", 16), ("c", 4), ("d", 100)];
    let used = pools.map(|(pool, gpus)| (pool.to_owned(), gpus));
    fixture
        .context
        .quotas
        .set_gpu_use(GpuUse::from([("t".to_owned(), BTreeMap::from(used))]));
    let measured = TenantUse {
        gpus: [("b".to_owned(), 2), ("c".to_owned(), 1), ("d".to_owned(), 50)].into(),
        ..TenantUse::default()
    };
    fixture.context.quotas.set_measured([("t".to_owned(), measured)].into());
    fixture.reconcile().await;
    let quotas = fixture.status(PROJECT)["quotas"].clone();
    let amounts = |product: &Value| {
        let found = quotas
            .as_array()
            .unwrap()
            .iter()
            .find(|quota| &quota["gpuProduct"] == product);
        let found = found.unwrap();
        (found["reserved"].clone(), found["used"].clone())
    };
    assert_eq!(amounts(&Value::Null), (json!(28), json!(3)));
    assert_eq!(amounts(&json!("H100")), (json!(24), json!(2)));
}
