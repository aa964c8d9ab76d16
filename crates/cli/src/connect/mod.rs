//! `berth connect` and `berth disconnect`: use a tenant with kubectl and other programs.

mod addresses;
mod forward;
mod signals;
mod way;

use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};

use clap::Args;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::completion;
use crate::error::Error;
use crate::host::HostArguments;
use crate::output::{print_line, print_text};
use crate::suggest;
use crate::tenant::{self, TenantName};
use crate::tenant_kubeconfig::{self, TenantKubeconfig};
use crate::user_config::cluster::replace_user;
use crate::user_config::document;
use crate::user_config::file::UserFiles;
use signals::Signals;
use way::{Way, find_way};

/// What shells add to the number of the signal that ended a command.
const SIGNALLED: i32 = 128;

#[derive(Debug, Args)]
pub(crate) struct ConnectArguments {
    /// Name of the TenantCluster, or NAMESPACE/NAME.
    #[arg(add = completion::tenant_names())]
    name: String,
    /// Go through the API server of the host, even if the address of the tenant answers.
    #[arg(long)]
    forward: bool,
    /// Use the kubeconfig of the administrators, a client certificate with its key, also if people can sign in. You need the right to
    /// read its Secret.
    #[arg(long)]
    admin: bool,
    /// Run this command with KUBECONFIG set, and exit with its status. Your own kubeconfig stays as it is.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DisconnectArguments {
    /// Name of the TenantCluster, or NAMESPACE/NAME. [default: the tenant of the current context]
    #[arg(add = completion::connected_tenants())]
    name: Option<String>,
}

