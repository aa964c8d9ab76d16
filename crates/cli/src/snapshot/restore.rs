//! `berth snapshot restore`: asks control to set a tenant back to a snapshot.

use std::cell::Cell;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use berth_api::conditions::{READY, RESTORED, is_true};
use berth_api::labels::{RESTORE_SNAPSHOT, RESTORE_WITHOUT_SAVING, RESTORE_WITHOUT_SAVING_WANTED};
use berth_api::{SleepState, SnapshotPhase, TenantCluster, TenantSnapshot};
use clap::Args;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::snapshots_of;
use crate::completion;
use crate::error::{Error, failed};
use crate::host::{Host, find_object};
use crate::output::{print_line, print_question};
use crate::tenant::{self, TenantName};
use crate::wait::{ConditionProgress, parse_timeout, wait_for};

/// How long a refusal has to stay that was there before the request: control may not have written yet what became of the new one.
const SETTLED: Duration = Duration::from_secs(5);

/// The reason of the condition Restored while a restore fails and is tried again.
const FAILING: &str = "RestoreFailing";
/// The same, and another snapshot that somebody asked for meanwhile cannot be used.
const OTHER_REFUSED: &str = "OtherSnapshotRefused";

/// How often a TenantCluster is read again that was changed before the request was written.
const MOST_TRIES: u32 = 5;

#[derive(Debug, Args)]
pub(crate) struct RestoreArguments {
    /// Name of the TenantCluster, or NAMESPACE/NAME.
    #[arg(value_name = "TENANT", add = completion::tenant_names())]
    tenant: String,
    /// Name of a TenantSnapshot of this tenant.
    #[arg(value_name = "SNAPSHOT", add = completion::snapshot_names())]
    snapshot: String,
    /// Do not ask.
    #[arg(short, long)]
    yes: bool,
    /// Take no snapshot of what the tenant stores now. It is lost.
    #[arg(long)]
    without_saving: bool,
    /// Wait until the tenant is set back and ready again, or sleeps as before, and print its conditions as they change.
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false", hide_default_value = true)]
    wait: bool,
    /// How long to wait.
    #[arg(long, default_value = "30m", value_parser = parse_timeout, value_name = "DURATION", requires = "wait")]
    timeout: Duration,
}

