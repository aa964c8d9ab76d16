//! Owners that were stopped: whether they still are, and whether somebody wants them back.
//!
//! What an owner was is on the owner itself ([`owner`]). The status of the `TenantCluster` lists which ones to look at, so that no tenant
//! has to be searched; an owner is in that list before it is stopped, and until its record is gone.
//!
//! Each owner is looked at for itself: what is known of the others counts, also if one does not answer.

use super::{
    IdleGpusContext,
    owners::{OwnerKey, TenantObjects},
    tenants::ObservedTenant,
    waits::ObjectError,
    warn,
};
use crate::apply::optional;
use berth_api::{
    StoppedOwner, TenantCluster,
    labels::{RESTORE, STOPPED},
};
use berth_idle_reclaim::owner::{self, Review};
use jiff::Timestamp;
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::events::EventType,
};
use serde_json::json;
use std::collections::HashSet;

/// Seconds for which an owner without a record stays listed after it was to be stopped: a control that lost its lease may be about to write
/// the record. Its writes end within seconds.
const FORGET_AFTER: i64 = 120;
/// Reason of Events about owners that run again.
const RESTORED: &str = "OwnerRestored";
/// Reason of Events about owners that somebody wants back, and that do not run again.
const NOT_RESTORED: &str = "OwnerNotRestored";
/// Why an owner cannot be restored whose kind has changed.
const NO_SCALE: &str = "its kind has no subresource scale in the version that the tenant serves; set the replicas, and remove the annotation \
                        berth.dev/stopped";

/// What is known of a stopped owner.
#[derive(Debug, PartialEq, Eq)]
enum State {
    /// Nothing. The text says why.
    Unknown(String),
    /// It stays stopped, and is served in this version.
    Stopped(String),
    /// The same, as the tenant rejects that it is started. The text says why.
    Rejected(String),
    /// It has no record.
    NoRecord,
    /// The tenant serves its kind in no version.
    NotServed,
    /// It is gone, or somebody else has started it.
    NoMore,
    /// It was started just now.
    Restored,
    /// Somebody changed it at the same time.
    Changed,
}

impl State {
    fn of_error(error: &ObjectError) -> Self {
        if error.is_rejected() {
            // What admission of the tenant rejects now it rejects later.
            Self::Rejected(error.to_string())
        } else {
            Self::Unknown(error.to_string())
        }
    }
}

/// The stopped owners of a tenant, with what is known of them.
pub(super) struct StoppedOwners<'a> {
    /// Which ones somebody asked on the host to start.
    request: Option<&'a str>,
    owners: Vec<(&'a StoppedOwner, State)>,
}

/// What became of stopped owners.
#[derive(Debug, Default)]
pub(super) struct Reviewed {
    /// Those that are still stopped, or of which that is not known.
    pub(super) kept: Vec<StoppedOwner>,
    /// Those that were started.
    pub(super) restored: Vec<StoppedOwner>,
    /// UIDs of those whose kind the tenant does not serve.
    pub(super) not_served: HashSet<String>,
    /// What is left of the request.
    pub(super) left: Option<String>,
    /// Those that somebody asked for and that could not be started, with the reason.
    pub(super) failed: Vec<(String, String)>,
}

impl<'a> StoppedOwners<'a> {
    /// Those that are listed. `request` is the annotation of the `TenantCluster`.
    pub(super) fn new(stopped: &'a [StoppedOwner], request: Option<&'a str>) -> Self {
        let unknown = || State::Unknown("it was not looked at yet".into());
        Self {
            request,
            owners: stopped.iter().map(|owner| (owner, unknown())).collect(),
        }
    }

    /// Looks at those of which nothing is known, kinds of Kubernetes' own first, and starts those that are wanted back: by an annotation of
    /// their own, or by the request.
    pub(super) async fn review(&mut self, objects: &mut TenantObjects) {
        for is_built_in in [true, false] {
            for (owner, state) in &mut self.owners {
                let key = OwnerKey::of_stopped(owner);
                if key.is_built_in() != is_built_in || !matches!(state, State::Unknown(_)) {
                    continue;
                }
                let is_wanted = is_wanted(owner, self.request);
                *state = review_owner(objects, &key, owner, is_wanted)
                    .await
                    .unwrap_or_else(|error| {
                        tracing::debug!(owner = owner.path(), %error, "cannot look at a stopped owner; trying again");
                        State::of_error(&error)
                    });
            }
        }
    }

