//! Whether a host object is written again.

use crate::engine::{scripted::Scripted, test_engine::tenant};
use berth_api::{SyncPolicy, labels};
use berth_sync_rules::model::{
    KindId, Tenant,
    resource::{Name, Side},
    store::Stored,
};
use serde_json::json;
use std::time::Instant;

/// The tenant whose syncer has this account on the host.
fn with_account(account: &str) -> Tenant {
    Tenant {
        host_account: account.into(),
        ..tenant(SyncPolicy::default())
    }
}

/// How often a syncer with the account `now` writes an object which one with the account `before` has written, and the tenant has not changed since.
async fn writes(before: &str, now: &str) -> usize {
    let scripted = Scripted::new(with_account(now), |_| None);
    let (engine, id, name) = (&scripted.engine, KindId::PodDisruptionBudget, Name::new("team", "web"));
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1});
    let budget = scripted.put(Side::Tenant, id, &name, json!({ "spec": spec }));
    let rules = engine.cache.rules_to_host(id).unwrap();
    let translated = rules.translate(&engine.cache, &name, &budget.object()).unwrap().object;
    let hash = with_account(before).applied_hash(&rules.mutable_part(&translated));
    // Its content is somebody else's, who has left the hash as it was.
    let annotations = json!({labels::ORIGIN_UID: "tenant-uid", labels::APPLIED_HASH: hash});
    let host = json!({"metadata": {"name": "web-x", "uid": "h", "resourceVersion": "2", "annotations": annotations}});
    engine.cache.stores.host(id).watched(name.clone(), Stored::from(host));
    engine.reconcile(&id.key(name), Instant::now(), true).await.unwrap();
    scripted.calls("host PATCH", "/poddisruptionbudgets/web-x").len()
}

#[tokio::test]
async fn a_restart_writes_nothing_and_a_new_account_writes_everything_once() {
    assert_eq!(writes("one", "one").await, 0);
    assert_eq!(writes("", "").await, 0);
    assert_eq!(writes("one", "two").await, 1);
    assert_eq!(writes("", "one").await, 1);
}
