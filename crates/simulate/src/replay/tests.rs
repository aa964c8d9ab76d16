//! Replays small enough to follow by hand, and properties of every replay.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::cluster::Entry;
use super::*;
use crate::options::Checkpoint;
use crate::trace::{Job, LeftOut};

/// Jobs as (tenant, arrival, duration, GPUs); more than 100 would have a narrower window.
fn trace(jobs: &[(usize, Seconds, Seconds, u32)]) -> Trace {
    let tenants = jobs.iter().map(|(tenant, ..)| tenant + 1).max().unwrap_or(0);
    let mut jobs: Vec<Job> = jobs
        .iter()
        .map(|&(tenant, arrival, duration, gpus)| Job {
            tenant,
            arrival,
            duration,
            gpus,
        })
        .collect();
    jobs.sort_by_key(|job| job.arrival);
    Trace {
        tenants: (0..tenants).map(|tenant| format!("t{tenant}")).collect(),
        jobs,
        left_out: LeftOut::default(),
    }
}

fn options(nodes: u32) -> Options {
    Options {
        nodes,
        gpus_per_node: 4,
        scrub: 100,
        join: 10,
        idle_timeout: 50,
        min_hold_duration: 200,
        reclaim_grace_period: 30,
        checkpoint: Checkpoint::Every(60),
        plan_every: 0,
        ..Options::default()
    }
}

fn ends(replayed: &Replayed) -> BTreeMap<usize, Seconds> {
    let done = |entry: &Entry| match entry {
        Entry::Stopped { job, at, done: true } => Some((*job, *at)),
        _ => None,
    };
    replayed.history.iter().filter_map(done).collect()
}

#[test]
fn static_partitions_lend_nothing() {
    // One node each. t0 requests the GPUs of two nodes, t1 none until 1000.
    let trace = trace(&[(0, 0, 600, 4), (0, 0, 600, 4), (1, 1000, 1, 1)]);
    let replayed = replay_static(&trace, &options(2), &[1, 1], &mut |_| {}).unwrap();
    assert_eq!(replayed.waits, [0, 600, 0]);
    let total = replayed.meter.total();
    // The window is 0..1000: 4 GPUs are busy all the time; t0 waits for 4 more for 600 s while t1's 4 are idle.
    assert_eq!((total.seconds, total.busy), (1000, 4 * 1000));
    assert_eq!((total.waiting, total.stranded), (4 * 600, 4 * 600));
    assert_eq!((total.fragments, total.free, total.recycling), (0, 0, 0));
    assert_eq!(total.idle_nodes, 4 * 1000);
}

#[test]
fn smaller_jobs_pass_those_that_do_not_fit() {
    let trace = trace(&[
        (0, 0, 300, 2),
        (0, 1, 500, 4),
        (0, 2, 100, 1),
        (0, 3, 10, 2),
        (0, 250, 10, 1),
    ]);
    let replayed = replay_static(&trace, &options(1), &[1], &mut |_| {}).unwrap();
    // The job with two GPUs follows the one with one GPU, at 102.
    assert_eq!(replayed.waits, [0, 299, 0, 99, 0]);
}

#[test]
fn nodes_that_follow_demand_serve_stranded_demand() {
    // t1 has a nominal quota of two nodes and runs no jobs; t0 has a quota of one node and needs two.
    let trace = trace(&[(0, 0, 600, 4), (0, 0, 600, 4), (1, 1000, 1, 1)]);
    let replayed = replay_dynamic(&trace, &options(3), &[1, 2], &mut |_| {}).unwrap();
    // Both nodes join at 10.
    assert_eq!(replayed.waits[..2], [10, 10]);
    assert_eq!(ends(&replayed)[&1], 610);
    let total = replayed.meter.total();
    assert_eq!(total.busy, 2 * 4 * 600);
    // 8 GPUs wait for 10 s, and 12 are idle meanwhile.
    assert_eq!(total.stranded, 8 * 10);
    // The third node was never assigned: it is free all the time.
    assert!(total.free >= 4 * 1000);
}

