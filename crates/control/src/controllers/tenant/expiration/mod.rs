//! The end of a tenant: `spec.ttl` and `spec.expireAfterIdle`.
//!
//! [`observe`] says when a tenant expires ([`rules`]) and what its status says of that; [`delete`] deletes one that has expired.
//! All that decides is in the object: its creation, its spec, its class, and in its status the end that the team was warned of and
//! since when the tenant has no pods.

mod rules;

use super::{context::TenantContext, error::TenantError, settings::Settings, target::Tenant};
use crate::{apply::is_status, error::api};
use berth_api::{
    ExpirationPolicy, KubeDuration, TenantCluster, TenantClusterStatus,
    conditions::{self, ConditionUpdate, EXPIRING},
    labels,
};
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Preconditions},
    runtime::events::{Event, EventType},
};
use rules::{Cause, End, Facts, Stage};
use std::time::Duration;

/// Reason of the condition and of the Event of a tenant that is deleted.
pub(super) const EXPIRED: &str = "Expired";
/// Pause before an object is read again that was changed just before its deletion.
const CHANGED: Duration = Duration::from_secs(1);

/// When a tenant expires, and why.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Expiration {
    end: Option<End>,
    /// Since when it has no pods, if it expires for that reason.
    idle_since: Option<Timestamp>,
    /// Whether it has no pods and schedules or quotas let none start: this time does not count.
    is_held: bool,
    /// What its end depends on, for people; none if it never expires.
    rule: Option<String>,
}

/// When a tenant expires. `settings` is what it runs with, or none if it was never accepted. `may_start_pods` is
/// whether its schedules and quotas let it.
pub(super) fn observe(
    context: &TenantContext,
    tenant: &Tenant,
    settings: Option<&Settings>,
    may_start_pods: bool,
    now: Timestamp,
) -> Expiration {
    let slug = tenant.id.slug();
    let activity = &context.stores.pod_activity;
    if !may_start_pods {
        activity.record_no_starts(slug, now);
    }
    let pods = Pods {
        has_any: context.stores.workloads.has_unfinished(slug),
        are_held: !may_start_pods,
        last_change: activity.last(slug),
        watched_since: Some(activity.start()),
    };
    let own = ExpirationPolicy::default();
    let policy = settings.map_or(&own, |settings| &settings.expiration);
    expiration(&tenant.cluster, policy, pods, now)
}

/// What is known of a tenant's pods.
#[derive(Clone, Copy, Debug, Default)]
struct Pods {
    /// Whether one has not ended.
    has_any: bool,
    /// Whether schedules or quotas let none start.
    are_held: bool,
    /// When one came, changed or went, or none might start.
    last_change: Option<Timestamp>,
    /// Since when they are watched.
    watched_since: Option<Timestamp>,
}

fn expiration(cluster: &TenantCluster, policy: &ExpirationPolicy, pods: Pods, now: Timestamp) -> Expiration {
    let status = cluster.status.as_ref();
    let ttl = policy.ttl_seconds(cluster.spec.ttl.as_ref());
    let idle_limit = policy.idle_seconds(cluster.spec.expire_after_idle.as_ref());
    let published = status.and_then(|status| status.idle_since.as_ref()).map(|time| time.0);
    let is_idle = !pods.has_any && !pods.are_held;
    let idle_since = (idle_limit.is_some() && is_idle).then(|| match (published, pods.last_change) {
        (Some(since), Some(last)) => since.max(last),
        (since, last) => since.or(last).unwrap_or(now),
    });
    let was_warned = status.is_some_and(|status| conditions::is_true(&status.conditions, EXPIRING));
    let warned_of = status
        .and_then(|status| status.expires_at.as_ref())
        .filter(|_| was_warned);
    let created = cluster.metadata.creation_timestamp.as_ref();
    let facts = Facts {
        created: created.map_or(now, |time| time.0).as_second(),
        ttl,
        idle_limit,
        idle_since: idle_since.map(Timestamp::as_second),
        watched_since: pods.watched_since.map(Timestamp::as_second),
        warned_of: warned_of.map(|time| time.0.as_second()),
    };
    Expiration {
        end: rules::evaluate(&facts, now.as_second()),
        idle_since,
        is_held: idle_limit.is_some() && !pods.has_any && pods.are_held,
        rule: describe(cluster, ttl, idle_limit),
    }
}

