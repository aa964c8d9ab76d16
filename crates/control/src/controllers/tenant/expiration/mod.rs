//! The end of a tenant: `spec.ttl` and `spec.expireAfterIdle`.
//!
//! [`observe`] says when a tenant expires ([`rules`]) and what its status says of that; [`delete`] deletes one that has expired.
//! All that decides is in the object: its creation, its spec, its class, and in its status the end that the team was warned of and
//! since when the tenant has no pods, and what its times were before the platform reduced them ([`limits`]).

mod deletion;
mod limits;
mod rules;
#[cfg(test)]
mod tests;

use super::{
    context::TenantContext,
    error::{EXTERNAL_SERVICE_FAILED, TenantError},
    settings::Settings,
    target::Tenant,
};
use berth_api::{
    ExpirationLimit, ExpirationLimits, ExpirationPolicy, KubeDuration, SleepState, TenantClassSpec, TenantCluster,
    TenantClusterStatus,
    conditions::{
        self, CONTROL_PLANE_READY, ConditionUpdate, DATASTORE_READY, ENDPOINT_READY, EXPIRING, INFRASTRUCTURE_READY,
        SYNCER_READY,
    },
};
pub(super) use deletion::{Deletion, delete};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::reflector::ObjectRef;
use rules::{Cause, End, Facts, Limit, Stage};
use std::time::Duration;

/// Reason of the condition and of the Event of a tenant that is deleted.
pub(super) const EXPIRED: &str = "Expired";
/// Pause before a tenant is looked at again that is being deleted, or whose end was changed just before its deletion.
pub(super) const CHANGED: Duration = Duration::from_secs(1);

/// When a tenant expires, and why.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Expiration {
    end: Option<End>,
    /// Since when it has no pods, if it expires for that reason.
    idle_since: Option<Timestamp>,
    /// Why the time does not count in which it has no pods, if it does not.
    not_counted: Option<NotCounted>,
    /// Its times, for the status.
    limits: Option<ExpirationLimits>,
    /// What its end depends on, for people; none if it never expires.
    rule: Option<String>,
    /// Why it is not deleted although it has expired.
    failure: Option<String>,
}

/// Why time without pods does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NotCounted {
    /// Schedules or quotas let none start.
    Held,
    /// What runs for the tenant does not answer: nobody could start a pod, and what the team does is not known.
    Unreachable,
}

/// What the end of a tenant is found with.
#[derive(Clone, Copy)]
pub(super) struct Observed<'a> {
    pub(super) context: &'a TenantContext,
    pub(super) tenant: &'a Tenant,
    /// What it runs with; none if it was never accepted.
    pub(super) settings: Option<&'a Settings>,
    /// Whether its schedules and quotas let it start pods.
    pub(super) may_start_pods: bool,
    /// The time by the clock of the host.
    pub(super) now: Timestamp,
}

/// When a tenant expires.
pub(super) fn observe(observed: &Observed<'_>) -> Expiration {
    find_expiration(observed, &observed.tenant.cluster)
}

/// Sets the times of a new tenant while nothing is said of its end, as the time is not confirmed. They would count as reduced by the platform otherwise, once the
/// time is confirmed, and the tenant would get a grace period.
pub(super) fn write_first_limits(
    cluster: &TenantCluster,
    settings: Option<&Settings>,
    status: &mut TenantClusterStatus,
) {
    let before = cluster.status.as_ref();
    let is_new = before.is_none_or(|before| before.version.is_none() && before.expiration_limits.is_none());
    let Some(settings) = settings.filter(|_| is_new) else {
        return;
    };
    let terms = Terms {
        policy: &settings.expiration,
        grace: 0,
        is_accepted: true,
    };
    // What is recorded first does not depend on the time.
    status.expiration_limits = track_limits(cluster, &terms, Timestamp::UNIX_EPOCH);
}

