//! `berth snapshot`: takes snapshots of what a tenant stores, and sets the tenant back to one.
//!
//! Control does both: a snapshot is an object beside the TenantCluster, and a restore is asked for by an annotation of the TenantCluster.

mod delete;
mod list;
mod restore;
mod text;

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use berth_api::conditions::COMPLETED;
use berth_api::{KubeDuration, SnapshotPhase, TenantSnapshot, TenantSnapshotSpec};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use kube::Api;
use kube::api::PostParams;

use crate::completion;
use crate::create::parse_lifetime;
use crate::error::{Error, failed};
use crate::host::{Host, HostArguments, find_object};
use crate::output::{NameOnly, ObjectFormat, print_line, print_objects};
use crate::tenant::{self, TenantName, without_resource};
use crate::wait::{ConditionProgress, parse_timeout, wait_for};
use delete::{DeleteArguments, is_gone};
use list::ListArguments;
use restore::RestoreArguments;
use text::resource_name;

/// What to do with snapshots.
#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Take a snapshot of what a tenant stores: its objects, not the data of its volumes.
    ///
    /// Works also while the tenant sleeps. The platform needs an object store for it.
    #[command(
        after_help = "Examples:\n  berth snapshot create team-vision/vision --wait\n  berth snapshot create vision --name before-upgrade --ttl 720h"
    )]
    Create(CreateArguments),
    /// List the snapshots of a tenant, of all tenants of the namespace, or of all.
    #[command(
        visible_alias = "ls",
        after_help = "Examples:\n  berth snapshot list -n team-vision\n  berth snapshot list team-vision/vision -o wide\n  berth snapshot list team-vision/vision --watch\n  berth snapshot list -A -l berth.dev/snapshot-trigger=schedule -o json"
    )]
    List(ListArguments),
    /// Describe a snapshot: how far it is, what it has, when it expires, and why it has failed.
    #[command(
        visible_alias = "describe",
        after_help = "Examples:\n  berth snapshot get before-upgrade -n team-vision\n  berth snapshot get team-vision/before-upgrade -o yaml"
    )]
    Get {
        /// Name of the TenantSnapshot, or NAMESPACE/NAME.
        #[arg(value_name = "SNAPSHOT", add = completion::snapshot_names())]
        name: String,
        /// Output format.
        #[arg(short, long, value_enum, default_value_t)]
        output: ObjectFormat,
    },
    /// Set a tenant back to a snapshot of its own. Everything that it stores is replaced.
    ///
    /// The API server stops meanwhile. Pods, claims and other objects on the host that the snapshot does not have are deleted, with the volumes whose
    /// reclaim policy is Delete. Rights that were taken away after the snapshot are there again, but for those of spec.access. What the tenant
    /// stores now is saved as another snapshot first.
    #[command(
        after_help = "Examples:\n  berth snapshot restore team-vision/vision before-upgrade --wait\n  berth snapshot restore vision vision-20261130-0200 --yes"
    )]
    Restore(RestoreArguments),
    /// Delete snapshots, with their files in the object store, and wait until these are gone.
    #[command(
        after_help = "Examples:\n  berth snapshot delete before-upgrade -n team-vision\n  berth snapshot delete team-vision/before-upgrade --wait=false"
    )]
    Delete(DeleteArguments),
}

#[derive(Debug, Args)]
pub(crate) struct CreateArguments {
    /// Name of the TenantCluster, or NAMESPACE/NAME.
    #[arg(value_name = "TENANT", add = completion::tenant_names())]
    tenant: String,
    /// Name of the snapshot [default: that of the tenant, with the time].
    #[arg(long)]
    name: Option<String>,
    /// How long the snapshot is kept, for example 720h [default: until it is deleted].
    #[arg(long, value_parser = parse_lifetime, value_name = "DURATION")]
    ttl: Option<KubeDuration>,
    /// Wait until the snapshot is completed.
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false", hide_default_value = true)]
    wait: bool,
    /// How long to wait.
    #[arg(long, default_value = "15m", value_parser = parse_timeout, value_name = "DURATION", requires = "wait")]
    timeout: Duration,
    /// Print only resource and name.
    #[arg(short, long, value_enum, value_name = "name")]
    output: Option<NameOnly>,
}

pub(crate) async fn run(host: &HostArguments, command: &SnapshotCommand) -> Result<ExitCode, Error> {
    let host = host.connect().await?;
    match command {
        SnapshotCommand::Create(arguments) => create(&host, arguments).await,
        SnapshotCommand::List(arguments) => list::run(&host, arguments).await,
        SnapshotCommand::Get { name, output } => get(&host, name, *output).await,
        SnapshotCommand::Restore(arguments) => restore::run(&host, arguments).await,
        SnapshotCommand::Delete(arguments) => delete::run(&host, arguments).await,
    }
}

fn snapshots_of(host: &Host, namespace: &str) -> Api<TenantSnapshot> {
    Api::namespaced(host.client.clone(), namespace)
}

/// Reads `NAME`, a snapshot of `namespace`, or `NAMESPACE/NAME`. `is_given` says that `namespace` is that of `--namespace`.
fn parse_name(text: &str, namespace: &str, is_given: bool) -> Result<TenantName, Error> {
    let wrong = |_| Error::Usage(format!("{text:?} is not NAME or NAMESPACE/NAME of a TenantSnapshot"));
    let name = without_resource::<TenantSnapshot>(text);
    TenantName::parse(name, namespace).map_err(wrong)?;
    TenantName::parse_given(name, namespace, is_given)
}

/// The name of a snapshot for which none was given.
fn default_name(tenant: &str, now: Timestamp) -> String {
    format!("{tenant}-{}", now.strftime("%Y%m%d-%H%M%S"))
}

