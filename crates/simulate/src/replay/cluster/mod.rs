//! Nodes, the jobs on them, and the tenants' queues.

mod lifecycle;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use berth_planner::Seconds;

use super::events::{Counts, Event, Events};
use super::place::{Part, place};
use crate::load::Window;
use crate::measure::Moment;
use crate::options::Options;
use crate::trace::{Job, Trace};

/// The phase of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodePhase {
    /// Clean, without an owner.
    Free,
    /// Reserved for a tenant; joins when the tenant has `of` nodes.
    Reserved { tenant: usize, of: u32 },
    /// On its way to a tenant.
    Joining { tenant: usize },
    /// Serves a tenant.
    Open { tenant: usize },
    /// Takes no new jobs; running ones may stay until `until`.
    Cordoned { tenant: usize, until: Seconds },
    /// Being scrubbed.
    Returning { from: usize, since: Seconds },
}

/// A node.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) phase: NodePhase,
    /// When its tenant got it.
    pub(super) owned_since: Seconds,
    /// Since when nothing runs on it.
    pub(super) idle_since: Seconds,
    pub(super) used: u32,
    pub(super) jobs: BTreeSet<usize>,
}

/// The progress of a job.
#[derive(Clone, Debug, Default)]
struct Run {
    /// How often it was started.
    count: u32,
    /// Since when it waits or runs.
    since: Seconds,
    /// Work that an eviction does not lose.
    saved: Seconds,
    waited: Seconds,
    /// Where it runs; empty if it does not.
    parts: Vec<Part>,
}

/// A change, recorded for tests.
#[cfg(test)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Started {
        job: usize,
        at: Seconds,
        parts: Vec<Part>,
    },
    Stopped {
        job: usize,
        at: Seconds,
        done: bool,
    },
    Owner {
        node: usize,
        at: Seconds,
        tenant: Option<usize>,
        clean: bool,
    },
    Clean {
        node: usize,
        at: Seconds,
    },
}

pub(super) struct Cluster<'a> {
    trace: &'a Trace,
    options: &'a Options,
    window: Window,
    pub(super) nodes: Vec<Node>,
    runs: Vec<Run>,
    /// Jobs that wait, by tenant. Their numbers are in the order of their arrival.
    pub(super) queues: Vec<BTreeSet<usize>>,
    /// Nodes that take jobs, by tenant.
    open: Vec<BTreeSet<usize>>,
    /// GPUs that waiting jobs request, by tenant.
    waiting_gpus: Vec<u64>,
    /// Tenants whose queues must be scheduled again.
    unsettled: BTreeSet<usize>,
    /// Tenants whose waiting jobs have changed since the last plan.
    pub(super) demand_changed: BTreeSet<usize>,
    /// Nodes that have changed since the last plan.
    pub(super) nodes_changed: BTreeSet<usize>,
    /// Whether the next plan may differ from the last one.
    pub(super) plan_outdated: bool,
    pub(super) counts: Counts,
    running: usize,
    #[cfg(test)]
    pub(super) history: Vec<Entry>,
}

impl<'a> Cluster<'a> {
    pub(super) fn new(trace: &'a Trace, options: &'a Options, window: Window) -> Self {
        let tenants = trace.tenants.len();
        let node = Node {
            phase: NodePhase::Free,
            owned_since: 0,
            idle_since: 0,
            used: 0,
            jobs: BTreeSet::new(),
        };
        Self {
            trace,
            options,
            window,
            nodes: vec![node; options.nodes as usize],
            runs: vec![Run::default(); trace.jobs.len()],
            queues: vec![BTreeSet::new(); tenants],
            open: vec![BTreeSet::new(); tenants],
            waiting_gpus: vec![0; tenants],
            unsettled: BTreeSet::new(),
            demand_changed: BTreeSet::new(),
            nodes_changed: BTreeSet::new(),
            plan_outdated: false,
            counts: Counts::default(),
            running: 0,
            #[cfg(test)]
            history: Vec::new(),
        }
    }

    /// Assigns its partition to every tenant permanently.
    pub(super) fn assign_partitions(&mut self, partitions: &[u32]) {
        let owners = partitions
            .iter()
            .enumerate()
            .flat_map(|(tenant, count)| std::iter::repeat_n(tenant, *count as usize));
        for (node, tenant) in owners.enumerate() {
            self.set_owner(node, NodePhase::Open { tenant }, 0);
            self.open[tenant].insert(node);
        }
    }

