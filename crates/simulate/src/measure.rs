//! Sums over time, within the window.

use std::ops::AddAssign;

use berth_planner::Seconds;

use crate::load::Window;

/// Number of parts into which the window is divided for the chart.
const BUCKETS: i64 = 240;

/// The state at one moment: GPUs, by tenant or of the whole fleet.
#[derive(Clone, Debug)]
pub(crate) struct Moment<'a> {
    /// GPUs that each tenant's waiting jobs request.
    pub(crate) waiting: &'a [u64],
    /// GPUs that each tenant's jobs hold.
    pub(crate) busy: Vec<u64>,
    /// Idle GPUs on nodes that each tenant can use.
    pub(crate) idle: Vec<u64>,
    /// Those of them on nodes without jobs.
    pub(crate) idle_nodes: Vec<u64>,
    /// Idle GPUs on nodes that are being taken from a tenant.
    pub(crate) cordoned: u64,
    /// GPUs of free nodes.
    pub(crate) free: u64,
    /// GPUs of nodes on their way to a tenant.
    pub(crate) joining: u64,
    /// GPUs of nodes that are being scrubbed.
    pub(crate) scrubbed: u64,
    /// Idle GPUs on nodes with jobs: part of `idle` and `cordoned`.
    pub(crate) beside_jobs: u64,
}

impl<'a> Moment<'a> {
    pub(crate) fn new(waiting: &'a [u64]) -> Self {
        Self {
            waiting,
            busy: vec![0; waiting.len()],
            idle: vec![0; waiting.len()],
            idle_nodes: vec![0; waiting.len()],
            cordoned: 0,
            free: 0,
            joining: 0,
            scrubbed: 0,
            beside_jobs: 0,
        }
    }

    /// The GPUs that waiting jobs request and that are idle on nodes which their tenants do not have: as many as can be matched so
    /// that none is counted twice and no tenant is matched with its own.
    pub(crate) fn stranded(&self) -> u64 {
        self.matched(&self.idle, self.cordoned + self.free + self.joining + self.scrubbed)
    }

    /// The same for nodes without jobs only, since only these can be recycled: a node with idle GPUs beside a running job
    /// cannot.
    pub(crate) fn stranded_nodes(&self) -> u64 {
        let cordoned_beside_jobs = self.beside_jobs.saturating_sub(self.idle_beside_jobs());
        let cordoned = self.cordoned - cordoned_beside_jobs.min(self.cordoned);
        self.matched(&self.idle_nodes, cordoned + self.free + self.joining + self.scrubbed)
    }

    fn idle_beside_jobs(&self) -> u64 {
        self.idle.iter().sum::<u64>() - self.idle_nodes.iter().sum::<u64>()
    }

    /// A maximal flow from waiting tenants to idle GPUs. Its smallest cut is one of: all demand; all idle GPUs; or, for one
    /// tenant, the demand and the idle GPUs of all others.
    fn matched(&self, own: &[u64], unowned: u64) -> u64 {
        let waiting: u64 = self.waiting.iter().sum();
        let idle = own.iter().sum::<u64>() + unowned;
        let most_own = self.waiting.iter().zip(own).map(|(waiting, idle)| waiting + idle).max();
        waiting.min(idle).min(waiting + idle - most_own.unwrap_or(0))
    }
}

/// Sums of GPU-seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Seconds that are summed up.
    pub seconds: u64,
    /// Busy.
    pub busy: u64,
    /// Requested by waiting jobs.
    pub waiting: u64,
    /// Requested by waiting jobs while idle on other tenants' nodes.
    pub stranded: u64,
    /// The same, on nodes without jobs.
    pub stranded_nodes: u64,
    /// Idle on nodes with jobs.
    pub fragments: u64,
    /// Idle on a tenant's nodes without jobs.
    pub idle_nodes: u64,
    /// Of free nodes.
    pub free: u64,
    /// Of nodes reserved, joining or being scrubbed.
    pub recycling: u64,
    /// Of nodes being scrubbed.
    pub scrubbed: u64,
}

