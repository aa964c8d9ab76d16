//! A tenant whose spec names no Kubernetes version. Which one is chosen is tested in `settings`.

use super::{
    fixture::{CLASS, Fixture, TENANT},
    upgrade::{self, NEXT, OLD, accepted, reason, reconcile_often, request, versions},
};
use crate::testing::{ScriptedApi, ScriptedRuntime, VERSION};
use berth_api::labels;
use serde_json::{Value, json};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Makes these the versions that can be run. Returns whether components have rolled out.
fn offer(fixture: &mut Fixture, versions: &[&str]) -> Arc<AtomicBool> {
    let mut runtime = ScriptedRuntime::new(&fixture.script);
    runtime.versions = versions.iter().map(ToString::to_string).collect();
    let has_rolled_out = Arc::clone(&runtime.has_rolled_out);
    fixture.context.runtime = Arc::new(runtime);
    has_rolled_out
}

/// Makes this the version that the class gives to new tenants.
fn set_default(fixture: &Fixture, version: &str) {
    fixture.set_class(&json!({ "defaultVersion": version }));
}

fn remove_from_spec(fixture: &Fixture, field: &str) {
    fixture.change_tenant(|cluster| remove(cluster, field));
}

fn remove(cluster: &mut Value, field: &str) {
    cluster["spec"].as_object_mut().unwrap().remove(field);
}

/// A new tenant of a class that gives [`NEXT`] to new tenants. A newer version and an older one can be run, too.
fn new_tenant() -> Fixture {
    let mut fixture = Fixture::new();
    offer(&mut fixture, &[VERSION, NEXT, OLD]);
    set_default(&fixture, NEXT);
    fixture.change_tenant(|cluster| cluster["spec"]["className"] = "gold".into());
    remove_from_spec(&fixture, "version");
    fixture
}

fn assert_runs(fixture: &Fixture, version: &str, accepted_for: &str) {
    assert_eq!(versions(fixture), (json!(version), json!(null)));
    assert_eq!(
        (accepted(fixture), reason(fixture)),
        (version.into(), json!(accepted_for))
    );
}

#[tokio::test]
async fn the_default_of_a_class_is_recorded_before_anything_runs_and_stays() {
    let mut fixture = new_tenant();
    fixture.reconcile().await.unwrap();
    assert_eq!(versions(&fixture), (json!(null), json!(NEXT)));
    assert!(fixture.host.find("/api/v1/namespaces/").is_empty());
    // The class gives another one: before the tenant runs, and later.
    set_default(&fixture, VERSION);
    assert!(fixture.reconcile_until_ready().await.is_empty());
    assert_runs(&fixture, NEXT, "Valid");
    for default in [OLD, VERSION] {
        set_default(&fixture, default);
        reconcile_often(&mut fixture).await;
        assert_runs(&fixture, NEXT, "Valid");
    }
    fixture.set_class(&json!({}));
    reconcile_often(&mut fixture).await;
    assert_runs(&fixture, NEXT, "Valid");
    fixture.set_class(&json!({"versions": [VERSION], "defaultVersion": VERSION}));
    reconcile_often(&mut fixture).await;
    assert_runs(&fixture, NEXT, "VersionNotAllowed");
    fixture.host.remove(CLASS);
    reconcile_often(&mut fixture).await;
    assert_runs(&fixture, NEXT, "UnknownClass");
}

#[tokio::test]
async fn without_a_default_a_tenant_gets_the_newest_version_that_its_class_allows() {
    for (rules, expected) in [(json!({}), VERSION), (json!({"versions": [OLD, NEXT]}), NEXT)] {
        let mut fixture = new_tenant();
        fixture.set_class(&rules);
        fixture.reconcile_until_ready().await;
        assert_runs(&fixture, expected, "Valid");
    }
}

