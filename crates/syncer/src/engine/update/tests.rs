//! Whether a host object is written again.

use crate::engine::{
    lock,
    scripted::{Failure, Scripted},
    test_engine::tenant,
};
use berth_api::{SyncPolicy, labels};
use berth_sync_rules::model::{
    KindId, Tenant,
    resource::{Name, Side, host_name},
    store::Stored,
};
use serde_json::json;
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};

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

#[tokio::test]
async fn what_somebody_else_has_set_is_removed_after_a_write_also_if_that_fails_first() {
    // The first patch applies, the second one removes.
    let patches = AtomicUsize::new(0);
    let scripted = Scripted::new(with_account("two"), move |call| {
        let is_patch = call.starts_with("host PATCH") && call.contains("/networkpolicies/");
        (is_patch && patches.fetch_add(1, Ordering::Relaxed) == 1).then_some(Failure::Refused(500))
    });
    let (engine, id, name) = (&scripted.engine, KindId::NetworkPolicy, Name::new("team", "web"));
    let spec = json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]});
    scripted.put(Side::Tenant, id, &name, json!({ "spec": spec }));
    let on_host = host_name(id, &name);
    let path = format!("/networkpolicies/{on_host}");
    let annotations = json!({labels::ORIGIN_UID: "tenant-uid"});
    let host = json!({"metadata": {"name": on_host, "uid": "h", "resourceVersion": "2", "annotations": annotations}});
    engine.cache.stores.host(id).watched(name.clone(), Stored::from(host));
    scripted.add_foreign_field(&path, "egress");
    let key = id.key(name);
    assert!(engine.reconcile(&key, Instant::now(), true).await.is_err());
    assert!(lock(&engine.foreign_fields).contains(&key));
    // What is known of it has the hash of what it should be.
    engine.reconcile(&key, Instant::now(), true).await.unwrap();
    let sent = scripted.sent("host PATCH", &path);
    assert_eq!(sent.len(), 4, "each of both twice: {sent:?}");
    assert!(sent[2]["spec"]["podSelector"].is_object() && sent[2]["spec"].get("egress").is_none());
    assert_eq!(sent[3]["spec"], json!({"egress": null}));
    assert!(!lock(&engine.foreign_fields).contains(&key));
}