impl AddAssign for Bucket {
    fn add_assign(&mut self, other: Self) {
        let Self {
            seconds,
            busy,
            waiting,
            stranded,
            stranded_nodes,
            fragments,
            idle_nodes,
            free,
            recycling,
            scrubbed,
        } = other;
        self.seconds += seconds;
        self.busy += busy;
        self.waiting += waiting;
        self.stranded += stranded;
        self.stranded_nodes += stranded_nodes;
        self.fragments += fragments;
        self.idle_nodes += idle_nodes;
        self.free += free;
        self.recycling += recycling;
        self.scrubbed += scrubbed;
    }
}

impl Bucket {
    fn times(self, seconds: Seconds) -> Self {
        let seconds = seconds.unsigned_abs();
        Self {
            seconds,
            busy: self.busy * seconds,
            waiting: self.waiting * seconds,
            stranded: self.stranded * seconds,
            stranded_nodes: self.stranded_nodes * seconds,
            fragments: self.fragments * seconds,
            idle_nodes: self.idle_nodes * seconds,
            free: self.free * seconds,
            recycling: self.recycling * seconds,
            scrubbed: self.scrubbed * seconds,
        }
    }
}

/// The course over time: sums over equal parts of the window.
pub type Series = Vec<Bucket>;

/// Sums up.
pub(crate) struct Meter {
    window: Window,
    width: Seconds,
    pub(crate) series: Series,
    /// GPU-seconds that each tenant's jobs held.
    pub(crate) busy: Vec<u64>,
}

impl Meter {
    pub(crate) fn new(window: Window, tenants: usize) -> Self {
        let width = (window.length() + BUCKETS - 1) / BUCKETS;
        let buckets = usize::try_from((window.length() + width - 1) / width).unwrap_or(0);
        Self {
            window,
            width,
            series: vec![Bucket::default(); buckets],
            busy: vec![0; tenants],
        }
    }

    /// Whether any of this time is within the window.
    pub(crate) fn wants(&self, from: Seconds, until: Seconds) -> bool {
        self.window.overlap(from, until) > 0
    }

    /// Adds the state during this time.
    pub(crate) fn add(&mut self, from: Seconds, until: Seconds, moment: &Moment<'_>) {
        let (mut from, until) = (from.max(self.window.from), until.min(self.window.until));
        let seconds = (until - from).max(0).unsigned_abs();
        for (sum, busy) in self.busy.iter_mut().zip(&moment.busy) {
            *sum += busy * seconds;
        }
        let held = moment.idle.iter().sum::<u64>() + moment.cordoned;
        let each = Bucket {
            seconds: 1,
            busy: moment.busy.iter().sum(),
            waiting: moment.waiting.iter().sum(),
            stranded: moment.stranded(),
            stranded_nodes: moment.stranded_nodes(),
            fragments: moment.beside_jobs,
            idle_nodes: held - moment.beside_jobs,
            free: moment.free,
            recycling: moment.joining + moment.scrubbed,
            scrubbed: moment.scrubbed,
        };
        while from < until {
            let at = (from - self.window.from) / self.width;
            let end = until.min(self.window.from + (at + 1) * self.width);
            if let Some(bucket) = usize::try_from(at).ok().and_then(|at| self.series.get_mut(at)) {
                *bucket += each.times(end - from);
            }
            from = end;
        }
    }

    /// The whole window.
    pub(crate) fn total(&self) -> Bucket {
        let mut total = Bucket::default();
        for bucket in &self.series {
            total += *bucket;
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment<'a>(waiting: &'a [u64], idle: &[u64]) -> Moment<'a> {
        Moment {
            idle: idle.to_vec(),
            ..Moment::new(waiting)
        }
    }