#[tokio::test]
async fn a_version_that_is_removed_from_the_spec_stays() {
    let mut fixture = new_tenant();
    fixture.reconcile_until_ready().await;
    request(&fixture, VERSION);
    reconcile_often(&mut fixture).await;
    assert_runs(&fixture, VERSION, "Valid");
    remove_from_spec(&fixture, "version");
    reconcile_often(&mut fixture).await;
    assert_runs(&fixture, VERSION, "Valid");
    // One that was not accepted leaves nothing.
    request(&fixture, "v1.99.0");
    reconcile_often(&mut fixture).await;
    assert_runs(&fixture, VERSION, "UnsupportedVersion");
    remove_from_spec(&fixture, "version");
    reconcile_often(&mut fixture).await;
    assert_runs(&fixture, VERSION, "Valid");
}

#[tokio::test]
async fn an_upgrade_goes_on_whose_version_is_removed_from_the_spec() {
    let (mut fixture, has_rolled_out) = upgrade::ready().await;
    has_rolled_out.store(false, Ordering::SeqCst);
    request(&fixture, NEXT);
    fixture.reconcile().await.unwrap();
    assert_eq!(versions(&fixture), (json!(OLD), json!(NEXT)));
    remove_from_spec(&fixture, "version");
    reconcile_often(&mut fixture).await;
    assert_eq!(versions(&fixture), (json!(OLD), json!(NEXT)));
    assert_eq!(accepted(&fixture), NEXT);
    has_rolled_out.store(true, Ordering::SeqCst);
    reconcile_often(&mut fixture).await;
    assert_runs(&fixture, NEXT, "Valid");
}

#[tokio::test]
async fn a_patch_release_that_was_taken_back_does_not_return_with_a_spec_that_names_none() {
    const PATCH: &str = "v1.36.9";
    let mut fixture = new_tenant();
    let has_rolled_out = offer(&mut fixture, &[VERSION, PATCH, NEXT]);
    fixture.reconcile_until_ready().await;
    has_rolled_out.store(false, Ordering::SeqCst);
    for version in [PATCH, NEXT] {
        request(&fixture, version);
        reconcile_often(&mut fixture).await;
        assert_eq!(versions(&fixture), (json!(NEXT), json!(version)));
    }
    remove_from_spec(&fixture, "version");
    reconcile_often(&mut fixture).await;
    assert_eq!(accepted(&fixture), NEXT);
    has_rolled_out.store(true, Ordering::SeqCst);
    reconcile_often(&mut fixture).await;
    assert_runs(&fixture, NEXT, "Valid");
}

#[tokio::test]
async fn a_version_that_is_no_longer_offered_is_reported_and_not_replaced() {
    let mut fixture = new_tenant();
    fixture.reconcile_until_ready().await;
    offer(&mut fixture, &[VERSION]);
    reconcile_often(&mut fixture).await;
    assert_runs(&fixture, NEXT, "UnsupportedVersion");
    offer(&mut fixture, &[VERSION, NEXT]);
    reconcile_often(&mut fixture).await;
    assert_runs(&fixture, NEXT, "Valid");
}

/// The spec of a tenant may lose its version before the status has it, and somebody may remove the status.
#[tokio::test]
async fn a_tenant_without_status_keeps_the_version_that_it_was_accepted_with() {
    let mut fixture = new_tenant();
    fixture.reconcile_until_ready().await;
    set_default(&fixture, VERSION);
    fixture.change_tenant(|cluster| cluster["status"] = Value::Null);
    fixture.reconcile_until_ready().await;
    assert_runs(&fixture, NEXT, "Valid");
}

/// Nothing of it is applied before the status says its version.
#[tokio::test]
async fn a_tenant_without_status_that_always_changes_gets_its_version_back() {
    let mut fixture = new_tenant();
    fixture.reconcile_until_ready().await;
    set_default(&fixture, VERSION);
    fixture.change_tenant(|cluster| cluster["status"] = Value::Null);
    fixture.host.change_before_writes("/tenantclusters/vision", 1000);
    reconcile_often(&mut fixture).await;
    assert_runs(&fixture, NEXT, "Valid");
}