pub(super) async fn run(host: &Host, arguments: &RestoreArguments) -> Result<ExitCode, Error> {
    let (name, tenant) = tenant::find(host, &arguments.tenant).await?;
    let snapshots = snapshots_of(host, &name.namespace);
    let found = find_object(&snapshots, &arguments.snapshot)
        .await
        .map_err(failed("get the snapshot"))?;
    let snapshot = found.ok_or_else(|| {
        Error::NotFound(format!(
            "there is no TenantSnapshot {}/{}; `berth snapshot list {name}` lists those of the tenant",
            name.namespace, arguments.snapshot
        ))
    })?;
    check(&tenant, &snapshot).map_err(Error::Failed)?;
    let is_confirmed = arguments.yes || confirm(&name, &snapshot, arguments.without_saving, &mut io::stdin().lock())?;
    if !is_confirmed {
        print_line(format_args!("the restore is cancelled"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let before = request(host, &name, &tenant, arguments).await?;
    if !arguments.wait {
        print_line(format_args!(
            "Control is asked to set TenantCluster {name} back to {}; the condition Restored in `berth get {name}` shows the progress.",
            arguments.snapshot
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    wait(host, &name, &before, arguments).await?;
    print_line(format_args!(
        "TenantCluster {name} was set back to {}.",
        arguments.snapshot
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Asks for the restore of the tenant that was `confirmed`. Returns the tenant as it was before.
///
/// # Errors
/// It is another tenant by now, somebody has asked before, or the host refuses or does not answer.
async fn request(
    host: &Host,
    name: &TenantName,
    confirmed: &TenantCluster,
    arguments: &RestoreArguments,
) -> Result<TenantCluster, Error> {
    let tenants = name.api(&host.client);
    let mut tried = 1;
    loop {
        // Control writes statuses while somebody reads the question.
        let tenant = name.get(&host.client).await?;
        check_request(name, confirmed, &tenant)?;
        let patch = Patch::Merge(patch(&tenant, &arguments.snapshot, arguments.without_saving));
        match tenants.patch(&name.name, &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.code == 409 && tried < MOST_TRIES => tried += 1,
            patched => return patched.map(|_| tenant).map_err(failed("ask for the restore")),
        }
    }
}

/// Whether the tenant is the one that was confirmed, and nobody else has asked for a restore. One that fails can be led to another snapshot.
fn check_request(name: &TenantName, confirmed: &TenantCluster, tenant: &TenantCluster) -> Result<(), Error> {
    check_same(name, confirmed, tenant)?;
    if let Some(other) = tenant.requested_restore() {
        return Err(Error::Failed(format!(
            "somebody has asked already to set {name} back to {other}; `berth get {name}` shows how far that is"
        )));
    }
    let goes_on = |restored: &&Condition| is_under_way(&restored.reason) && restored.reason != FAILING;
    match restored_of(tenant).filter(goes_on) {
        Some(restored) => Err(Error::Failed(format!(
            "{name} is being set back already; wait until that is over, or fails: {}",
            restored.message
        ))),
        None => Ok(()),
    }
}

fn check_same(name: &TenantName, before: &TenantCluster, tenant: &TenantCluster) -> Result<(), Error> {
    if tenant.uid() == before.uid() {
        return Ok(());
    }
    Err(Error::NotFound(format!(
        "TenantCluster {name} was deleted, and another one has its name"
    )))
}

/// Finds early what control would refuse anyway.
fn check(tenant: &TenantCluster, snapshot: &TenantSnapshot) -> Result<(), String> {
    let name = snapshot.name_any();
    let uid = snapshot.status.as_ref().and_then(|status| status.tenant_uid.clone());
    if snapshot.spec.tenant_cluster_name != tenant.name_any() || uid.is_some() && uid != tenant.uid() {
        return Err(format!(
            "{name} is a snapshot of another tenant; a tenant can be set back only to a snapshot of its own"
        ));
    }
    if snapshot.metadata.deletion_timestamp.is_some() {
        return Err(format!("{name} is being deleted"));
    }
    match snapshot.phase() {
        SnapshotPhase::Completed => Ok(()),
        phase => Err(format!("the phase of {name} is {}, not Completed", phase.name())),
    }
}

/// The patch that asks for the restore. Another request in between has another resource version, and wins.
fn patch(tenant: &TenantCluster, snapshot: &str, without_saving: bool) -> Value {
    let wanted = without_saving.then_some(RESTORE_WITHOUT_SAVING_WANTED);
    json!({"metadata": {
        "uid": tenant.uid(),
        "resourceVersion": tenant.resource_version(),
        "annotations": {RESTORE_SNAPSHOT: snapshot, RESTORE_WITHOUT_SAVING: wanted},
    }})
}

/// Says what is lost, and asks as kubectl does. Anything but `y` or `Y` is a no.
///
/// # Errors
/// There is no answer, as in a script, which must not take that for success.
fn confirm(
    name: &TenantName,
    snapshot: &TenantSnapshot,
    without_saving: bool,
    answers: &mut impl io::BufRead,
) -> Result<bool, Error> {
    let saved = if without_saving {
        "What the tenant stores now is LOST."
    } else {
        "What the tenant stores now is saved as another snapshot first."
    };
    print_question(format_args!(
        "You are about to set TenantCluster {name} back to the snapshot {}.\n\
         - Everything that the tenant stores is replaced. Its API server stops meanwhile.\n\
         - Pods, claims and other objects on the host that the snapshot does not have are deleted, with the volumes whose reclaim policy is Delete.\n\
         - Rights, tokens and ServiceAccounts that were removed after the snapshot are there again, but for the roles of spec.access.\n\
         - {saved}\nDo you want to continue? (y/N): ",
        snapshot.name_any()
    ));
    let mut answer = String::new();
    let read = answers.read_line(&mut answer);
    let read = read.map_err(|error| Error::Failed(format!("cannot read the answer: {error}")))?;
    if read == 0 {
        return Err(Error::Usage(
            "there is no answer, and nothing is restored; --yes restores without the question".into(),
        ));
    }
    Ok(answer.trim().eq_ignore_ascii_case("y"))
}

async fn wait(
    host: &Host,
    name: &TenantName,
    before: &TenantCluster,
    arguments: &RestoreArguments,
) -> Result<(), Error> {
    let mut progress = ConditionProgress::default();
    let is_restored = Cell::new(false);
    let mut refused_at = None;
    let check = async || {
        let tenant = name.get(&host.client).await?;
        check_same(name, before, &tenant)?;
        progress.print(conditions_of(&tenant));
        let outcome = outcome(before, &tenant);
        is_restored.set(outcome == Outcome::NotReady);
        match outcome {
            Outcome::Refused { message, is_new } => {
                let since = *refused_at.get_or_insert_with(Instant::now);
                if is_new || since.elapsed() >= SETTLED {
                    return Err(Error::Failed(format!("{name} was not set back: {message}")));
                }
                Ok(None)
            }
            outcome => {
                refused_at = None;
                Ok((outcome == Outcome::Done).then_some(()))
            }
        }
    };
    let message = || {
        let state = if is_restored.get() {
            "is set back, and not ready yet"
        } else {
            "is not set back yet"
        };
        format!("{name} {state}; Berth goes on, and `berth get {name}` shows what it waits for")
    };
    wait_for(arguments.timeout, check, message).await
}

/// How far a restore is.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// It has not begun, or goes on.
    UnderWay,
    /// There is none, for this reason. Not new: the condition says what it said before the request.
    Refused { message: String, is_new: bool },
    /// The tenant is set back, and not ready.
    NotReady,
    /// The tenant is set back, and ready or asleep.
    Done,
}

/// How far a restore is that was asked for when the tenant was as in `before`.
fn outcome(before: &TenantCluster, now: &TenantCluster) -> Outcome {
    if now.requested_restore().is_some() {
        return Outcome::UnderWay;
    }
    let last = |tenant: &TenantCluster| {
        let restore = tenant.status.as_ref().and_then(|status| status.restore.clone());
        restore.and_then(|restore| restore.completed_at)
    };
    if last(now).is_some() && last(now) != last(before) {
        let sleeps = matches!(now.sleep_state(), SleepState::Sleeping | SleepState::Enforcing);
        return if sleeps || is_true(conditions_of(now), READY) {
            Outcome::Done
        } else {
            Outcome::NotReady
        };
    }
    // The restore goes on: refused is the snapshot of who has asked while it failed, and not that of who waits for the restore.
    let was_failing =
        restored_of(before).is_some_and(|known| [FAILING, OTHER_REFUSED].contains(&known.reason.as_str()));
    let goes_on = |reason: &str| is_under_way(reason) || reason == OTHER_REFUSED && !was_failing;
    let is_refused = |condition: &&Condition| condition.status == "False" && !goes_on(&condition.reason);
    match restored_of(now).filter(is_refused) {
        Some(refused) => Outcome::Refused {
            message: refused.message.clone(),
            is_new: restored_of(before) != Some(refused),
        },
        None => Outcome::UnderWay,
    }
}

fn conditions_of(tenant: &TenantCluster) -> &[Condition] {
    let status = tenant.status.as_ref();
    status.map(|status| status.conditions.as_slice()).unwrap_or_default()
}

fn restored_of(tenant: &TenantCluster) -> Option<&Condition> {
    conditions_of(tenant)
        .iter()
        .find(|condition| condition.type_ == RESTORED)
}

/// Whether a reason of the condition Restored says that the restore goes on.
fn is_under_way(reason: &str) -> bool {
    ["Waiting", "Checking", "Stopping", "Saving", "Replacing", FAILING].contains(&reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(annotations: &Value, status: &Value) -> TenantCluster {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
            "metadata": {"name": "vision", "namespace": "team", "uid": "6f2c", "resourceVersion": "7", "annotations": annotations},
            "spec": {}, "status": status,
        }))
        .unwrap()
    }

    fn snapshot(tenant: &str, uid: &str, phase: &str) -> TenantSnapshot {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantSnapshot", "metadata": {"name": "nightly", "namespace": "team", "creationTimestamp": "2026-11-30T00:00:00Z"},
            "spec": {"tenantClusterName": tenant}, "status": {"phase": phase, "tenantUID": uid},
        }))
        .unwrap()
    }

    #[test]
    fn what_control_would_refuse_is_refused_at_once() {
        let tenant = tenant(&json!({}), &json!({}));
        assert_eq!(check(&tenant, &snapshot("vision", "6f2c", "Completed")), Ok(()));
        assert!(check(&tenant, &snapshot("speech", "6f2c", "Completed")).is_err());
        assert!(check(&tenant, &snapshot("vision", "0000", "Completed")).is_err());
        let running = check(&tenant, &snapshot("vision", "6f2c", "Running")).unwrap_err();
        assert!(running.contains("Running"), "{running}");
        let mut deleted = snapshot("vision", "6f2c", "Completed");
        deleted.metadata.deletion_timestamp = deleted.metadata.creation_timestamp.take();
        assert!(check(&tenant, &deleted).unwrap_err().contains("deleted"));
    }

    #[test]
    fn a_request_is_of_the_version_that_was_read_and_saves_unless_somebody_says_otherwise() {
        let tenant = tenant(&json!({}), &json!({}));
        let saving = patch(&tenant, "nightly", false);
        assert_eq!(saving["metadata"]["resourceVersion"], "7");
        assert_eq!(saving["metadata"]["annotations"][RESTORE_SNAPSHOT], "nightly");
        assert_eq!(saving["metadata"]["annotations"][RESTORE_WITHOUT_SAVING], Value::Null);
        let without = patch(&tenant, "nightly", true);
        assert_eq!(without["metadata"]["annotations"][RESTORE_WITHOUT_SAVING], "true");
    }

    #[test]
    fn only_a_yes_restores_and_no_answer_is_an_error() {
        let name = TenantName::parse("team/vision", "").unwrap();
        let snapshot = snapshot("vision", "6f2c", "Completed");
        let confirm = |mut answer: &[u8]| confirm(&name, &snapshot, false, &mut answer);
        assert!(confirm(b"y\n").unwrap() && confirm(b"Y").unwrap());
        for answer in ["\n", "n\n", "yes\n"] {
            assert!(!confirm(answer.as_bytes()).unwrap(), "{answer:?}");
        }
        let error = confirm(b"").unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains("--yes"), "{error}");
    }

    #[test]
    fn a_request_is_for_the_tenant_that_was_confirmed_and_the_first_one_counts() {
        let name = TenantName::parse("team/vision", "").unwrap();
        let confirmed = tenant(&json!({}), &json!({}));
        check_request(&name, &confirmed, &confirmed).unwrap();
        let asked = tenant(&json!({RESTORE_SNAPSHOT: "other"}), &json!({}));
        let error = check_request(&name, &confirmed, &asked).unwrap_err();
        assert!(error.exit_code() == 1 && error.to_string().contains("other"), "{error}");
        let replacing = json!({"conditions": [condition("Restored", "False", "Replacing")]});
        let error = check_request(&name, &confirmed, &tenant(&json!({}), &replacing)).unwrap_err();
        assert!(error.to_string().contains("because"), "{error}");
        let failing = json!({"conditions": [condition("Restored", "False", "RestoreFailing")]});
        check_request(&name, &confirmed, &tenant(&json!({}), &failing)).unwrap();
        let refused = json!({"conditions": [condition("Restored", "False", "OtherSnapshotRefused")]});
        check_request(&name, &confirmed, &tenant(&json!({}), &refused)).unwrap();
        let mut another = tenant(&json!({}), &json!({}));
        another.metadata.uid = Some("0000".into());
        assert_eq!(check_request(&name, &confirmed, &another).unwrap_err().exit_code(), 3);
    }

    fn condition(kind: &str, status: &str, reason: &str) -> Value {
        json!({"type": kind, "status": status, "reason": reason, "message": "because", "lastTransitionTime": "2026-11-30T00:00:00Z"})
    }

    #[test]
    fn a_restore_is_over_when_the_tenant_is_ready_again() {
        let before = tenant(&json!({}), &json!({}));
        let asked = tenant(&json!({RESTORE_SNAPSHOT: "nightly"}), &json!({}));
        assert_eq!(outcome(&before, &asked), Outcome::UnderWay);
        let replacing = json!({"conditions": [condition("Restored", "False", "Replacing")]});
        assert_eq!(outcome(&before, &tenant(&json!({}), &replacing)), Outcome::UnderWay);
        let restore = json!({"snapshotName": "nightly", "startedAt": "2026-11-30T00:00:00Z", "completedAt": "2026-11-30T00:01:00Z"});
        let done = |ready: &str, state: &str| {
            let conditions = [
                condition("Restored", "True", "Restored"),
                condition("Ready", ready, "Ready"),
            ];
            let status = json!({"restore": restore, "conditions": conditions, "sleep": {"state": state}});
            tenant(&json!({}), &status)
        };
        assert_eq!(outcome(&before, &done("False", "Awake")), Outcome::NotReady);
        assert_eq!(outcome(&before, &done("True", "Awake")), Outcome::Done);
        assert_eq!(outcome(&before, &done("False", "Sleeping")), Outcome::Done);
        assert_eq!(outcome(&before, &done("False", "Waking")), Outcome::NotReady);
        // One that was completed before is another one.
        let ready = done("True", "Awake");
        assert_eq!(outcome(&ready, &ready), Outcome::UnderWay);
    }

    #[test]
    fn a_refusal_from_before_the_request_is_not_taken_for_its_own() {
        let refused = |reason: &str| {
            let status = json!({"conditions": [condition("Restored", "False", reason)]});
            tenant(&json!({}), &status)
        };
        let outcome_of = |before: &TenantCluster, reason: &str| match outcome(before, &refused(reason)) {
            Outcome::Refused { message, is_new } => {
                assert_eq!(message, "because");
                Some(is_new)
            }
            _ => None,
        };
        assert_eq!(
            outcome_of(&tenant(&json!({}), &json!({})), "SnapshotDamaged"),
            Some(true)
        );
        assert_eq!(outcome_of(&refused("OtherTenant"), "SnapshotDamaged"), Some(true));
        assert_eq!(outcome_of(&refused("SnapshotDamaged"), "SnapshotDamaged"), Some(false));
        for reason in [
            "Waiting",
            "Checking",
            "Stopping",
            "Saving",
            "Replacing",
            "RestoreFailing",
        ] {
            assert_eq!(outcome_of(&refused("SnapshotDamaged"), reason), None, "{reason}");
        }
        // Its database is gone: nothing goes on before somebody asks again.
        assert_eq!(outcome_of(&refused("RestoreFailing"), "RestoreLost"), Some(true));
        // The restore that fails goes on, and is not to the snapshot that somebody waits for.
        assert_eq!(
            outcome_of(&refused("RestoreFailing"), "OtherSnapshotRefused"),
            Some(true)
        );
        assert_eq!(
            outcome_of(&refused("OtherSnapshotRefused"), "OtherSnapshotRefused"),
            Some(false)
        );
        // Who waits for that restore has asked before it failed.
        for before in [tenant(&json!({}), &json!({})), refused("OtherTenant")] {
            assert_eq!(outcome_of(&before, "OtherSnapshotRefused"), None);
        }
    }
}
