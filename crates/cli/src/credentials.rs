//! `berth credentials`: ask control to replace the client certificates of a tenant.

use std::process::ExitCode;
use std::time::Duration;

use berth_api::labels::CREDENTIALS_ROTATION_REQUESTED_AT;
use berth_api::{RotationPhase, TenantCluster};
use clap::{Args, Subcommand};
use jiff::Timestamp;

use crate::completion;
use crate::error::Error;
use crate::host::HostArguments;
use crate::output::NameOnly;
use crate::rotation;
use crate::tenant::{self, print_result};
use crate::wait::parse_timeout;

/// What to do with credentials.
#[derive(Debug, Subcommand)]
pub(crate) enum CredentialsCommand {
    /// Replace the authority that signs the client certificates of a tenant, so that those that were issued before are refused.
    ///
    /// Use it if a kubeconfig with a certificate was in wrong hands. Control issues every certificate of Berth's own programs anew first,
    /// and writes the kubeconfig Secret; take the kubeconfig from there again. Tokens of people and of ServiceAccounts stay valid. A
    /// tenant that sleeps gets new credentials when it is awake.
    #[command(after_help = "Example:\n  berth credentials rotate team-vision/vision --wait")]
    Rotate(RotateArguments),
}

#[derive(Debug, Args)]
pub(crate) struct RotateArguments {
    /// Name of the TenantCluster, or NAMESPACE/NAME.
    #[arg(add = completion::tenant_names())]
    name: String,
    /// Wait until the old certificates are refused, and print the conditions of the tenant as they change.
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false", hide_default_value = true)]
    wait: bool,
    /// How long to wait.
    #[arg(long, default_value = "15m", value_parser = parse_timeout, value_name = "DURATION", requires = "wait")]
    timeout: Duration,
    /// Print only resource and name.
    #[arg(short, long, value_enum, value_name = "name")]
    output: Option<NameOnly>,
}

pub(crate) async fn run(host: &HostArguments, command: &CredentialsCommand) -> Result<ExitCode, Error> {
    let CredentialsCommand::Rotate(arguments) = command;
    let host = host.connect().await?;
    let (name, tenant) = tenant::find(&host, &arguments.name).await?;
    let status = tenant.status.as_ref().and_then(|status| status.credentials.as_ref());
    let last = status.map(|credentials| credentials.requested_at.0);
    let requested_at = rotation::request(&host, &name, CREDENTIALS_ROTATION_REQUESTED_AT, last).await?;
    if !arguments.wait {
        let text = format!("gets new credentials; `berth get {name}` shows its progress");
        print_result(&name, arguments.output, &text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let find = |tenant: &TenantCluster| is_completed(tenant, requested_at).then_some(());
    let missing = format!("certificates of {name} from before the request are not refused yet");
    rotation::wait_until(&host, (&name, &tenant), arguments.timeout, find, &missing).await?;
    let text = format!(
        "refuses client certificates from before {requested_at}; `berth kubeconfig {name} --admin` prints the new kubeconfig"
    );
    print_result(&name, arguments.output, &text)?;
    Ok(ExitCode::SUCCESS)
}

/// Whether the credentials were replaced for this request, or a later one.
fn is_completed(tenant: &TenantCluster, requested_at: Timestamp) -> bool {
    let status = tenant.status.as_ref().and_then(|status| status.credentials.as_ref());
    status.is_some_and(|credentials| {
        credentials.phase == RotationPhase::Completed && credentials.requested_at.0 >= requested_at
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tenant(phase: &str, requested_at: &str) -> TenantCluster {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "vision", "namespace": "team"}, "spec": {},
            "status": {"credentials": {"phase": phase, "requestedAt": requested_at, "since": requested_at}},
        }))
        .unwrap()
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn another_request_is_not_waited_for() {
        let requested = at("2026-05-05T12:00:00Z");
        assert!(is_completed(&tenant("Completed", "2026-05-05T12:00:00Z"), requested));
        assert!(is_completed(&tenant("Completed", "2026-05-05T13:00:00Z"), requested));
        assert!(!is_completed(&tenant("Completed", "2026-05-05T11:00:00Z"), requested));
        assert!(!is_completed(&tenant("Revoking", "2026-05-05T12:00:00Z"), requested));
    }
}
