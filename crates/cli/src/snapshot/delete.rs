//! `berth snapshot delete`: deletes snapshots and waits until their files are deleted.

use std::process::ExitCode;
use std::time::Duration;

use berth_api::TenantSnapshot;
use clap::Args;
use kube::api::{DeleteParams, Preconditions};
use tokio::time::Instant;

use super::text::resource_name;
use super::{parse_name, snapshots_of};
use crate::completion;
use crate::error::{Error, failed};
use crate::host::{Host, find_object};
use crate::output::{NameOnly, print_line};
use crate::tenant::TenantName;
use crate::wait::{parse_timeout, wait_for};

#[derive(Debug, Args)]
pub(crate) struct DeleteArguments {
    /// Names of the TenantSnapshots, or NAMESPACE/NAME.
    #[arg(required = true, value_name = "SNAPSHOT", add = completion::snapshot_names())]
    names: Vec<String>,
    /// Wait until the files are deleted in the object store.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false")]
    wait: bool,
    /// How long to wait.
    #[arg(long, default_value = "5m", value_parser = parse_timeout, value_name = "DURATION")]
    timeout: Duration,
    /// Succeed if there is no such snapshot.
    #[arg(long)]
    ignore_not_found: bool,
    /// Print only resource and name.
    #[arg(short, long, value_enum, value_name = "name")]
    output: Option<NameOnly>,
}

pub(super) async fn run(host: &Host, arguments: &DeleteArguments) -> Result<ExitCode, Error> {
    let names = { arguments.names.iter() }
        .map(|text| parse_name(text, &host.namespace))
        .collect::<Result<Vec<_>, _>>()?;
    let deadline = Instant::now() + arguments.timeout;
    let (mut deleted, mut missing) = (Vec::new(), Vec::new());
    for name in names {
        match delete(host, &name).await? {
            Some(uid) => deleted.push((name, uid)),
            None => missing.push(name.to_string()),
        }
    }
    for (name, uid) in deleted {
        if arguments.wait {
            let left = deadline.saturating_duration_since(Instant::now());
            wait_until_gone(host, &name, &uid, left).await?;
        }
        match (arguments.output, arguments.wait) {
            (Some(NameOnly::Name), _) => print_line(format_args!("{}", resource_name(&name.name)))?,
            (None, true) => print_line(format_args!("TenantSnapshot {name} is deleted, with its file."))?,
            (None, false) => print_line(format_args!("TenantSnapshot {name} is being deleted, with its file."))?,
        }
    }
    if missing.is_empty() || arguments.ignore_not_found {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Error::NotFound(format!(
        "there is no TenantSnapshot {}; `berth snapshot list -A` lists all that you may see",
        missing.join(", ")
    )))
}

/// Deletes the snapshot that has this name now. Returns its UID; none if there is no such snapshot.
async fn delete(host: &Host, name: &TenantName) -> Result<Option<String>, Error> {
    let snapshots = snapshots_of(host, &name.namespace);
    let found = find_object(&snapshots, &name.name)
        .await
        .map_err(failed("get the snapshot"))?;
    let Some(uid) = found.and_then(|snapshot| snapshot.metadata.uid) else {
        return Ok(None);
    };
    // The one that was found, and not one that got its name meanwhile.
    let parameters = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(uid.clone()),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match snapshots.delete(&name.name, &parameters).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        deleted => drop(deleted.map_err(failed("delete the snapshot"))?),
    }
    Ok(Some(uid))
}

/// Control lets the object go once its file is deleted, and not while the tenant is set back to it.
async fn wait_until_gone(host: &Host, name: &TenantName, uid: &str, timeout: Duration) -> Result<(), Error> {
    let snapshots = snapshots_of(host, &name.namespace);
    let check = async || {
        let found = snapshots
            .get_opt(&name.name)
            .await
            .map_err(failed("get the snapshot"))?;
        Ok(is_gone(found.as_ref(), uid).then_some(()))
    };
    let message = || {
        format!(
            "TenantSnapshot {name} is still being deleted; Berth goes on: it deletes the file first, and nothing while the tenant is set back to \
             it. `kubectl -n {} describe tenantsnapshot {}` shows Events",
            name.namespace, name.name
        )
    };
    wait_for(timeout, check, message).await
}

/// Whether a snapshot is gone, also if another one has its name.
fn is_gone(found: Option<&TenantSnapshot>, uid: &str) -> bool {
    found.is_none_or(|found| found.metadata.uid.as_deref() != Some(uid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::TenantSnapshotSpec;

    #[test]
    fn a_snapshot_is_gone_once_another_one_has_its_name() {
        let mut found = TenantSnapshot::new("a", TenantSnapshotSpec::default());
        found.metadata.uid = Some("6f2c".into());
        assert!(!is_gone(Some(&found), "6f2c"));
        assert!(is_gone(Some(&found), "0000"));
        assert!(is_gone(None, "6f2c"));
    }
}
