//! `berth snapshot`: takes snapshots of what a tenant stores, and sets the tenant back to one.
//!
//! Control does both: a snapshot is an object beside the TenantCluster, and a restore is asked for by an annotation of the TenantCluster.

mod restore;
mod text;

use std::process::ExitCode;
use std::time::Duration;

use berth_api::conditions::COMPLETED;
use berth_api::{KubeDuration, SnapshotPhase, TenantSnapshot, TenantSnapshotSpec};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt as _};

use crate::completion;
use crate::create::parse_lifetime;
use crate::error::{Error, failed};
use crate::host::{Host, HostArguments};
use crate::output::{ObjectFormat, list_of, print_line, print_objects};
use crate::tenant::{self, TenantName};
use crate::wait::{ConditionProgress, parse_timeout, wait_for};
use restore::RestoreArguments;
use text::{format_snapshots, resource_name};

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
    /// List the snapshots of a tenant, or of all tenants of the namespace.
    #[command(
        visible_alias = "ls",
        after_help = "Examples:\n  berth snapshot list -n team-vision\n  berth snapshot list team-vision/vision -o json"
    )]
    List {
        /// Name of the TenantCluster, or NAMESPACE/NAME.
        #[arg(value_name = "TENANT", add = completion::tenant_names())]
        tenant: Option<String>,
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
    /// Delete snapshots, with what is in the object store.
    #[command(after_help = "Example:\n  berth snapshot delete before-upgrade -n team-vision")]
    Delete {
        /// Names of the TenantSnapshots, which are in the namespace of the command.
        #[arg(required = true, value_name = "SNAPSHOT", add = completion::snapshot_names())]
        names: Vec<String>,
    },
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
    #[arg(long)]
    wait: bool,
    /// How long to wait.
    #[arg(long, default_value = "15m", value_parser = parse_timeout, value_name = "DURATION")]
    timeout: Duration,
}

pub(crate) async fn run(host: &HostArguments, command: &SnapshotCommand) -> Result<ExitCode, Error> {
    let host = host.connect().await?;
    match command {
        SnapshotCommand::Create(arguments) => create(&host, arguments).await,
        SnapshotCommand::List { tenant, output } => list(&host, tenant.as_deref(), *output).await,
        SnapshotCommand::Restore(arguments) => restore::run(&host, arguments).await,
        SnapshotCommand::Delete { names } => delete(&host, names).await,
    }
}

fn snapshots_of(host: &Host, namespace: &str) -> Api<TenantSnapshot> {
    Api::namespaced(host.client.clone(), namespace)
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
    created.map_err(failed("create the snapshot"))?;
    let full = TenantName {
        namespace: tenant.namespace.clone(),
        name: name.clone(),
    };
    if !arguments.wait {
        print_line(format_args!(
            "TenantSnapshot {full} is created; `berth snapshot list {tenant}` shows when it is completed."
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut progress = ConditionProgress::default();
    let check = async || {
        let found = snapshots.get_opt(&name).await.map_err(failed("get the snapshot"))?;
        let snapshot = found.ok_or_else(|| Error::NotFound(format!("TenantSnapshot {full} was deleted")))?;
        let conditions = snapshot.status.as_ref().map(|status| status.conditions.as_slice());
        progress.print(conditions.unwrap_or_default());
        outcome(&snapshot)
    };
    let message = || format!("TenantSnapshot {full} is not completed yet; Berth goes on");
    let objects = wait_for(arguments.timeout, check, message).await?;
    print_line(format_args!("TenantSnapshot {full} is completed: {objects} objects."))?;
    Ok(ExitCode::SUCCESS)
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

async fn list(host: &Host, tenant: Option<&str>, output: ObjectFormat) -> Result<ExitCode, Error> {
    let tenant = tenant
        .map(|text| TenantName::parse(text, &host.namespace))
        .transpose()?;
    let namespace = tenant.as_ref().map_or(&host.namespace, |tenant| &tenant.namespace);
    let listed = snapshots_of(host, namespace).list(&ListParams::default()).await;
    let mut snapshots = listed.map_err(failed("list the snapshots"))?.items;
    let is_of_tenant = |snapshot: &TenantSnapshot| {
        let name = tenant.as_ref().map(|tenant| tenant.name.as_str());
        name.is_none_or(|name| snapshot.spec.tenant_cluster_name == name)
    };
    snapshots.retain(is_of_tenant);
    snapshots.sort_by_key(|snapshot| {
        let created = snapshot.creation_timestamp().map(|created| created.0);
        (snapshot.spec.tenant_cluster_name.clone(), created, snapshot.name_any())
    });
    let names: Vec<String> = snapshots
        .iter()
        .map(|snapshot| resource_name(&snapshot.name_any()))
        .collect();
    let now = host.now().await;
    print_objects(
        &list_of(&snapshots),
        &names,
        || format_snapshots(&snapshots, now),
        output,
    )?;
    Ok(ExitCode::SUCCESS)
}

async fn delete(host: &Host, names: &[String]) -> Result<ExitCode, Error> {
    let snapshots = snapshots_of(host, &host.namespace);
    for name in names {
        match snapshots.delete(name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                return Err(Error::NotFound(format!(
                    "there is no TenantSnapshot {}/{name}; `berth snapshot list` lists those of the namespace",
                    host.namespace
                )));
            }
            deleted => drop(deleted.map_err(failed("delete the snapshot"))?),
        }
        print_line(format_args!(
            "TenantSnapshot {}/{name} is being deleted, with what is in the object store.",
            host.namespace
        ))?;
    }
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
}
