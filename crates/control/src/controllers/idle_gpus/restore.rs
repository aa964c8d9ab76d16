//! Owners that were stopped: whether they still are, and whether somebody wants them back.
//!
//! What an owner was is on the owner itself ([`owner`]). The status of the `TenantCluster` lists which ones to look at, so that no tenant
//! has to be searched; an owner is in that list before it is stopped, and until its record is gone.

use super::{
    IdleGpusContext,
    mark::is_rejected,
    owners::{OwnerKey, TenantObjects},
    tenants::ObservedTenant,
    warn,
};
use crate::{apply::optional, events::EventRecorder};
use berth_api::{StoppedOwner, TenantCluster, labels::RESTORE};
use berth_idle_reclaim::owner::{self, Review};
use jiff::Timestamp;
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::events::EventType,
};
use serde_json::json;

/// Seconds for which an owner without a record stays listed after it was to be stopped: a control that lost its lease may be about to write
/// the record. Its writes end within seconds.
const FORGET_AFTER: i64 = 120;
/// Reason of Events about owners that run again.
const RESTORED: &str = "OwnerRestored";

/// What became of stopped owners.
pub(super) struct Reviewed {
    /// Those that are still stopped, or of which that is not known.
    pub(super) kept: Vec<StoppedOwner>,
    /// Those that were started.
    pub(super) restored: Vec<StoppedOwner>,
    /// Whether nothing failed.
    pub(super) is_complete: bool,
    /// Whether the request on the host is done and removed.
    pub(super) is_request_done: bool,
}

impl Reviewed {
    /// Nothing is known.
    pub(super) fn unchanged(stopped: &[StoppedOwner]) -> Self {
        Self {
            kept: stopped.to_vec(),
            restored: Vec::new(),
            is_complete: false,
            is_request_done: false,
        }
    }
}

/// Looks at stopped owners, and starts those that are wanted back: by an annotation of their own, or by `request`, the annotation of the
/// `TenantCluster`.
pub(super) async fn review(
    objects: &mut TenantObjects,
    stopped: &[StoppedOwner],
    request: Option<&str>,
    now: Timestamp,
) -> Reviewed {
    let mut reviewed = Reviewed {
        kept: Vec::new(),
        is_complete: true,
        ..Reviewed::unchanged(&[])
    };
    for owner in stopped {
        let is_wanted = request.is_some_and(|request| owner.is_named_by(request));
        match review_owner(objects, owner, is_wanted).await {
            Ok(State::Stopped) => reviewed.kept.push(owner.clone()),
            Ok(State::NoRecord) => {
                if now.as_second() < owner.stopped_at.0.as_second().saturating_add(FORGET_AFTER) {
                    reviewed.kept.push(owner.clone());
                }
            }
            Ok(State::NoMore) => {}
            Ok(State::Restored) => reviewed.restored.push(owner.clone()),
            Ok(State::Changed) => {
                reviewed.kept.push(owner.clone());
                reviewed.is_complete = false;
            }
            Err(error) => {
                tracing::debug!(owner = owner.path(), %error, "cannot look at a stopped owner; trying again");
                reviewed.kept.push(owner.clone());
                // What admission of the tenant rejects now it rejects later.
                reviewed.is_complete &= is_rejected(&error);
            }
        }
    }
    reviewed
}

enum State {
    /// It stays stopped.
    Stopped,
    /// It has no record.
    NoRecord,
    /// It is gone, or somebody else has started it.
    NoMore,
    /// It was started just now.
    Restored,
    /// Somebody changed it at the same time.
    Changed,
}

async fn review_owner(objects: &mut TenantObjects, stopped: &StoppedOwner, is_wanted: bool) -> kube::Result<State> {
    let key = OwnerKey::of_stopped(stopped);
    let switch = objects.switch(&key, stopped.suspend.as_ref()).await?;
    let (Some(object), Some(switch)) = (objects.get(&key).await?, switch) else {
        return Ok(State::NoMore);
    };
    match owner::review(&object, &switch, is_wanted) {
        Review::Keep => Ok(State::Stopped),
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
            let recorder = EventRecorder::new(objects.client().clone());
            recorder.publish(&event, &key.reference()).await;
            Ok(State::Restored)
        }
    }
}

/// Publishes on the `TenantCluster` which owners run again.
pub(super) async fn publish(context: &IdleGpusContext, tenant: &ObservedTenant, restored: &[StoppedOwner]) {
    let reference = tenant.cluster.object_ref(&());
    for owner in restored {
        let message = format!(
            "Berth restored {}, which it had stopped because its GPUs were idle",
            owner.path()
        );
        let event = warn::idle_event(EventType::Normal, RESTORED, &message);
        context.recorder.publish(&event, &reference).await;
    }
}

/// Removes a request that is done from the `TenantCluster`, unless it was changed since. Returns whether there is none left.
pub(super) async fn remove_request(context: &IdleGpusContext, tenant: &ObservedTenant, request: &str) -> bool {
    let (namespace, name) = tenant.names();
    let clusters: Api<TenantCluster> = Api::namespaced(context.client.clone(), &namespace);
    let removed = async {
        let Some(cluster) = optional(clusters.get_metadata(&name).await)? else {
            return Ok(true);
        };
        if cluster.annotations().get(RESTORE).map(String::as_str) != Some(request) {
            // It is served in the next pass.
            return Ok(false);
        }
        let patch = json!({"metadata": {
            "uid": tenant.uid, "resourceVersion": cluster.resource_version(), "annotations": {RESTORE: null},
        }});
        clusters
            .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        Ok::<bool, kube::Error>(true)
    };
    removed.await.unwrap_or_else(|error| {
        tracing::debug!(tenant = tenant.id.slug(), request, %error, "cannot remove a request to restore; trying again");
        false
    })
}