#[test]
fn smaller_jobs_pass_a_gang_until_the_starvation_limit_and_after_ten_minutes_more() {
    // One node is free, and t0 waits for two. A second job of t1 could use it.
    let trace = trace(&[(1, 0, 1000, 4), (2, 0, 3000, 4), (0, 1, 100, 8), (1, 500, 100, 4)]);
    for (starvation_limit, wait) in [(0, 601 + 10 - 500), (1000, 10)] {
        let options = Options {
            starvation_limit,
            ..options(3)
        };
        let replayed = replay_dynamic(&trace, &options, &[1, 1, 1], &mut |_| {}).unwrap();
        assert_eq!(replayed.waits[3], wait, "{starvation_limit}");
    }
}

#[test]
fn a_nominal_quota_comes_back_after_grace_period_and_scrub() {
    // t0 borrows t1's node for a long job; t1 needs it at 1000.
    let trace = trace(&[(0, 0, 5000, 4), (0, 0, 5000, 4), (1, 1000, 100, 4)]);
    let replayed = replay_dynamic(&trace, &options(2), &[1, 1], &mut |_| {}).unwrap();
    // Cordoned at 1000, drained at 1030, scrubbed at 1130, joined at 1140.
    assert_eq!(replayed.waits[2], 140);
    // The evicted job of t0 has run since 10: for 1020 s, which are all saved (17 × 60).
    assert_eq!(
        (replayed.counts.evictions, replayed.counts.repeated),
        (0, 0),
        "after the window"
    );
    let evicted = replayed.history.iter().filter(|e| {
        matches!(
            e,
            Entry::Stopped {
                at: 1030,
                done: false,
                ..
            }
        )
    });
    assert_eq!(evicted.count(), 1);
    // The rest of the job runs when t0 has the node again.
    let work: Seconds = ends(&replayed).values().copied().max().unwrap();
    assert!(work >= 1140 + 100 + 100 + 5000 - 1020, "{work}");
}

#[test]
fn work_that_is_not_saved_is_repeated() {
    for (checkpoint, repeated) in [
        (Checkpoint::Every(0), 0),
        (Checkpoint::Every(1000), 20 * 4),
        (Checkpoint::Never, 1020 * 4),
    ] {
        let trace = trace(&[(0, 0, 5000, 4), (0, 0, 5000, 4), (1, 1000, 100, 4), (0, 9000, 1, 1)]);
        let options = Options {
            checkpoint,
            ..options(2)
        };
        let replayed = replay_dynamic(&trace, &options, &[1, 1], &mut |_| {}).unwrap();
        assert_eq!((replayed.counts.evictions, replayed.counts.repeated), (1, repeated));
    }
}

#[test]
fn a_gang_has_all_its_nodes_or_none() {
    // t1's job keeps a node until 2000; the gang of t0 needs all three.
    let trace = trace(&[(1, 0, 2000, 4), (0, 100, 500, 12)]);
    let replayed = replay_dynamic(&trace, &options(3), &[2, 1], &mut |_| {}).unwrap();
    let started = replayed.history.iter().find_map(|entry| match entry {
        Entry::Started { job: 1, at, parts } => Some((*at, parts.len())),
        _ => None,
    });
    // Job ends at 2010; at least 50 s idle, 100 s of scrub, 10 s to join.
    let (at, nodes) = started.unwrap();
    assert_eq!(nodes, 3);
    assert!((2160..=2300).contains(&at), "{at}");
}

#[test]
fn a_tenant_that_left_nodes_unused_is_served_last() {
    let mut jobs = Vec::new();
    for time in [0, 1000, 2000] {
        // The first job ends before the nodes for the two others have joined: these run where it ran.
        jobs.extend([(0, time, 10, 4), (0, time + 12, 1, 4), (0, time + 12, 1, 4)]);
    }
    // Both want nodes, t0 within its nominal quota.
    jobs.extend([(0, 2500, 50, 8), (1, 2500, 100, 12)]);
    let replayed = replay_dynamic(&trace(&jobs), &options(3), &[2, 1], &mut |_| {}).unwrap();
    assert_eq!(replayed.waits[..3], [10, 8, 9]);
    assert_eq!(replayed.waits[10], 10, "t1 gets all nodes: {:?}", replayed.waits);
}

