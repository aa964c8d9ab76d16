//! `berth snapshot restore`: asks control to set a tenant back to a snapshot.

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

use super::snapshots_of;
use crate::completion;
use crate::error::{Error, failed};
use crate::host::Host;
use crate::output::print_line;
use crate::tenant::{self, TenantName};
use crate::wait::{ConditionProgress, parse_timeout, wait_for};

#[derive(Debug, Args)]
pub(crate) struct RestoreArguments {
    /// Name of the TenantCluster, or NAMESPACE/NAME.
    #[arg(value_name = "TENANT", add = completion::tenant_names())]
    tenant: String,
    /// Name of a TenantSnapshot of this tenant.
    #[arg(value_name = "SNAPSHOT")]
    snapshot: String,
    /// Do not ask.
    #[arg(short, long)]
    yes: bool,
    /// Take no snapshot of what the tenant stores now. It is lost.
    #[arg(long)]
    without_saving: bool,
    /// Wait until the tenant is set back and ready again, and print its conditions as they change.
    #[arg(long)]
    wait: bool,
    /// How long to wait.
    #[arg(long, default_value = "30m", value_parser = parse_timeout, value_name = "DURATION")]
    timeout: Duration,
}

pub(super) async fn run(host: &Host, arguments: &RestoreArguments) -> Result<ExitCode, Error> {
    let (name, tenant) = tenant::find(host, &arguments.tenant).await?;
    let snapshots = snapshots_of(host, &name.namespace);
    let found = snapshots
        .get_opt(&arguments.snapshot)
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
    let patch = patch(&tenant, &arguments.snapshot, arguments.without_saving);
    let tenants = name.api(&host.client);
    let patched = tenants
        .patch(&name.name, &PatchParams::default(), &Patch::Merge(&patch))
        .await;
    patched.map_err(failed(
        "ask for the restore; try again if somebody has changed the TenantCluster meanwhile",
    ))?;
    if !arguments.wait {
        print_line(format_args!(
            "TenantCluster {name} is set back to {}; its condition Restored shows the progress.",
            arguments.snapshot
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    wait(host, &name, &tenant, arguments).await?;
    print_line(format_args!(
        "TenantCluster {name} was set back to {}.",
        arguments.snapshot
    ))?;
    Ok(ExitCode::SUCCESS)
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

/// Says what is lost, and asks as kubectl does. Anything but `y` or `Y`, and the end of the input, is a no.
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
    eprint!(
        "You are about to set TenantCluster {name} back to the snapshot {}.\n\
         - Everything that the tenant stores is replaced. Its API server stops meanwhile.\n\
         - Pods, claims and other objects on the host that the snapshot does not have are deleted, with the volumes whose reclaim policy is Delete.\n\
         - Rights, tokens and ServiceAccounts that were removed after the snapshot are there again, but for the roles of spec.access.\n\
         - {saved}\nDo you want to continue? (y/N): ",
        snapshot.name_any()
    );
    let mut answer = String::new();
    let read = answers.read_line(&mut answer);
    read.map_err(|error| Error::Failed(format!("cannot read the answer: {error}")))?;
    Ok(answer.trim().eq_ignore_ascii_case("y"))
}

async fn wait(
    host: &Host,
    name: &TenantName,
    before: &TenantCluster,
    arguments: &RestoreArguments,
) -> Result<(), Error> {
    let mut progress = ConditionProgress::default();
    let check = async || {
        let tenant = name.get(&host.client).await?;
        let conditions = tenant.status.as_ref().map(|status| status.conditions.as_slice());
        progress.print(conditions.unwrap_or_default());
        outcome(before, &tenant)
    };
    let message =
        || format!("{name} is not set back yet; Berth goes on, and `berth get {name}` shows what it waits for");
    wait_for(arguments.timeout, check, message).await
}

/// Whether a restore is over and the tenant is as ready as it was. None: not yet.
fn outcome(before: &TenantCluster, now: &TenantCluster) -> Result<Option<()>, Error> {
    if now.requested_restore().is_some() {
        return Ok(None);
    }
    let last = |tenant: &TenantCluster| {
        let restore = tenant.status.as_ref().and_then(|status| status.restore.clone());
        restore.and_then(|restore| restore.completed_at)
    };
    let conditions = now
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    let restored = conditions.iter().find(|condition| condition.type_ == RESTORED);
    if last(now).is_some() && last(now) != last(before) {
        let runs = now.sleep_state() == SleepState::Awake;
        return Ok((is_true(conditions, READY) || !runs).then_some(()));
    }
    let is_refused = |condition: &&Condition| condition.status == "False" && !is_under_way(&condition.reason);
    match restored.filter(is_refused) {
        Some(refused) => Err(Error::Failed(format!("the restore was refused: {}", refused.message))),
        None => Ok(None),
    }
}

/// Whether a reason of the condition Restored says that the restore goes on.
fn is_under_way(reason: &str) -> bool {
    ["Checking", "Stopping", "Saving", "Replacing", "RestoreFailing"].contains(&reason)
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
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantSnapshot", "metadata": {"name": "nightly", "namespace": "team"},
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
    fn only_a_yes_restores() {
        let name = TenantName::parse("team/vision", "").unwrap();
        let snapshot = snapshot("vision", "6f2c", "Completed");
        let confirm = |mut answer: &[u8]| confirm(&name, &snapshot, false, &mut answer).unwrap();
        assert!(confirm(b"y\n") && confirm(b"Y"));
        for answer in ["", "\n", "n\n", "yes\n"] {
            assert!(!confirm(answer.as_bytes()), "{answer:?}");
        }
    }

    #[test]
    fn a_restore_is_over_when_the_tenant_is_ready_again() {
        let condition = |kind: &str, status: &str, reason: &str| json!({"type": kind, "status": status, "reason": reason, "message": "because", "lastTransitionTime": "2026-11-30T00:00:00Z"});
        let before = tenant(&json!({}), &json!({}));
        let asked = tenant(&json!({RESTORE_SNAPSHOT: "nightly"}), &json!({}));
        assert_eq!(outcome(&before, &asked).unwrap(), None);
        let replacing = json!({"conditions": [condition("Restored", "False", "Replacing")]});
        assert_eq!(outcome(&before, &tenant(&json!({}), &replacing)).unwrap(), None);
        let refused = json!({"conditions": [condition("Restored", "False", "SnapshotDamaged")]});
        assert!(outcome(&before, &tenant(&json!({}), &refused)).is_err());
        let restore = json!({"snapshotName": "nightly", "startedAt": "2026-11-30T00:00:00Z", "completedAt": "2026-11-30T00:01:00Z"});
        let done = |ready: &str| {
            let conditions = [
                condition("Restored", "True", "Restored"),
                condition("Ready", ready, "Ready"),
            ];
            tenant(&json!({}), &json!({"restore": restore, "conditions": conditions}))
        };
        assert_eq!(outcome(&before, &done("False")).unwrap(), None);
        assert_eq!(outcome(&before, &done("True")).unwrap(), Some(()));
        // One that was completed before is another one.
        assert_eq!(outcome(&done("True"), &done("True")).unwrap(), None);
    }
}