/// When a tenant expires whose object is `cluster`.
fn find_expiration(observed: &Observed<'_>, cluster: &TenantCluster) -> Expiration {
    let Observed {
        context,
        tenant,
        settings,
        may_start_pods,
        now,
    } = *observed;
    let slug = tenant.id.slug();
    let activity = &context.stores.pod_activity;
    let not_counted = if !may_start_pods {
        Some(NotCounted::Held)
    } else if answers(cluster) {
        None
    } else {
        Some(NotCounted::Unreachable)
    };
    let has_any = context.stores.workloads.has_unfinished(slug);
    match not_counted {
        None => activity.record_starts(slug),
        Some(NotCounted::Held) => {
            let since = idle_start(cluster, activity.last(slug, now)).filter(|_| !has_any);
            let idle = since.and_then(|since| Duration::try_from(now.duration_since(since)).ok());
            activity.record_no_starts(slug, idle.unwrap_or_default());
        }
        Some(NotCounted::Unreachable) => activity.record_unknown(slug),
    }
    let pods = Pods {
        has_any,
        not_counted,
        last_change: activity.last(slug, now),
        watched_since: Some(activity.start(now)),
    };
    let own = ExpirationPolicy::default();
    let policy = settings.map_or(&own, |settings| &settings.expiration);
    let class = settings.and_then(|settings| settings.class.as_deref());
    let class = class.and_then(|name| context.stores.classes.get(&ObjectRef::new(name)));
    let terms = Terms {
        policy,
        grace: class.map_or_else(
            || TenantClassSpec::default().enforcement_grace_period(),
            |class| class.spec.enforcement_grace_period(),
        ),
        is_accepted: settings.is_some(),
    };
    expiration(cluster, &terms, pods, now)
}

/// The rules for a tenant.
struct Terms<'a> {
    policy: &'a ExpirationPolicy,
    /// Seconds for which it keeps what its class reduced.
    grace: i64,
    /// Whether the class applies: the tenant was accepted.
    is_accepted: bool,
}

/// Whether everything answered in the reconcile before that a team needs to start a pod. What was not looked at is not known. A Service that the host does
/// not store counts for nothing: the team may have written it so, and could keep an idle tenant for ever.
fn answers(cluster: &TenantCluster) -> bool {
    // It wakes for anybody who wants to start a pod.
    let state = cluster.sleep_state();
    if state.is_asleep() || state == SleepState::Waking {
        return true;
    }
    let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice());
    let conditions = conditions.unwrap_or_default();
    let is_false = |kind: &&str| {
        let condition = conditions.iter().find(|condition| condition.type_ == **kind);
        condition.is_some_and(|condition| condition.status != "True" && condition.reason != EXTERNAL_SERVICE_FAILED)
    };
    let needed = [CONTROL_PLANE_READY, SYNCER_READY];
    let others = [INFRASTRUCTURE_READY, DATASTORE_READY, ENDPOINT_READY];
    needed.iter().all(|kind| conditions::is_true(conditions, kind)) && !others.iter().any(is_false)
}

/// What is known of a tenant's pods.
#[derive(Clone, Copy, Debug, Default)]
struct Pods {
    /// Whether one has not ended.
    has_any: bool,
    /// Why time without pods does not count, if it does not.
    not_counted: Option<NotCounted>,
    /// When one came, changed or went, without the time in which none might start.
    last_change: Option<Timestamp>,
    /// Since when they are watched.
    watched_since: Option<Timestamp>,
}

fn expiration(cluster: &TenantCluster, terms: &Terms<'_>, pods: Pods, now: Timestamp) -> Expiration {
    let status = cluster.status.as_ref();
    let limits = track_limits(cluster, terms, now);
    let limit = |of: fn(&ExpirationLimits) -> Option<&ExpirationLimit>| {
        let tracked = limits.as_ref().and_then(of);
        tracked.map(|tracked| limits::limit_of(tracked, terms.grace))
    };
    let (ttl, idle_limit) = (
        limit(|limits| limits.ttl.as_ref()),
        limit(|limits| limits.idle.as_ref()),
    );
    let is_idle = !pods.has_any && pods.not_counted.is_none();
    let idle_since = (idle_limit.is_some() && is_idle).then(|| idle_start(cluster, pods.last_change).unwrap_or(now));
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
        not_counted: pods.not_counted.filter(|_| idle_limit.is_some() && !pods.has_any),
        rule: describe(cluster, ttl, idle_limit, now),
        // Of a tenant that was not accepted its class knows nothing.
        limits: if terms.is_accepted {
            limits
        } else {
            status.and_then(|status| status.expiration_limits.clone())
        },
        failure: None,
    }
}

/// Since when a tenant without pods has none, as far as that is known: by its status, or since the last change that was seen.
fn idle_start(cluster: &TenantCluster, last_change: Option<Timestamp>) -> Option<Timestamp> {
    let status = cluster.status.as_ref();
    let published = status.and_then(|status| status.idle_since.as_ref());
    published.map(|time| time.0).max(last_change)
}

