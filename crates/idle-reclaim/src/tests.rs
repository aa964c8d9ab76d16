//! Whole passes: scenes of a fleet.

mod properties;
mod shares;

use crate::{
    Seconds,
    evidence::{Metrics, Unknown, Verdict},
    ladder::{LadderState, UnknownTime},
    pass::{self, Decision, States, TenantInput},
    pod::{DevicesHeld, GpuPod},
    policy::Policy,
    query::Aggregation,
    series::{RowLabels, SeriesTable},
    signal::Signal,
    testing::{self, NOW, SIGNALS},
};
use berth_api::{IdleOptOut, IdleReclaim, IdleReclaimMode, IdleStep};
use jiff::Timestamp;
use std::{collections::BTreeSet, slice, sync::Arc, time::Instant};

fn policy(mode: IdleReclaimMode) -> Policy {
    Policy::new(&IdleReclaim {
        mode,
        ..IdleReclaim::default()
    })
}

fn evaluate(policy: &Policy, pods: &[GpuPod], table: SeriesTable, states: &States, now: Seconds) -> Vec<Decision> {
    evaluate_by(policy, pods, Some(&testing::metrics(table)), states, now)
}

fn evaluate_by(
    policy: &Policy,
    pods: &[GpuPod],
    metrics: Option<&Metrics>,
    states: &States,
    now: Seconds,
) -> Vec<Decision> {
    let pods: Vec<Arc<GpuPod>> = pods.iter().cloned().map(Arc::new).collect();
    let input = TenantInput {
        policy,
        pods: &pods,
        gpu_resources: &BTreeSet::new(),
        states,
    };
    pass::evaluate(&input, metrics, now)
}

/// Records that a GPU did nothing in the hour until now.
fn record_idle_at(table: &mut SeriesTable, labels: &RowLabels<'_>, now: Seconds) {
    for signal in SIGNALS {
        testing::record(table, labels, signal, 0.0, now);
    }
}

/// What a GPU does in each minute: its peak in the last hour decides.
fn peak_of_the_last_hour(activity: &dyn Fn(i64) -> f64, minute: i64) -> f64 {
    (minute - 60..=minute).map(activity).fold(0.0, f64::max)
}

/// The steps that a pod with one GPU takes in the minutes from 0 on, if the GPU is as active as this.
fn steps(activity: &dyn Fn(i64) -> f64, minutes: i64) -> Vec<IdleStep> {
    let pod = testing::pod("job", 1);
    let policy = policy(IdleReclaimMode::Enforce);
    let mut states = States::new();
    let mut taken = Vec::new();
    for minute in 0..minutes {
        let now = NOW + minute * 60;
        let mut table = SeriesTable::default();
        for signal in SIGNALS {
            let busy = peak_of_the_last_hour(activity, minute);
            let peak = if signal == Signal::Power {
                80.0 + 500.0 * busy
            } else {
                busy
            };
            testing::record(&mut table, &testing::row(&pod, 0), signal, peak, now);
        }
        let decisions = evaluate(&policy, slice::from_ref(&pod), table, &states, now);
        states = pass::states_after(&decisions, &states);
        taken.extend(decisions[0].step().filter(|step| taken.last() != Some(step)));
    }
    taken
}

#[test]
fn a_training_job_that_loads_data_for_20_minutes_is_not_touched() {
    // 20 minutes of data loading, then an hour of training, again and again.
    let activity = |minute: i64| if minute.rem_euclid(80) < 20 { 0.0 } else { 0.9 };
    assert!(steps(&activity, 600).is_empty());
}

#[test]
fn a_training_job_with_checkpoint_pauses_is_not_touched() {
    let activity = |minute: i64| if minute.rem_euclid(30) < 10 { 0.0 } else { 0.7 };
    assert!(steps(&activity, 600).is_empty());
}

#[test]
fn a_service_with_a_request_every_50_minutes_is_not_touched() {
    let activity = |minute: i64| if minute.rem_euclid(50) == 7 { 0.001 } else { 0.0 };
    assert!(steps(&activity, 600).is_empty());
}

