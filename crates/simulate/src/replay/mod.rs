//! The replay: jobs arrive, wait, run and end on nodes that belong to one tenant each. Event by event, in whole seconds.

mod cluster;
mod decide;
mod events;
mod place;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;

use berth_planner::Seconds;

use crate::error::Error;
use crate::load::Window;
use crate::measure::{Meter, Moment};
use crate::options::Options;
use crate::trace::Trace;

use cluster::Cluster;
use decide::Decisions;
use events::{Counts, Event, Events};

/// If jobs wait and none starts for this time, none ever will.
const STUCK_AFTER: Seconds = 365 * 24 * 3600;

/// Progress of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// `static` or `dynamic`.
    pub scene: &'static str,
    /// Jobs that ended.
    pub done: usize,
    /// Jobs in all.
    pub of: usize,
}

/// The result of a replay.
pub(crate) struct Replayed {
    /// How long each job waited, in the order of the trace.
    pub(crate) waits: Vec<Seconds>,
    /// Measurements over time.
    pub(crate) meter: Meter,
    /// Counters within the window.
    pub(crate) counts: Counts,
    /// Log of all changes, for tests.
    #[cfg(test)]
    pub(crate) history: Vec<cluster::Entry>,
}

/// Replays with nodes that stay with their tenants.
pub(crate) fn replay_static(
    trace: &Trace,
    options: &Options,
    partitions: &[u32],
    progress: &mut dyn FnMut(Progress),
) -> Result<Replayed, Error> {
    let mut replay = Replay::new("static", trace, options);
    replay.cluster.assign_partitions(partitions);
    replay.run(progress)
}

/// Replays with nodes that follow demand.
pub(crate) fn replay_dynamic(
    trace: &Trace,
    options: &Options,
    partitions: &[u32],
    progress: &mut dyn FnMut(Progress),
) -> Result<Replayed, Error> {
    let mut replay = Replay::new("dynamic", trace, options);
    replay.decisions = Some(Decisions::new(trace, options, partitions));
    replay.run(progress)
}

struct Replay<'a> {
    scene: &'static str,
    trace: &'a Trace,
    options: &'a Options,
    now: Seconds,
    /// Jobs that have arrived.
    arrived: usize,
    done: usize,
    last_start: Seconds,
    events: Events,
    cluster: Cluster<'a>,
    meter: Meter,
    /// None: nodes stay with their tenants.
    decisions: Option<Decisions>,
}

impl<'a> Replay<'a> {
    fn new(scene: &'static str, trace: &'a Trace, options: &'a Options) -> Self {
        let window = Window::of(&trace.jobs);
        Self {
            scene,
            trace,
            options,
            now: 0,
            arrived: 0,
            done: 0,
            last_start: 0,
            events: Events::new(),
            cluster: Cluster::new(trace, options, window),
            meter: Meter::new(window, trace.tenants.len()),
            decisions: None,
        }
    }

    fn run(mut self, progress: &mut dyn FnMut(Progress)) -> Result<Replayed, Error> {
        let of = self.trace.jobs.len();
        while self.done < of {
            let Some(next) = self.next_event_time() else {
                return Err(self.stuck_error());
            };
            self.measure_until(next);
            self.now = next;
            self.process_events();
            let started = self.cluster.schedule(next, &mut self.events);
            let started = self.decide()? | started;
            if started {
                self.last_start = next;
            } else if self.cluster.waiting() > 0 && next - self.last_start > STUCK_AFTER && self.cluster.is_idle() {
                return Err(self.stuck_error());
            }
            progress(Progress {
                scene: self.scene,
                done: self.done,
                of,
            });
        }
        let mut counts = self.cluster.counts;
        counts.plans = self.decisions.map_or(0, |decisions| decisions.plans);
        Ok(Replayed {
            waits: self.cluster.waits(),
            meter: self.meter,
            counts,
            #[cfg(test)]
            history: self.cluster.history,
        })
    }

    /// The time of the next event.
    fn next_event_time(&self) -> Option<Seconds> {
        let arrival = self.trace.jobs.get(self.arrived).map(|job| job.arrival);
        let event = self.events.peek().map(|Reverse((at, _))| *at);
        let plan = self.decisions.as_ref().and_then(|decisions| decisions.due);
        [arrival, event, plan].into_iter().flatten().min()
    }

    fn measure_until(&mut self, until: Seconds) {
        if self.meter.wants(self.now, until) {
            let moment: Moment<'_> = self.cluster.measure_now();
            self.meter.add(self.now, until, &moment);
        }
    }

    /// Processes all events that are due.
    fn process_events(&mut self) {
        while let Some(Reverse((at, event))) = self.events.peek().copied()
            && at <= self.now
        {
            self.events.pop();
            match event {
                Event::End { job, run } => self.done += usize::from(self.cluster.finish_job(job, run, self.now)),
                Event::Clean { node } => self.cluster.finish_scrub(node, self.now),
                Event::Ready { node } => self.cluster.open_node(node, self.now),
                Event::Drain { node } => self.cluster.drain_if_due(node, self.now, &mut self.events),
            }
        }
        while let Some(job) = self.trace.jobs.get(self.arrived)
            && job.arrival <= self.now
        {
            self.cluster.enqueue(self.arrived, self.now);
            self.arrived += 1;
        }
    }

    /// Makes a plan if it is due, and carries it out. Returns whether jobs started.
    fn decide(&mut self) -> Result<bool, Error> {
        let Some(decisions) = &mut self.decisions else {
            return Ok(false);
        };
        if !decisions.is_due(&mut self.cluster, self.now, self.options.plan_every) {
            return Ok(false);
        }
        let actions = decisions
            .make_plan(&mut self.cluster, self.now)
            .map_err(|violation| Error::BadPlan {
                after: self.now,
                violation,
            })?;
        decide::apply_actions(&actions, decisions, &mut self.cluster, self.now, &mut self.events);
        Ok(self.cluster.schedule(self.now, &mut self.events))
    }

    fn stuck_error(&self) -> Error {
        let first = self.cluster.first_waiting().unwrap_or_default();
        let job = &self.trace.jobs[first];
        let why = |decisions: &Decisions| decisions.describe_wait(job.tenant);
        Error::Stuck {
            scene: self.scene,
            waiting: self.cluster.waiting(),
            days: (self.now - self.last_start) / (24 * 3600),
            tenant: self.trace.tenants[job.tenant].clone(),
            gpus: job.gpus,
            why: self.decisions.as_ref().map_or_else(|| "no node is free".into(), why),
        }
    }
}
