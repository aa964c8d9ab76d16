//! A tenant gets another Kubernetes version. Which version may follow another is tested in `version`.

use super::{
    fixture::{Fixture, TENANT},
    sleep::set_mode,
};
use crate::testing::{ScriptedApi, ScriptedRuntime, VERSION};
use serde_json::{Value, json};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

pub(super) const OLD: &str = "v1.35.0";
pub(super) const NEXT: &str = "v1.36.4";
/// Enough reconciles for each change.
const MAX_RECONCILES: usize = 6;

/// A tenant that runs the oldest of three versions, and whether its components have rolled out.
pub(super) async fn ready() -> (Fixture, Arc<AtomicBool>) {
    let mut fixture = Fixture::new();
    let mut runtime = ScriptedRuntime::new(&fixture.script);
    runtime.versions = [VERSION, NEXT, OLD].map(Into::into).into();
    let has_rolled_out = Arc::clone(&runtime.has_rolled_out);
    fixture.context.runtime = Arc::new(runtime);
    request(&fixture, OLD);
    fixture.reconcile_until_ready().await;
    (fixture, has_rolled_out)
}

pub(super) fn request(fixture: &Fixture, version: &str) {
    fixture.change_tenant(|cluster| cluster["spec"]["version"] = version.into());
}

pub(super) async fn reconcile_often(fixture: &mut Fixture) {
    for _ in 0..MAX_RECONCILES {
        Box::pin(fixture.reconcile()).await.unwrap();
    }
}

/// The versions that the status says: what runs, and what it is upgraded to.
pub(super) fn versions(fixture: &Fixture) -> (Value, Value) {
    let status = fixture.status();
    (status["version"].clone(), status["upgradingTo"].clone())
}

/// The version that the tenant was accepted with last, and runs with.
pub(super) fn accepted(fixture: &Fixture) -> String {
    let path = format!(
        "/api/v1/namespaces/{}/configmaps/settings",
        fixture.id.control_plane_namespace()
    );
    let map = fixture.host.get(&path).unwrap();
    let settings: Value = serde_json::from_str(map["data"]["settings.json"].as_str().unwrap()).unwrap();
    settings["version"].as_str().unwrap().to_owned()
}

pub(super) fn reason(fixture: &Fixture) -> Value {
    fixture.condition("Accepted").unwrap()["reason"].clone()
}

#[tokio::test]
async fn each_minor_version_runs_before_the_next_one() {
    let (mut fixture, has_rolled_out) = ready().await;
    has_rolled_out.store(false, Ordering::SeqCst);
    request(&fixture, NEXT);
    // It is recorded before anything of it starts.
    fixture.reconcile().await.unwrap();
    assert_eq!(versions(&fixture), (json!(OLD), json!(NEXT)));
    assert_eq!(accepted(&fixture), OLD);
    reconcile_often(&mut fixture).await;
    assert_eq!(versions(&fixture), (json!(OLD), json!(NEXT)));
    assert_eq!(accepted(&fixture), NEXT);

    // The definition rejects both; control does as well.
    for (version, what) in [(VERSION, "one minor version at a time"), (OLD, "cannot read")] {
        request(&fixture, version);
        reconcile_often(&mut fixture).await;
        assert_eq!(reason(&fixture), "UnsupportedUpgrade");
        let message = fixture.condition("Accepted").unwrap()["message"].clone();
        assert!(message.as_str().unwrap().contains(what), "{message}");
        assert_eq!(accepted(&fixture), NEXT);
        assert_eq!(versions(&fixture), (json!(OLD), json!(NEXT)));
    }

    // What was asked for too early follows by itself.
    request(&fixture, VERSION);
    has_rolled_out.store(true, Ordering::SeqCst);
    reconcile_often(&mut fixture).await;
    assert_eq!(versions(&fixture), (json!(VERSION), json!(null)));
    assert_eq!((accepted(&fixture), reason(&fixture)), (VERSION.into(), json!("Valid")));
}