async fn create(host: &Host, arguments: &CreateArguments) -> Result<ExitCode, Error> {
    let (tenant, _) = tenant::find(host, &arguments.tenant).await?;
    let now = host.now().await;
    let name = { arguments.name.clone() }.unwrap_or_else(|| default_name(&tenant.name, now));
    let spec = TenantSnapshotSpec {
        tenant_cluster_name: tenant.name.clone(),
        ttl: arguments.ttl.clone(),
    };
    let snapshots = snapshots_of(host, &tenant.namespace);
    let created = snapshots
        .create(&PostParams::default(), &TenantSnapshot::new(&name, spec))
        .await;
    let uid = created
        .map_err(failed("create the snapshot"))?
        .metadata
        .uid
        .unwrap_or_default();
    let full = TenantName {
        namespace: tenant.namespace.clone(),
        name: name.clone(),
    };
    if !arguments.wait {
        print_created(
            arguments,
            &name,
            format_args!("TenantSnapshot {full} is created; `berth snapshot get {full}` shows when it is completed."),
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut progress = ConditionProgress::default();
    let check = async || {
        let found = find_object(&snapshots, &name).await;
        let found = found.map_err(failed("get the snapshot"))?;
        // Another one may have its name by now.
        let found = found.filter(|found| !is_gone(Some(found), &uid));
        let snapshot = found.ok_or_else(|| Error::NotFound(format!("TenantSnapshot {full} was deleted")))?;
        let conditions = snapshot.status.as_ref().map(|status| status.conditions.as_slice());
        progress.print(conditions.unwrap_or_default());
        outcome(&snapshot)
    };
    let message = || {
        format!(
            "TenantSnapshot {full} is not completed yet; Berth goes on, and `berth snapshot get {full}` shows how far it is"
        )
    };
    let objects = wait_for(arguments.timeout, check, message).await?;
    print_created(
        arguments,
        &name,
        format_args!("TenantSnapshot {full} is completed: {objects} objects."),
    )?;
    Ok(ExitCode::SUCCESS)
}

fn print_created(arguments: &CreateArguments, name: &str, text: fmt::Arguments<'_>) -> Result<(), Error> {
    match arguments.output {
        Some(NameOnly::Name) => print_line(format_args!("{}", resource_name(name))),
        None => print_line(text),
    }
}

/// The number of objects of a snapshot that is completed; none while it is not.
fn outcome(snapshot: &TenantSnapshot) -> Result<Option<u64>, Error> {
    match snapshot.phase() {
        SnapshotPhase::Pending | SnapshotPhase::Running => Ok(None),
        SnapshotPhase::Completed => Ok(Some(
            { snapshot.status.as_ref() }
                .and_then(|status| status.objects)
                .unwrap_or_default(),
        )),
        SnapshotPhase::Failed => {
            let mut conditions = snapshot.status.iter().flat_map(|status| &status.conditions);
            let completed = conditions.find(|condition| condition.type_ == COMPLETED);
            let why = completed.map_or("", |condition| condition.message.as_str());
            Err(Error::Failed(format!("the snapshot was not taken: {why}")))
        }
    }
}

async fn get(host: &Host, name: &str, output: ObjectFormat) -> Result<ExitCode, Error> {
    let name = parse_name(name, &host.namespace, host.is_namespace_given)?;
    let snapshots = snapshots_of(host, &name.namespace);
    let found = find_object(&snapshots, &name.name)
        .await
        .map_err(failed("get the snapshot"))?;
    let snapshot = found.ok_or_else(|| {
        Error::NotFound(format!(
            "there is no TenantSnapshot {name}; `berth snapshot list -n {}` lists those of the namespace",
            name.namespace
        ))
    })?;
    let now = host.now().await;
    let names = [resource_name(&name.name)];
    print_objects(&snapshot, &names, || text::describe(&snapshot, now), output)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn snapshot(status: &serde_json::Value) -> TenantSnapshot {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantSnapshot", "metadata": {"name": "a", "namespace": "team"},
            "spec": {"tenantClusterName": "vision"}, "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn a_name_that_is_not_given_has_the_time() {
        let now = "2026-11-30T01:02:03Z".parse().unwrap();
        assert_eq!(default_name("vision", now), "vision-20261130-010203");
    }

    #[test]
    fn a_snapshot_that_has_failed_is_not_waited_for() {
        assert_eq!(outcome(&snapshot(&json!({}))).unwrap(), None);
        assert_eq!(outcome(&snapshot(&json!({"phase": "Running"}))).unwrap(), None);
        let completed = snapshot(&json!({"phase": "Completed", "objects": 7}));
        assert_eq!(outcome(&completed).unwrap(), Some(7));
        let failed = snapshot(&json!({"phase": "Failed", "conditions": [
            {"type": "Completed", "status": "False", "reason": "NoSnapshotStore", "message": "there is no store",
                "lastTransitionTime": "2026-11-30T00:00:00Z"},
        ]}));
        let error = outcome(&failed).unwrap_err().to_string();
        assert!(error.contains("there is no store"), "{error}");
    }

    #[test]
    fn a_snapshot_is_named_with_or_without_its_namespace() {
        assert_eq!(parse_name("a", "team", true).unwrap().to_string(), "team/a");
        assert_eq!(parse_name("other/a", "team", false).unwrap().to_string(), "other/a");
        assert_eq!(parse_name("other/a", "team", true).unwrap_err().exit_code(), 2);
        let printed = resource_name("a");
        assert_eq!(parse_name(&printed, "team", true).unwrap().to_string(), "team/a");
        let wrong = parse_name("a/b/c", "team", true).unwrap_err();
        assert!(
            wrong.exit_code() == 2 && wrong.to_string().ends_with("of a TenantSnapshot"),
            "{wrong}"
        );
    }
}
