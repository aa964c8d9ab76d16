//! `berth sleep` and `berth wake`: ask control to stop a tenant's control plane, and to start it again.
//!
//! The request is an annotation of the TenantCluster with the time of the request.

use std::process::ExitCode;
use std::time::Duration;

use berth_api::conditions::AWAKE;
use berth_api::labels::{SLEEP_REQUESTED_AT, WAKE_REQUESTED_AT};
use berth_api::{SleepMode, SleepState, TenantCluster, whole_seconds};
use clap::Args;
use jiff::Timestamp;

use crate::completion;
use crate::error::Error;
use crate::host::HostArguments;
use crate::output::NameOnly;
use crate::tenant::{self, TenantName, phase, print_result};
use crate::wait::{ConditionProgress, parse_timeout, wait_for};

#[derive(Debug, Args)]
pub(crate) struct SleepArguments {
    /// Name of the TenantCluster, or NAMESPACE/NAME.
    #[arg(add = completion::tenant_names())]
    name: String,
    /// Wait until it sleeps, or is ready, and print its conditions as they change.
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false", hide_default_value = true)]
    wait: bool,
    /// How long to wait.
    #[arg(long, default_value = "10m", value_parser = parse_timeout, value_name = "DURATION", requires = "wait")]
    timeout: Duration,
    /// Print only resource and name.
    #[arg(short, long, value_enum, value_name = "name")]
    output: Option<NameOnly>,
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

    /// Why control does nothing of the kind, whatever is asked for; none if it does.
    fn find_refusal(self, name: &TenantName, tenant: &TenantCluster) -> Option<Error> {
        let text = match (self, mode(tenant)) {
            (Self::Wake, SleepMode::Asleep) => {
                format!(
                    "{name} is kept asleep, and no request wakes it: {}",
                    how_to_wake(name, tenant)
                )
            }
            (Self::Sleep, SleepMode::Awake) => format!(
                "{name} is kept awake, and no request lets it sleep: spec.sleep.mode is Awake; `{}` changes that",
                set_mode(name)
            ),
            _ => return None,
        };
        Some(Error::Failed(text))
    }

    /// Why a tenant is awake again that was asked to sleep at this time, as control says it; none if control has not decided that.
    fn find_failure(self, tenant: &TenantCluster, requested_at: Timestamp) -> Option<String> {
        let status = tenant.status.as_ref()?;
        let woken_at = status.sleep.as_ref()?.since.as_ref()?.0;
        let has_failed = self == Self::Sleep && tenant.sleep_state() == SleepState::Awake && woken_at >= requested_at;
        let condition = status.conditions.iter().find(|condition| condition.type_ == AWAKE)?;
        has_failed.then(|| condition.message.clone())
    }

    /// The time of a request that is made now, in whole seconds, as the status has its times. It counts also if this clock is behind.
    fn time(self, tenant: &TenantCluster, now: Timestamp) -> Timestamp {
        let now = whole_seconds(now);
        match self {
            Self::Sleep => tenant.sleep_request_time(now),
            Self::Wake => tenant.wake_request_time(now),
        }
    }
}

fn mode(tenant: &TenantCluster) -> SleepMode {
    tenant.spec.sleep.as_ref().map(|sleep| sleep.mode).unwrap_or_default()
}

/// What wakes a tenant that sleeps, as the end of a message.
pub(crate) fn how_to_wake(name: &TenantName, tenant: &TenantCluster) -> String {
    match mode(tenant) {
        SleepMode::Asleep => format!("spec.sleep.mode is Asleep; `{}` wakes it", set_mode(name)),
        SleepMode::Auto | SleepMode::Awake => format!("`berth wake {name} --wait` wakes it"),
    }
}

/// The command with which requests count again.
fn set_mode(name: &TenantName) -> String {
    let TenantName { namespace, name } = name;
    format!(
        r#"kubectl patch -n {namespace} tenantcluster/{name} --type merge -p '{{"spec":{{"sleep":{{"mode":"Auto"}}}}}}'"#
    )
}