#[test]
fn a_forgotten_notebook_is_given_back() {
    // Somebody worked with it until minute 10.
    let activity = |minute: i64| if minute < 10 { 0.4 } else { 0.0 };
    assert_eq!(
        steps(&activity, 200),
        [
            IdleStep::Warned,
            IdleStep::WarnedAgain,
            IdleStep::CheckpointRequested,
            IdleStep::Reclaimable
        ]
    );
}

#[test]
fn pods_that_wait_for_one_whose_containers_never_run_are_given_back() {
    // The image of one of two pods cannot be pulled. It has had its node since minute 0, and no series name it.
    let mut pods = [testing::pod("runs", 8), testing::pod("waits", 8)];
    for pod in &mut pods {
        pod.gang = Some("train".into());
    }
    pods[1].started_at = None;
    pods[1].scheduled_at = Some(NOW);
    let enforce = policy(IdleReclaimMode::Enforce);
    let mut states = States::new();
    let mut taken = Vec::new();
    for minute in 0..420 {
        let now = NOW + minute * 60;
        let mut table = SeriesTable::default();
        for index in 0..8 {
            record_idle_at(&mut table, &testing::row(&pods[0], index), now);
        }
        let decisions = evaluate(&enforce, &pods, table, &states, now);
        states = pass::states_after(&decisions, &states);
        if let Some(step) = decisions[0].step()
            && taken.last().is_none_or(|(_, last)| *last != step)
        {
            taken.push((minute, step));
        }
    }
    let expected = [
        (360, IdleStep::Warned),
        (375, IdleStep::WarnedAgain),
        (390, IdleStep::CheckpointRequested),
        (400, IdleStep::Reclaimable),
    ];
    assert_eq!(taken, expected);
}

#[test]
fn an_hour_without_prometheus_changes_nothing_even_if_control_restarts() {
    let pod = testing::pod("notebook", 1);
    let enforce = policy(IdleReclaimMode::Enforce);
    let pass = |metrics: Option<&Metrics>, states: &States, now| {
        evaluate_by(&enforce, slice::from_ref(&pod), metrics, states, now)
    };
    let idle = testing::metrics(testing::idle_table(&[&pod]));
    let mut decisions = pass(Some(&idle), &States::new(), NOW);
    assert_eq!(decisions[0].step(), Some(IdleStep::Warned));
    for minute in 1..=60 {
        // Every pass is that of a new process, which reads the status.
        let status = pass::report(&enforce, &decisions);
        let states = pass::states_of(Some(&status), IdleReclaimMode::Enforce);
        decisions = pass(None, &states, NOW + minute * 60);
        assert_eq!(decisions[0].verdict, Verdict::Unknown(Unknown::NoMetrics));
        assert_eq!(decisions[0].step(), Some(IdleStep::Warned));
        assert_eq!(decisions[0].next_step_at, None);
        assert!(!decisions[0].is_due(IdleReclaimMode::Enforce));
        let report = pass::report(&enforce, &decisions);
        assert_eq!((report.idle_gpus, report.unknown_gpus[0].gpus), (0, 1));
        assert_eq!(report.workloads[0].idle_since, status.workloads[0].idle_since);
    }
}

#[test]
fn a_gang_with_one_active_pod_is_not_idle() {
    let mut pods: Vec<GpuPod> = (0..4).map(|index| testing::pod(&format!("w{index}"), 8)).collect();
    for pod in &mut pods {
        pod.gang = Some("train".into());
    }
    let all: Vec<&GpuPod> = pods.iter().collect();
    let idle = testing::idle_table(&all);
    let enforce = policy(IdleReclaimMode::Enforce);
    let decisions = evaluate(&enforce, &pods, idle.clone(), &States::new(), NOW);
    assert_eq!((decisions.len(), decisions[0].gpus), (1, 32));
    assert_eq!(decisions[0].verdict, Verdict::Idle);
    let mut busy = idle;
    busy.record(&testing::row(&pods[2], 5), Signal::Engine, Aggregation::Peak, 0.3);
    let decisions = evaluate(&enforce, &pods, busy, &States::new(), NOW);
    assert_eq!((decisions[0].verdict, decisions[0].state), (Verdict::Active, None));
}