    /// What became of them. `not_served` are the UIDs of those whose kind was not served in the pass before.
    pub(super) fn finish(self, not_served: &HashSet<String>, now: Timestamp) -> Reviewed {
        let mut reviewed = Reviewed::default();
        let mut left = Vec::new();
        for (owner, state) in self.owners {
            let is_wanted = is_wanted(owner, self.request);
            let is_left = is_wanted && matches!(state, State::Unknown(_) | State::NotServed | State::Changed);
            let mut kept = owner.clone();
            match state {
                State::NoMore => continue,
                State::Restored => {
                    reviewed.restored.push(kept);
                    continue;
                }
                State::NoRecord => {
                    if now.as_second() >= owner.stopped_at.0.as_second().saturating_add(FORGET_AFTER) {
                        continue;
                    }
                }
                State::NotServed => {
                    // While a definition changes there is a moment without any version.
                    if not_served.contains(&owner.uid) {
                        continue;
                    }
                    reviewed.not_served.insert(owner.uid.clone());
                }
                State::Unknown(why) | State::Rejected(why) => {
                    if is_wanted {
                        reviewed.failed.push((owner.path(), why));
                    }
                }
                State::Stopped(api_version) => kept.api_version = api_version,
                State::Changed => {}
            }
            if is_left {
                left.push(owner.path());
            }
            reviewed.kept.push(kept);
        }
        // With a comma a name would ask for others too. Names of Kubernetes have none.
        left.retain(|path| !path.contains(','));
        reviewed.left = (!left.is_empty()).then(|| left.join(","));
        reviewed
    }
}

fn is_wanted(owner: &StoppedOwner, request: Option<&str>) -> bool {
    request.is_some_and(|request| owner.is_named_by(request))
}

async fn review_owner(
    objects: &mut TenantObjects,
    listed: &OwnerKey,
    stopped: &StoppedOwner,
    is_wanted: bool,
) -> Result<State, ObjectError> {
    let Some(key) = objects.in_served_version(listed).await? else {
        return Ok(State::NotServed);
    };
    let switch = objects.switch(&key, stopped.suspend.as_ref()).await?;
    let Some(object) = objects.get(&key).await? else {
        return Ok(State::NoMore);
    };
    let Some(switch) = switch else {
        let has_record = object["metadata"]["annotations"][STOPPED].is_string();
        return Ok(if has_record {
            State::Unknown(NO_SCALE.into())
        } else {
            State::NoRecord
        });
    };
    match owner::review(&object, &switch, is_wanted) {
        Review::Keep => Ok(State::Stopped(key.api_version)),
        Review::Forget => Ok(State::NoRecord),
        Review::RemoveRecord(patch) => {
            let done = objects.patch(&key, &patch).await?;
            Ok(if done.is_some() { State::NoMore } else { State::Changed })
        }
        Review::Restore(patch) => {
            if objects.patch(&key, &patch).await?.is_none() {
                return Ok(State::Changed);
            }
            tracing::info!(owner = %key, "started an owner again that was stopped because its GPUs were idle");
            let event = warn::idle_event(
                EventType::Normal,
                RESTORED,
                "Berth restored what it had stopped for idle GPUs.",
            );
            objects.publish(&event, &key).await;
            Ok(State::Restored)
        }
    }
}

/// Publishes on the `TenantCluster` which owners run again, and that some do not.
pub(super) async fn publish(context: &IdleGpusContext, tenant: &ObservedTenant, reviewed: &Reviewed) {
    let reference = tenant.cluster.object_ref(&());
    for owner in &reviewed.restored {
        let message = format!(
            "Berth restored {}, which it had stopped because its GPUs were idle",
            owner.path()
        );
        let event = warn::idle_event(EventType::Normal, RESTORED, &message);
        context.recorder.publish(&event, &reference).await;
    }
    if let Some(message) = describe_failures(reviewed) {
        let event = warn::idle_event(EventType::Warning, NOT_RESTORED, &message);
        context.recorder.publish(&event, &reference).await;
    }
}

/// What the platform reads of owners that could not be started, in one Event: servers of the team's decide how many they are. None if there
/// are none.
fn describe_failures(reviewed: &Reviewed) -> Option<String> {
    let (owner, why) = reviewed.failed.first()?;
    let others = match reviewed.failed.len() - 1 {
        0 => String::new(),
        1 => " and one other".to_owned(),
        count => format!(" and {count} others"),
    };
    let next = if reviewed.left.is_some() {
        "Berth tries again every minute what does not answer, as long as the TenantCluster has the annotation berth.dev/restore"
    } else {
        "To try again, ask for the restore again"
    };
    Some(format!("Berth cannot restore {owner}{others}: {why}. {next}"))
}

