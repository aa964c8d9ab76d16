//! Requests to replace the certificates or the key of a tenant: an annotation of the TenantCluster with the time of the request.

use std::time::Duration;

use berth_api::{TenantCluster, requests, whole_seconds};
use jiff::Timestamp;

use crate::error::Error;
use crate::host::Host;
use crate::output::print_note;
use crate::sleep::how_to_wake;
use crate::tenant::{TenantName, phase};
use crate::wait::{ConditionProgress, wait_for};

/// Makes a request that is later than `last`, the last one that control knows. Returns its time.
///
/// # Errors
/// The host refuses or does not answer.
pub(crate) async fn request(
    host: &Host,
    name: &TenantName,
    annotation: &str,
    last: Option<Timestamp>,
) -> Result<Timestamp, Error> {
    let requested_at = request_time(last, host.now().await);
    name.request(&host.client, annotation, requested_at).await?;
    Ok(requested_at)
}

/// Waits until `tenant` has a result, and prints its conditions as they change. `missing` says what is not done when `timeout` is over. A tenant that
/// sleeps has none until it is awake, and people learn it at once.
///
/// # Errors
/// [`Error::Timeout`], or the tenant is gone.
pub(crate) async fn wait_until<T>(
    host: &Host,
    (name, tenant): (&TenantName, &TenantCluster),
    timeout: Duration,
    find: impl Fn(&TenantCluster) -> Option<T>,
    missing: &str,
) -> Result<T, Error> {
    if let Some(note) = describe_sleep(name, tenant) {
        print_note(format_args!("{note}"));
    }
    let mut progress = ConditionProgress::default();
    let check = async || {
        let tenant = name.get(&host.client).await?;
        let conditions = tenant.status.as_ref().map(|status| status.conditions.as_slice());
        progress.print(conditions.unwrap_or_default());
        Ok(find(&tenant))
    };
    let message = || format!("{missing}; `berth get {name}` shows what it waits for");
    wait_for(timeout, check, message).await
}

/// Why nothing happens yet, and what to do; none for a tenant that does not sleep.
fn describe_sleep(name: &TenantName, tenant: &TenantCluster) -> Option<String> {
    let is_asleep = phase(tenant) == "Sleeping";
    is_asleep.then(|| format!("nothing happens before {name} is awake: {}", how_to_wake(name, tenant)))
}

/// The time of a request that is later than the last one, also if two are made within a second.
fn request_time(last: Option<Timestamp>, now: Timestamp) -> Timestamp {
    requests::request_time(whole_seconds(now), last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_request_is_later_than_the_last_one_and_in_whole_seconds() {
        let now = at("2026-05-05T12:00:00.7Z");
        for (last, expected) in [
            (None, "2026-05-05T12:00:00Z"),
            (Some("2026-05-05T11:59:59Z"), "2026-05-05T12:00:00Z"),
            (Some("2026-05-05T12:00:00Z"), "2026-05-05T12:00:01Z"),
        ] {
            assert_eq!(request_time(last.map(at), now), at(expected), "{last:?}");
        }
    }

    #[test]
    fn who_waits_for_a_tenant_that_sleeps_learns_what_wakes_it() {
        let name = TenantName::parse("team/vision", "").unwrap();
        let note = |phase: &str, mode: &str| {
            let tenant = json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "vision"},
                "spec": {"sleep": {"mode": mode}}, "status": {"phase": phase},
            });
            describe_sleep(&name, &serde_json::from_value(tenant).unwrap())
        };
        assert_eq!(
            note("Sleeping", "Auto").as_deref(),
            Some("nothing happens before team/vision is awake: `berth wake team/vision --wait` wakes it")
        );
        let kept_asleep = note("Sleeping", "Asleep").unwrap();
        assert!(kept_asleep.contains("spec.sleep.mode is Asleep"), "{kept_asleep}");
        assert_eq!(note("Ready", "Auto"), None);
        assert_eq!(note("Waking", "Auto"), None);
    }
}