/// The times of a tenant, with what it keeps of those that it had.
fn track_limits(cluster: &TenantCluster, terms: &Terms<'_>, now: Timestamp) -> Option<ExpirationLimits> {
    let (spec, status) = (&cluster.spec, cluster.status.as_ref());
    let before = status.and_then(|status| status.expiration_limits.as_ref());
    let was_accepted = status.is_some_and(|status| status.version.is_some());
    // A release without the record published the condition.
    let has_condition =
        status.is_some_and(|status| status.conditions.iter().any(|condition| condition.type_ == EXPIRING));
    let rules = limits::Rules {
        is_first: !terms.is_accepted || (before.is_none() && (!was_accepted || has_condition)),
        grace: terms.grace,
        now: now.as_second(),
    };
    let track = |before: Option<&ExpirationLimit>, requested: Option<&KubeDuration>, limit| {
        let requested = requested.map(KubeDuration::seconds);
        limits::track(before, limits::Current { limit, requested }, rules)
    };
    let (ttl, idle) = (spec.ttl.as_ref(), spec.expire_after_idle.as_ref());
    let limits = ExpirationLimits {
        ttl: track(
            before.and_then(|before| before.ttl.as_ref()),
            ttl,
            terms.policy.ttl_seconds(ttl),
        ),
        idle: track(
            before.and_then(|before| before.idle.as_ref()),
            idle,
            terms.policy.idle_seconds(idle),
        ),
    };
    (limits != ExpirationLimits::default()).then_some(limits)
}

/// What the end of a tenant depends on, as a sentence without its beginning.
fn describe(cluster: &TenantCluster, ttl: Option<Limit>, idle_limit: Option<Limit>, now: Timestamp) -> Option<String> {
    let spec = &cluster.spec;
    let kept = |limit: Limit| {
        let until = limit
            .grace
            .map(|grace| grace.until)
            .filter(|until| *until > now.as_second());
        let until = until.and_then(|until| Timestamp::from_second(until).ok());
        until.map_or_else(String::new, |until| {
            format!("; it had more time before, and keeps that until {until}, the end of enforcementGracePeriod")
        })
    };
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
        let by = source(requested, ttl.seconds, "ttl", "defaultTTL or maxTTL");
        format!("{} after its creation ({by}{})", duration_text(ttl.seconds), kept(ttl))
    });
    let idle = idle_limit.map(|idle| {
        let requested = spec.expire_after_idle.as_ref().map(KubeDuration::seconds);
        let of_class = "defaultExpireAfterIdle or maxExpireAfterIdle";
        let by = source(requested, idle.seconds, "expireAfterIdle", of_class);
        format!("{} without pods ({by}{})", duration_text(idle.seconds), kept(idle))
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
    /// Notes that the tenant could not be deleted.
    pub(super) fn note_failure(&mut self, error: &TenantError) {
        self.failure = Some(error.to_string());
    }

    /// Whether the tenant is to be deleted now.
    fn is_over(&self) -> bool {
        self.end.is_some_and(|end| end.stage == Stage::Expired)
    }

    /// Time until something changes that the status says.
    pub(super) fn until_next(&self, now: Timestamp) -> Option<Duration> {
        if self.is_over() {
            return Some(CHANGED);
        }
        let seconds = self.end?.next.saturating_sub(now.as_second());
        Some(Duration::from_secs(u64::try_from(seconds).unwrap_or_default()))
    }

    /// The condition Expiring; none if the tenant never expires.
    pub(super) fn condition(&self) -> Option<ConditionUpdate> {
        let rule = self.rule.as_deref()?;
        let Some(end) = self.end else {
            let why = match self.not_counted {
                None => {
                    let message = format!("the tenant has pods; it expires {rule}");
                    return Some(ConditionUpdate::mark_false(EXPIRING, "InUse", message));
                }
                Some(NotCounted::Held) => "a SchedulePolicy or a quota lets no pod start",
                Some(NotCounted::Unreachable) => "the tenant's control plane or its syncer does not answer",
            };
            let message = format!("{why}, and this time does not count; the tenant expires {rule}");
            return Some(ConditionUpdate::mark_false(EXPIRING, "NotCounted", message));
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
        let failure = self
            .failure
            .as_deref()
            .map(|why| format!(". It is not deleted yet: {why}"));
        let failure = failure.unwrap_or_default();
        let keep = match end.cause {
            Cause::Ttl => "set a greater spec.ttl to keep it, as far as its class allows",
            Cause::Idle => "start a pod or set a greater spec.expireAfterIdle to keep it, as far as its class allows",
        };
        let message = format!(
            "Berth deletes the tenant with everything in it at {}: {rule}; {keep}{failure}",
            end.text()
        );
        Some(ConditionUpdate::mark_true(EXPIRING, reason, message))
    }

    /// Sets what the status says of the end.
    pub(super) fn write_to(&self, status: &mut TenantClusterStatus) {
        let at = self.end.and_then(|end| Timestamp::from_second(end.at).ok());
        status.expires_at = at.map(Time);
        status.idle_since = self.idle_since.map(Time);
        status.expiration_limits.clone_from(&self.limits);
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