    fn job(&self, job: usize) -> &'a Job {
        &self.trace.jobs[job]
    }

    pub(super) fn waiting(&self) -> usize {
        self.queues.iter().map(BTreeSet::len).sum()
    }

    pub(super) fn first_waiting(&self) -> Option<usize> {
        self.queues.iter().filter_map(|queue| queue.first().copied()).min()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running == 0
    }

    /// The total time that each job waited.
    pub(super) fn waits(&self) -> Vec<Seconds> {
        self.runs.iter().map(|run| run.waited).collect()
    }

    /// Adds a job to its tenant's queue.
    pub(super) fn enqueue(&mut self, job: usize, now: Seconds) {
        let &Job { tenant, gpus, .. } = self.job(job);
        self.runs[job].since = now;
        self.queues[tenant].insert(job);
        self.waiting_gpus[tenant] += u64::from(gpus);
        self.unsettled.insert(tenant);
        self.demand_changed.insert(tenant);
    }

    /// Ends a job, unless it was evicted meanwhile. Returns whether it ended.
    pub(super) fn finish_job(&mut self, job: usize, run: u32, now: Seconds) -> bool {
        if self.runs[job].count != run || self.runs[job].parts.is_empty() {
            return false;
        }
        self.free_gpus(job, now);
        #[cfg(test)]
        self.history.push(Entry::Stopped {
            job,
            at: now,
            done: true,
        });
        true
    }

    /// Frees the GPUs of a running job.
    fn free_gpus(&mut self, job: usize, now: Seconds) {
        self.running -= 1;
        for (node, gpus) in std::mem::take(&mut self.runs[job].parts) {
            let here = &mut self.nodes[node];
            here.jobs.remove(&job);
            here.used -= gpus;
            if here.used == 0 {
                here.idle_since = now;
                self.plan_outdated = true;
            }
            self.nodes_changed.insert(node);
        }
        self.unsettled.insert(self.job(job).tenant);
    }

    /// Starts jobs of queues that have changed: in order, and later jobs if earlier ones do not fit.
    /// Returns whether any started.
    pub(super) fn schedule(&mut self, now: Seconds, events: &mut Events) -> bool {
        let mut any = false;
        for tenant in std::mem::take(&mut self.unsettled) {
            let started = self.schedule_queue(tenant, now, events);
            any |= started > 0;
            // Jobs that still wait may need more nodes; those that started at once do not.
            self.plan_outdated |= !self.queues[tenant].is_empty() && self.demand_changed.contains(&tenant);
        }
        any
    }

    fn schedule_queue(&mut self, tenant: usize, now: Seconds, events: &mut Events) -> usize {
        let per_node = self.options.gpus_per_node;
        // The smallest size that did not fit: larger jobs do not fit either.
        let mut too_large = u32::MAX;
        let mut started: Vec<usize> = Vec::new();
        let queue = std::mem::take(&mut self.queues[tenant]);
        for job in &queue {
            let gpus = self.job(*job).gpus;
            let fits = (gpus < too_large).then(|| {
                let open = self.open[tenant].iter();
                let free = open.map(|node| (*node, per_node - self.nodes[*node].used));
                place(gpus, per_node, free.filter(|(_, free)| *free > 0))
            });
            if let Some(parts) = fits.flatten() {
                self.start_job(*job, parts, now, events);
                started.push(*job);
                continue;
            }
            too_large = too_large.min(gpus);
            if too_large == 1 {
                break;
            }
        }
        self.queues[tenant] = queue;
        for job in &started {
            self.queues[tenant].remove(job);
            self.demand_changed.insert(tenant);
        }
        started.len()
    }

    fn start_job(&mut self, job: usize, parts: Vec<Part>, now: Seconds, events: &mut Events) {
        let &Job {
            tenant, duration, gpus, ..
        } = self.job(job);
        for (node, gpus) in &parts {
            let here = &mut self.nodes[*node];
            debug_assert_eq!(here.phase, NodePhase::Open { tenant });
            here.used += gpus;
            here.jobs.insert(job);
            self.nodes_changed.insert(*node);
        }
        self.waiting_gpus[tenant] -= u64::from(gpus);
        self.running += 1;
        let run = &mut self.runs[job];
        run.count += 1;
        run.waited += now - run.since;
        run.since = now;
        let ends = now + duration - run.saved;
        events.push(Reverse((ends, Event::End { job, run: run.count })));
        #[cfg(test)]
        self.history.push(Entry::Started {
            job,
            at: now,
            parts: parts.clone(),
        });
        run.parts = parts;
    }

    /// Evicts a job: it keeps its work up to the last checkpoint, and waits again at its old place in the queue.
    fn evict(&mut self, job: usize, now: Seconds) {
        let &Job { gpus, .. } = self.job(job);
        let run = &mut self.runs[job];
        let done = run.saved + now - run.since;
        let kept = self.options.checkpoint.kept(done).max(run.saved);
        run.saved = kept;
        if self.window.overlap(now, now + 1) > 0 {
            self.counts.evictions += 1;
            self.counts.repeated += u64::from(gpus) * (done - kept).unsigned_abs();
        }
        self.free_gpus(job, now);
        #[cfg(test)]
        self.history.push(Entry::Stopped {
            job,
            at: now,
            done: false,
        });
        self.enqueue(job, now);
    }

    /// The state to measure now.
    pub(super) fn measure_now(&self) -> Moment<'_> {
        let mut moment = Moment::new(&self.waiting_gpus);
        for node in &self.nodes {
            let idle = u64::from(self.options.gpus_per_node - node.used);
            match node.phase {
                NodePhase::Free => moment.free += idle,
                NodePhase::Reserved { .. } | NodePhase::Joining { .. } => moment.joining += idle,
                NodePhase::Returning { .. } => moment.scrubbed += idle,
                NodePhase::Open { tenant } => {
                    moment.idle[tenant] += idle;
                    moment.idle_nodes[tenant] += if node.used == 0 { idle } else { 0 };
                    moment.busy[tenant] += u64::from(node.used);
                }
                // Its tenant cannot use its idle GPUs any more.
                NodePhase::Cordoned { tenant, .. } => {
                    moment.cordoned += idle;
                    moment.busy[tenant] += u64::from(node.used);
                }
            }
            if node.used > 0 {
                moment.beside_jobs += idle;
            }
        }
        moment
    }

    /// Jobs on a node that also run on other nodes.
    pub(super) fn gangs_on(&self, node: usize) -> impl Iterator<Item = usize> {
        let jobs = self.nodes[node].jobs.iter().copied();
        jobs.filter(|job| self.runs[*job].parts.len() > 1)
    }

    pub(super) fn runs_since(&self, job: usize) -> Seconds {
        self.runs[job].since
    }

    pub(super) fn trace(&self) -> &'a Trace {
        self.trace
    }
}
