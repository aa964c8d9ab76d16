//! Status conditions, set the way Kubernetes users expect: a transition time that moves only when the status
//! flips, and the generation that was observed.

use crate::text::printable_start;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// `TenantCluster`: the spec can be carried out by this Berth (known pools and version, enough nodes).
pub const ACCEPTED: &str = "Accepted";
/// `TenantCluster`: its Project has quota for it, and the quota is reserved. Only with a Project. Not part of [`READY`] once the
/// tenant exists.
pub const QUOTA_RESERVED: &str = "QuotaReserved";
/// `TenantCluster`: its namespaces, certificate authorities, addresses and network policies exist on the host.
pub const INFRASTRUCTURE_READY: &str = "InfrastructureReady";
/// `TenantCluster`: the tenant's key range and identity exist in its datastore.
pub const DATASTORE_READY: &str = "DatastoreReady";
/// `TenantCluster`: the tenant stores less than 80 percent of what its class allows. Not part of [`READY`].
pub const DATASTORE_WITHIN_LIMITS: &str = "DatastoreWithinLimits";
/// `TenantCluster`: its objects on the host have less than 80 percent of the bytes that its class allows. Not part of [`READY`].
pub const HOST_WITHIN_LIMITS: &str = "HostWithinLimits";
/// `TenantCluster`: its end is near. Not part of [`READY`].
pub const EXPIRING: &str = "Expiring";
/// `TenantCluster`: its control plane runs, or is being started. Only for a tenant that may sleep. Not part of [`READY`].
pub const AWAKE: &str = "Awake";
/// Reason of [`AWAKE`], which is False: the API server of a tenant that wakes answers, and the rest of it is being started.
pub const SERVING: &str = "Serving";
/// `TenantCluster`: the objects of the class's manifests are in the tenant as the manifests say. Not part of [`READY`].
pub const MANIFESTS_APPLIED: &str = "ManifestsApplied";
/// `TenantCluster`: its API server has the issuers of its spec or of its class. Only with issuers, while the API server answers. Not part of [`READY`].
pub const AUTHENTICATION_APPLIED: &str = "AuthenticationApplied";
/// `TenantCluster`: the tenant is a cluster in the platform's Argo CD. Not part of [`READY`].
pub const ARGO_CD_REGISTERED: &str = "ArgoCDRegistered";
/// `TenantCluster`: client certificates from before the last request for new credentials are refused. Only if there was one. Not part
/// of [`READY`].
pub const CREDENTIALS_ROTATED: &str = "CredentialsRotated";
/// `TenantCluster`: every object of the resources that its class lists in `spec.encryption` is stored encrypted, with one key. Only with such a class, and
/// until everything is decrypted after one. Not part of [`READY`].
pub const ENCRYPTED_AT_REST: &str = "EncryptedAtRest";
/// `TenantCluster`: what it stores is as in the snapshot to which it was set back last. Only if somebody has asked for a restore. Not part of [`READY`].
pub const RESTORED: &str = "Restored";
/// `TenantSnapshot`: everything is in the object store.
pub const COMPLETED: &str = "Completed";
/// `TenantCluster`: the tenant's API server answers and its bootstrap objects exist.
pub const CONTROL_PLANE_READY: &str = "ControlPlaneReady";
/// `TenantCluster`: the address that the team was given leads to the API server, as far as the host is concerned.
pub const ENDPOINT_READY: &str = "EndpointReady";
/// `TenantCluster`: the syncer runs and has listed both sides.
pub const SYNCER_READY: &str = "SyncerReady";
/// `TenantCluster`: every node the spec asks for is assigned.
pub const NODES_READY: &str = "NodesReady";
/// `TenantCluster` and `HostNodePool`: all of the above. `Organization` and `Project`: the spec is consistent.
pub const READY: &str = "Ready";
/// `TenantCluster`: the class and the pools allow everything that the tenant runs with. Not part of [`READY`].
pub const COMPLIANT: &str = "Compliant";
/// `TenantClass`: no host name is allowed to two tenants of the class. Not part of [`READY`].
pub const HOSTNAMES_EXCLUSIVE: &str = "HostnamesExclusive";
/// `TenantClass`: no entry of its images with a placeholder is for images that another tenant of the class may use. Not part of [`READY`].
pub const IMAGES_EXCLUSIVE: &str = "ImagesExclusive";
/// `TenantCluster`: no SchedulePolicy restricts it now. Not part of [`READY`].
pub const WITHIN_SCHEDULE: &str = "WithinSchedule";
/// `Organization` and `Project`: no resource is used beyond what the quotas allow. Not part of [`READY`].
pub const WITHIN_QUOTA: &str = "WithinQuota";
/// `HostNodePool`: no node is quarantined, and the devices of all nodes are known.
pub const HEALTHY: &str = "Healthy";
/// `HostNodePool`: no node that has passed its validation has a risk in its set-up. Berth assigns nodes with risks unless the pool refuses them.
pub const NO_KNOWN_RISKS: &str = "NoKnownRisks";
/// `HostNodePool`: Berth requests nodes from an autoscaler.
pub const NODES_REQUESTED: &str = "NodesRequested";
/// `HostNodePool`: no more nodes are not Ready than `spec.repair` allows, so that Berth takes those from their tenants that are not Ready for too long. Only
/// with `spec.repair`.
pub const REPAIR_ALLOWED: &str = "RepairAllowed";
/// Pods: their GPUs do nothing. Berth sets it on host pods, and the tenant's pods show it.
pub const GPUS_IDLE: &str = "berth.dev/GPUsIdle";
/// Pods: they wait, because their user has as much as the Project allows. Berth sets it on host pods, and the tenant's pods show it.
pub const USER_LIMIT_EXCEEDED: &str = "berth.dev/UserLimitExceeded";
/// `TenantCluster`, `Organization` and `Project`: being deleted; the message says what remains. `TenantSnapshot`: being deleted, and its file remains.
pub const DELETING: &str = "Deleting";

