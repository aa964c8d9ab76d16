//! What a reconcile applies on the host before it waits for the tenant, or ends early.
//!
//! A tenant decides how long its API server takes, and its team how often something has to be recorded first. What closes on the host (quotas,
//! network policies, annotations for admission policies, the schedule) waits for neither. docs/adr/0049 says why.

use super::{
    super::{
        context::TenantContext,
        error::{TenantError, in_step},
        fetch::ObservedNodes,
    },
    Accepted,
    prepare::{self, Prepared},
    tenant_schedule,
};
use std::time::Duration;

/// What was applied on the host.
pub(super) struct OnHost<'a> {
    /// Whether everything exists that must exist before a component runs.
    pub(super) prepared: Result<Box<Prepared<'a>>, TenantError>,
    /// Whether its schedule was published.
    pub(super) schedule: Result<(), TenantError>,
}

/// The part of a reconcile that needs the host only. It is applied once, as soon as one of the others is about to begin.
pub(in super::super) struct HostSide<'a> {
    context: &'a TenantContext,
    /// None: the tenant was never accepted, or its settings are not known, so that nothing is applied.
    accepted: Option<&'a Accepted>,
    nodes: &'a ObservedNodes,
    applied: Option<OnHost<'a>>,
}

impl<'a> HostSide<'a> {
    pub(in super::super) fn new(
        context: &'a TenantContext,
        accepted: Option<&'a Accepted>,
        nodes: &'a ObservedNodes,
    ) -> Self {
        Self {
            context,
            accepted,
            nodes,
            applied: None,
        }
    }

    /// Applies it, unless this reconcile has done so already.
    pub(in super::super) async fn apply(&mut self) {
        let (None, Some(accepted)) = (&self.applied, self.accepted) else {
            return;
        };
        let prepared = Box::pin(prepare::prepare(self.context, accepted, self.nodes)).await;
        // Whatever failed: the syncer reads it, and nothing else depends on it.
        let schedule = tenant_schedule::publish_schedule(self.context, accepted).await;
        self.applied = Some(OnHost {
            prepared: prepared.map(Box::new),
            schedule: schedule.map_err(in_step(TenantError::TenantSchedule)),
        });
    }

    /// Ends a reconcile that has come no further. Returns `pause` as its result.
    ///
    /// # Errors
    /// What was applied has failed.
    pub(in super::super) fn end(self, pause: Duration) -> Result<Option<Duration>, TenantError> {
        let (Some(OnHost { prepared, schedule }), Some(accepted)) = (self.applied, self.accepted) else {
            return Ok(Some(pause));
        };
        let ended = prepared.map(drop).and(schedule);
        if ended.is_err() {
            // An object that this process remembers as applied may be missing.
            accepted.tenant.memory.host.forget();
        }
        ended.map(|()| Some(pause))
    }

    /// Applies it for the steps that follow. None: there is nothing to apply.
    pub(super) async fn finish(mut self) -> Option<OnHost<'a>> {
        self.apply().await;
        self.applied
    }
}