/// What the end of a tenant depends on, as a sentence without its beginning.
fn describe(cluster: &TenantCluster, ttl: Option<i64>, idle_limit: Option<i64>) -> Option<String> {
    let spec = &cluster.spec;
    // The class decides if the spec says nothing or more.
    let source = |requested: Option<i64>, seconds: i64, field: &str, of_class: &str| {
        if requested == Some(seconds) {
            format!("spec.{field}")
        } else {
            format!("spec.expiration.{of_class} of the class")
        }
    };
    let ttl = ttl.map(|ttl| {
        let requested = spec.ttl.as_ref().map(KubeDuration::seconds);
        let by = source(requested, ttl, "ttl", "defaultTTL or maxTTL");
        format!("{} after its creation ({by})", duration_text(ttl))
    });
    let idle = idle_limit.map(|idle| {
        let requested = spec.expire_after_idle.as_ref().map(KubeDuration::seconds);
        let of_class = "defaultExpireAfterIdle or maxExpireAfterIdle";
        let by = source(requested, idle, "expireAfterIdle", of_class);
        format!("{} without pods ({by})", duration_text(idle))
    });
    let rules: Vec<String> = ttl
        .into_iter()
        .chain(idle.map(|idle| format!("after {idle}")))
        .collect();
    (!rules.is_empty()).then(|| rules.join(", and "))
}

/// A duration as Kubernetes writes it.
fn duration_text(seconds: i64) -> String {
    let parts = [(seconds / 3600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, unit)| format!("{number}{unit}"))
        .collect();
    if parts.is_empty() { "0s".into() } else { parts.concat() }
}

impl Expiration {
    /// Whether the tenant is to be deleted now.
    pub(super) fn is_over(&self) -> bool {
        self.end.is_some_and(|end| end.stage == Stage::Expired)
    }

    /// Time until something changes that the status says.
    pub(super) fn until_next(&self, now: Timestamp) -> Option<Duration> {
        let seconds = self.end?.next.saturating_sub(now.as_second());
        Some(Duration::from_secs(u64::try_from(seconds).unwrap_or_default()))
    }

    /// The condition Expiring; none if the tenant never expires.
    pub(super) fn condition(&self) -> Option<ConditionUpdate> {
        let rule = self.rule.as_deref()?;
        let Some(end) = self.end else {
            return Some(if self.is_held {
                let message = format!(
                    "a SchedulePolicy or a quota lets no pod start, and this time does not count; the tenant expires {rule}"
                );
                ConditionUpdate::mark_false(EXPIRING, "NotCounted", message)
            } else {
                let message = format!("the tenant has pods; it expires {rule}");
                ConditionUpdate::mark_false(EXPIRING, "InUse", message)
            });
        };
        let reason = match end.stage {
            Stage::Later => {
                let message = format!("the tenant expires at {}: {rule}", end.text());
                return Some(ConditionUpdate::mark_false(EXPIRING, "NotSoon", message));
            }
            Stage::Day => "ExpiresWithinDay",
            Stage::Hour => "ExpiresWithinHour",
            Stage::Soon => "ExpiresSoon",
            Stage::Expired => EXPIRED,
        };
        let keep = match end.cause {
            Cause::Ttl => "set a greater spec.ttl to keep it, as far as its class allows",
            Cause::Idle => "start a pod or set a greater spec.expireAfterIdle to keep it, as far as its class allows",
        };
        let message = format!(
            "Berth deletes the tenant with everything in it at {}: {rule}; {keep}",
            end.text()
        );
        Some(ConditionUpdate::mark_true(EXPIRING, reason, message))
    }

    /// Sets what the status says of the end.
    pub(super) fn write_to(&self, status: &mut TenantClusterStatus) {
        let at = self.end.and_then(|end| Timestamp::from_second(end.at).ok());
        status.expires_at = at.map(Time);
        status.idle_since = self.idle_since.map(Time);
        if self.rule.is_none() {
            status.conditions.retain(|condition| condition.type_ != EXPIRING);
        }
    }
}

impl End {
    fn text(&self) -> String {
        Timestamp::from_second(self.at).map_or_else(|_| "an unknown time".into(), |at| at.to_string())
    }
}

