//! Completion for shells: commands and flags, and the names of contexts, namespaces and objects that the user may see.
//!
//! A shell runs `berth` with [`VARIABLE`] set, as the script of `berth completion` says; kubectl runs it as [`KUBECTL_COMPLETER`].

use std::ffi::{OsStr, OsString};
use std::fmt::Debug;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use berth_api::{TenantClass, TenantCluster, TenantSnapshot};
use clap::Command;
use clap_complete::Shell;
use clap_complete::engine::{self, ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::api::{Api, ListParams};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::error::Error;
use crate::host::{Host, HostArguments};
use crate::output::print_bytes;
use crate::tenant::{TenantName, phase};
use crate::user_config::document;
use crate::user_config::file::user_paths;
use crate::user_config::read::read_merged;

/// Environment variable with the shell that asks.
const VARIABLE: &str = "BERTH_COMPLETE";
/// Name of the executable that kubectl runs to complete `kubectl berth`, with the words behind it as arguments.
/// <https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/>
const KUBECTL_COMPLETER: &str = "kubectl_complete-berth";
/// Name of the executable that kubectl runs for `kubectl berth`.
const KUBECTL_PLUGIN: &str = "kubectl-berth";
/// The last line of an answer to kubectl: the shell is not to offer files. `ShellCompDirectiveNoFileComp` of cobra.
const NO_FILES: &str = ":4";
/// How long the host may take: somebody waits at the keyboard.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How many objects of a kind are asked for.
const MOST_OBJECTS: u32 = 500;
/// Flags of `berth snapshot restore` whose value may be the next word.
const FLAGS_WITH_VALUE: [&str; 7] = [
    "-n",
    "--namespace",
    "--context",
    "--kubeconfig",
    "--home",
    "--request-timeout",
    "--timeout",
];

/// The name by which this program was started.
fn program_name() -> Option<OsString> {
    let path = PathBuf::from(std::env::args_os().next()?);
    path.file_name().map(OsStr::to_owned)
}

/// The command line with the name that the user typed.
pub(crate) fn named(command: Command) -> Command {
    if program_name().is_some_and(|name| name == KUBECTL_PLUGIN) {
        command.bin_name("kubectl berth")
    } else {
        command
    }
}

/// Answers a shell or kubectl; none if nobody asks for completion.
pub(crate) fn answer(command: impl Fn() -> Command) -> Option<ExitCode> {
    if program_name().is_some_and(|name| name == KUBECTL_COMPLETER) {
        let words: Vec<OsString> = std::env::args_os().skip(1).collect();
        let text = complete_for_kubectl(command(), words);
        // A shell that has gone away reads nothing.
        let _ = io::stdout().write_all(text.as_bytes());
        return Some(ExitCode::SUCCESS);
    }
    let directory = std::env::current_dir().ok();
    let environment = CompleteEnv::with_factory(command).var(VARIABLE);
    match environment.try_complete(std::env::args_os(), directory.as_deref()) {
        Ok(true) => Some(ExitCode::SUCCESS),
        Ok(false) => None,
        Err(_) => Some(ExitCode::FAILURE),
    }
}

/// A line for each candidate, with a tab before what it means.
fn complete_for_kubectl(mut command: Command, words: Vec<OsString>) -> String {
    let index = words.len().max(1);
    let mut all = vec![OsString::from(command.get_name())];
    all.extend(words);
    all.resize(index + 1, OsString::new());
    let directory = std::env::current_dir().ok();
    let candidates = engine::complete(&mut command, all, index, directory.as_deref()).unwrap_or_default();
    let mut text = String::new();
    for candidate in candidates {
        text += &candidate.get_value().to_string_lossy();
        if let Some(help) = candidate.get_help() {
            text.push('\t');
            text += help.to_string().lines().next().unwrap_or_default();
        }
        text.push('\n');
    }
    text + NO_FILES + "\n"
}

/// `berth completion`: prints the script of a shell, which runs this program for each completion.
pub(crate) fn print_script(shell: Shell) -> Result<ExitCode, Error> {
    let failed = |error: &dyn std::fmt::Display| Error::Output(error.to_string());
    let shells = Shells::builtins();
    let shell = shell.to_string();
    let completer = shells.completer(&shell);
    let completer = completer.ok_or_else(|| Error::Usage(format!("there is no completion for {shell}")))?;
    let program = PathBuf::from(std::env::args_os().next().unwrap_or_else(|| "berth".into()));
    let program = match std::env::current_dir() {
        // Found in PATH: the shell finds it, too.
        _ if program.components().count() < 2 => program,
        Ok(directory) => directory.join(program),
        Err(_) => program,
    };
    let mut script = Vec::new();
    let written = completer.write_registration(VARIABLE, "berth", "berth", &program.to_string_lossy(), &mut script);
    written.map_err(|error| failed(&error))?;
    print_bytes(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// Completes an argument that names a tenant.
pub(crate) fn tenant_names() -> ArgValueCompleter {
    ArgValueCompleter::new(complete_tenants)
}

/// The tenants that begin with `current`: `NAME` in the namespace of the command, `NAMESPACE/NAME` elsewhere. Nothing if the host
/// does not answer soon.
fn complete_tenants(current: &OsStr) -> Vec<CompletionCandidate> {
    let words: Vec<String> = std::env::args().collect();
    let found = ask_host(words_of_user(&words), async |host| {
        let tenants = list_tenants(&host).await?;
        Some((host.namespace, tenants))
    });
    let Some((namespace, tenants)) = found else {
        return Vec::new();
    };
    candidates_of(&tenants, &namespace, &current.to_string_lossy())
        .into_iter()
        .map(|(name, phase)| CompletionCandidate::new(name).help(Some(phase.into())))
        .collect()
}

/// Completes an argument that names a TenantSnapshot.
pub(crate) fn snapshot_names() -> ArgValueCompleter {
    ArgValueCompleter::new(complete_snapshots)
}

/// The snapshots that begin with `current`: those of the tenant that is set back, or else those in the namespace of the command.
fn complete_snapshots(current: &OsStr) -> Vec<CompletionCandidate> {
    let words: Vec<String> = std::env::args().collect();
    let words = words_of_user(&words);
    let found = ask_host(words, async |host| {
        let tenant = restored_tenant(words, &host.namespace);
        let namespace = tenant.as_ref().map_or(&host.namespace, |tenant| &tenant.namespace);
        let snapshots: Api<TenantSnapshot> = Api::namespaced(host.client.clone(), namespace);
        let list = snapshots.list(&ListParams::default().limit(MOST_OBJECTS)).await;
        Some((list.ok()?.items, tenant))
    });
    let Some((snapshots, tenant)) = found else {
        return Vec::new();
    };
    snapshot_candidates(&snapshots, tenant.as_ref(), &current.to_string_lossy())
        .into_iter()
        .map(|(name, help)| CompletionCandidate::new(name).help(Some(help.into())))
        .collect()
}

/// The tenant that the words set back, in `namespace` unless they name another one; none if they are of another command.
fn restored_tenant(words: &[String], namespace: &str) -> Option<TenantName> {
    let mut behind = words.iter().skip_while(|word| *word != "restore").skip(1);
    while let Some(word) = behind.next() {
        if !word.starts_with('-') {
            return TenantName::parse(word, namespace).ok();
        }
        if FLAGS_WITH_VALUE.contains(&word.as_str()) {
            behind.next();
        }
    }
    None
}

/// Names that begin with `current`, with the phases and tenants of the snapshots: of one tenant, if it is given.
fn snapshot_candidates(
    snapshots: &[TenantSnapshot],
    tenant: Option<&TenantName>,
    current: &str,
) -> Vec<(String, String)> {
    let is_wanted =
        |snapshot: &&TenantSnapshot| tenant.is_none_or(|tenant| snapshot.spec.tenant_cluster_name == tenant.name);
    let candidates = snapshots.iter().filter(is_wanted).map(|snapshot| {
        let help = format!("{} of {}", snapshot.phase().name(), snapshot.spec.tenant_cluster_name);
        (snapshot.name_any(), help)
    });
    let mut found: Vec<_> = candidates.filter(|(name, _)| name.starts_with(current)).collect();
    found.sort();
    found
}

/// Completes a flag that names a context of the kubeconfig.
pub(crate) fn context_names() -> ArgValueCompleter {
    ArgValueCompleter::new(complete_contexts)
}

fn complete_contexts(current: &OsStr) -> Vec<CompletionCandidate> {
    let words: Vec<String> = std::env::args().collect();
    let host = HostArguments {
        // It is the word that is being completed.
        context: None,
        ..parse_host_arguments(words_of_user(&words))
    };
    let contexts = host.read_for_tenant().map(|kubeconfig| kubeconfig.contexts);
    let names = contexts.unwrap_or_default().into_iter().map(|context| context.name);
    candidates_that_begin(names.collect(), current)
}

/// Completes an argument that names a tenant with a context in the kubeconfig of the user. The host is not asked.
pub(crate) fn connected_tenants() -> ArgValueCompleter {
    ArgValueCompleter::new(complete_connected)
}

fn complete_connected(current: &OsStr) -> Vec<CompletionCandidate> {
    let contexts = read_merged(&user_paths()).map(|kubeconfig| kubeconfig.contexts);
    let contexts = contexts.unwrap_or_default().into_iter();
    let names = contexts.filter_map(|context| document::tenant_of(&context.name).map(str::to_owned));
    candidates_that_begin(names.collect(), current)
}

/// Completes a flag that names a namespace.
pub(crate) fn namespace_names() -> ArgValueCompleter {
    ArgValueCompleter::new(complete_namespaces)
}

/// The namespaces of the host, or those of the tenants that the user may see: teams usually may not list namespaces.
fn complete_namespaces(current: &OsStr) -> Vec<CompletionCandidate> {
    let words: Vec<String> = std::env::args().collect();
    let arguments = HostArguments {
        // It is the word that is being completed.
        namespace: None,
        ..parse_host_arguments(words_of_user(&words))
    };
    let found = ask(&arguments, async |host| {
        if let Some(names) = list_names::<Namespace>(&host).await {
            return Some(names);
        }
        let tenants = list_tenants(&host).await?;
        Some(tenants.iter().filter_map(ResourceExt::namespace).collect())
    });
    candidates_that_begin(found.unwrap_or_default(), current)
}

/// Completes an argument that names a node of the host.
pub(crate) fn node_names() -> ArgValueCompleter {
    ArgValueCompleter::new(complete_names::<Node>)
}

/// Completes a flag that names a TenantClass.
pub(crate) fn class_names() -> ArgValueCompleter {
    ArgValueCompleter::new(complete_names::<TenantClass>)
}

/// The objects of a kind without namespaces that begin with `current`.
fn complete_names<K>(current: &OsStr) -> Vec<CompletionCandidate>
where
    K: Clone + Debug + DeserializeOwned + Resource<DynamicType = ()>,
{
    let words: Vec<String> = std::env::args().collect();
    let found = ask_host(words_of_user(&words), async |host| list_names::<K>(&host).await);
    candidates_that_begin(found.unwrap_or_default(), current)
}

/// The names of the objects of a kind without namespaces; none if the user may not list them.
async fn list_names<K>(host: &Host) -> Option<Vec<String>>
where
    K: Clone + Debug + DeserializeOwned + Resource<DynamicType = ()>,
{
    let all: Api<K> = Api::all(host.client.clone());
    let list = all.list_metadata(&ListParams::default().limit(MOST_OBJECTS)).await;
    let objects = list.ok()?.items;
    Some(objects.iter().map(ResourceExt::name_any).collect())
}

fn candidates_that_begin(names: Vec<String>, current: &OsStr) -> Vec<CompletionCandidate> {
    let names = names_that_begin(names, &current.to_string_lossy());
    names.into_iter().map(CompletionCandidate::new).collect()
}

/// The names that begin with `current`, in their order, each once.
fn names_that_begin(mut names: Vec<String>, current: &str) -> Vec<String> {
    names.retain(|name| name.starts_with(current));
    names.sort();
    names.dedup();
    names
}

/// What the host says that the words of the user name; none if it does not answer soon.
fn ask_host<T>(words: &[String], question: impl AsyncFnOnce(Host) -> Option<T>) -> Option<T> {
    ask(&parse_host_arguments(words), question)
}

/// The same for the host that flags name.
fn ask<T>(arguments: &HostArguments, question: impl AsyncFnOnce(Host) -> Option<T>) -> Option<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.ok()?;
    let asked = async { question(arguments.connect().await.ok()?).await };
    runtime.block_on(async { tokio::time::timeout(TIMEOUT, asked).await.ok()? })
}

/// The tenants of all namespaces, or of that of the command if the user may not see others.
async fn list_tenants(host: &Host) -> Option<Vec<TenantCluster>> {
    let parameters = ListParams::default().limit(MOST_OBJECTS);
    let all: Api<TenantCluster> = Api::all(host.client.clone());
    if let Ok(list) = all.list(&parameters).await {
        return Some(list.items);
    }
    let own: Api<TenantCluster> = Api::namespaced(host.client.clone(), &host.namespace);
    own.list(&parameters).await.ok().map(|list| list.items)
}

/// Names that begin with `current`, and the phases of the tenants.
fn candidates_of(tenants: &[TenantCluster], namespace: &str, current: &str) -> Vec<(String, String)> {
    let candidates = tenants.iter().map(|tenant| {
        let name = TenantName::of(tenant);
        let is_own = name.namespace == namespace && !current.contains('/');
        (if is_own { name.name } else { name.to_string() }, phase(tenant))
    });
    let mut found: Vec<_> = candidates.filter(|(name, _)| name.starts_with(current)).collect();
    found.sort();
    found
}

/// The words that the user typed: a shell passes them behind `--`, kubectl passes nothing else.
fn words_of_user(arguments: &[String]) -> &[String] {
    let program = arguments.first().map(Path::new).and_then(Path::file_name);
    if program.is_some_and(|name| name == KUBECTL_COMPLETER) {
        return arguments;
    }
    let begin = arguments.iter().position(|word| word == "--");
    begin.map_or(&[], |begin| arguments.split_at(begin + 1).1)
}

/// The flags that name the host and the namespace, wherever they are among the words before `--`.
fn parse_host_arguments(words: &[String]) -> HostArguments {
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let words = words.split_at(end).0;
    let find = |flag: &str| {
        words.iter().enumerate().rev().find_map(|(index, word)| {
            let value = word.strip_prefix(flag)?;
            if value.is_empty() {
                // The word that is being completed may be the flag itself.
                return words.get(index + 1).filter(|next| !next.is_empty()).cloned();
            }
            let is_short = !flag.starts_with("--");
            let value = value.strip_prefix('=').or(is_short.then_some(value))?;
            Some(value.to_owned())
        })
    };
    let home = find("--home")
        .map(OsString::from)
        .or_else(|| std::env::var_os("BERTH_HOME"));
    HostArguments {
        kubeconfig: find("--kubeconfig").map(PathBuf::from),
        context: find("--context"),
        namespace: find("--namespace").or_else(|| find("-n")),
        home: home.unwrap_or_else(|| ".berth".into()).into(),
        request_timeout: TIMEOUT,
    }
}

#[cfg(test)]
#[path = "completion_tests.rs"]
mod tests;
