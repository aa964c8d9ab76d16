//! `berth delete`: deletes tenants and waits until nothing of them is left.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use berth_api::TenantCluster;
use clap::Args;
use kube::api::{DeleteParams, Preconditions};
use tokio::time::Instant;

use crate::completion;
use crate::create::{DryRun, name_of, read_object};
use crate::error::{Error, failed};
use crate::host::{Host, HostArguments, find_object};
use crate::output::{NameOnly, finish, plural, print_line, print_note, print_question};
use crate::tenant::{TenantName, list_names, phase, print_result};
use crate::wait::{ConditionProgress, parse_timeout, wait_for};

#[derive(Debug, Args)]
pub(crate) struct DeleteArguments {
    /// Names of the TenantClusters, or NAMESPACE/NAME.
    #[arg(required_unless_present = "file", value_name = "NAME", add = completion::tenant_names())]
    names: Vec<String>,
    /// Delete the TenantCluster in this file; - is stdin.
    #[arg(short, long, value_name = "FILE", conflicts_with = "names")]
    file: Option<PathBuf>,
    /// Wait until everything that the tenants had is removed.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false")]
    wait: bool,
    /// How long to wait.
    #[arg(long, default_value = "15m", value_parser = parse_timeout, value_name = "DURATION")]
    timeout: Duration,
    /// Ask before anything is deleted.
    #[arg(short, long)]
    interactive: bool,
    /// Succeed if there is no such tenant.
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false", hide_default_value = true)]
    ignore_not_found: bool,
    /// Delete nothing: `client` only says what would be deleted, `server` lets the API server check it.
    #[arg(long, value_enum, value_name = "client|server")]
    dry_run: Option<DryRun>,
    /// Print only resource and name.
    #[arg(short, long, value_enum, value_name = "name")]
    output: Option<NameOnly>,
}

/// A tenant as it was before its deletion.
type Found = (TenantName, TenantCluster);

