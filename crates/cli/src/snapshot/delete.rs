//! `berth snapshot delete`: deletes snapshots and waits until their files are deleted.

use std::process::ExitCode;
use std::time::Duration;

use berth_api::TenantSnapshot;
use berth_api::labels::SNAPSHOT_FINALIZER;
use clap::Args;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Preconditions};
use tokio::time::Instant;

use super::text::resource_name;
use super::{parse_name, snapshots_of};
use crate::completion;
use crate::error::{Error, failed};
use crate::host::{Host, find_object};
use crate::output::{NameOnly, finish, print_line};
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
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false", hide_default_value = true)]
    ignore_not_found: bool,
    /// Print only resource and name.
    #[arg(short, long, value_enum, value_name = "name")]
    output: Option<NameOnly>,
}

pub(super) async fn run(host: &Host, arguments: &DeleteArguments) -> Result<ExitCode, Error> {
    let names = { arguments.names.iter() }
        .map(|text| parse_name(text, &host.namespace, host.is_namespace_given))
        .collect::<Result<Vec<_>, _>>()?;
    let deadline = Instant::now() + arguments.timeout;
    let (mut deleted, mut missing, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    for name in names {
        match delete(host, &name).await {
            Ok(Some((uid, has_file))) => deleted.push((name, uid, has_file)),
            Ok(None) => missing.push(name.to_string()),
            Err(error) => failures.push(error),
        }
    }
    if !arguments.ignore_not_found {
        failures.extend(describe_missing(&missing));
    }
    // People learn what is being deleted, also if other snapshots could not be.
    for (name, uid, has_file) in deleted {
        if arguments.wait {
            let left = deadline.saturating_duration_since(Instant::now());
            if let Err(error) = wait_until_gone(host, &name, &uid, left).await {
                failures.push(error);
                continue;
            }
        }
        match arguments.output {
            Some(NameOnly::Name) => print_line(format_args!("{}", resource_name(&name.name)))?,
            None => print_line(format_args!("{}", describe(&name, has_file, arguments.wait)))?,
        }
    }
    finish(failures)
}

/// The error of snapshots that do not exist, if there are some.
fn describe_missing(missing: &[String]) -> Option<Error> {
    (!missing.is_empty()).then(|| {
        Error::NotFound(format!(
            "there is no TenantSnapshot {}; `berth snapshot list -A` lists all that you may see",
            missing.join(", ")
        ))
    })
}

/// What became of a snapshot. Control deletes no file of one without its finalizer.
fn describe(name: &TenantName, has_file: bool, is_gone: bool) -> String {
    let state = if is_gone { "is deleted" } else { "is being deleted" };
    if has_file {
        format!("TenantSnapshot {name} {state}, with its file.")
    } else {
        format!(
            "TenantSnapshot {name} {state}. It had no finalizer {SNAPSHOT_FINALIZER}: if it has a file in the object store, the file stays."
        )
    }
}

/// Whether control deletes the file of a snapshot before it lets the object go.
pub(super) fn has_file(snapshot: &TenantSnapshot) -> bool {
    snapshot
        .finalizers()
        .iter()
        .any(|finalizer| finalizer == SNAPSHOT_FINALIZER)
}

/// Deletes the snapshot that has this name now. Returns its UID, and whether its file is deleted with it; none if there is no such snapshot.
async fn delete(host: &Host, name: &TenantName) -> Result<Option<(String, bool)>, Error> {
    let snapshots = snapshots_of(host, &name.namespace);
    let found = find_object(&snapshots, &name.name)
        .await
        .map_err(failed("get the snapshot"))?;
    let Some(snapshot) = found else {
        return Ok(None);
    };
    let has_file = has_file(&snapshot);
    let uid = snapshot.metadata.uid.unwrap_or_default();
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
    Ok(Some((uid, has_file)))
}

/// Control lets the object go once its file is deleted, and not while the tenant is set back to it.
async fn wait_until_gone(host: &Host, name: &TenantName, uid: &str, timeout: Duration) -> Result<(), Error> {
    let snapshots = snapshots_of(host, &name.namespace);
    let check = async || {
        let found = find_object(&snapshots, &name.name)
            .await
            .map_err(failed("get the snapshot"))?;
        Ok(is_gone(found.as_ref(), uid).then_some(()))
    };
    wait_for(timeout, check, || describe_waiting(name)).await
}

/// What is said of a snapshot that is not gone in time. Its condition says why, as no Event is written in a namespace that is being deleted.
fn describe_waiting(name: &TenantName) -> String {
    format!(
        "TenantSnapshot {name} is still being deleted; Berth goes on: it deletes the file first, and nothing while the tenant is set back to it. The \
         condition Deleting in `berth snapshot get {name}` says why"
    )
}

/// Whether a snapshot is gone, also if another one has its name.
pub(super) fn is_gone(found: Option<&TenantSnapshot>, uid: &str) -> bool {
    found.is_none_or(|found| found.metadata.uid.as_deref() != Some(uid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tests::host_of;
    use crate::testing::{client, refusal};
    use berth_api::TenantSnapshotSpec;
    use http::Method;
    use serde_json::json;
    use std::sync::{Arc, Mutex};

    #[test]
    fn a_file_that_stays_is_not_said_to_be_deleted() {
        let name = TenantName::parse("team/a", "").unwrap();
        let mut found = TenantSnapshot::new("a", TenantSnapshotSpec::default());
        assert!(!has_file(&found));
        found.metadata.finalizers = Some(vec![SNAPSHOT_FINALIZER.into()]);
        assert!(has_file(&found));
        assert_eq!(
            describe(&name, true, false),
            "TenantSnapshot team/a is being deleted, with its file."
        );
        let text = describe(&name, false, true);
        assert!(
            text.starts_with("TenantSnapshot team/a is deleted. ") && text.ends_with("the file stays."),
            "{text}"
        );
    }

    #[tokio::test]
    async fn a_snapshot_that_may_not_be_deleted_keeps_no_other_one() {
        let (calls, client) = {
            let calls = Arc::new(Mutex::new(Vec::new()));
            let seen = Arc::clone(&calls);
            let client = client(move |request| {
                let name = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
                let is_deletion = request.method() == Method::DELETE;
                if is_deletion {
                    seen.lock().unwrap().push(name.clone());
                }
                match &*name {
                    "a" if is_deletion => refusal(403, "Forbidden"),
                    "b" => refusal(404, "NotFound"),
                    _ => (
                        200,
                        json!({
                            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantSnapshot", "spec": {"tenantClusterName": "vision"},
                            "metadata": {"name": name, "namespace": "team", "uid": name},
                        }),
                    ),
                }
            });
            (calls, client)
        };
        let host = host_of(client, "team");
        let arguments = DeleteArguments {
            names: ["a", "b", "c"].map(Into::into).into(),
            wait: false,
            timeout: Duration::from_secs(1),
            ignore_not_found: false,
            output: None,
        };
        let error = run(&host, &arguments).await.unwrap_err();
        assert_eq!(*calls.lock().unwrap(), ["a", "c"]);
        assert!(error.to_string().contains("team/b"), "the last failure: {error}");
        let ignoring = DeleteArguments {
            ignore_not_found: true,
            ..arguments
        };
        let error = run(&host, &ignoring).await.unwrap_err();
        assert!(error.to_string().contains("Forbidden"), "{error}");
    }

    #[test]
    fn names_that_do_not_exist_are_one_failure() {
        assert!(describe_missing(&[]).is_none());
        let error = describe_missing(&["team/a".to_owned(), "team/b".to_owned()]).unwrap();
        assert_eq!(error.exit_code(), 3);
        assert!(error.to_string().contains("team/a, team/b;"), "{error}");
    }

    #[test]
    fn who_has_waited_for_too_long_learns_where_it_is_said_why() {
        let text = describe_waiting(&TenantName::parse("team/a", "").unwrap());
        assert!(
            text.ends_with("condition Deleting in `berth snapshot get team/a` says why"),
            "{text}"
        );
    }

    #[test]
    fn a_snapshot_is_gone_once_another_one_has_its_name() {
        let mut found = TenantSnapshot::new("a", TenantSnapshotSpec::default());
        found.metadata.uid = Some("6f2c".into());
        assert!(!is_gone(Some(&found), "6f2c"));
        assert!(is_gone(Some(&found), "0000"));
        assert!(is_gone(None, "6f2c"));
    }
}
