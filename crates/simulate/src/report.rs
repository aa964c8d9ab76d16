//! The report of a simulation, for people and programs. Programs read it: fields are only ever added.

use berth_planner::Seconds;
use serde::Serialize;

use crate::load::{Window, offered_load};
use crate::measure::Series;
use crate::options::Options;
use crate::partition::{Served, jain_index};
use crate::replay::Replayed;
use crate::trace::{LeftOut, Trace};

/// The report of a simulation, and both replays over time for the chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The numbers.
    pub report: Report,
    /// Static partitions over time.
    pub fixed: Series,
    /// Nodes that follow demand over time.
    pub dynamic: Series,
}

/// The numbers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The trace that was replayed.
    pub trace: TraceReport,
    /// The fleet on which it was replayed.
    pub fleet: Fleet,
    /// The share of stranded demand (GPU-hours for which jobs wait under static partitions while GPUs of other tenants are idle)
    /// that is no longer stranded when nodes follow demand. None if there is no stranded demand.
    pub stranded_demand_served: Option<f64>,
    /// The same, counting only GPUs of nodes without jobs: those that can be recycled.
    pub stranded_nodes_served: Option<f64>,
    /// Static partitions.
    #[serde(rename = "static")]
    pub fixed: Scene,
    /// Nodes that follow demand.
    pub dynamic: Scene,
    /// Each tenant.
    pub tenants: Vec<TenantReport>,
}

/// The trace that was replayed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceReport {
    /// Jobs.
    pub jobs: usize,
    /// Rows that were not replayed.
    pub left_out: LeftOut,
    /// The factor by which the times between arrivals were multiplied.
    pub time_scale: f64,
    /// Length of the measured window.
    pub window_hours: f64,
    /// GPU-hours within the window if every job started when it arrived.
    pub gpu_hours: f64,
}

/// The fleet.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fleet {
    /// Nodes.
    pub nodes: u32,
    /// GPUs of each node.
    pub gpus_per_node: u32,
    /// The share of its GPUs that the trace would keep busy if every job started when it arrived.
    pub offered_load: f64,
}

/// One of the two replays.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scene {
    /// Share of the GPU time within the window in which GPUs were held by jobs.
    pub gpu_use: f64,
    /// Where the other GPUs were.
    pub idle: Idle,
    /// GPU-hours that waiting jobs requested.
    pub waiting_gpu_hours: f64,
    /// GPU-hours that waiting jobs requested while as many GPUs were idle on nodes that their tenants did not have.
    pub stranded_gpu_hours: f64,
    /// The same, counting only GPUs of nodes without jobs.
    pub stranded_node_gpu_hours: f64,
    /// How long jobs waited in total.
    pub wait: Waiting,
    /// Jain's index over the shares of their demand that tenants got: 1 is equal.
    pub fairness: f64,
    /// Nodes released by a tenant and scrubbed.
    pub recyclings: u64,
    /// Hours that nodes were being scrubbed.
    pub scrub_node_hours: f64,
    /// Jobs evicted from reclaimed nodes.
    pub evictions: u64,
    /// GPU-hours of work that evicted jobs had to do again. Part of `gpu_use`.
    pub repeated_gpu_hours: f64,
    /// Plans that were made.
    pub plans: u64,
}

/// Shares of the GPU time within the window in which GPUs were idle.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Idle {
    /// On nodes where jobs run: fragmentation.
    pub beside_jobs: f64,
    /// On nodes of a tenant without jobs.
    pub idle_nodes: f64,
    /// On free nodes.
    pub free: f64,
    /// On nodes that are reserved, joining or being scrubbed.
    pub recycling: f64,
}

/// How long jobs waited, in seconds: from arrival to end, without the time that they ran.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Waiting {
    /// On average.
    pub mean: f64,
    /// Half of the jobs waited no longer.
    pub p50: Seconds,
    /// 95 of 100 waited no longer.
    pub p95: Seconds,
}

/// A tenant.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TenantReport {
    /// Its name in the trace.
    pub name: String,
    /// Its jobs.
    pub jobs: usize,
    /// GPU-hours that it requests within the window.
    pub gpu_hours: f64,
    /// Nodes of its static partition: its nominal quota when nodes follow demand.
    pub partition_nodes: u32,
    /// Under static partitions.
    #[serde(rename = "static")]
    pub fixed: TenantScene,
    /// When nodes follow demand.
    pub dynamic: TenantScene,
}

/// The result of a tenant in one replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TenantScene {
    /// How long its jobs waited.
    pub wait: Waiting,
    /// GPU-hours that its jobs held within the window.
    pub gpu_hours: f64,
}