/// Checks the properties of every replay: a GPU runs one job at a time, a node serves one tenant at a time and is clean when it is
/// assigned, gangs are whole, and every job runs exactly for its duration.
fn check(trace: &Trace, options: &Options, partitions: Option<&[u32]>, replayed: &Replayed) {
    let mut used = vec![0_u32; options.nodes as usize];
    let mut owner: Vec<Option<usize>> = vec![None; used.len()];
    let mut dirty: Vec<Option<Seconds>> = vec![None; used.len()];
    let mut running: BTreeMap<usize, (Seconds, Vec<(usize, u32)>)> = BTreeMap::new();
    let mut work: BTreeMap<usize, Seconds> = BTreeMap::new();
    let mut done = BTreeSet::new();
    for entry in &replayed.history {
        match entry {
            Entry::Owner {
                node,
                tenant,
                at,
                clean,
            } => {
                assert_eq!(used[*node], 0, "the owner of a node with a job changes: {entry:?}");
                if tenant.is_some() {
                    assert!(owner[*node].is_none(), "a node of two tenants: {entry:?}");
                    assert!(dirty[*node].is_none(), "not scrubbed: {entry:?}");
                } else if !clean {
                    dirty[*node] = Some(*at);
                }
                owner[*node] = *tenant;
            }
            Entry::Clean { node, at } => {
                let since = dirty[*node].take().expect("a node that needs a scrub");
                assert_eq!(at - since, options.scrub);
            }
            Entry::Started { job, at, parts } => {
                let spec = &trace.jobs[*job];
                assert!(*at >= spec.arrival && !done.contains(job));
                assert_eq!(parts.iter().map(|(_, gpus)| gpus).sum::<u32>(), spec.gpus);
                for (node, gpus) in parts {
                    assert_eq!(owner[*node], Some(spec.tenant), "{entry:?}");
                    used[*node] += gpus;
                    assert!(used[*node] <= options.gpus_per_node, "{entry:?}");
                }
                assert!(running.insert(*job, (*at, parts.clone())).is_none());
            }
            Entry::Stopped { job, at, done: ended } => {
                let (since, parts) = running.remove(job).expect("a running job");
                for (node, gpus) in parts {
                    used[node] -= gpus;
                }
                let saved = work.entry(*job).or_default();
                let so_far = *saved + at - since;
                if *ended {
                    assert_eq!(so_far, trace.jobs[*job].duration, "{entry:?}");
                    done.insert(*job);
                } else {
                    *saved = options.checkpoint.kept(so_far).max(*saved);
                }
            }
        }
    }
    assert_eq!(done.len(), trace.jobs.len());
    assert!(running.is_empty());
    let total = replayed.meter.total();
    let capacity = u64::from(options.nodes) * u64::from(options.gpus_per_node) * total.seconds;
    assert_eq!(
        total.busy + total.fragments + total.idle_nodes + total.free + total.recycling,
        capacity
    );
    assert_eq!(total.busy, replayed.meter.busy.iter().sum::<u64>());
    assert!(total.stranded <= total.waiting && total.stranded <= capacity - total.busy);
    if partitions.is_some() {
        assert_eq!((total.free, total.recycling, replayed.counts.recyclings), (0, 0, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn every_job_runs_and_no_gpu_serves_two(
        jobs in prop::collection::vec((0_usize..4, 0_i64..5000, 1_i64..3000, prop_oneof![4 => 1_u32..=4, 1 => 5_u32..=9]), 1..60),
        checkpoint in prop_oneof![Just(Checkpoint::Never), (0_i64..500).prop_map(Checkpoint::Every)],
        plan_every in 0_i64..30,
        reclaim in prop_oneof![Just(crate::Reclaim::Never), Just(crate::Reclaim::NominalQuota), Just(crate::Reclaim::FairShare)],
    ) {
        let trace = trace(&jobs);
        let partitions: Vec<u32> = trace.tenants.iter().map(|_| 3).collect();
        let options = Options { reclaim, checkpoint, plan_every, ..options(partitions.iter().sum()) };
        check(&trace, &options, Some(&partitions), &replay_static(&trace, &options, &partitions, &mut |_| {}).unwrap());
        check(&trace, &options, None, &replay_dynamic(&trace, &options, &partitions, &mut |_| {}).unwrap());
    }
}