/// Deletes a tenant that has expired, unless it was changed since: an extension in the last moment wins.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn delete(
    context: &TenantContext,
    tenant: &Tenant,
    expiration: &Expiration,
) -> Result<Option<Duration>, TenantError> {
    let is_idle = expiration.end.is_some_and(|end| end.cause == Cause::Idle);
    if is_idle && has_pods(context, tenant).await? {
        let slug = tenant.id.slug();
        context.stores.pod_activity.record(slug, true, Timestamp::now());
        return Ok(Some(CHANGED));
    }
    let cluster = &tenant.cluster;
    let namespace = cluster.namespace().unwrap_or_default();
    let clusters: Api<TenantCluster> = Api::namespaced(context.client.clone(), &namespace);
    let as_observed = Preconditions {
        uid: cluster.uid(),
        resource_version: cluster.resource_version(),
    };
    let params = DeleteParams::default().preconditions(as_observed);
    match clusters.delete(&cluster.name_any(), &params).await {
        Ok(_) => {}
        Err(error) if is_status(&error, 404) => return Ok(None),
        Err(error) if is_status(&error, 409) => return Ok(Some(CHANGED)),
        Err(error) => return Err(TenantError::Expiration(api("delete the expired tenant")(error))),
    }
    let rule = expiration.rule.as_deref().unwrap_or_default();
    tracing::info!(%namespace, name = cluster.name_any(), rule, "deleting a tenant that has expired");
    let event = Event {
        type_: EventType::Warning,
        reason: EXPIRED.into(),
        note: Some(format!("Berth deletes the tenant: it expired {rule}")),
        action: EXPIRING.into(),
        secondary: None,
    };
    context.recorder.publish(&event, &cluster.object_ref(&())).await;
    Ok(Some(CHANGED))
}

