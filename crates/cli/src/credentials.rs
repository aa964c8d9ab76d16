//! `berth credentials`: ask control to replace the client certificates of a tenant.
//!
//! The request is an annotation of the TenantCluster with the time of the request.

use std::process::ExitCode;
use std::time::Duration;

use berth_api::labels::CREDENTIALS_ROTATION_REQUESTED_AT;
use berth_api::{RotationPhase, TenantCluster, requests};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::error::{Error, failed};
use crate::host::HostArguments;
use crate::output::print_line;
use crate::tenant;
use crate::wait::{ConditionProgress, parse_timeout, wait_for};

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
    name: String,
    /// Wait until the old certificates are refused, and print the conditions of the tenant as they change.
    #[arg(long)]
    wait: bool,
    /// How long to wait.
    #[arg(long, default_value = "15m", value_parser = parse_timeout, value_name = "DURATION")]
    timeout: Duration,
}

pub(crate) async fn run(host: &HostArguments, command: &CredentialsCommand) -> Result<ExitCode, Error> {
    let CredentialsCommand::Rotate(arguments) = command;
    let host = host.connect().await?;
    let (name, tenant) = tenant::find(&host, &arguments.name).await?;
    let requested_at = request_time(&tenant, host.now().await);
    let tenants = name.api(&host.client);
    let patched = tenants
        .patch(&name.name, &PatchParams::default(), &Patch::Merge(patch(requested_at)))
        .await;
    patched.map_err(failed("annotate the tenant"))?;
    if !arguments.wait {
        print_line(format_args!(
            "TenantCluster {name} gets new credentials; `berth get {name}` shows its progress."
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut progress = ConditionProgress::default();
    let check = async || {
        let tenant = name.get(&host.client).await?;
        let conditions = tenant.status.as_ref().map(|status| status.conditions.as_slice());
        progress.print(conditions.unwrap_or_default());
        Ok(is_completed(&tenant, requested_at).then_some(()))
    };
    let message = || {
        format!(
            "certificates of {name} from before the request are not refused yet; `berth get {name}` shows what it waits for"
        )
    };
    wait_for(arguments.timeout, check, message).await?;
    print_line(format_args!(
        "Client certificates of {name} from before {requested_at} are refused; `berth kubeconfig {name} --admin` prints the new kubeconfig."
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// The time of a request that is later than the last one, also if two are made within a second.
fn request_time(tenant: &TenantCluster, now: Timestamp) -> Timestamp {
    let status = tenant.status.as_ref().and_then(|status| status.credentials.as_ref());
    let last = status.map(|credentials| credentials.requested_at.0);
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    requests::request_time(now, last)
}

/// The patch that asks for new credentials.
fn patch(requested_at: Timestamp) -> Value {
    json!({"metadata": {"annotations": {CREDENTIALS_ROTATION_REQUESTED_AT: requested_at.to_string()}}})
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
    fn a_request_is_later_than_the_last_one_and_in_whole_seconds() {
        let now = at("2026-05-05T12:00:00.7Z");
        let none = TenantCluster::new("vision", berth_api::TenantClusterSpec::default());
        assert_eq!(request_time(&none, now), at("2026-05-05T12:00:00Z"));
        let earlier = tenant("Completed", "2026-05-05T11:59:59Z");
        assert_eq!(request_time(&earlier, now), at("2026-05-05T12:00:00Z"));
        let same = tenant("Completed", "2026-05-05T12:00:00Z");
        assert_eq!(request_time(&same, now), at("2026-05-05T12:00:01Z"));
        let expected = json!({"metadata": {"annotations": {
            "berth.dev/credentials-rotation-requested-at": "2026-05-05T12:00:00Z",
        }}});
        assert_eq!(patch(at("2026-05-05T12:00:00Z")), expected);
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
