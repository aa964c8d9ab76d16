//! `berth create`: creates a tenant.

mod build;

pub(crate) use build::parse_lifetime;

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use berth_api::{KubeDuration, NodeGroup, TenantCluster, TenantClusterStatus, conditions};
use clap::{Args, ValueEnum};
use kube::api::PostParams;
use kube::core::Request;
use kube::{Resource as _, ResourceExt as _};
use serde_json::Value;

use crate::completion;
use crate::error::{Error, describe, failed};
use crate::host::{Host, HostArguments};
use crate::output::{ObjectFormat, print_objects, print_text};
use crate::tenant::{TenantName, phase, resource_name};
use crate::wait::{ConditionProgress, parse_timeout, wait_for};

/// How long a spec must be rejected until the wait ends: control may see a class or a pool that was just created a moment later.
const LATE_VIEW: Duration = Duration::from_secs(5);
/// Reasons of the condition Accepted that pass without a change of the spec, of a class or of a pool.
const PASSING_REASONS: [&str; 1] = ["NamespaceUnknown"];

#[derive(Debug, Args)]
pub(crate) struct CreateArguments {
    /// Name of the TenantCluster.
    #[arg(required_unless_present = "file")]
    name: Option<String>,
    /// Create the TenantCluster in this file; - is stdin.
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["name", "class", "version", "nodes", "ttl", "expire_after_idle", "labels", "annotations"])]
    file: Option<PathBuf>,
    /// TenantClass. [default: the class `default`]
    #[arg(long, value_name = "NAME", add = completion::class_names())]
    class: Option<String>,
    /// Kubernetes version, for example v1.37.1. [default: that of the class]
    #[arg(long, value_name = "VERSION")]
    version: Option<String>,
    /// Node groups: a number of nodes of a HostNodePool, a minimum and a maximum for nodes that follow demand, or `shared`.
    #[arg(long, value_name = "[GROUP:]POOL=N|MIN..MAX|shared", value_delimiter = ',', value_parser = build::parse_node_group)]
    nodes: Vec<NodeGroup>,
    /// How long the tenant exists, for example 72h. [default: that of the class]
    #[arg(long, value_name = "DURATION", value_parser = build::parse_lifetime)]
    ttl: Option<KubeDuration>,
    /// How long it may have no pods before it is deleted, for example 8h. [default: that of the class]
    #[arg(long, value_name = "DURATION", value_parser = build::parse_lifetime)]
    expire_after_idle: Option<KubeDuration>,
    /// Labels of the TenantCluster.
    #[arg(long = "label", value_name = "KEY=VALUE", value_delimiter = ',', value_parser = build::parse_pair)]
    labels: Vec<(String, String)>,
    /// Annotation of the TenantCluster; may be given several times.
    #[arg(long = "annotation", value_name = "KEY=VALUE", value_parser = build::parse_pair)]
    annotations: Vec<(String, String)>,
    /// Create nothing: `client` only prints the object, `server` lets the API server check it.
    #[arg(long, value_enum, value_name = "client|server")]
    dry_run: Option<DryRun>,
    /// Wait until the tenant is ready, and print its conditions as they change.
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false", hide_default_value = true)]
    wait: bool,
    /// How long to wait.
    #[arg(long, default_value = "10m", value_parser = parse_timeout, value_name = "DURATION", requires = "wait")]
    timeout: Duration,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: ObjectFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DryRun {
    /// Do not ask the API server to change anything.
    Client,
    /// Let the API server check it.
    Server,
}

pub(crate) async fn run(host: &HostArguments, arguments: &CreateArguments) -> Result<ExitCode, Error> {
    let is_given = host.namespace.is_some();
    if arguments.dry_run == Some(DryRun::Client) {
        // A host that does not answer, or none at all, does not matter.
        let connected = host.connect().await.map(|host| host.namespace);
        let namespace = connected.or_else(|error| host.namespace.clone().ok_or(error));
        let object = build(&namespace.unwrap_or_else(|_| "default".into()), is_given, arguments)?;
        print(&object, " (dry run)", arguments.output)?;
        return Ok(ExitCode::SUCCESS);
    }
    let host = host.connect().await?;
    let object = build(&host.namespace, is_given, arguments)?;
    let name = name_of(&object);
    let is_dry = arguments.dry_run.is_some();
    let created = create(&host, &name, &object, is_dry).await?;
    if is_dry {
        print(&created, " (server dry run)", arguments.output)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !arguments.wait {
        print(&created, "", arguments.output)?;
        print_text(format_args!(
            "Berth starts its control plane and assigns its nodes now.\n  berth get {name}       shows its progress\n  \
             berth connect {name}   uses it, once it is Ready"
        ));
        return Ok(ExitCode::SUCCESS);
    }
    print_text(format_args!("· {name} is created"));
    let ready = wait_until_ready(&host, &name, arguments.timeout).await?;
    let ready = serde_json::to_value(&ready).map_err(|error| Error::Output(error.to_string()))?;
    print(&ready, " and ready", arguments.output)?;
    print_text(format_args!("  berth connect {name}   uses it"));
    Ok(ExitCode::SUCCESS)
}

fn build(namespace: &str, is_given: bool, arguments: &CreateArguments) -> Result<Value, Error> {
    if let Some(path) = &arguments.file {
        return read_object(path, namespace, is_given);
    }
    let name = arguments.name.as_deref().unwrap_or_default();
    let name = TenantName::parse_given(name, namespace, is_given)?;
    let mut object = build::from_flags(&name.name, arguments);
    object.metadata.namespace = Some(name.namespace);
    serde_json::to_value(&object).map_err(|error| Error::Output(error.to_string()))
}

/// The TenantCluster in a file, with a namespace: its own, or else that of the command. - is stdin.
///
/// # Errors
/// The file cannot be read, does not have one TenantCluster, or has one for another namespace than `--namespace`.
pub(crate) fn read_object(path: &Path, namespace: &str, is_given: bool) -> Result<Value, Error> {
    let text = read_file(path)?;
    let wrong = |error| Error::Failed(format!("{}: {error}", path.display()));
    build::from_file(&text, namespace, is_given).map_err(wrong)
}

fn read_file(path: &Path) -> Result<String, Error> {
    let failed = |source| Error::File {
        action: "read",
        path: path.into(),
        source,
    };
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(failed)?;
        return Ok(text);
    }
    std::fs::read_to_string(path).map_err(failed)
}