/// The steps of the first workload in the minutes from 0 on, if its first pod does nothing, with the minute of each. `change` changes the pods before each
/// pass.
fn steps_of(pods: &mut [GpuPod], minutes: i64, change: impl Fn(&mut [GpuPod], i64)) -> Vec<(i64, IdleStep)> {
    let enforce = policy(IdleReclaimMode::Enforce);
    let mut states = States::new();
    let mut taken: Vec<(i64, IdleStep)> = Vec::new();
    for minute in 0..minutes {
        change(pods, minute);
        let now = NOW + minute * 60;
        let mut table = SeriesTable::default();
        for index in 0..pods[0].devices.values().sum::<u32>() {
            record_idle_at(&mut table, &testing::row(&pods[0], index), now);
        }
        let decisions = evaluate(&enforce, pods, table, &states, now);
        states = pass::states_after(&decisions, &states);
        if let Some(step) = decisions[0].step()
            && taken.last().is_none_or(|(_, last)| *last != step)
        {
            taken.push((minute, step));
        }
    }
    taken
}

#[test]
fn pods_that_wait_for_one_without_a_node_are_given_back_after_the_longest_startup() {
    let mut pods = [testing::pod("w0", 8), testing::pod("w1", 8)];
    for pod in &mut pods {
        pod.gang = Some("train".into());
    }
    pods[1].devices_held = DevicesHeld::NotYet;
    pods[1].started_at = None;
    let expected = |last| {
        [
            (0, IdleStep::Warned),
            (15, IdleStep::WarnedAgain),
            (30, IdleStep::CheckpointRequested),
            (last, IdleStep::Reclaimable),
        ]
    };
    // The pod without a node is another one in each pass.
    let replaced = steps_of(&mut pods, 400, |pods, minute| pods[1].uid = format!("w1-{minute}"));
    assert_eq!(replaced, expected(360));
    pods[1].devices_held = DevicesHeld::NoMore;
    let without = steps_of(&mut pods, 400, |_, _| {});
    assert_eq!(without, expected(40), "nothing waits any longer");
}

#[test]
fn pods_with_labels_of_which_none_starts_now_are_given_back_after_the_longest_startup() {
    let mut pods = [testing::pod("w0", 8)];
    let taken = steps_of(&mut pods, 400, |pods, _| pods[0].awaits_others = true);
    assert_eq!(taken.last(), Some(&(360, IdleStep::Reclaimable)));
    // For a moment every five minutes.
    let taken = steps_of(&mut pods, 400, |pods, minute| pods[0].awaits_others = minute % 5 == 0);
    assert_eq!(taken.last(), Some(&(41, IdleStep::Reclaimable)));
}

#[test]
fn pods_without_a_node_are_not_judged_alone() {
    let mut alone = testing::pod("alone", 8);
    alone.devices_held = DevicesHeld::NotYet;
    let enforce = policy(IdleReclaimMode::Enforce);
    let decisions = evaluate(&enforce, &[alone], SeriesTable::default(), &States::new(), NOW);
    assert_eq!(decisions, []);
}

#[test]
fn a_pod_that_gets_its_node_at_last_gives_the_others_all_their_time() {
    let mut pods = [testing::pod("w0", 8), testing::pod("w1", 8)];
    for pod in &mut pods {
        pod.gang = Some("train".into());
    }
    pods[1].devices_held = DevicesHeld::NotYet;
    pods[1].started_at = None;
    let taken = steps_of(&mut pods, 450, |pods, minute| {
        if minute == 350 {
            pods[1].devices_held = DevicesHeld::Now;
            pods[1].scheduled_at = Some(NOW + minute * 60);
            pods[1].started_at = Some(NOW + minute * 60);
        }
    });
    assert_eq!(taken.last(), Some(&(30, IdleStep::CheckpointRequested)));
}

#[test]
fn other_labels_give_no_workload_its_time_again() {
    let mut pods = [testing::pod("w0", 8)];
    let taken = steps_of(&mut pods, 60, |pods, minute| {
        let name = format!("job-{}", minute / 10);
        pods[0].labels = [("job-name".to_owned(), name)].into();
    });
    assert_eq!(taken.last(), Some(&(40, IdleStep::Reclaimable)));
}