pub(crate) async fn run(host: &HostArguments, request: Request, arguments: &SleepArguments) -> Result<ExitCode, Error> {
    let host = host.connect().await?;
    let (name, tenant) = tenant::find(&host, &arguments.name).await?;
    if let Some(refusal) = request.find_refusal(&name, &tenant) {
        return Err(refusal);
    }
    if request.is_done(&tenant) {
        print_result(&name, arguments.output, &format!("is {} already", request.phase()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let requested_at = request.time(&tenant, host.now().await);
    name.request(&host.client, request.annotation(), requested_at).await?;
    if !arguments.wait {
        let what = match request {
            Request::Sleep => "goes to sleep",
            Request::Wake => "wakes up",
        };
        let text = format!("{what}; `berth get {name}` shows its progress");
        print_result(&name, arguments.output, &text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut progress = ConditionProgress::default();
    let check = async || {
        let tenant = name.get(&host.client).await?;
        let conditions = tenant.status.as_ref().map(|status| status.conditions.as_slice());
        progress.print(conditions.unwrap_or_default());
        if let Some(refusal) = request.find_refusal(&name, &tenant) {
            return Err(refusal);
        }
        if let Some(why) = request.find_failure(&tenant, requested_at) {
            return Err(Error::Failed(format!("TenantCluster {name} is awake: {why}")));
        }
        Ok(request.is_done(&tenant).then_some(()))
    };
    let message = || {
        format!(
            "{name} is not {} yet; `berth get {name}` shows what it waits for",
            request.phase()
        )
    };
    wait_for(arguments.timeout, check, message).await?;
    print_result(&name, arguments.output, &format!("is {}", request.phase()))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn tenant(spec: &Value, status: &Value) -> TenantCluster {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "a", "namespace": "team"},
            "spec": spec, "status": status,
        }))
        .unwrap()
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_tenant_that_falls_asleep_is_not_awake_yet_and_not_asleep() {
        for (phase, state, sleeps, is_awake) in [
            ("Ready", "Awake", false, true),
            ("Ready", "FallingAsleep", false, false),
            ("Sleeping", "Sleeping", true, false),
            ("Sleeping", "Enforcing", true, false),
            ("Waking", "Waking", false, false),
            ("Provisioning", "Awake", false, false),
        ] {
            let tenant = tenant(&json!({}), &json!({"phase": phase, "sleep": {"state": state}}));
            assert_eq!(Request::Sleep.is_done(&tenant), sleeps, "{phase} {state}");
            assert_eq!(Request::Wake.is_done(&tenant), is_awake, "{phase} {state}");
        }
    }

    #[test]
    fn a_request_has_an_annotation_of_its_own_and_whole_seconds() {
        let tenant = tenant(&json!({}), &json!({}));
        for (request, annotation) in [
            (Request::Sleep, "berth.dev/sleep-requested-at"),
            (Request::Wake, "berth.dev/wake-requested-at"),
        ] {
            assert_eq!(request.annotation(), annotation);
            let requested_at = request.time(&tenant, at("2026-01-01T00:00:00.5Z"));
            assert_eq!(requested_at, at("2026-01-01T00:00:00Z"), "{request:?}");
        }
    }

    #[test]
    fn a_request_counts_also_if_the_clock_is_behind() {
        let tenant = tenant(
            &json!({}),
            &json!({"sleep": {"state": "Sleeping", "since": "2026-01-01T10:00:00Z"}}),
        );
        for request in [Request::Sleep, Request::Wake] {
            let early = request.time(&tenant, at("2026-01-01T09:00:00Z"));
            assert_eq!(early, at("2026-01-01T10:00:01Z"), "{request:?}");
            let late = request.time(&tenant, at("2026-01-01T11:00:00Z"));
            assert_eq!(late, at("2026-01-01T11:00:00Z"), "{request:?}");
        }
    }

    #[test]
    fn a_mode_that_no_request_changes_is_named_with_what_to_do() {
        let name = TenantName::parse("team/a", "").unwrap();
        let refusal = |request: Request, mode: &str| {
            let tenant = tenant(&json!({"sleep": {"mode": mode}}), &json!({"phase": "Sleeping"}));
            request.find_refusal(&name, &tenant).map(|error| error.to_string())
        };
        let command = r#"kubectl patch -n team tenantcluster/a --type merge -p '{"spec":{"sleep":{"mode":"Auto"}}}'"#;
        let kept_asleep = refusal(Request::Wake, "Asleep").unwrap();
        assert!(
            kept_asleep.contains("spec.sleep.mode is Asleep") && kept_asleep.contains(command),
            "{kept_asleep}"
        );
        let kept_awake = refusal(Request::Sleep, "Awake").unwrap();
        assert!(
            kept_awake.contains("spec.sleep.mode is Awake") && kept_awake.contains(command),
            "{kept_awake}"
        );
        for (request, mode) in [
            (Request::Wake, "Auto"),
            (Request::Wake, "Awake"),
            (Request::Sleep, "Auto"),
            (Request::Sleep, "Asleep"),
        ] {
            assert_eq!(refusal(request, mode), None, "{request:?} {mode}");
        }
        assert_eq!(
            Request::Wake
                .find_refusal(&name, &tenant(&json!({}), &json!({})))
                .map(|e| e.to_string()),
            None
        );
    }

    #[test]
    fn a_tenant_that_did_not_fall_asleep_ends_the_wait() {
        let requested_at = at("2026-01-01T10:00:00Z");
        let failure = |request: Request, state: &str, since: &str| {
            let awake = json!({"type": "Awake", "status": "True", "reason": "PodsOverdue", "message": "pods",
                "lastTransitionTime": since});
            let status = json!({"sleep": {"state": state, "since": since}, "conditions": [awake]});
            request.find_failure(&tenant(&json!({}), &status), requested_at)
        };
        let later = "2026-01-01T10:20:00Z";
        assert_eq!(failure(Request::Sleep, "Awake", later).as_deref(), Some("pods"));
        assert_eq!(failure(Request::Sleep, "FallingAsleep", later), None);
        assert_eq!(
            failure(Request::Sleep, "Awake", "2026-01-01T09:59:59Z"),
            None,
            "control has not seen it"
        );
        assert_eq!(failure(Request::Wake, "Awake", later), None);
    }
}