/// Leaves of a request on the `TenantCluster` what is not done, unless it was changed since. Returns what it is then.
pub(super) async fn reduce_request(
    context: &IdleGpusContext,
    tenant: &ObservedTenant,
    request: &str,
    left: Option<&str>,
) -> Option<String> {
    if left == Some(request) {
        return Some(request.to_owned());
    }
    let (namespace, name) = tenant.names();
    let clusters: Api<TenantCluster> = Api::namespaced(context.client.clone(), &namespace);
    let reduced = async {
        let Some(cluster) = optional(clusters.get_metadata(&name).await)? else {
            return Ok(None);
        };
        let current = cluster.annotations().get(RESTORE);
        if current.map(String::as_str) != Some(request) {
            // It is served in the next pass.
            return Ok(current.cloned());
        }
        let patch = json!({"metadata": {
            "uid": tenant.uid, "resourceVersion": cluster.resource_version(), "annotations": {RESTORE: left},
        }});
        clusters
            .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        Ok::<_, kube::Error>(left.map(ToOwned::to_owned))
    };
    reduced.await.unwrap_or_else(|error| {
        tracing::debug!(tenant = tenant.id.slug(), request, %error, "cannot remove from a request to restore what is done; trying again");
        Some(request.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(name: &str) -> StoppedOwner {
        let owner = json!({"apiVersion": "a.example/v1alpha1", "kind": "Pool", "namespace": "ml", "name": name, "uid": name, "gpus": 8,
            "stoppedAt": "1970-01-01T00:00:00Z"});
        serde_json::from_value(owner).unwrap()
    }

    /// What became of owners that are known like that, a minute after they were stopped.
    fn finish(states: Vec<State>, request: Option<&str>, not_served: &[&str]) -> Reviewed {
        let owners: Vec<StoppedOwner> = (0..states.len()).map(|number| owner(&number.to_string())).collect();
        let known = StoppedOwners {
            request,
            owners: owners.iter().zip(states).collect(),
        };
        let not_served = not_served.iter().map(ToString::to_string).collect();
        known.finish(&not_served, Timestamp::from_second(60).unwrap())
    }

    fn names(owners: &[StoppedOwner]) -> Vec<&str> {
        owners.iter().map(|owner| owner.name.as_str()).collect()
    }

    #[test]
    fn what_is_known_counts_also_if_others_are_not_known() {
        let why = || "no answer".to_owned();
        let states = vec![
            State::Unknown(why()),
            State::Restored,
            State::Stopped("a.example/v1".into()),
            State::Rejected(why()),
            State::NoMore,
            State::Changed,
            State::NoRecord,
        ];
        let reviewed = finish(states, Some("*"), &[]);
        assert_eq!(names(&reviewed.kept), ["0", "2", "3", "5", "6"]);
        assert_eq!(names(&reviewed.restored), ["1"]);
        assert_eq!(reviewed.left.as_deref(), Some("Pool/ml/0,Pool/ml/5"));
        let versions: Vec<&str> = reviewed.kept.iter().map(|owner| owner.api_version.as_str()).collect();
        assert_eq!(versions[..2], ["a.example/v1alpha1", "a.example/v1"]);
        assert_eq!(
            describe_failures(&reviewed).unwrap(),
            "Berth cannot restore Pool/ml/0 and one other: no answer. Berth tries again every minute what does not answer, as long as the \
             TenantCluster has the annotation berth.dev/restore"
        );
    }

    #[test]
    fn a_request_waits_for_nobody_whom_it_does_not_name() {
        let reviewed = finish(
            vec![State::Unknown("no answer".into()), State::Restored],
            Some("pool/ml/1"),
            &[],
        );
        assert_eq!((&reviewed.left, reviewed.kept.len()), (&None, 1));
        assert!(describe_failures(&reviewed).is_none());
        let reviewed = finish(vec![State::Rejected("hands off".into())], Some("pool/ml/0"), &[]);
        let message = describe_failures(&reviewed).unwrap();
        assert!(
            message.ends_with("hands off. To try again, ask for the restore again"),
            "{message}"
        );
        assert_eq!(reviewed.left, None);
    }

    #[test]
    fn a_name_that_would_ask_for_others_is_not_asked_for_again() {
        let owner = owner("a,*");
        let known = StoppedOwners {
            request: Some("*"),
            owners: vec![(&owner, State::Changed)],
        };
        let reviewed = known.finish(&HashSet::new(), Timestamp::UNIX_EPOCH);
        assert_eq!((reviewed.left, reviewed.kept.len()), (None, 1));
    }

    #[test]
    fn an_owner_is_forgotten_once_its_kind_was_not_served_twice() {
        let first = finish(vec![State::NotServed, State::NotServed], None, &["1"]);
        assert_eq!(names(&first.kept), ["0"]);
        assert_eq!(first.not_served, HashSet::from(["0".to_owned()]));
    }

    #[test]
    fn an_owner_without_a_record_is_forgotten_after_a_while() {
        let owner = owner("a");
        for (second, kept) in [(FORGET_AFTER - 1, 1), (FORGET_AFTER, 0)] {
            let known = StoppedOwners {
                request: None,
                owners: vec![(&owner, State::NoRecord)],
            };
            let reviewed = known.finish(&HashSet::new(), Timestamp::from_second(second).unwrap());
            assert_eq!(reviewed.kept.len(), kept, "{second}");
        }
    }
}