#[test]
fn a_workload_is_announced_once_whatever_its_labels_are() {
    let enforce = policy(IdleReclaimMode::Enforce);
    let mut pod = testing::pod("w0", 1);
    let mut before = States::new();
    for number in 0..3 {
        pod.labels = [("job-name".to_owned(), format!("job-{number}"))].into();
        let decisions = evaluate(
            &enforce,
            slice::from_ref(&pod),
            testing::idle_table(&[&pod]),
            &before,
            NOW,
        );
        assert_eq!(decisions[0].step(), Some(IdleStep::Warned));
        assert_eq!(decisions[0].is_new(&before), number == 0);
        before = pass::states_after(&decisions, &before);
    }
}

#[test]
fn a_workload_that_was_excepted_for_a_while_does_not_begin_anew() {
    let pod = testing::pod("w0", 8);
    let mut excepted = pod.clone();
    excepted.labels = [("keep".to_owned(), "yes".to_owned())].into();
    let enforce = Policy::new(&IdleReclaim {
        mode: IdleReclaimMode::Enforce,
        opt_out: Some(IdleOptOut {
            match_labels: [("keep".to_owned(), String::new())].into(),
            max_gpus_per_namespace: 8,
            max_gpus_per_tenant: None,
        }),
        ..IdleReclaim::default()
    });
    // It is excepted in minute 35. In minute 80 it is, and works.
    let mut states = States::new();
    let mut steps = Vec::new();
    for minute in 0..100 {
        let now = NOW + minute * 60;
        let mut table = SeriesTable::default();
        for index in 0..8 {
            record_idle_at(&mut table, &testing::row(&pod, index), now);
        }
        if minute == 80 {
            table.record(&testing::row(&pod, 0), Signal::Engine, Aggregation::Peak, 0.5);
        }
        let pod = if [35, 80].contains(&minute) { &excepted } else { &pod };
        let decisions = evaluate(&enforce, slice::from_ref(pod), table, &states, now);
        states = pass::states_after(&decisions, &states);
        steps.push(decisions[0].step());
    }
    assert_eq!(steps[34], Some(IdleStep::CheckpointRequested));
    assert_eq!((steps[35], steps[80]), (None, None));
    assert_eq!(steps[36], Some(IdleStep::CheckpointRequested));
    assert_eq!((steps[45], steps[46]), (steps[36], Some(IdleStep::Reclaimable)));
    assert_eq!(steps[81], Some(IdleStep::Warned));
}

#[test]
fn budgets_keep_pods_for_the_eviction_timeout_after_the_last_step() {
    let due = testing::due("job", 8);
    assert!(!due.is_overdue(3600, NOW + 3599) && due.is_overdue(3600, NOW + 3600));
    let mut earlier = due;
    if let Some(state) = &mut earlier.state {
        state.step = IdleStep::CheckpointRequested;
    }
    assert!(!earlier.is_overdue(0, NOW + 3600));
}

#[test]
fn a_dry_run_evicts_nothing_and_its_steps_do_not_count_later() {
    let pod = testing::pod("job", 1);
    let dry_run = policy(IdleReclaimMode::DryRun);
    let mut states = States::new();
    let mut decisions = Vec::new();
    for minute in 0..60 {
        let now = NOW + minute * 60;
        let mut table = SeriesTable::default();
        record_idle_at(&mut table, &testing::row(&pod, 0), now);
        decisions = evaluate(&dry_run, slice::from_ref(&pod), table, &states, now);
        states = pass::states_after(&decisions, &states);
    }
    assert_eq!(decisions[0].step(), Some(IdleStep::Reclaimable));
    assert!(!decisions[0].is_due(IdleReclaimMode::DryRun));
    let status = pass::report(&dry_run, &decisions);
    assert_eq!((status.gpus, status.idle_gpus, status.workloads.len()), (1, 1, 1));
    let read = pass::states_of(Some(&status), IdleReclaimMode::DryRun);
    let workload = &decisions[0].workload;
    assert!(read.get(workload).is_some());
    assert_eq!(read.get(workload), states.get(workload));
    assert!(pass::states_of(Some(&status), IdleReclaimMode::Enforce).is_empty());
}