#[tokio::test]
async fn an_upgrade_that_is_taken_back_while_it_is_recorded_does_not_begin() {
    let (mut fixture, _) = ready().await;
    request(&fixture, NEXT);
    let take_back = |host: &ScriptedApi| {
        let mut cluster = host.get(TENANT).unwrap();
        cluster["spec"]["version"] = OLD.into();
        host.insert(TENANT, cluster);
    };
    fixture.reconcile_after_unseen(take_back).await.unwrap();
    assert_eq!(versions(&fixture), (json!(OLD), json!(null)));
    reconcile_often(&mut fixture).await;
    assert_eq!((accepted(&fixture), reason(&fixture)), (OLD.into(), json!("Valid")));
}

#[tokio::test]
async fn a_generation_that_waits_for_a_record_is_not_observed() {
    /// How often each reconcile tries to record the upgrade.
    const ATTEMPTS: usize = 5;
    let (mut fixture, _) = ready().await;
    let observed = |fixture: &Fixture| {
        let nodes = fixture
            .condition("NodesReady")
            .map(|condition| condition["observedGeneration"].clone());
        (fixture.status()["observedGeneration"].clone(), nodes)
    };
    assert_eq!(observed(&fixture), (json!(1), Some(json!(1))));
    fixture.change_tenant(|cluster| {
        cluster["metadata"]["generation"] = 2.into();
        cluster["spec"]["version"] = NEXT.into();
        // The status is written all the same.
        let conditions = cluster["status"]["conditions"].as_array_mut().unwrap();
        conditions.retain(|condition| condition["type"] != "NodesReady");
    });
    fixture
        .host
        .change_before_writes("/tenantclusters/vision", MAX_RECONCILES * ATTEMPTS);
    // The last of them looks at everything.
    reconcile_often(&mut fixture).await;
    assert_eq!(observed(&fixture), (json!(1), Some(json!(1))));
    assert_eq!(versions(&fixture), (json!(OLD), json!(null)));
    reconcile_often(&mut fixture).await;
    assert_eq!(observed(&fixture), (json!(2), Some(json!(2))));
    assert_eq!(accepted(&fixture), NEXT);
}

#[tokio::test]
async fn what_was_recorded_for_a_tenant_that_skips_a_minor_version_is_not_run() {
    let (mut fixture, _) = ready().await;
    request(&fixture, NEXT);
    reconcile_often(&mut fixture).await;
    assert_eq!(accepted(&fixture), NEXT);
    // As if it had not run yet, and more had been accepted.
    fixture.change_tenant(|cluster| cluster["status"]["version"] = "v1.34.0".into());
    request(&fixture, VERSION);
    reconcile_often(&mut fixture).await;
    assert_eq!(reason(&fixture), "UnsupportedUpgrade");
    assert_eq!(accepted(&fixture), "v1.34.0");
}

#[tokio::test]
async fn a_version_that_is_not_offered_can_be_lowered_again() {
    let (mut fixture, _) = ready().await;
    request(&fixture, "v1.36.9");
    reconcile_often(&mut fixture).await;
    assert_eq!(reason(&fixture), "UnsupportedVersion");
    request(&fixture, OLD);
    reconcile_often(&mut fixture).await;
    assert_eq!(reason(&fixture), "Valid");
    assert_eq!(versions(&fixture), (json!(OLD), json!(null)));
}

#[tokio::test]
async fn a_version_that_a_tenant_gets_while_it_sleeps_does_not_run_before_it_wakes() {
    let (mut fixture, _) = ready().await;
    set_mode(&fixture, "Asleep");
    for _ in 0..2 * MAX_RECONCILES {
        Box::pin(fixture.reconcile()).await.unwrap();
    }
    assert_eq!(fixture.status()["sleep"]["state"], "Sleeping");
    request(&fixture, NEXT);
    reconcile_often(&mut fixture).await;
    assert_eq!(accepted(&fixture), OLD);
    assert_eq!(versions(&fixture), (json!(OLD), json!(null)));
    set_mode(&fixture, "Awake");
    for _ in 0..2 * MAX_RECONCILES {
        Box::pin(fixture.reconcile()).await.unwrap();
    }
    assert_eq!(accepted(&fixture), NEXT);
    assert_eq!(versions(&fixture), (json!(NEXT), json!(null)));
}