pub(crate) async fn run(host: &HostArguments, arguments: &ConnectArguments) -> Result<ExitCode, Error> {
    // Before anything else: a file that cannot be written would be noticed late.
    let files = if arguments.command.is_empty() {
        Some(UserFiles::find()?)
    } else {
        None
    };
    let host = host.connect().await?;
    let (name, tenant) = tenant::find(&host, &arguments.name).await?;
    let TenantKubeconfig { text, issuer } = tenant_kubeconfig::load(&host, &name, &tenant, arguments.admin).await?;
    let mut kubeconfig = document::parse(&text)
        .map_err(|error| Error::Failed(format!("the kubeconfig of {name} cannot be read: {error}")))?;
    // Nobody has to sign in for the way to be found: kubectl does it, when it is used.
    let user = issuer.as_ref().and_then(|_| replace_user(&mut kubeconfig, json!({})));
    let mut way = find_way(&host, &name, &tenant, kubeconfig, arguments.forward).await?;
    if let Some(user) = user {
        replace_user(&mut way.kubeconfig, user);
    }
    let Some(files) = files else {
        return run_command(&way, &arguments.command).await;
    };
    let context = document::context_name(&name.namespace, &name.name);
    let server = way.server.as_ref();
    // From here on a signal does not leave a context behind that leads nowhere.
    let signals = way.forward.as_ref().map(|_| Signals::listen()).transpose()?;
    files.add_context(&context, &way.kubeconfig, server)?;
    print_line(format_args!(
        "The current context of {} is {context} now.\n  kubectl get nodes     uses the tenant\n  berth disconnect      goes \
         back to the context before",
        files.target().display()
    ))?;
    if let Some(issuer) = &issuer {
        print_text(format_args!("· kubectl signs you in at {issuer}"));
    } else if files.is_readable_by_others() {
        print_text(format_args!(
            "· other users of this machine can read {0}, which has keys: chmod 600 {0}",
            files.target().display()
        ));
    }
    if let Some(mut signals) = signals {
        print_text(format_args!(
            "· connections are forwarded until you press Ctrl-C; then the context is removed"
        ));
        signals.next().await;
        files.remove_context(&context)?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn disconnect(host: &HostArguments, arguments: &DisconnectArguments) -> Result<ExitCode, Error> {
    let files = UserFiles::find()?;
    let before = files.read_contexts()?;
    let context = match &arguments.name {
        None => find_connected(&before)?,
        Some(text) => match (text.contains('/'), &host.namespace) {
            (true, given) => {
                let namespace = given.as_deref().unwrap_or_default();
                let name = TenantName::parse_given(text, namespace, given.is_some())?;
                document::context_name(&name.namespace, &name.name)
            }
            (false, Some(namespace)) => document::context_name(namespace, text),
            // The host need not answer: the kubeconfig knows the tenants.
            (false, None) => find_context(&before, text)?,
        },
    };
    if !files.remove_context(&context)? {
        return Err(Error::NotFound(format!("your kubeconfig has no context {context}")));
    }
    let after = files.read_contexts()?;
    let now = match document::current_context(&after) {
        Some(current) => format!("the current context is {current}"),
        None => "there is no current context".to_owned(),
    };
    print_line(format_args!("The context {context} is removed; {now}."))?;
    Ok(ExitCode::SUCCESS)
}

/// The current context, if it is one that `berth connect` made.
fn find_connected(document: &Value) -> Result<String, Error> {
    let contexts = document::tenant_contexts(document);
    let current = document::current_context(document).filter(|current| contexts.contains(current));
    current.map(str::to_owned).ok_or_else(|| {
        Error::NotFound("the current context is not a tenant's; name the tenant to remove its context".into())
    })
}

/// The context of the tenant with this name, in whatever namespace, if there is only one.
fn find_context(document: &Value, name: &str) -> Result<String, Error> {
    let all = document::tenant_contexts(document);
    let end = format!("/{name}");
    let mut found = all.into_iter().filter(|context| context.ends_with(&end));
    match (found.next(), found.next()) {
        (Some(context), None) => Ok(context.to_owned()),
        (None, _) => Err(describe_missing_context(document, name)),
        (Some(_), Some(_)) => Err(Error::Usage(format!(
            "there are several tenants {name}; write NAMESPACE/{name}"
        ))),
    }
}

/// The error for a tenant without a context, with the tenants that have one and may be meant.
fn describe_missing_context(document: &Value, name: &str) -> Error {
    let all = document::tenant_contexts(document).into_iter();
    let question = suggest::ask(name, all.filter_map(|context| context.rsplit('/').next()));
    let advice = question.map(|question| format!("; {question}")).unwrap_or_default();
    Error::NotFound(format!("there is no context of a tenant {name}{advice}"))
}

/// Runs a command with a kubeconfig of its own, which is removed afterwards.
async fn run_command(way: &Way, command: &[String]) -> Result<ExitCode, Error> {
    let text = document::render(&way.kubeconfig).map_err(Error::Output)?;
    let fail = |source| Error::File {
        action: "write",
        path: "a temporary kubeconfig".into(),
        source,
    };
    // Before the file exists: a signal must not leave it behind.
    let mut signals = Signals::listen()?;
    // Created for its owner only.
    let file = tempfile::Builder::new()
        .prefix("berth-kubeconfig-")
        .tempfile()
        .map_err(fail)?;
    std::fs::write(file.path(), text).map_err(fail)?;
    let Some((program, arguments)) = command.split_first() else {
        return Err(Error::Usage("there is no command after --".into()));
    };
    let mut command = Command::new(program);
    command.args(arguments).env("KUBECONFIG", file.path());
    let mut child = command
        .spawn()
        .map_err(|error| Error::Failed(format!("cannot run {program}: {error}")))?;
    // The command decides what to do with a signal; this process stays to remove the file.
    loop {
        tokio::select! {
            status = child.wait() => {
                let status = status.map_err(|error| Error::Failed(format!("cannot wait for {program}: {error}")))?;
                return Ok(ExitCode::from(exit_status(status)));
            }
            signal = signals.next() => signals::pass_on(signal, &child),
        }
    }
}

/// The exit status as a shell shows it.
fn exit_status(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(SIGNALLED + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_found_by_the_name_of_its_tenant() {
        let document = json!({"current-context": "berth/a/one", "contexts": [
            {"name": "berth/a/one"}, {"name": "berth/a/two"}, {"name": "berth/b/two"}, {"name": "prod"},
        ]});
        assert_eq!(find_connected(&document).unwrap(), "berth/a/one");
        assert_eq!(find_context(&document, "one").unwrap(), "berth/a/one");
        assert!(matches!(find_context(&document, "two"), Err(Error::Usage(_))));
        assert!(matches!(find_context(&document, "three"), Err(Error::NotFound(_))));
        let error = find_context(&document, "noe").unwrap_err().to_string();
        assert_eq!(error, "there is no context of a tenant noe; did you mean one?");
        let elsewhere = json!({"current-context": "prod", "contexts": [{"name": "prod"}]});
        assert!(matches!(find_connected(&elsewhere), Err(Error::NotFound(_))));
    }

    #[test]
    fn a_signal_is_shown_as_shells_do() {
        assert_eq!(exit_status(ExitStatus::from_raw(7 << 8)), 7);
        assert_eq!(exit_status(ExitStatus::from_raw(9)), 137);
    }
}