/// Whether the tenant has a pod on the host that has not ended. It asks the API server: a watch may be late, and there is no way back.
async fn has_pods(context: &TenantContext, tenant: &Tenant) -> Result<bool, TenantError> {
    let of_tenant = format!(
        "{}={},{}={}",
        labels::MANAGED_BY,
        labels::MANAGED_BY_SYNCER,
        labels::TENANT,
        tenant.id.slug()
    );
    let params = ListParams::default()
        .labels(&of_tenant)
        .fields("status.phase!=Succeeded,status.phase!=Failed")
        .limit(1);
    let pods: Api<Pod> = Api::all(context.client.clone());
    let found = pods.list_metadata(&params).await;
    let found = found.map_err(|error| TenantError::Expiration(api("list the pods of the idle tenant")(error)))?;
    Ok(!found.items.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::TenantClusterSpec;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn cluster(ttl: Option<&str>, idle: Option<&str>) -> TenantCluster {
        let spec = TenantClusterSpec {
            ttl: ttl.map(KubeDuration::from),
            expire_after_idle: idle.map(KubeDuration::from),
            ..TenantClusterSpec::default()
        };
        let mut cluster = TenantCluster::new("a", spec);
        cluster.metadata.creation_timestamp = Some(Time(at(0)));
        cluster
    }

    /// The tenant after a pass has written its status.
    fn pass(cluster: &mut TenantCluster, policy: &ExpirationPolicy, pods: Pods, now: i64) -> Expiration {
        let found = expiration(cluster, policy, pods, at(now));
        let mut status = cluster.status.clone().unwrap_or_default();
        let updates: Vec<ConditionUpdate> = found.condition().into_iter().collect();
        status.conditions = conditions::merge(&status.conditions, &updates, None, at(now));
        found.write_to(&mut status);
        cluster.status = Some(status);
        found
    }

    fn reason(cluster: &TenantCluster) -> Option<String> {
        let status = cluster.status.clone().unwrap_or_default();
        let mut conditions = status.conditions.into_iter();
        conditions.find(|c| c.type_ == EXPIRING).map(|c| c.reason)
    }

    #[test]
    fn a_tenant_without_rules_has_no_end_and_no_condition() {
        let mut cluster = cluster(None, None);
        let found = pass(&mut cluster, &ExpirationPolicy::default(), Pods::default(), 10);
        assert_eq!(found, Expiration::default());
        assert_eq!(cluster.status, Some(TenantClusterStatus::default()));
    }

    #[test]
    fn the_status_says_when_and_the_condition_why() {
        let policy = ExpirationPolicy {
            max_ttl: Some("2h".into()),
            ..ExpirationPolicy::default()
        };
        let mut cluster = cluster(Some("72h"), None);
        pass(&mut cluster, &policy, Pods::default(), 10);
        let status = cluster.status.clone().unwrap();
        assert_eq!(status.expires_at, Some(Time(at(7200))));
        let message = &status.conditions[0].message;
        assert!(message.contains("1970-01-01T02:00:00Z"), "{message}");
        assert!(message.contains("2h after its creation (spec.expiration.defaultTTL or maxTTL of the class)"));
        // The rule is gone.
        cluster.spec.ttl = None;
        pass(&mut cluster, &ExpirationPolicy::default(), Pods::default(), 20);
        assert_eq!(cluster.status, Some(TenantClusterStatus::default()));
    }

    #[test]
    fn each_stage_has_a_reason_and_an_extension_takes_it_back() {
        let policy = ExpirationPolicy::default();
        let mut cluster = cluster(Some("48h"), None);
        for (now, expected) in [
            (0, "NotSoon"),
            (24 * 3600, "ExpiresWithinDay"),
            (47 * 3600, "ExpiresWithinHour"),
            (48 * 3600 - 1, "ExpiresSoon"),
        ] {
            assert!(!pass(&mut cluster, &policy, Pods::default(), now).is_over());
            assert_eq!(reason(&cluster).as_deref(), Some(expected), "{now}");
        }
        cluster.spec.ttl = Some("96h".into());
        assert!(!pass(&mut cluster, &policy, Pods::default(), 48 * 3600).is_over());
        assert_eq!(reason(&cluster).as_deref(), Some("NotSoon"));
        cluster.spec.ttl = Some("48h".into());
        assert!(
            !pass(&mut cluster, &policy, Pods::default(), 49 * 3600).is_over(),
            "it is warned again"
        );
        assert!(pass(&mut cluster, &policy, Pods::default(), 49 * 3600 + 600).is_over());
    }

    #[test]
    fn idleness_survives_a_restart_and_ends_with_every_pod() {
        let policy = ExpirationPolicy::default();
        let mut cluster = cluster(None, Some("2h"));
        let busy = Pods {
            has_any: true,
            last_change: Some(at(50)),
            ..Pods::default()
        };
        assert_eq!(pass(&mut cluster, &policy, busy, 60).end, None);
        assert_eq!(reason(&cluster).as_deref(), Some("InUse"));
        let ended = Pods {
            last_change: Some(at(100)),
            ..Pods::default()
        };
        assert_eq!(pass(&mut cluster, &policy, ended, 130).idle_since, Some(at(100)));
        // Another control knows of no pods.
        assert_eq!(
            pass(&mut cluster, &policy, Pods::default(), 200).idle_since,
            Some(at(100))
        );
        // A pod came and went between two passes.
        let short = Pods {
            last_change: Some(at(5000)),
            ..Pods::default()
        };
        let found = pass(&mut cluster, &policy, short, 5010);
        assert_eq!(found.idle_since, Some(at(5000)));
        assert_eq!(
            found.until_next(at(5010)),
            Some(Duration::from_secs(5000 + 3600 - 5010))
        );
        assert!(pass(&mut cluster, &policy, busy, 5020).idle_since.is_none());
        assert_eq!(cluster.status.unwrap().idle_since, None);
    }

    #[test]
    fn time_in_which_no_pod_may_start_does_not_count() {
        let policy = ExpirationPolicy::default();
        let mut cluster = cluster(None, Some("2h"));
        let ended = Pods {
            last_change: Some(at(100)),
            ..Pods::default()
        };
        assert_eq!(pass(&mut cluster, &policy, ended, 7000).idle_since, Some(at(100)));
        let stopped = |now| Pods {
            are_held: true,
            last_change: Some(at(now)),
            ..Pods::default()
        };
        for now in [7200, 100_000] {
            assert_eq!(pass(&mut cluster, &policy, stopped(now), now).end, None);
            assert_eq!(reason(&cluster).as_deref(), Some("NotCounted"));
            assert_eq!(cluster.status.clone().unwrap().idle_since, None);
        }
        let after = Pods {
            last_change: Some(at(100_000)),
            ..Pods::default()
        };
        let found = pass(&mut cluster, &policy, after, 100_010);
        assert_eq!(found.idle_since, Some(at(100_000)), "it counts anew");
        // A TTL counts always.
        cluster.spec.ttl = Some("48h".into());
        let found = pass(&mut cluster, &policy, stopped(100_020), 100_020);
        assert_eq!(found.end.map(|end| end.at), Some(48 * 3600));
        assert_eq!(reason(&cluster).as_deref(), Some("ExpiresWithinDay"));
    }

    #[test]
    fn durations_are_written_as_kubernetes_writes_them() {
        for (seconds, text) in [(0, "0s"), (90, "1m30s"), (7200, "2h"), (3601, "1h1s")] {
            assert_eq!(duration_text(seconds), text);
        }
    }
}