    #[test]
    fn stranded_gpus_are_requested_while_idle_on_other_tenants_nodes() {
        // 5 GPUs are requested, 3 are idle elsewhere.
        assert_eq!(moment(&[5, 0], &[0, 3]).stranded(), 3);
        // 2 are requested.
        assert_eq!(moment(&[2, 0], &[0, 3]).stranded(), 2);
        // A tenant's own idle GPUs are not stranded for it.
        assert_eq!(moment(&[5, 0], &[4, 0]).stranded(), 0);
        // Two tenants wait for the same three GPUs: these count once.
        assert_eq!(moment(&[5, 5, 0], &[0, 0, 3]).stranded(), 3);
        // Each could use idle GPUs of the other: 2 of the first and 1 of the second.
        assert_eq!(moment(&[1, 9], &[2, 4]).stranded(), 3);
        // A third tenant has idle GPUs but waits for none.
        assert_eq!(moment(&[9, 0, 0], &[9, 1, 1]).stranded(), 2);
    }

    #[test]
    fn nodes_between_two_tenants_are_stranded_for_all() {
        let moment = Moment {
            cordoned: 1,
            free: 2,
            joining: 4,
            scrubbed: 8,
            ..moment(&[100], &[50])
        };
        assert_eq!(moment.stranded(), 15);
        assert_eq!(moment.stranded_nodes(), 15);
    }

    #[test]
    fn a_node_with_jobs_on_it_cannot_be_recycled() {
        let mut moment = moment(&[0, 9], &[7, 0]);
        moment.idle_nodes = vec![4, 0];
        moment.cordoned = 3;
        moment.beside_jobs = 3 + 2;
        assert_eq!(moment.stranded(), 9);
        // Four of the idle node, and one of the three on cordoned nodes, two of which are beside jobs.
        assert_eq!(moment.stranded_nodes(), 5);
    }

    #[test]
    fn stranded_is_the_largest_matching() {
        // The largest matching is the smallest cut; `brute` tries all cuts.
        let brute = |waiting: &[u64], idle: &[u64]| {
            let tenants = waiting.len();
            (0..1_u32 << tenants)
                .map(|asking| {
                    let asks = |tenant: usize| asking >> tenant & 1 == 1;
                    let cut: u64 = (0..tenants).filter(|t| !asks(*t)).map(|t| waiting[t]).sum();
                    let reached = |owner: usize| (0..tenants).any(|t| asks(t) && t != owner);
                    cut + (0..tenants).filter(|o| reached(*o)).map(|o| idle[o]).sum::<u64>()
                })
                .min()
                .unwrap()
        };
        for code in 0..4_u64.pow(6) {
            let digit = |at: u32| code / 4_u64.pow(at) % 4;
            let (waiting, idle) = ([digit(0), digit(1), digit(2)], [digit(3), digit(4), digit(5)]);
            assert_eq!(
                moment(&waiting, &idle).stranded(),
                brute(&waiting, &idle),
                "{waiting:?} {idle:?}"
            );
        }
    }

    #[test]
    fn sums_cover_the_window_in_equal_parts() {
        let mut meter = Meter::new(Window { from: 10, until: 490 }, 1);
        assert_eq!(meter.series.len(), 240);
        let waiting = [0];
        let moment = Moment {
            busy: vec![3],
            free: 5,
            ..Moment::new(&waiting)
        };
        assert!(!meter.wants(0, 10) && meter.wants(0, 11) && !meter.wants(490, 500));
        meter.add(0, 13, &moment);
        meter.add(480, 1000, &moment);
        assert_eq!(meter.busy, [3 * 13]);
        let (busy, free): (Vec<u64>, Vec<u64>) = meter.series.iter().map(|bucket| (bucket.busy, bucket.free)).unzip();
        assert_eq!(busy[..3], [6, 3, 0]);
        assert_eq!(free[234..], [0, 10, 10, 10, 10, 10]);
        assert_eq!(meter.total().busy, 39);
        assert_eq!(meter.total().seconds, 13);
    }
}
