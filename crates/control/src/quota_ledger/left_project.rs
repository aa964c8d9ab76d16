//! Tenants that wait for quota, and whose namespace no Project names any more.
//!
//! To move a namespace between two Projects takes two writes. If the first one removes it from the old Project, no Project names it
//! until the second. A tenant that waits must not be created in between: it would stay, whatever the quotas of the new Project.

use super::Verdict;
use crate::tenant_state::is_created;
use berth_api::{TenantCluster, conditions::QUOTA_RESERVED};
use berth_quota::OverQuota;
use jiff::{SignedDuration, Timestamp};

/// Reason of the condition of a tenant that waits for its next Project. Its status is Unknown, so that the condition says since when.
pub const LEFT_PROJECT: &str = "LeftProject";
/// Reason of the condition of a tenant that counts as one without a Project.
pub const NO_PROJECT: &str = "NoProject";
/// How long such a tenant waits before it counts as one without a Project: long enough to write another object by hand.
const WAIT: SignedDuration = SignedDuration::from_mins(10);
const MESSAGE: &str = "no Project names the namespace of the TenantCluster any more, and the tenant did not exist yet. Nothing is created \
                       for 10 minutes, so that the namespace can move to another Project: name it in spec.namespaces of one, or delete \
                       the TenantCluster. After that, the tenant is created without quota";

/// What is decided about a tenant whose namespace no Project names. `known` was decided about it last.
pub fn decide_without_project(cluster: &TenantCluster, known: Option<&Verdict>, now: Timestamp) -> Verdict {
    let status = cluster.status.as_ref();
    if is_created(cluster) || !waits(cluster, known, now) {
        return Verdict::NoProject;
    }
    let recorded = || status.and_then(|status| status.quota.clone());
    Verdict::Waiting {
        // What it had counts in the next Project.
        kept: known.map_or_else(recorded, |verdict| verdict.reservation().cloned()),
        over: OverQuota::new(),
        reason: LEFT_PROJECT,
        message: MESSAGE.to_owned(),
    }
}

/// Whether a tenant belonged to a Project a short while ago.
fn waits(cluster: &TenantCluster, known: Option<&Verdict>, now: Timestamp) -> bool {
    let mut conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    let shown = conditions.find(|condition| condition.type_ == QUOTA_RESERVED);
    if let Some(unknown) = shown.filter(|condition| condition.status == "Unknown") {
        return now.duration_since(unknown.last_transition_time.0) < WAIT;
    }
    // What was decided is shown a little later.
    let decided = known.is_some_and(|verdict| *verdict != Verdict::NoProject);
    decided || shown.is_some_and(|condition| condition.reason != NO_PROJECT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::{QuotaReservation, TenantClusterSpec};
    use serde_json::json;

    fn now() -> Timestamp {
        "2026-01-01T00:10:00Z".parse().unwrap()
    }

    /// A tenant with this condition, of which nothing exists yet.
    fn cluster(condition: Option<(&str, &str, &str)>) -> TenantCluster {
        let mut cluster = TenantCluster::new("vision", TenantClusterSpec::default());
        let conditions: Vec<_> = condition
            .into_iter()
            .map(|(status, reason, since)| {
                json!({"type": QUOTA_RESERVED, "status": status, "reason": reason, "message": "",
                    "lastTransitionTime": since})
            })
            .collect();
        cluster.status = serde_json::from_value(json!({"conditions": conditions})).unwrap();
        cluster
    }

    fn waits_until_named(verdict: &Verdict) -> bool {
        matches!(
            verdict,
            Verdict::Waiting {
                reason: LEFT_PROJECT,
                ..
            }
        )
    }

    fn waiting() -> Verdict {
        Verdict::Waiting {
            kept: None,
            over: OverQuota::new(),
            reason: "QuotaExceeded",
            message: String::new(),
        }
    }

    #[test]
    fn a_tenant_that_waited_waits_for_its_next_project_for_ten_minutes() {
        let long_ago = "2025-01-01T00:00:00Z";
        let cases = [
            (None, false),
            (Some(("False", "QuotaExceeded", long_ago)), true),
            (Some(("True", "Reserved", long_ago)), true),
            (Some(("Unknown", LEFT_PROJECT, "2026-01-01T00:00:01Z")), true),
            (Some(("Unknown", LEFT_PROJECT, "2026-01-01T00:00:00Z")), false),
            (Some(("True", NO_PROJECT, long_ago)), false),
        ];
        for (condition, expected) in cases {
            let verdict = decide_without_project(&cluster(condition), None, now());
            assert_eq!(waits_until_named(&verdict), expected, "{condition:?}");
            assert_eq!(verdict == Verdict::NoProject, !expected);
        }
    }

    #[test]
    fn what_was_decided_counts_before_the_condition_shows_it() {
        let verdict = |known: &Verdict| decide_without_project(&cluster(None), Some(known), now());
        assert!(waits_until_named(&verdict(&waiting())));
        assert!(waits_until_named(&verdict(&verdict(&waiting()))));
        assert_eq!(verdict(&Verdict::NoProject), Verdict::NoProject);
    }

    #[test]
    fn a_tenant_that_runs_goes_on() {
        let mut runs = cluster(Some(("False", "QuotaExceeded", "2026-01-01T00:00:00Z")));
        runs.status.as_mut().unwrap().control_plane_namespace = Some("berth-cp".into());
        assert_eq!(
            decide_without_project(&runs, Some(&waiting()), now()),
            Verdict::NoProject
        );
    }

    #[test]
    fn what_was_reserved_for_it_stays_reserved() {
        let mut cluster = cluster(Some(("True", "Reserved", "2026-01-01T00:00:00Z")));
        let recorded = QuotaReservation {
            project_name: "vision".into(),
            ..QuotaReservation::default()
        };
        cluster.status.as_mut().unwrap().quota = Some(recorded.clone());
        let kept = |known: Option<&Verdict>| decide_without_project(&cluster, known, now()).reservation().cloned();
        assert_eq!(kept(None), Some(recorded));
        assert_eq!(kept(Some(&waiting())), None, "what was decided counts more");
    }
}