/// The definition compares `spec.version` with the status only.
#[tokio::test]
async fn a_tenant_without_status_gets_no_older_version_than_it_was_accepted_with() {
    let mut fixture = new_tenant();
    fixture.reconcile_until_ready().await;
    fixture.change_tenant(|cluster| cluster["status"] = Value::Null);
    request(&fixture, OLD);
    reconcile_often(&mut fixture).await;
    assert_runs(&fixture, NEXT, "UnsupportedUpgrade");
}

#[tokio::test]
async fn a_version_that_was_started_before_the_first_status_is_not_replaced_by_an_older_one() {
    let mut fixture = new_tenant();
    fixture.reconcile().await.unwrap();
    let no_answer = ("/tenantclusters/vision/status", 500, "the host is busy");
    fixture.host.refuse_writes(Some(no_answer));
    fixture.reconcile().await.unwrap_err();
    fixture.host.refuse_writes(None);
    assert_eq!(versions(&fixture), (json!(null), json!(NEXT)));
    assert_eq!(accepted(&fixture), NEXT);
    request(&fixture, OLD);
    reconcile_often(&mut fixture).await;
    assert_runs(&fixture, NEXT, "UnsupportedUpgrade");
}

#[tokio::test]
async fn without_status_and_with_an_unreadable_record_no_version_is_chosen() {
    let mut fixture = new_tenant();
    fixture.reconcile_until_ready().await;
    set_default(&fixture, VERSION);
    let path = format!(
        "/api/v1/namespaces/{}/configmaps/settings",
        fixture.id.control_plane_namespace()
    );
    let mut map = fixture.host.get(&path).unwrap();
    map["data"]["settings.json"] = "?".into();
    fixture.host.insert(&path, map);
    fixture.change_tenant(|cluster| cluster["status"] = Value::Null);
    let error = fixture.reconcile().await.unwrap_err();
    assert_eq!(error.reason(), "SettingsUnreadable");
    let condition = fixture.condition("InfrastructureReady").unwrap();
    assert_eq!(condition["reason"], "SettingsUnreadable");
    assert_eq!(versions(&fixture), (json!(null), json!(null)));
    // The team says what runs.
    request(&fixture, NEXT);
    fixture.reconcile_until_ready().await;
    assert_runs(&fixture, NEXT, "Valid");
}

/// Another process has accepted it since the watch showed it.
#[tokio::test]
async fn no_version_is_chosen_for_a_tenant_that_has_a_finalizer_by_now() {
    let mut fixture = new_tenant();
    let accept = |host: &ScriptedApi| {
        let mut cluster = host.get(TENANT).unwrap();
        cluster["metadata"]["finalizers"] = json!([labels::FINALIZER]);
        host.insert(TENANT, cluster);
    };
    fixture.reconcile_after_unseen(accept).await.unwrap();
    assert_eq!(versions(&fixture), (json!(null), json!(null)));
    fixture.reconcile_until_ready().await;
    assert_runs(&fixture, NEXT, "Valid");
}

#[tokio::test]
async fn the_default_of_a_class_that_the_tenant_leaves_meanwhile_is_not_recorded() {
    let mut fixture = new_tenant();
    let leave = |host: &ScriptedApi| {
        let mut cluster = host.get(TENANT).unwrap();
        remove(&mut cluster, "className");
        host.insert(TENANT, cluster);
    };
    fixture.reconcile_after_unseen(leave).await.unwrap();
    assert_eq!(versions(&fixture), (json!(null), json!(null)));
    fixture.reconcile_until_ready().await;
    assert_runs(&fixture, VERSION, "Valid");
}

/// A tenant that ran before its class got a limit has a grace period.
#[tokio::test]
async fn a_new_tenant_whose_version_was_recorded_is_new_for_the_limits_of_its_class() {
    let mut fixture = new_tenant();
    fixture.set_class(&json!({"expiration": {"maxTTL": "72h"}}));
    fixture.reconcile_until_ready().await;
    let limit = fixture.status()["expirationLimits"]["ttl"].clone();
    assert_eq!((&limit["limit"], &limit["reducedAt"]), (&json!("72h"), &json!(null)));
}
