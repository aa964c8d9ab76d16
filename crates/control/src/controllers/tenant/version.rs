//! Which Kubernetes version a tenant runs next: pure.
//!
//! An API server is upgraded one minor version at a time, and none reads what a newer one stored. `spec.version` is compared with what runs
//! (`status.version`), and during an upgrade also with what was started (`status.upgradingTo`). The definition of the `TenantCluster`
//! has the same rules; these hold whatever is stored.

use super::{restore_finding::holds_upgrades, settings::Settings};
use berth_api::{
    KubernetesVersion, TenantCluster, TenantClusterStatus,
    conditions::{ACCEPTED, ConditionUpdate},
};

/// Reason: what runs cannot be upgraded to `spec.version` in one step.
const UNSUPPORTED_UPGRADE: &str = "UnsupportedUpgrade";

/// Whether a `version` can follow what runs.
///
/// # Errors
/// The condition Accepted, whose message says what to set.
pub(super) fn check(cluster: &TenantCluster, version: &str) -> Result<(), ConditionUpdate> {
    let Some(status) = &cluster.status else { return Ok(()) };
    let checked = check_upgrade(status, version).and_then(|()| check_restore(cluster, status, version));
    checked.map_err(|why| ConditionUpdate::mark_false(ACCEPTED, UNSUPPORTED_UPGRADE, why))
}

/// The version that runs next, given the one that its settings ask for: what was started last if the other cannot follow, and while the
/// tenant sleeps, so that only what ran is recorded as accepted.
pub(super) fn version_to_run(cluster: &TenantCluster, requested: &str) -> String {
    let status = cluster.status.as_ref();
    let stays = cluster.sleep_state().is_asleep() || check(cluster, requested).is_err();
    let started = status.and_then(TenantClusterStatus::started_version);
    started.filter(|_| stays).unwrap_or(requested).to_owned()
}

/// Whether a tenant runs, and the status does not say yet that `next` starts: another version than what was started last. That may be what runs, if a
/// patch release is taken back before all API servers have it. A tenant whose spec names no version later has what the status says.
pub(super) fn is_unrecorded_upgrade(status: &TenantClusterStatus, next: &str) -> bool {
    status.version.is_some() && status.started_version() != Some(next)
}

/// What the status says of versions.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Versions {
    pub(super) running: Option<String>,
    pub(super) upgrading_to: Option<String>,
}

impl Versions {
    /// What follows from the status `before` and the settings that a tenant runs with. `has_rolled_out` says whether all its API servers
    /// have their version.
    pub(super) fn observe(before: &TenantClusterStatus, settings: Option<&Settings>, has_rolled_out: bool) -> Self {
        let next = settings.map(|settings| settings.version.as_str());
        Self::follow(before, next, has_rolled_out)
    }

    fn follow(before: &TenantClusterStatus, next: Option<&str>, has_rolled_out: bool) -> Self {
        let running = |running: &str| Self {
            running: Some(running.to_owned()),
            upgrading_to: None,
        };
        let unchanged = Self {
            running: before.version.clone(),
            upgrading_to: before.upgrading_to.clone(),
        };
        match (&before.version, &before.upgrading_to, next) {
            // The first version follows no other.
            (None, _, Some(next)) => running(next),
            (Some(_), Some(_), Some(next)) if has_rolled_out => running(next),
            _ => unchanged,
        }
    }
}

/// Whether `next` can follow what runs; if not, what to do.
fn check_upgrade(status: &TenantClusterStatus, next: &str) -> Result<(), String> {
    let parse = |version: &str| version.parse::<KubernetesVersion>().ok();
    let Some(running) = status.version.as_deref().and_then(parse) else {
        return Ok(());
    };
    let started = status.upgrading_to.as_deref().and_then(parse);
    let newest = started.unwrap_or(running);
    let Some(next) = parse(next) else { return Ok(()) };
    if next.minor < newest.minor {
        return Err(format!(
            "an API server of Kubernetes {newest} has been started, and an older one cannot read what it stored; set spec.version to {newest}"
        ));
    }
    if next.minor > running.minor + 1 {
        let step = started.map_or_else(
            || format!("a version v1.{}.x", running.minor + 1),
            |started| started.to_string(),
        );
        return Err(format!(
            "the control plane runs Kubernetes {running}, and Kubernetes is upgraded one minor version at a time; set spec.version to {step}, and to the next one once status.version has changed"
        ));
    }
    Ok(())
}