pub(crate) fn outcome(
    trace: &Trace,
    options: &Options,
    time_scale: f64,
    partitions: &[u32],
    fixed: Replayed,
    dynamic: Replayed,
) -> Outcome {
    let window = Window::of(&trace.jobs);
    let gpus = u64::from(options.nodes) * u64::from(options.gpus_per_node);
    let mut asked = vec![0; trace.tenants.len()];
    for job in &trace.jobs {
        asked[job.tenant] += window.work_of(job);
    }
    let tenants = trace.tenants.iter().enumerate();
    let tenants = tenants.map(|(tenant, name)| TenantReport {
        name: name.clone(),
        jobs: trace.jobs.iter().filter(|job| job.tenant == tenant).count(),
        gpu_hours: hours(asked[tenant]),
        partition_nodes: partitions[tenant],
        fixed: tenant_scene(trace, &fixed, tenant),
        dynamic: tenant_scene(trace, &dynamic, tenant),
    });
    let report = Report {
        trace: TraceReport {
            jobs: trace.jobs.len(),
            left_out: trace.left_out,
            time_scale,
            window_hours: hours(window.length().unsigned_abs()),
            gpu_hours: hours(asked.iter().sum()),
        },
        fleet: Fleet {
            nodes: options.nodes,
            gpus_per_node: options.gpus_per_node,
            offered_load: rounded(offered_load(&trace.jobs, gpus)),
        },
        stranded_demand_served: served(fixed.meter.total().stranded, dynamic.meter.total().stranded),
        stranded_nodes_served: served(fixed.meter.total().stranded_nodes, dynamic.meter.total().stranded_nodes),
        tenants: tenants.collect(),
        fixed: scene(&fixed, &asked, options),
        dynamic: scene(&dynamic, &asked, options),
    };
    Outcome {
        report,
        fixed: fixed.meter.series,
        dynamic: dynamic.meter.series,
    }
}

/// 1 minus the share that is left.
fn served(fixed: u64, dynamic: u64) -> Option<f64> {
    (fixed > 0).then(|| rounded(1.0 - ratio(dynamic, fixed)))
}

fn scene(replayed: &Replayed, asked: &[u64], options: &Options) -> Scene {
    let total = replayed.meter.total();
    let capacity = total.seconds * u64::from(options.nodes) * u64::from(options.gpus_per_node);
    let share = |part: u64| rounded(ratio(part, capacity));
    let got = replayed.meter.busy.iter().copied();
    let shares: Vec<Served> = got.zip(asked.iter().copied()).collect();
    Scene {
        gpu_use: share(total.busy),
        idle: Idle {
            beside_jobs: share(total.fragments),
            idle_nodes: share(total.idle_nodes),
            free: share(total.free),
            recycling: share(total.recycling),
        },
        waiting_gpu_hours: hours(total.waiting),
        stranded_gpu_hours: hours(total.stranded),
        stranded_node_gpu_hours: hours(total.stranded_nodes),
        wait: wait(replayed.waits.clone()),
        fairness: rounded(jain_index(&shares)),
        recyclings: replayed.counts.recyclings,
        scrub_node_hours: hours(total.scrubbed / u64::from(options.gpus_per_node)),
        evictions: replayed.counts.evictions,
        repeated_gpu_hours: hours(replayed.counts.repeated),
        plans: replayed.counts.plans,
    }
}

fn tenant_scene(trace: &Trace, replayed: &Replayed, tenant: usize) -> TenantScene {
    let jobs = trace.jobs.iter().zip(&replayed.waits);
    let own = jobs.filter(|(job, _)| job.tenant == tenant).map(|(_, wait)| *wait);
    TenantScene {
        wait: wait(own.collect()),
        gpu_hours: hours(replayed.meter.busy[tenant]),
    }
}

fn wait(mut waits: Vec<Seconds>) -> Waiting {
    waits.sort_unstable();
    // Nearest rank.
    let at = |percent: usize| {
        let rank = (waits.len() * percent).div_ceil(100);
        waits.get(rank.saturating_sub(1)).copied().unwrap_or(0)
    };
    let sum: Seconds = waits.iter().sum();
    Waiting {
        mean: rounded(ratio(sum.unsigned_abs(), waits.len() as u64)),
        p50: at(50),
        p95: at(95),
    }
}

fn hours(seconds: u64) -> f64 {
    rounded(ratio(seconds, 3600))
}

#[expect(clippy::cast_precision_loss, reason = "a ratio, of which four digits are shown")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// Four decimal places.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn served_demand_is_no_longer_stranded() {
        assert_eq!(served(0, 0), None);
        assert_eq!(served(100, 5), Some(0.95));
        assert_eq!(served(100, 150), Some(-0.5));
    }

    #[test]
    fn waits_are_ranked() {
        let hundred = wait((1..=100).collect());
        assert_eq!((hundred.p50, hundred.p95), (50, 95));
        assert!((hundred.mean - 50.5).abs() < 1e-9);
        assert_eq!(wait(vec![7]).p95, 7);
        assert_eq!(wait(Vec::new()).p50, 0);
    }
}