/// A condition as a controller sets it: what it observed of one aspect of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionUpdate {
    /// Condition type, one of the constants of this module.
    pub kind: &'static str,
    /// `Some(true)` = True, `Some(false)` = False, `None` = Unknown.
    pub status: Option<bool>,
    /// CamelCase reason.
    pub reason: &'static str,
    /// The cause and what to do, for people.
    pub message: String,
}

impl ConditionUpdate {
    /// A condition that is True.
    pub fn mark_true(kind: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            kind,
            status: Some(true),
            reason,
            message: message.into(),
        }
    }

    /// A condition that is False. The message says what to do.
    pub fn mark_false(kind: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            kind,
            status: Some(false),
            reason,
            message: message.into(),
        }
    }

    /// A condition that is Unknown. The message says why.
    pub fn mark_unknown(kind: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            kind,
            status: None,
            reason,
            message: message.into(),
        }
    }

    /// Whether the status is True.
    pub fn is_true(&self) -> bool {
        self.status == Some(true)
    }
}

/// Bytes of a message that are kept. Texts of the team's webhooks may be part of it, and an API server stores no status that is too large.
const MAX_MESSAGE: usize = 4096;

/// Conditions after `updates`, given those `before`. An update replaces the condition of its type and keeps the transition time
/// unless the status flipped; other conditions are kept. `now` is used for flips only, so that a second pass with the same
/// updates changes nothing.
pub fn merge(
    before: &[Condition],
    updates: &[ConditionUpdate],
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let mut merged = before.to_vec();
    for update in updates {
        let status = match update.status {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        };
        let earlier = merged.iter().position(|c| c.type_ == update.kind);
        let last_transition_time = match earlier.map(|i| &merged[i]) {
            Some(c) if c.status == status => c.last_transition_time.clone(),
            _ => Time(now),
        };
        let condition = Condition {
            type_: update.kind.into(),
            status: status.into(),
            reason: update.reason.into(),
            message: printable_start(&update.message, MAX_MESSAGE),
            observed_generation: generation,
            last_transition_time,
        };
        match earlier {
            Some(i) => merged[i] = condition,
            None => merged.push(condition),
        }
    }
    merged
}

/// Whether a condition of the given type is True.
pub fn is_true(conditions: &[Condition], kind: &str) -> bool {
    conditions.iter().any(|c| c.type_ == kind && c.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn what_a_terminal_would_do_is_not_kept() {
        let update = ConditionUpdate::mark_false("Ready", "Denied", "a\x1bb");
        let merged = merge(&[], &[update], None, at(0));
        assert_eq!(merged[0].message, "a\u{fffd}b");
    }

    #[test]
    fn transition_time_moves_only_when_status_flips() {
        let first = merge(
            &[],
            &[ConditionUpdate::mark_false(READY, "Waiting", "a")],
            Some(1),
            at(10),
        );
        let same = merge(
            &first,
            &[ConditionUpdate::mark_false(READY, "Waiting", "b")],
            Some(2),
            at(20),
        );
        assert_eq!(same[0].last_transition_time, Time(at(10)));
        assert_eq!((same[0].message.as_str(), same[0].observed_generation), ("b", Some(2)));
        let flipped = merge(
            &same,
            &[ConditionUpdate::mark_true(READY, "Ready", "")],
            Some(2),
            at(30),
        );
        assert_eq!(flipped[0].last_transition_time, Time(at(30)));
        assert!(is_true(&flipped, READY));
    }

    #[test]
    fn a_message_that_is_too_long_is_cut() {
        let long = || ConditionUpdate::mark_false(READY, "Waiting", "ü".repeat(2_000_000));
        let first = merge(&[], &[long()], Some(1), at(1));
        assert_eq!(first[0].message.len(), MAX_MESSAGE);
        assert_eq!(merge(&first, &[long()], Some(1), at(2)), first);
    }

    #[test]
    fn repeated_updates_change_nothing_and_other_conditions_stay() {
        let other = merge(
            &[],
            &[ConditionUpdate::mark_true(ACCEPTED, "Valid", "")],
            Some(1),
            at(1),
        );
        let both = merge(
            &other,
            &[ConditionUpdate::mark_true(READY, "Ready", "")],
            Some(1),
            at(2),
        );
        assert_eq!(both.len(), 2);
        assert_eq!(
            merge(&both, &[ConditionUpdate::mark_true(READY, "Ready", "")], Some(1), at(3)),
            both
        );
    }
}
