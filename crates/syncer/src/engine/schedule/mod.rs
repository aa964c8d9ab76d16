//! Schedules of the platform: holds pods back that may not start, withdraws those that wait for a node on the host, warns those that will be
//! stopped, and ends those that may not run.
//!
//! What is published has the present state and the next changes, with their times. It is evaluated by the clock of the syncer, whenever a
//! pod is reconciled, and all pods that a change concerns are reconciled when it comes. So a syncer that was killed goes on, and a control
//! that is down over a change is not needed for it.
//!
//! Pods end on time whatever the tenant's API server answers, and whatever its administrators write into the status of a pod: see
//! [`ObjectSync::follow_schedule`].

use super::{Engine, Outcome, api::CallError, lock, recorder::Level, to_host::ObjectSync};
use crate::metrics::StopLabels;
use berth_sync_rules::{
    kinds::pod::{placement, status::disrupted_status},
    model::{
        DesiredState, KindId,
        pod_addresses::is_finished,
        resource::{Key, Name},
        schedule::{Phase, PodSchedule, PublishedSchedule, Restriction},
        store::{Stored, is_origin},
    },
};
use jiff::Timestamp;
use serde_json::Value;
use std::{sync::Arc, time::Duration};

/// Reason of the Event and the condition of pods that are held back, and of the disruption of pods that are ended.
const OUTSIDE_SCHEDULE: &str = "OutsideSchedule";
/// Reason of the Event before a stop.
const STOPS_SOON: &str = "StopsSoon";
/// Reason of the Event of a pod that a budget keeps after a stop.
const STOP_DELAYED: &str = "StopDelayed";
/// Result of a reconciliation of a pod that is held back.
pub(super) const HELD: &str = "outside schedule";
/// Longest pause between two evaluations: so late it is noticed that the clock was set.
const LONGEST: Duration = Duration::from_mins(1);
/// Shortest one.
const SHORTEST: Duration = Duration::from_millis(10);
/// Pause before a pod that a budget keeps is evicted again, and before one that the host refused is created again.
const RETRY: Duration = Duration::from_secs(5);

/// What was published, and which part of it applied, when pods were reconciled for it last.
pub(super) type AppliedPhase = Option<(Arc<PublishedSchedule>, Phase)>;

/// Reconciles the pods that the schedule concerns if another phase of it applies than before.
pub(super) fn reconcile(engine: &Engine) -> Outcome {
    let (schedule, now) = (PublishedSchedule::of(&engine.cache), Timestamp::now());
    let applied = Some((Arc::clone(&schedule), schedule.phase(now)));
    let before = std::mem::replace(&mut *lock(&engine.schedule_phase), applied.clone());
    if before != applied {
        for pod in schedule.concerned_pods(&engine.cache) {
            engine.add(pod);
        }
    }
    let is_published = *schedule != PublishedSchedule::default();
    Outcome {
        requeue_after: is_published.then(|| pause(now, schedule.next_change(now))),
        ..Outcome::new("evaluated")
    }
}

fn pause(now: Timestamp, next: Option<Timestamp>) -> Duration {
    let left = next.and_then(|next| Duration::try_from(next.duration_since(now)).ok());
    left.map_or(LONGEST, |left| left.clamp(SHORTEST, LONGEST))
}

/// What schedules let a pod of the tenant do now.
pub(super) fn of_pod(engine: &Engine, name: &Name, pod: &Value) -> PodSchedule {
    PublishedSchedule::of(&engine.cache).of_pod(&name.namespace, pod, Timestamp::now())
}

/// How long the key of a pod may wait after a failure, or for the tenant's API server: one that must end is looked at again in time, whatever fails.
pub(super) fn longest_wait(engine: &Engine, key: &Key) -> Option<Duration> {
    if key.kind != KindId::Pod {
        return None;
    }
    let stores = &engine.cache.stores;
    let host = stores.host(KindId::Pod).get(&key.name)?;
    let stored = stores.tenant(KindId::Pod).get(&key.name)?;
    let pod = stored.object();
    let limit = of_pod(engine, &key.name, &pod).restriction?.budgets_hold_until?;
    runs(&stored, &host).then(|| pause_until(limit))
}

