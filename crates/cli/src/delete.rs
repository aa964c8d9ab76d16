//! `berth delete`: deletes a tenant and waits until nothing of it is left.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use berth_api::TenantCluster;
use clap::Args;
use kube::Api;
use kube::api::{DeleteParams, Preconditions};

use crate::completion;
use crate::error::{Error, failed};
use crate::host::{HostArguments, find_object};
use crate::output::{NameOnly, print_line, print_question};
use crate::tenant::{TenantName, phase, resource_name};
use crate::wait::{ConditionProgress, parse_timeout, wait_for};

#[derive(Debug, Args)]
pub(crate) struct DeleteArguments {
    /// Name of the TenantCluster, or NAMESPACE/NAME.
    #[arg(add = completion::tenant_names())]
    name: String,
    /// Wait until everything that the tenant had is removed.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false")]
    wait: bool,
    /// How long to wait.
    #[arg(long, default_value = "15m", value_parser = parse_timeout, value_name = "DURATION")]
    timeout: Duration,
    /// Ask before the tenant is deleted.
    #[arg(short, long)]
    interactive: bool,
    /// Succeed if there is no such tenant.
    #[arg(long)]
    ignore_not_found: bool,
    /// Print only resource and name.
    #[arg(short, long, value_enum, value_name = "name")]
    output: Option<NameOnly>,
}

pub(crate) async fn run(host: &HostArguments, arguments: &DeleteArguments) -> Result<ExitCode, Error> {
    let host = host.connect().await?;
    let name = TenantName::parse_for(&arguments.name, &host)?;
    let tenants = name.api(&host.client);
    let tenant = find_object(&tenants, &name.name).await;
    let tenant = tenant.map_err(failed("get the tenant"))?;
    let Some(tenant) = tenant else {
        if arguments.ignore_not_found {
            return Ok(ExitCode::SUCCESS);
        }
        return Err(name.find_similar(&host.client).await);
    };
    if arguments.interactive && !confirm(&name, &tenant, &mut io::stdin().lock())? {
        print_line(format_args!("deletion is cancelled"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let uid = tenant.metadata.uid;
    // The tenant that was found, and not one that got its name meanwhile.
    let parameters = DeleteParams {
        preconditions: Some(Preconditions {
            uid: uid.clone(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match tenants.delete(&name.name, &parameters).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        other => drop(other.map_err(failed("delete the tenant"))?),
    }
    if arguments.wait {
        wait_until_gone(&tenants, &name, uid.as_ref(), arguments.timeout).await?;
    }
    let what = if arguments.wait {
        "is deleted with everything that it had"
    } else {
        "is being deleted"
    };
    match arguments.output {
        Some(NameOnly::Name) => print_line(format_args!("{}", resource_name(&name.name)))?,
        None => print_line(format_args!("TenantCluster {name} {what}."))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks as kubectl does. Anything but `y` or `Y`, and the end of the input, is a no.
fn confirm(name: &TenantName, tenant: &TenantCluster, answers: &mut impl io::BufRead) -> Result<bool, Error> {
    let nodes = tenant.status.as_ref().and_then(|status| status.nodes.as_ref());
    let nodes = nodes.map_or(0, |nodes| nodes.assigned);
    let noun = if nodes == 1 { "node" } else { "nodes" };
    print_question(format_args!(
        "You are about to delete TenantCluster {name} ({}, {nodes} {noun}) with everything in it.\nDo you want to continue? (y/N): ",
        phase(tenant)
    ));
    let mut answer = String::new();
    let read = answers.read_line(&mut answer);
    read.map_err(|error| Error::Failed(format!("cannot read the answer: {error}")))?;
    Ok(answer.trim().eq_ignore_ascii_case("y"))
}

/// Prints what remains, which control writes into the condition Deleting, until the object is gone.
async fn wait_until_gone(
    tenants: &Api<TenantCluster>,
    name: &TenantName,
    uid: Option<&String>,
    timeout: Duration,
) -> Result<(), Error> {
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
        progress.print(&deleting);
        Ok(None)
    };
    let message = || format!("{name} is still being deleted; Berth goes on, and `berth get {name}` shows what is left");
    wait_for(timeout, check, message).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_yes_deletes() {
        let name = TenantName::parse("team/vision", "").unwrap();
        let tenant = TenantCluster::new("vision", berth_api::TenantClusterSpec::default());
        let confirm = |mut answer: &[u8]| confirm(&name, &tenant, &mut answer).unwrap();
        assert!(confirm(b"y\n") && confirm(b" Y \n") && confirm(b"y"));
        for answer in ["", "\n", "n\n", "yes\n", "no\ny\n"] {
            assert!(!confirm(answer.as_bytes()), "{answer:?}");
        }
    }
}