#[test]
fn reports_count_what_is_not_known() {
    let pods = [testing::pod("idle", 2), testing::pod("unseen", 8)];
    let table = testing::idle_table(&[&pods[0]]);
    let enforce = policy(IdleReclaimMode::Enforce);
    let decisions = evaluate(&enforce, &pods, table, &States::new(), NOW);
    let status = pass::report(&enforce, &decisions);
    assert_eq!((status.gpus, status.idle_gpus), (10, 2));
    assert_eq!(status.unknown_gpus[0].reason, "MissingSeries");
    assert_eq!(status.unknown_gpus[0].gpus, 8);
    assert_eq!(status.workloads[0].name, "idle");
}

#[test]
fn gpus_of_excepted_pods_count_once() {
    let enforce = policy(IdleReclaimMode::Enforce);
    for verdict in [Verdict::Idle, Verdict::Unknown(Unknown::NoMetrics)] {
        let excepted = Decision {
            verdict,
            is_opted_out: true,
            state: None,
            ..testing::due("job", 8)
        };
        let status = pass::report(&enforce, &[excepted]);
        assert_eq!(
            (status.gpus, status.idle_gpus, status.opted_out_gpus),
            (8, 0, 8),
            "{verdict:?}"
        );
        assert!(status.unknown_gpus.is_empty(), "{verdict:?}");
    }
}

#[test]
fn workloads_that_are_not_listed_are_in_the_sums() {
    let idle = |gpus, idle_since, is_opted_out| Decision {
        is_opted_out,
        state: (!is_opted_out).then_some(LadderState {
            idle_since,
            step: IdleStep::Warned,
            step_since: NOW,
            paused: false,
            unknown: UnknownTime::default(),
        }),
        ..testing::due("job", gpus)
    };
    let enforce = policy(IdleReclaimMode::Enforce);
    let now = Timestamp::from_second(NOW).unwrap();
    let listed: Vec<Decision> = (0..100).map(|_| idle(2, NOW - 100, false)).collect();
    let status = pass::report(&enforce, &listed);
    assert_eq!((status.unlisted.clone(), status.gpu_seconds(now)), (None, 100 * 200));
    let mut unknown = idle(1, NOW - 1000, false);
    if let Some(state) = &mut unknown.state {
        state.unknown.since = Some(NOW - 500);
    }
    unknown.verdict = Verdict::Unknown(Unknown::NoMetrics);
    let further = [
        idle(1, NOW - 300, false),
        idle(1, NOW - 100, false),
        unknown,
        idle(8, 0, true),
    ];
    let all = [listed.as_slice(), &further].concat();
    let status = pass::report(&enforce, &all);
    assert_eq!((status.idle_gpus, status.opted_out_gpus), (202, 8), "a GPU counts once");
    assert_eq!(status.workloads.len(), 100);
    let unlisted = status.unlisted.clone().unwrap();
    assert_eq!((unlisted.workloads, unlisted.gpus), (2, 2));
    assert_eq!(unlisted.idle_since.0.as_second(), NOW - 200);
    assert_eq!(status.gpu_seconds(now), 100 * 200 + 400);
}

#[test]
fn ten_thousand_gpus_are_one_pass() {
    let pods: Vec<GpuPod> = (0..1250).map(|index| testing::pod(&format!("p{index}"), 8)).collect();
    let all: Vec<&GpuPod> = pods.iter().collect();
    let table = testing::idle_table(&all);
    assert_eq!(table.devices(), 10_000);
    let enforce = policy(IdleReclaimMode::Enforce);
    let begin = Instant::now();
    let decisions = evaluate(&enforce, &pods, table, &States::new(), NOW);
    assert_eq!(pass::report(&enforce, &decisions).idle_gpus, 10_000);
    eprintln!("10,000 GPUs decided in {:?}", begin.elapsed());
}
