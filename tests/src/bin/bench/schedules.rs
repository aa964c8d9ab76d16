//! The evaluation of many schedule policies: all at once as a reconcile of the fleet does it, and the next changes of each for its
//! status. Nothing runs but this process.

use crate::report::{Report, milliseconds, percentile};
use berth_api::{
    KubeDuration, ScheduleAction, SchedulePolicySpec, ScheduleState, ScheduleTarget, ScheduleTargetKind, ScheduleWindow,
};
use berth_schedules::{Place, PolicyIndex, Schedule};
use jiff::{SignedDuration, Timestamp};
use std::{
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

const ZONES: [&str; 4] = ["Europe/Berlin", "America/New_York", "Asia/Tokyo", "UTC"];
/// Changes that the status of a policy lists at most.
const CHANGES: usize = 3;
const ROUNDS: u32 = 5;

/// How many policies there are.
#[derive(Clone, Copy, clap::Args)]
pub(crate) struct Options {
    /// SchedulePolicies, and as many tenants.
    #[arg(long, default_value_t = Options::default().policies)]
    policies: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { policies: 10_000 }
    }
}

fn window(name: &str, action: ScheduleAction, schedule: String, duration: &str) -> ScheduleWindow {
    ScheduleWindow {
        name: name.into(),
        action,
        schedule,
        duration: KubeDuration::from(duration),
    }
}

/// Office hours, an evening in which nothing starts, and a night each week.
fn spec(number: usize) -> SchedulePolicySpec {
    let minute = number % 60;
    SchedulePolicySpec {
        time_zone: ZONES[number % ZONES.len()].into(),
        targets: vec![ScheduleTarget {
            kind: ScheduleTargetKind::TenantClass,
            name: format!("class-{number}"),
            namespace: None,
            workloads: None,
        }],
        windows: vec![
            window(
                "office",
                ScheduleAction::Start,
                format!("{minute} 7 * * MON-FRI"),
                "12h",
            ),
            window("evening", ScheduleAction::Forbid, format!("{minute} 17 * * *"), "2h"),
            window("night", ScheduleAction::Stop, format!("{minute} 22 * * SUN"), "8h"),
        ],
        warning_period: None,
        eviction_timeout: None,
    }
}

/// Policies as they were read, of which nothing was evaluated yet.
fn parse(specs: &[SchedulePolicySpec]) -> Vec<Arc<Schedule>> {
    let parsed = specs.iter().enumerate().map(|(number, spec)| {
        let schedule = Schedule::parse(&format!("policy-{number}"), spec);
        Arc::new(schedule.unwrap())
    });
    parsed.collect()
}

#[derive(Default)]
struct Durations {
    parse: Vec<f64>,
    first: Vec<f64>,
    again: Vec<f64>,
    tenants: Vec<f64>,
    changes: Vec<f64>,
}

pub(crate) fn run(options: Options) {
    let specs: Vec<SchedulePolicySpec> = (0..options.policies).map(spec).collect();
    let places: Vec<Place> = (0..options.policies)
        .map(|number| Place {
            class: Some(format!("class-{number}")),
            ..Place::default()
        })
        .collect();
    let mut durations = Durations::default();
    let mut single = Vec::new();
    for _ in 0..ROUNDS {
        let now = Timestamp::now();
        let measure = |into: &mut Vec<f64>, what: &mut dyn FnMut()| {
            let begun = Instant::now();
            what();
            into.push(milliseconds(begun.elapsed()));
        };
        let mut schedules = Vec::new();
        measure(&mut durations.parse, &mut || schedules = parse(&specs));
        measure_each(&schedules, now, &mut single);
        let targets = specs.iter().map(|spec| spec.targets.as_slice());
        let index = PolicyIndex::new(targets.zip(schedules.iter().cloned()));
        measure(&mut durations.first, &mut || {
            black_box(index.keep(now));
        });
        measure(&mut durations.again, &mut || {
            black_box(index.keep(now + SignedDuration::from_secs(1)));
        });
        measure(&mut durations.tenants, &mut || {
            let strictest: Option<ScheduleState> = places.iter().map(|place| index.stack(place).state(now)).max();
            black_box(strictest);
        });
        measure(&mut durations.changes, &mut || {
            for schedule in &schedules {
                black_box(schedule.transitions(now, CHANGES));
            }
        });
    }
    report(options.policies, &durations, &single);
}

/// How long one evaluation takes of which nothing is remembered: the state of a policy, and when it changes.
fn measure_each(schedules: &[Arc<Schedule>], now: Timestamp, into: &mut Vec<f64>) {
    for schedule in schedules {
        let begun = Instant::now();
        black_box((schedule.state(now), schedule.next_change(now)));
        let took: Duration = begun.elapsed();
        into.push(took.as_secs_f64() * 1_000_000.0);
    }
}

fn report(policies: usize, durations: &Durations, single: &[f64]) {
    let mut report = Report::new("schedules");
    report.add(
        "one policy: its state and its next change, p50",
        percentile(single, 50.0),
        "us",
    );
    report.add(
        "one policy: its state and its next change, p99",
        percentile(single, 99.0),
        "us",
    );
    for (what, values) in [
        ("policies read", &durations.parse),
        ("policies evaluated for the first time", &durations.first),
        ("policies evaluated again, without a change (goal 10)", &durations.again),
        ("tenants: what each may do", &durations.tenants),
        ("policies: the next 3 changes of each", &durations.changes),
    ] {
        report.add(
            format!("{policies} {what}, median of 5"),
            percentile(values, 50.0),
            "ms",
        );
    }
    report.finish();
}
