//! What a pass says of the end of a tenant, and writes into its status.

use super::*;
use crate::error::ReconcileError;
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
    let terms = Terms {
        policy,
        grace: 24 * 3600,
        is_accepted: true,
    };
    let found = expiration(cluster, &terms, pods, at(now));
    let mut status = cluster.status.clone().unwrap_or_default();
    let updates: Vec<ConditionUpdate> = found.condition().into_iter().collect();
    status.conditions = conditions::merge(&status.conditions, &updates, None, at(now));
    found.write_to(&mut status);
    status.version = Some("v1.37.1".into());
    cluster.status = Some(status);
    found
}

fn only_accepted() -> TenantClusterStatus {
    TenantClusterStatus {
        version: Some("v1.37.1".into()),
        ..TenantClusterStatus::default()
    }
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
    assert_eq!(cluster.status, Some(only_accepted()));
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
    assert_eq!(cluster.status, Some(only_accepted()));
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

/// A tenant whose pods ended, and then time that does not count: for that reason, it does not expire however long it takes.
fn tenant_for_which_time_does_not_count(why: NotCounted) -> TenantCluster {
    let policy = ExpirationPolicy::default();
    let mut cluster = cluster(None, Some("2h"));
    let ended = Pods {
        last_change: Some(at(100)),
        ..Pods::default()
    };
    assert_eq!(pass(&mut cluster, &policy, ended, 7000).idle_since, Some(at(100)));
    for now in [7200, 100_000] {
        assert_eq!(pass(&mut cluster, &policy, not_counted(why, now), now).end, None);
        assert_eq!(reason(&cluster).as_deref(), Some("NotCounted"));
        assert_eq!(cluster.status.clone().unwrap().idle_since, None);
    }
    cluster
}

fn not_counted(why: NotCounted, now: i64) -> Pods {
    Pods {
        not_counted: Some(why),
        last_change: Some(at(now)),
        ..Pods::default()
    }
}

/// Pods have changed last when that time was over.
fn counts_anew(cluster: &mut TenantCluster) {
    let after = Pods {
        last_change: Some(at(100_000)),
        ..Pods::default()
    };
    let found = pass(cluster, &ExpirationPolicy::default(), after, 100_010);
    assert_eq!(found.idle_since, Some(at(100_000)));
}

#[test]
fn time_in_which_no_pod_may_start_does_not_count() {
    let mut cluster = tenant_for_which_time_does_not_count(NotCounted::Held);
    counts_anew(&mut cluster);
    // A TTL counts always.
    cluster.spec.ttl = Some("48h".into());
    let stopped = not_counted(NotCounted::Held, 100_020);
    let found = pass(&mut cluster, &ExpirationPolicy::default(), stopped, 100_020);
    assert_eq!(found.end.map(|end| end.at), Some(48 * 3600));
    assert_eq!(reason(&cluster).as_deref(), Some("ExpiresWithinDay"));
}

#[test]
fn a_tenant_whose_control_plane_does_not_answer_is_not_idle() {
    let mut cluster = tenant_for_which_time_does_not_count(NotCounted::Unreachable);
    let message = cluster.status.as_ref().unwrap().conditions[0].message.clone();
    assert!(message.contains("does not answer"), "{message}");
    counts_anew(&mut cluster);
}

#[test]
fn a_service_that_the_host_rejects_does_not_keep_an_idle_tenant() {
    let mut cluster = cluster(None, Some("2h"));
    let set = |cluster: &mut TenantCluster, update: ConditionUpdate| {
        let status = cluster.status.get_or_insert_default();
        status.conditions = conditions::merge(&status.conditions, &[update], None, at(0));
    };
    for kind in [CONTROL_PLANE_READY, SYNCER_READY] {
        set(&mut cluster, ConditionUpdate::mark_true(kind, "A", "a"));
    }
    set(
        &mut cluster,
        ConditionUpdate::mark_false(ENDPOINT_READY, EXTERNAL_SERVICE_FAILED, "invalid annotation"),
    );
    assert!(answers(&cluster));
    set(
        &mut cluster,
        ConditionUpdate::mark_false(ENDPOINT_READY, "Pending", "it has no address"),
    );
    assert!(!answers(&cluster));
}

#[test]
fn what_is_not_known_to_answer_does_not() {
    let mut cluster = cluster(None, Some("2h"));
    assert!(!answers(&cluster), "nothing was looked at yet");
    let set = |cluster: &mut TenantCluster, kind: &'static str, is_true: bool| {
        let update = if is_true {
            ConditionUpdate::mark_true(kind, "A", "a")
        } else {
            ConditionUpdate::mark_false(kind, "B", "b")
        };
        let status = cluster.status.get_or_insert_default();
        status.conditions = conditions::merge(&status.conditions, &[update], None, at(0));
    };
    set(&mut cluster, CONTROL_PLANE_READY, true);
    assert!(!answers(&cluster));
    set(&mut cluster, SYNCER_READY, true);
    assert!(answers(&cluster));
    for kind in [
        INFRASTRUCTURE_READY,
        DATASTORE_READY,
        ENDPOINT_READY,
        SYNCER_READY,
        CONTROL_PLANE_READY,
    ] {
        set(&mut cluster, kind, false);
        assert!(!answers(&cluster), "{kind}");
        set(&mut cluster, kind, true);
        assert!(answers(&cluster), "{kind}");
    }
    // A spec that is not accepted keeps no tenant from being idle.
    set(&mut cluster, conditions::ACCEPTED, false);
    assert!(answers(&cluster));
}