/// Whether a restore lets `next` follow what was started last; if not, what happens. A tenant that sleeps is not upgraded before it wakes anyway.
fn check_restore(cluster: &TenantCluster, status: &TenantClusterStatus, next: &str) -> Result<(), String> {
    let minor = |version: &str| Some(version.parse::<KubernetesVersion>().ok()?.minor);
    let Some(started) = status.started_version() else {
        return Ok(());
    };
    if minor(next) == minor(started) || cluster.sleep_state().is_asleep() || !holds_upgrades(status) {
        return Ok(());
    }
    Err(format!(
        "the tenant is set back to a snapshot, and Kubernetes {started} has to run with it first; the upgrade to {next} begins by itself after that. The \
         conditions Restored and ControlPlaneReady say how far this is"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::{SleepState, SleepStatus, TenantClusterSpec};
    use serde_json::json;

    fn status(version: Option<&str>, upgrading_to: Option<&str>) -> TenantClusterStatus {
        TenantClusterStatus {
            version: version.map(Into::into),
            upgrading_to: upgrading_to.map(Into::into),
            ..TenantClusterStatus::default()
        }
    }

    fn cluster(version: &str, status: TenantClusterStatus) -> TenantCluster {
        let spec = TenantClusterSpec {
            version: Some(version.into()),
            ..TenantClusterSpec::default()
        };
        TenantCluster {
            status: Some(status),
            ..TenantCluster::new("vision", spec)
        }
    }

    #[test]
    fn the_minor_version_goes_up_by_one_from_what_runs_and_never_below_what_was_started() {
        for (running, upgrading_to, next, expected) in [
            (None, None, "v1.37.1", Ok(())),
            (Some("v1.35.0"), None, "v1.35.0", Ok(())),
            (Some("v1.35.9"), None, "v1.35.0", Ok(())),
            (Some("v1.35.0"), None, "v1.36.4", Ok(())),
            (
                Some("v1.35.0"),
                None,
                "v1.37.1",
                Err("set spec.version to a version v1.36.x"),
            ),
            (Some("v1.36.4"), None, "v1.35.0", Err("set spec.version to v1.36.4")),
            (Some("v1.9.0"), None, "v1.10.0", Ok(())),
            // An upgrade has begun and is not over.
            (Some("v1.35.0"), Some("v1.36.4"), "v1.36.5", Ok(())),
            (
                Some("v1.35.0"),
                Some("v1.36.4"),
                "v1.37.1",
                Err("set spec.version to v1.36.4"),
            ),
            (
                Some("v1.35.0"),
                Some("v1.36.4"),
                "v1.35.0",
                Err("set spec.version to v1.36.4"),
            ),
        ] {
            let checked = check(&cluster(next, status(running, upgrading_to)), next);
            let case = format!("{running:?} {upgrading_to:?} {next}: {checked:?}");
            match expected {
                Ok(()) => assert!(checked.is_ok(), "{case}"),
                Err(what) => {
                    let rejection = checked.expect_err(&case);
                    assert_eq!(rejection.reason, UNSUPPORTED_UPGRADE);
                    assert!(rejection.message.contains(what), "{case}");
                }
            }
        }
    }

    /// Otherwise an API server of two minor versions later would read the snapshot.
    #[test]
    fn no_minor_version_follows_before_the_present_one_has_run_with_a_restored_snapshot() {
        let completed =
            json!({"snapshotName": "s", "startedAt": "2026-11-30T12:00:00Z", "completedAt": "2026-11-30T12:01:00Z"});
        let under_way = json!({"snapshotName": "s", "startedAt": "2026-11-30T12:00:00Z"});
        let ready = |status: &str, since: &str| json!({"type": "ControlPlaneReady", "status": status, "reason": "R", "message": "", "lastTransitionTime": since});
        let restored = |reason: &str| json!({"type": "Restored", "status": "False", "reason": reason, "message": "", "lastTransitionTime": "2026-11-30T12:00:00Z"});
        let (before, after) = ("2026-11-30T12:00:30Z", "2026-11-30T12:02:00Z");
        for (restore, conditions, is_held) in [
            (json!(null), json!([]), false),
            (json!(null), json!([ready("False", before)]), false),
            (json!(null), json!([restored("Waiting")]), false),
            (json!(null), json!([restored("Checking"), ready("True", before)]), true),
            (json!(null), json!([restored("Saving"), ready("False", before)]), true),
            (
                json!(null),
                json!([restored("VersionNotReadable"), ready("True", before)]),
                false,
            ),
            (under_way, json!([restored("Replacing"), ready("False", before)]), true),
            (
                completed.clone(),
                json!([restored("Restored"), ready("False", before)]),
                true,
            ),
            (completed.clone(), json!([restored("Restored")]), true),
            (
                completed.clone(),
                json!([restored("Restored"), ready("True", after)]),
                false,
            ),
            // It has run since, and is broken by now.
            (completed, json!([restored("Restored"), ready("False", after)]), false),
        ] {
            let case = format!("{restore} {conditions}");
            let restoring = TenantClusterStatus {
                restore: serde_json::from_value(restore).unwrap(),
                conditions: serde_json::from_value(conditions).unwrap(),
                ..status(Some("v1.36.4"), None)
            };
            for (next, is_upgrade) in [("v1.37.1", true), ("v1.36.5", false)] {
                let cluster = cluster(next, restoring.clone());
                let is_rejected = check(&cluster, next).is_err();
                assert_eq!(is_rejected, is_held && is_upgrade, "{next} {case}");
                let runs = if is_rejected { "v1.36.4" } else { next };
                assert_eq!(version_to_run(&cluster, next), runs, "{next} {case}");
            }
        }
    }

    #[test]
    fn what_cannot_follow_is_not_run_whatever_the_settings_ask_for() {
        let run = |status, requested| version_to_run(&cluster("v1.37.1", status), requested);
        assert_eq!(run(status(None, None), "v1.37.1"), "v1.37.1");
        assert_eq!(run(status(Some("v1.36.4"), None), "v1.37.1"), "v1.37.1");
        assert_eq!(run(status(Some("v1.35.0"), None), "v1.37.1"), "v1.35.0");
        assert_eq!(run(status(Some("v1.37.1"), None), "v1.36.4"), "v1.37.1");
        assert_eq!(run(status(Some("v1.35.0"), Some("v1.36.4")), "v1.37.1"), "v1.36.4");
        let asleep = TenantClusterStatus {
            sleep: Some(SleepStatus {
                state: SleepState::Sleeping,
                ..SleepStatus::default()
            }),
            ..status(Some("v1.36.4"), None)
        };
        assert_eq!(run(asleep, "v1.37.1"), "v1.36.4");
    }

    #[test]
    fn status_changes_once_all_api_servers_have_the_version() {
        let follow = |before: (Option<&str>, Option<&str>), next, has_rolled_out| {
            let after = Versions::follow(&status(before.0, before.1), next, has_rolled_out);
            (after.running, after.upgrading_to)
        };
        let says = |running: &str, upgrading_to: Option<&str>| (Some(running.into()), upgrading_to.map(Into::into));
        assert_eq!(follow((None, None), None, false), (None, None));
        assert_eq!(follow((None, None), Some("v1.36.4"), false), says("v1.36.4", None));
        let upgrade = (Some("v1.36.4"), Some("v1.37.1"));
        assert_eq!(
            follow(upgrade, Some("v1.37.1"), false),
            says("v1.36.4", Some("v1.37.1"))
        );
        assert_eq!(follow(upgrade, None, false), says("v1.36.4", Some("v1.37.1")));
        assert_eq!(follow(upgrade, Some("v1.37.1"), true), says("v1.37.1", None));
        // Back to the patch release that ran.
        let patch = (Some("v1.37.1"), Some("v1.37.1"));
        assert_eq!(follow(patch, Some("v1.37.1"), false), says("v1.37.1", Some("v1.37.1")));
        assert_eq!(follow(patch, Some("v1.37.1"), true), says("v1.37.1", None));
    }

    #[test]
    fn an_upgrade_is_recorded_once() {
        assert!(!is_unrecorded_upgrade(&status(None, None), "v1.37.1"));
        assert!(!is_unrecorded_upgrade(&status(Some("v1.37.1"), None), "v1.37.1"));
        assert!(is_unrecorded_upgrade(&status(Some("v1.36.4"), None), "v1.37.1"));
        assert!(!is_unrecorded_upgrade(
            &status(Some("v1.36.4"), Some("v1.37.1")),
            "v1.37.1"
        ));
        assert!(is_unrecorded_upgrade(
            &status(Some("v1.36.4"), Some("v1.37.1")),
            "v1.37.2"
        ));
        // Back to the patch release that ran.
        let back = |upgrading_to| status(Some("v1.37.1"), Some(upgrading_to));
        assert!(is_unrecorded_upgrade(&back("v1.37.2"), "v1.37.1"));
        assert!(!is_unrecorded_upgrade(&back("v1.37.1"), "v1.37.1"));
    }
}
