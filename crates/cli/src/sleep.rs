//! `berth sleep` and `berth wake`: ask control to stop a tenant's control plane, and to start it again.
//!
//! The request is an annotation of the TenantCluster with the time of the request.

use std::process::ExitCode;
use std::time::Duration;

use berth_api::labels::{SLEEP_REQUESTED_AT, WAKE_REQUESTED_AT};
use berth_api::{SleepState, TenantCluster};
use clap::Args;
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::completion;
use crate::error::{Error, failed};
use crate::host::HostArguments;
use crate::output::print_line;
use crate::tenant::{self, phase};
use crate::wait::{ConditionProgress, parse_timeout, wait_for};

#[derive(Debug, Args)]
pub(crate) struct SleepArguments {
    /// Name of the TenantCluster, or NAMESPACE/NAME.
    #[arg(add = completion::tenant_names())]
    name: String,
    /// Wait until it sleeps, or is ready, and print its conditions as they change.
    #[arg(long)]
    wait: bool,
    /// How long to wait.
    #[arg(long, default_value = "10m", value_parser = parse_timeout, value_name = "DURATION")]
    timeout: Duration,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Sleep,
    Wake,
}

impl Request {
    fn annotation(self) -> &'static str {
        match self {
            Self::Sleep => SLEEP_REQUESTED_AT,
            Self::Wake => WAKE_REQUESTED_AT,
        }
    }

    /// The phase of a tenant for which control did what was asked for.
    fn phase(self) -> &'static str {
        match self {
            Self::Sleep => "Sleeping",
            Self::Wake => "Ready",
        }
    }

    /// Whether control did what was asked for. A tenant that falls asleep is still ready: it has to be asked to wake.
    fn is_done(self, tenant: &TenantCluster) -> bool {
        let is_awake = tenant.sleep_state() == SleepState::Awake;
        phase(tenant) == self.phase() && (self == Self::Sleep || is_awake)
    }

    /// The patch that asks for it at this time.
    fn patch(self, now: Timestamp) -> Value {
        let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        json!({"metadata": {"annotations": {self.annotation(): now}}})
    }
}

pub(crate) async fn run(host: &HostArguments, request: Request, arguments: &SleepArguments) -> Result<ExitCode, Error> {
    let host = host.connect().await?;
    let (name, tenant) = tenant::find(&host, &arguments.name).await?;
    if request.is_done(&tenant) {
        print_line(format_args!("TenantCluster {name} is {} already.", request.phase()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let patch = Patch::Merge(request.patch(Timestamp::now()));
    let tenants = name.api(&host.client);
    let patched = tenants.patch(&name.name, &PatchParams::default(), &patch).await;
    patched.map_err(failed("annotate the tenant"))?;
    if !arguments.wait {
        let what = match request {
            Request::Sleep => "goes to sleep",
            Request::Wake => "wakes up",
        };
        print_line(format_args!(
            "TenantCluster {name} {what}; `berth get {name}` shows its progress."
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut progress = ConditionProgress::default();
    let check = async || {
        let tenant = name.get(&host.client).await?;
        let conditions = tenant.status.as_ref().map(|status| status.conditions.as_slice());
        progress.print(conditions.unwrap_or_default());
        Ok(request.is_done(&tenant).then_some(()))
    };
    let message = || {
        format!(
            "{name} is not {} yet; `berth get {name}` shows what it waits for",
            request.phase()
        )
    };
    wait_for(arguments.timeout, check, message).await?;
    print_line(format_args!("TenantCluster {name} is {}.", request.phase()))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_that_falls_asleep_is_not_awake_yet_and_not_asleep() {
        let tenant = |phase: &str, state: &str| -> TenantCluster {
            serde_json::from_value(json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "a"}, "spec": {"version": "v1.37.1"},
                "status": {"phase": phase, "sleep": {"state": state}},
            }))
            .unwrap()
        };
        for (phase, state, sleeps, is_awake) in [
            ("Ready", "Awake", false, true),
            ("Ready", "FallingAsleep", false, false),
            ("Sleeping", "Sleeping", true, false),
            ("Waking", "Waking", false, false),
            ("Provisioning", "Awake", false, false),
        ] {
            let tenant = tenant(phase, state);
            assert_eq!(Request::Sleep.is_done(&tenant), sleeps, "{phase} {state}");
            assert_eq!(Request::Wake.is_done(&tenant), is_awake, "{phase} {state}");
        }
    }

    #[test]
    fn a_request_is_an_annotation_with_its_time() {
        let now = "2026-01-01T00:00:00.5Z".parse().unwrap();
        let annotations = |request: Request| request.patch(now)["metadata"]["annotations"].clone();
        assert_eq!(
            annotations(Request::Sleep),
            json!({"berth.dev/sleep-requested-at": "2026-01-01T00:00:00Z"})
        );
        assert_eq!(
            annotations(Request::Wake),
            json!({"berth.dev/wake-requested-at": "2026-01-01T00:00:00Z"})
        );
    }
}