/// The name of an object that [`read_object`] has read.
pub(crate) fn name_of(object: &Value) -> TenantName {
    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
    TenantName {
        namespace: text("namespace"),
        name: text("name"),
    }
}

/// Creates the object as it is; the API server refuses fields that it does not know.
async fn create(host: &Host, name: &TenantName, object: &Value, is_dry: bool) -> Result<Value, Error> {
    let body = serde_json::to_vec(object).map_err(|error| Error::Output(error.to_string()))?;
    let url = TenantCluster::url_path(&(), Some(&name.namespace));
    let parameters = PostParams {
        dry_run: is_dry,
        field_manager: Some("berth".into()),
    };
    let failed = failed("create the TenantCluster");
    let mut request = match Request::new(url).create(&parameters, body) {
        Ok(request) => request,
        Err(error) => return Err(Error::Failed(error.to_string())),
    };
    let strict = format!("{}&fieldValidation=Strict", request.uri());
    *request.uri_mut() = strict
        .parse::<http::Uri>()
        .map_err(|error| Error::Failed(format!("cannot address the TenantClusters: {error}")))?;
    match host.client.request::<Value>(request).await {
        Err(error) if matches!(&error, kube::Error::Api(status) if status.code == 404) => {
            Err(Error::NotFound(format!(
                "cannot create {name}: {}; create the namespace first, and check that Berth is installed with `berth doctor`",
                describe(&error)
            )))
        }
        other => other.map_err(failed),
    }
}

fn print(object: &Value, suffix: &str, format: ObjectFormat) -> Result<(), Error> {
    let name = name_of(object);
    let names = [resource_name(&name.name)];
    let text = || format!("TenantCluster {name} is created{suffix}.");
    print_objects(object, &names, text, format)
}

/// Waits until a tenant of this generation is Ready, and prints its conditions as they change.
///
/// # Errors
/// The spec is not accepted, the time is over, or the host does not answer.
async fn wait_until_ready(host: &Host, name: &TenantName, timeout: Duration) -> Result<TenantCluster, Error> {
    let mut progress = ConditionProgress::default();
    let mut rejected_since: Option<Instant> = None;
    let check = async || {
        let tenant = name.get(&host.client).await?;
        let status = tenant.status.clone().unwrap_or_default();
        progress.print(&status.conditions);
        let is_current = status.observed_generation == tenant.meta().generation;
        let rejection = find_rejection(&status).filter(|_| is_current);
        rejected_since = rejection.as_ref().map(|_| rejected_since.unwrap_or_else(Instant::now));
        let is_final = rejected_since.is_some_and(|since| since.elapsed() >= LATE_VIEW);
        if let Some(rejection) = rejection.filter(|_| is_final) {
            return Err(Error::Failed(format!(
                "{name} is created, and not accepted: {rejection}"
            )));
        }
        let is_ready = is_current && conditions::is_true(&status.conditions, conditions::READY);
        Ok((is_ready && status.kubeconfig_secret_ref.is_some()).then_some(tenant))
    };
    let message = || format!("{name} is not ready yet; Berth goes on, and `berth get {name}` shows what it waits for");
    let ready = wait_for(timeout, check, message).await?;
    print_text(format_args!("· {} is {}", ready.name_any(), phase(&ready)));
    Ok(ready)
}

/// Why the spec cannot be carried out; none if it can, or if control may yet accept it as it is.
fn find_rejection(status: &TenantClusterStatus) -> Option<String> {
    let mut all = status.conditions.iter();
    let accepted = all.find(|condition| condition.type_ == conditions::ACCEPTED)?;
    let is_rejected = accepted.status == "False" && !PASSING_REASONS.contains(&accepted.reason.as_str());
    is_rejected.then(|| format!("{} ({})", accepted.message, accepted.reason))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_spec_that_is_not_accepted_ends_the_wait() {
        let rejection = |kind: &str, state: &str, reason: &str| {
            let status = json!({"conditions": [{"type": kind, "status": state, "reason": reason, "message": "no such pool",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
            find_rejection(&serde_json::from_value(status).unwrap())
        };
        let rejected = rejection("Accepted", "False", "UnknownPool");
        assert_eq!(rejected.as_deref(), Some("no such pool (UnknownPool)"));
        // Everything else may come true.
        for (kind, state, reason) in [
            ("Accepted", "True", "Valid"),
            ("Accepted", "Unknown", "Waiting"),
            ("Accepted", "False", "NamespaceUnknown"),
            ("QuotaReserved", "False", "QuotaExceeded"),
            ("Ready", "False", "UnknownPool"),
        ] {
            assert_eq!(rejection(kind, state, reason), None, "{kind} {state} {reason}");
        }
        assert_eq!(find_rejection(&TenantClusterStatus::default()), None);
    }
}