/// Pause before a pod that still runs is looked at again: its limit is kept, however long the back-off is.
fn pause_until(limit: Timestamp) -> Duration {
    pause(Timestamp::now(), Some(limit)).min(RETRY)
}

/// What should be on the host for a pod: while it may not start, no host pod waits for a node, because it would start as soon as it got one.
pub(super) fn desired_state(desired: DesiredState, schedule: &PodSchedule, host: Option<&Stored>) -> DesiredState {
    let is_restricted = schedule.restriction.is_some();
    match desired {
        DesiredState::Sync if is_restricted && host.is_some_and(placement::waits) => DesiredState::Absent,
        other => other,
    }
}

impl ObjectSync<'_> {
    /// Holds a pod back that may not start now. Returns what to do then.
    pub(super) async fn hold(&self, stored: &Stored, pod: &Value) -> Result<Option<Outcome>, CallError> {
        let Some(restriction) = &self.schedule.restriction else {
            return Ok(None);
        };
        self.report_held(stored, pod, restriction).await?;
        // Its key is added when the schedule changes. Until then it costs nothing.
        Ok(Some(Outcome::new(HELD).comparing_again()))
    }

    /// The same for a pod that the host refused because of the schedule: by the clock of control nothing starts already, or still.
    pub(super) async fn hold_refused(&self, stored: &Stored, pod: &Value) -> Result<Option<Outcome>, CallError> {
        if self.id != KindId::Pod {
            return Ok(None);
        }
        let schedule = PublishedSchedule::of(&self.engine.cache);
        let Some(restriction) = schedule.restriction_by_any_clock(Timestamp::now()) else {
            return Ok(None);
        };
        self.report_held(stored, pod, &restriction).await?;
        Ok(Some(Outcome::requeue(HELD, RETRY)))
    }

    /// Says in the tenant why a pod waits, once.
    async fn report_held(&self, stored: &Stored, pod: &Value, restriction: &Restriction) -> Result<(), CallError> {
        let message = restriction.waits();
        let status = self
            .kind
            .not_synced_status(pod, OUTSIDE_SCHEDULE, &message, Timestamp::now());
        let why = (Level::Normal, OUTSIDE_SCHEDULE, &*message);
        self.report_once((stored, pod), status, why).await
    }

    /// Warns a pod that runs of a stop, or ends it. `result` is that of its reconciliation: also a pod that cannot be reconciled must end, as
    /// one whose tenant takes no status of the syncer.
    pub(super) async fn follow_schedule(
        &self,
        tenant: Option<(&Stored, &Value)>,
        host: Option<&Stored>,
        result: Result<Outcome, CallError>,
    ) -> Result<Outcome, CallError> {
        let PodSchedule { restriction, warning } = &self.schedule;
        let (Some((stored, _)), Some(host)) = (tenant, host) else {
            return result;
        };
        if (restriction.is_none() && warning.is_none()) || !runs(stored, host) {
            return result;
        }
        if let Some(restriction) = restriction
            && let Some(limit) = restriction.budgets_hold_until
        {
            let ended = self.end(stored, host, (restriction, limit)).await;
            // The failure counts, and its wait is not longer than `longest_wait`.
            return result.and(ended);
        }
        // Also while nothing starts.
        if let Some(warning) = warning {
            self.record_schedule(Level::Warning, STOPS_SOON, &warning.message())
                .await;
        }
        result
    }

    /// Ends a pod whose time is over on the host alone, if the tenant's API server takes long for it or for several: it would be asked about each for
    /// half a minute, and about few at a time. Returns what has come of it.
    pub(super) async fn end_at_once(
        &self,
        tenant: Option<(&Stored, &Value)>,
        host: Option<&Stored>,
    ) -> Option<Result<Outcome, CallError>> {
        let Self { engine, name, .. } = self;
        let ((stored, _), host) = tenant.zip(host)?;
        let limit = self.schedule.restriction.as_ref()?.budgets_hold_until?;
        if limit > Timestamp::now() || !engine.is_slow(&self.key()) || !runs(stored, host) {
            return None;
        }
        tracing::warn!(pod = %name, "the tenant's API server takes long; ending a pod on the host that a schedule stops");
        self.count_stop("ended_on_host");
        Some(self.delete(host, None).await)
    }

    /// Ends a pod that may not run: by an eviction in the tenant, which respects its budgets, and after `limit` by a deletion. If the tenant
    /// does not let it be deleted then, it is ended on the host.
    async fn end(
        &self,
        stored: &Stored,
        host: &Stored,
        (restriction, limit): (&Restriction, Timestamp),
    ) -> Result<Outcome, CallError> {
        let Self { engine, name, .. } = self;
        let (why, now) = (restriction.ends(), Timestamp::now());
        if now < limit {
            match engine.tenant.evict(&name.namespace, &name.name, &stored.uid).await {
                Ok(_) => self.report_ended(stored, "evicted", &why).await,
                // The watch will report that, unless a webhook of the tenant has said it.
                Err(CallError::NotFound | CallError::Conflict(_)) => {
                    Ok(Outcome::requeue("vanished", pause_until(limit)))
                }
                Err(CallError::Protected(_)) => {
                    let message = format!("{why}. A PodDisruptionBudget keeps it, until {limit} at most.");
                    self.record_schedule(Level::Warning, STOP_DELAYED, &message).await;
                    self.count_stop("delayed");
                    Ok(Outcome::requeue("stop delayed", pause_until(limit)))
                }
                // Until then the pod is looked at again and again, see `longest_wait`.
                Err(CallError::Deferred) => Err(CallError::Deferred),
                Err(error) => {
                    tracing::info!(pod = %name, %error, "cannot evict a pod that a schedule stops");
                    Ok(Outcome::requeue("not evicted", pause_until(limit)))
                }
            }
        } else {
            match self.delete_in_tenant(stored, None).await {
                // It is gone, or another one: then the host pod has to go as well. A webhook of the tenant may have said it.
                Ok(Value::Null) | Err(CallError::Conflict(_)) => self.delete(host, None).await,
                Ok(_) => self.report_ended(stored, "deleted", &why).await,
                Err(error) => {
                    tracing::warn!(pod = %name, %error, "the tenant does not let a pod be deleted that a schedule stops; ending it on the host");
                    self.count_stop("ended_on_host");
                    if let Err(error) = self.write_disruption(stored, &why).await {
                        tracing::info!(pod = %name, %error, "the status of a pod does not say why it is ended");
                    }
                    let ended = self.delete(host, None).await;
                    self.record_schedule(Level::Warning, OUTSIDE_SCHEDULE, &why).await;
                    ended
                }
            }
        }
    }

    /// Says in the tenant why a pod was ended. Controllers of Jobs read the condition.
    async fn report_ended(&self, stored: &Stored, how: &'static str, why: &str) -> Result<Outcome, CallError> {
        self.record_schedule(Level::Normal, OUTSIDE_SCHEDULE, &format!("{why}."))
            .await;
        self.count_stop(how);
        self.write_disruption(stored, why).await?;
        Ok(Outcome::new(how).comparing_again())
    }

    /// Writes into the status of a pod why it is ended.
    async fn write_disruption(&self, stored: &Stored, why: &str) -> Result<(), CallError> {
        // As it is now: its status may have been written a moment ago.
        let current = self.engine.cache.stores.tenant(self.id).get(self.name);
        if let Some(current) = current.filter(|current| current.uid == stored.uid) {
            let pod = current.object();
            let status = disrupted_status(&pod, OUTSIDE_SCHEDULE, why, Timestamp::now());
            self.write_status(&current, &pod, &status).await?;
        }
        Ok(())
    }

    async fn record_schedule(&self, level: Level, reason: &'static str, message: &str) {
        self.engine.record_event(&self.key(), level, reason, message).await;
    }

    fn count_stop(&self, result: &'static str) {
        let stops = &self.engine.metrics.schedule_stops;
        stops.get_or_create(&StopLabels { result }).inc();
    }
}

/// Whether a pod has a node on the host and is neither ended nor about to be. The phase in the tenant says nothing: its administrators can write it.
fn runs(stored: &Stored, host: &Stored) -> bool {
    is_origin(stored, host)
        && !placement::waits(host)
        && [stored, host].iter().all(|pod| pod.deletion.is_none())
        && !is_finished(&host.object()["status"])
}

#[cfg(test)]
mod tests;
