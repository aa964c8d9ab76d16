//! A tenant is set back to a snapshot and gets another Kubernetes version at the same time.

use super::{
    restore::{Case, old_objects},
    upgrade::{self, NEXT, OLD, accepted, reason, versions},
};
use crate::{control_plane::Form, testing::VERSION};
use serde_json::json;

/// Enough reconciles for a restore and an upgrade.
const MAX_RECONCILES: usize = 60;

/// Otherwise the API server of the new version would read what one of two minor versions before has stored.
#[tokio::test(start_paused = true)]
async fn an_upgrade_waits_until_the_present_version_has_run_with_the_snapshot() {
    let mut case = Case::of_version(Form::Process, NEXT).await;
    case.change_snapshot(|snapshot| snapshot["status"]["version"] = OLD.into());
    case.request(false);
    case.reconcile().await;
    assert_eq!(case.fixture.reason("Restored").1, "Checking");
    upgrade::request(&case.fixture, VERSION);
    let mut has_run = false;
    for _ in 0..MAX_RECONCILES {
        case.reconcile().await;
        let (running, upgrading_to) = versions(&case.fixture);
        if running == VERSION {
            break;
        }
        if !has_run {
            assert_eq!((running, upgrading_to), (json!(NEXT), json!(null)));
            assert_eq!(accepted(&case.fixture), NEXT);
            assert_eq!(reason(&case.fixture), "UnsupportedUpgrade");
        }
        let is_restored = case.fixture.reason("Restored").1 == "Restored";
        has_run |= is_restored && case.fixture.reason("ControlPlaneReady").0 == "True";
    }
    assert!(has_run, "{:#}", case.fixture.status());
    assert_eq!(case.memory.objects(), old_objects());
    case.reconcile_until("Restored").await;
    assert_eq!(versions(&case.fixture), (json!(VERSION), json!(null)));
    assert_eq!(
        (accepted(&case.fixture), reason(&case.fixture)),
        (VERSION.to_owned(), json!("Valid"))
    );
}

#[tokio::test(start_paused = true)]
async fn the_control_plane_is_not_ready_during_a_restore() {
    let mut case = Case::new().await;
    case.request(false);
    let mut is_seen = false;
    for _ in 0..MAX_RECONCILES {
        case.reconcile().await;
        if case.memory.record().is_some() {
            is_seen = true;
            let found = case.fixture.reason("ControlPlaneReady");
            assert_eq!(found, (json!("False"), json!("Restoring")));
        } else if is_seen {
            break;
        }
    }
    assert!(is_seen);
    case.reconcile_until("Restored").await;
    assert_eq!(case.fixture.reason("ControlPlaneReady").0, "True");
}