#[test]
fn a_lower_maximum_of_the_class_ends_old_tenants_after_its_grace_period() {
    let day = 24 * 3600;
    let policy = |max: &str| ExpirationPolicy {
        max_ttl: Some(max.into()),
        ..ExpirationPolicy::default()
    };
    let mut cluster = cluster(None, None);
    pass(&mut cluster, &policy("2400h"), Pods::default(), 10);
    assert_eq!(reason(&cluster).as_deref(), Some("NotSoon"));
    let start = 30 * day;
    let found = pass(&mut cluster, &policy("48h"), Pods::default(), start);
    assert_eq!(found.end.map(|end| end.at), Some(start + day));
    assert_eq!(
        reason(&cluster).as_deref(),
        Some("ExpiresWithinDay"),
        "it is warned at once"
    );
    let limits = cluster.status.clone().unwrap().expiration_limits.unwrap().ttl.unwrap();
    assert_eq!(limits.previous_limit, Some("2400h".into()));
    for (now, expected) in [
        (start + day - 3600, "ExpiresWithinHour"),
        (start + day - 600, "ExpiresSoon"),
    ] {
        assert!(!pass(&mut cluster, &policy("48h"), Pods::default(), now).is_over());
        assert_eq!(reason(&cluster).as_deref(), Some(expected), "{now}");
    }
    assert!(pass(&mut cluster, &policy("48h"), Pods::default(), start + day).is_over());
}

#[test]
fn a_new_tenant_has_no_grace_period() {
    let policy = ExpirationPolicy {
        max_ttl: Some("2h".into()),
        ..ExpirationPolicy::default()
    };
    let mut cluster = cluster(None, None);
    for now in [10, 3600] {
        let found = pass(&mut cluster, &policy, Pods::default(), now);
        assert_eq!(found.end.map(|end| end.at), Some(7200));
    }
    // One without a limit gets one.
    let mut cluster = self::cluster(None, None);
    pass(&mut cluster, &ExpirationPolicy::default(), Pods::default(), 10);
    let found = pass(&mut cluster, &policy, Pods::default(), 3600);
    assert_eq!(found.end.map(|end| end.at), Some(3600 + 24 * 3600));
}

#[test]
fn durations_are_written_as_kubernetes_writes_them() {
    for (seconds, text) in [(0, "0s"), (90, "1m30s"), (7200, "2h"), (3601, "1h1s")] {
        assert_eq!(duration_text(seconds), text);
    }
}

#[test]
fn the_condition_says_why_an_expired_tenant_is_not_deleted() {
    let mut expired = Expiration {
        end: Some(End {
            at: 60,
            stage: Stage::Expired,
            cause: Cause::Ttl,
            next: 60,
        }),
        rule: Some("1m after its creation".into()),
        ..Expiration::default()
    };
    let of = |expired: &Expiration| expired.condition().unwrap();
    assert!(!of(&expired).message.contains("not deleted"));
    expired.note_failure(&TenantError::Expiration(ReconcileError::Blocked {
        reason: "Denied",
        message: "a policy denies it".into(),
    }));
    let condition = of(&expired);
    assert_eq!((condition.status, condition.reason), (Some(true), EXPIRED));
    assert!(
        condition.message.contains("It is not deleted yet: ") && condition.message.ends_with("a policy denies it"),
        "{}",
        condition.message
    );
}