pub(crate) async fn run(host: &HostArguments, arguments: &DeleteArguments) -> Result<ExitCode, Error> {
    let host = host.connect().await?;
    let names = read_names(arguments, &host.namespace, host.is_namespace_given)?;
    let (found, missing) = find_all(&host, names).await?;
    let is_asked = arguments.interactive && arguments.dry_run.is_none() && !found.is_empty();
    if is_asked && !confirm(&found, &mut io::stdin().lock())? {
        print_line(format_args!("deletion is cancelled"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut failures = if arguments.ignore_not_found {
        Vec::new()
    } else {
        describe_missing(&host, &missing).await
    };
    let deadline = Instant::now() + arguments.timeout;
    let mut deleted = Vec::new();
    for (name, tenant) in &found {
        match delete(&host, name, tenant, arguments.dry_run).await {
            Ok(()) => deleted.push((name, tenant)),
            Err(error) => failures.push(error),
        }
    }
    let is_waiting = arguments.wait && arguments.dry_run.is_none();
    // People learn what is being deleted, also if other tenants could not be.
    for (name, tenant) in deleted {
        if is_waiting {
            let left = deadline.saturating_duration_since(Instant::now());
            let prefix = if found.len() > 1 {
                format!("{name}: ")
            } else {
                String::new()
            };
            let waited = wait_until_gone(&host, name, tenant.metadata.uid.as_ref(), &prefix, left).await;
            if let Err(error) = waited {
                failures.push(error);
                continue;
            }
        }
        print_result(name, arguments.output, describe_deleted(arguments.dry_run, is_waiting))?;
    }
    finish(failures)
}

/// What became of a tenant, behind its name.
fn describe_deleted(dry_run: Option<DryRun>, is_gone: bool) -> &'static str {
    match (dry_run, is_gone) {
        (Some(DryRun::Client), _) => "is deleted (dry run)",
        (Some(DryRun::Server), _) => "is deleted (server dry run)",
        (None, true) => "is deleted with everything that it had",
        (None, false) => "is being deleted",
    }
}

/// The names of the tenants that the arguments name, each once, in the namespace of the command unless they have one.
///
/// # Errors
/// One is no name, the file does not have one tenant, or a namespace is another than that of `--namespace`.
fn read_names(arguments: &DeleteArguments, namespace: &str, is_given: bool) -> Result<Vec<TenantName>, Error> {
    if let Some(path) = &arguments.file {
        let name = name_of(&read_object(path, namespace, is_given)?);
        return Ok(vec![TenantName::parse(&name.to_string(), namespace)?]);
    }
    let mut names = Vec::new();
    for text in &arguments.names {
        let name = TenantName::parse_given(text, namespace, is_given)?;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

/// The tenants of these names, and the names of those that do not exist.
///
/// # Errors
/// The host refuses or does not answer.
async fn find_all(host: &Host, names: Vec<TenantName>) -> Result<(Vec<Found>, Vec<TenantName>), Error> {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for name in names {
        let tenant = find_object(&name.api(&host.client), &name.name).await;
        match tenant.map_err(failed("get the tenant"))? {
            Some(tenant) => found.push((name, tenant)),
            None => missing.push(name),
        }
    }
    Ok((found, missing))
}

/// An error for each tenant that does not exist, with those that may be meant: they are listed once.
async fn describe_missing(host: &Host, missing: &[TenantName]) -> Vec<Error> {
    let Some(first) = missing.first() else {
        return Vec::new();
    };
    let others = list_names(&host.client, &first.namespace).await;
    missing.iter().map(|name| name.not_found(&others)).collect()
}

/// Deletes the tenant that was found, and not one that got its name meanwhile.
async fn delete(host: &Host, name: &TenantName, tenant: &TenantCluster, dry_run: Option<DryRun>) -> Result<(), Error> {
    if dry_run == Some(DryRun::Client) {
        return Ok(());
    }
    let parameters = DeleteParams {
        dry_run: dry_run.is_some(),
        preconditions: Some(Preconditions {
            uid: tenant.metadata.uid.clone(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match name.api(&host.client).delete(&name.name, &parameters).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        deleted => deleted.map(drop).map_err(failed("delete the tenant")),
    }
}

/// Asks as kubectl does. Anything but `y` or `Y`, and the end of the input, is a no.
fn confirm(found: &[Found], answers: &mut impl io::BufRead) -> Result<bool, Error> {
    print_question(format_args!("{}Do you want to continue? (y/N): ", describe_loss(found)));
    let mut answer = String::new();
    let read = answers.read_line(&mut answer);
    read.map_err(|error| Error::Failed(format!("cannot read the answer: {error}")))?;
    Ok(answer.trim().eq_ignore_ascii_case("y"))
}

/// What is about to be deleted.
fn describe_loss(found: &[Found]) -> String {
    let describe = |(name, tenant): &Found| {
        let nodes = tenant.status.as_ref().and_then(|status| status.nodes.as_ref());
        let nodes = nodes.map_or(0, |nodes| nodes.assigned);
        format!("{name} ({}, {})", phase(tenant), plural(nodes.into(), "node"))
    };
    match found {
        [one] => format!(
            "You are about to delete TenantCluster {} with everything in it.\n",
            describe(one)
        ),
        all => {
            let lines: Vec<String> = all.iter().map(|one| format!("  {}\n", describe(one))).collect();
            format!(
                "You are about to delete {} TenantClusters with everything in them:\n{}",
                all.len(),
                lines.concat()
            )
        }
    }
}

/// Prints what remains, which control writes into the condition Deleting, until the object is gone.
async fn wait_until_gone(
    host: &Host,
    name: &TenantName,
    uid: Option<&String>,
    prefix: &str,
    timeout: Duration,
) -> Result<(), Error> {
    let tenants = name.api(&host.client);
    let mut progress = ConditionProgress::default();
    let check = async || {
        let found = tenants.get_opt(&name.name).await.map_err(failed("get the tenant"))?;
        let Some(tenant) = found.filter(|tenant| tenant.metadata.uid.as_ref() == uid) else {
            return Ok(Some(()));
        };
        let conditions = tenant.status.map(|status| status.conditions).unwrap_or_default();
        let deleting: Vec<_> = conditions
            .into_iter()
            .filter(|condition| condition.type_ == berth_api::conditions::DELETING)
            .collect();
        for line in progress.changes(&deleting) {
            print_note(format_args!("{prefix}{line}"));
        }
        Ok(None)
    };
    let message = || format!("{name} is still being deleted; Berth goes on, and `berth get {name}` shows what is left");
    wait_for(timeout, check, message).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found(name: &str, nodes: u32) -> Found {
        let tenant = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "a"}, "spec": {},
            "status": {"phase": "Ready", "nodes": {"desired": nodes, "assigned": nodes, "ready": nodes}},
        });
        (
            TenantName::parse(name, "").unwrap(),
            serde_json::from_value(tenant).unwrap(),
        )
    }

    #[test]
    fn only_a_yes_deletes() {
        let found = [found("team/vision", 0)];
        let confirm = |mut answer: &[u8]| confirm(&found, &mut answer).unwrap();
        assert!(confirm(b"y\n") && confirm(b" Y \n") && confirm(b"y"));
        for answer in ["", "\n", "n\n", "yes\n", "no\ny\n"] {
            assert!(!confirm(answer.as_bytes()), "{answer:?}");
        }
    }

    #[test]
    fn everything_that_is_about_to_be_deleted_is_named() {
        let one = [found("team/vision", 1)];
        assert_eq!(
            describe_loss(&one),
            "You are about to delete TenantCluster team/vision (Ready, 1 node) with everything in it.\n"
        );
        let two = [found("team/vision", 1), found("prod/speech", 2)];
        let expected = "\
You are about to delete 2 TenantClusters with everything in them:
  team/vision (Ready, 1 node)
  prod/speech (Ready, 2 nodes)
";
        assert_eq!(describe_loss(&two), expected);
    }

    #[test]
    fn tenants_are_named_by_arguments_or_by_a_file() {
        use clap::Parser as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tenant.yaml");
        let text = "apiVersion: berth.dev/v1alpha1\nkind: TenantCluster\nmetadata: {name: speech, namespace: prod}\n";
        std::fs::write(&path, text).unwrap();
        let names = |line: &str, is_given: bool| {
            let arguments = crate::args::Arguments::try_parse_from(line.split(' ')).unwrap();
            let crate::args::Command::Delete(arguments) = arguments.command else {
                panic!("not delete")
            };
            let names = read_names(&arguments, "team", is_given)?;
            Ok::<_, Error>(names.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let from_file = format!("berth delete -f {}", path.display());
        assert_eq!(
            names("berth delete a prod/b team/a", false).unwrap(),
            ["team/a", "prod/b"]
        );
        assert_eq!(names(&from_file, false).unwrap(), ["prod/speech"]);
        assert!(names("berth delete a prod/b", true).is_err());
        assert!(names(&from_file, true).is_err());
        std::fs::write(&path, text.replace("speech", "../../speech")).unwrap();
        assert!(matches!(names(&from_file, false), Err(Error::Usage(_))));
    }

    #[test]
    fn a_dry_run_says_that_it_is_one() {
        assert_eq!(describe_deleted(None, true), "is deleted with everything that it had");
        assert_eq!(describe_deleted(None, false), "is being deleted");
        for (dry_run, expected) in [
            (DryRun::Client, "is deleted (dry run)"),
            (DryRun::Server, "is deleted (server dry run)"),
        ] {
            assert_eq!(describe_deleted(Some(dry_run), false), expected);
        }
    }
}
