//! A new tenant whose API server serves, and still writes its default roles.

use super::fixture::{Fixture, UID};
use crate::control_plane::{COMPLETE, SERVES};
use serde_json::json;
use std::time::Duration;
use tokio::time::sleep;

/// Longer than the pause between two probes of an API server that is starting.
const NEXT_PROBE: Duration = Duration::from_millis(100);

/// A tenant whose API server has not written its default roles yet, after everything that can be done meanwhile.
async fn bootstrapping() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.tenant.set_unready(Some(COMPLETE));
    reconcile_often(&mut fixture).await;
    fixture
}

async fn reconcile_often(fixture: &mut Fixture) {
    for _ in 0..5 {
        fixture.reconcile().await.unwrap();
        sleep(NEXT_PROBE).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_tenant_is_built_up_while_its_api_server_writes_the_default_roles_and_is_not_ready_before() {
    let mut fixture = bootstrapping().await;
    let script = fixture.script.clone();
    for done in ["tenant PATCH /apis/admissionregistration", "runtime run syncer"] {
        assert!(script.first(done).is_some(), "{done}");
    }
    // The role of the controller manager is a default role, the kubeconfig and the metrics API are for users, and the measurement takes
    // time that the server needs for its roles.
    for later in [
        "runtime run kube-controller-manager",
        "runtime publish",
        "/apiservices/",
        "tenant GET /metrics",
    ] {
        assert_eq!(script.first(later), None, "{later}");
    }
    for kind in ["ControlPlaneReady", "SyncerReady", "Ready"] {
        assert_eq!(fixture.reason(kind), (json!("False"), json!("Starting")), "{kind}");
    }
    assert_eq!(fixture.status()["phase"], "Provisioning");

    fixture.tenant.set_unready(None);
    sleep(NEXT_PROBE).await;
    assert!(fixture.reconcile_until_ready().await.is_empty());
    assert!(!fixture.tenant.find("/apiservices/").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_control_that_restarts_meanwhile_still_waits_for_the_default_roles() {
    let mut fixture = bootstrapping().await;
    // Twice: it does not know yet whether the server answers, and must not say of the syncer, which runs already, that it is ready.
    for _ in 0..2 {
        fixture.context.tenants.forget(UID);
        fixture.reconcile().await.unwrap();
        let starting = (json!("False"), json!("Starting"));
        assert_eq!(fixture.reason("SyncerReady"), starting);
    }
    reconcile_often(&mut fixture).await;
    assert_eq!(fixture.reason("Ready"), (json!("False"), json!("Starting")));
    // Nor does the same control once its client is too old, or the address of the server another.
    fixture
        .context
        .tenants
        .of(UID, &fixture.host.client())
        .connection
        .close();
    reconcile_often(&mut fixture).await;
    assert_eq!(fixture.reason("Ready"), (json!("False"), json!("Starting")));
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_has_its_default_roles_is_no_longer_asked_for_them() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    fixture.tenant.take_probes();
    sleep(Duration::from_secs(6)).await;
    assert_eq!(fixture.tenant.take_probes(), [SERVES.to_owned()].into());
    // It is up again as soon as it serves.
    fixture.tenant.set_unready(Some(SERVES));
    sleep(Duration::from_secs(6)).await;
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.reason("ControlPlaneReady"), (json!("False"), json!("Starting")));
    fixture.tenant.set_unready(Some(COMPLETE));
    sleep(NEXT_PROBE).await;
    assert!(fixture.reconcile_until_ready().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_new_api_server_that_does_not_accept_the_objects_yet_is_no_failure() {
    let account = "/serviceaccounts/default";
    let number = bootstrapping().await.script.first(account).unwrap();
    let mut fixture = Fixture::new();
    fixture.tenant.set_unready(Some(COMPLETE));
    fixture.script.fail_call(number);
    for _ in 0..20 {
        fixture.reconcile().await.unwrap();
        if fixture.script.failed().is_some() {
            break;
        }
        sleep(NEXT_PROBE).await;
    }
    assert!(fixture.script.failed().unwrap().contains(account));
    assert_eq!(fixture.script.first("runtime run syncer"), None);
    assert_eq!(fixture.reason("ControlPlaneReady"), (json!("False"), json!("Starting")));
    fixture.reconcile().await.unwrap();
    assert!(fixture.script.first("runtime run syncer").is_some());
}
