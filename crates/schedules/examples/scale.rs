//! How long the evaluation of 10,000 policies takes: `cargo run --release -p berth-schedules --example scale`. Fails if a pass in which
//! no state changes takes more than 10 ms.

use berth_api::{KubeDuration, ScheduleAction, SchedulePolicySpec, ScheduleTarget, ScheduleTargetKind, ScheduleWindow};
use berth_schedules::{Place, PolicyIndex, Schedule, ScheduleError};
use jiff::{SignedDuration, Timestamp};
use std::{
    io::Write,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

const POLICIES: usize = 10_000;
const LIMIT: Duration = Duration::from_millis(10);
const ZONES: [&str; 4] = ["Europe/Berlin", "America/New_York", "Asia/Tokyo", "UTC"];

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

fn report(what: &str, took: Duration) {
    let line = format!("{what:32} {:8.2} ms\n", took.as_secs_f64() * 1000.0);
    // A closed output is no failure.
    let _ = std::io::stdout().write_all(line.as_bytes());
}

fn main() -> Result<ExitCode, ScheduleError> {
    let specs: Vec<SchedulePolicySpec> = (0..POLICIES).map(spec).collect();
    let places: Vec<Place> = (0..POLICIES)
        .map(|number| Place {
            class: Some(format!("class-{number}")),
            ..Place::default()
        })
        .collect();
    let now = Timestamp::now();

    let begin = Instant::now();
    let mut schedules = Vec::new();
    for (number, spec) in specs.iter().enumerate() {
        schedules.push(Arc::new(Schedule::parse(&format!("policy-{number}"), spec)?));
    }
    report("parse", begin.elapsed());

    let begin = Instant::now();
    let targets = specs.iter().map(|spec| spec.targets.as_slice());
    let index = PolicyIndex::new(targets.zip(schedules));
    index.keep(now);
    report("first evaluation", begin.elapsed());

    let begin = Instant::now();
    index.keep(now + SignedDuration::from_secs(1));
    let again = begin.elapsed();
    report("evaluation without a change", again);

    let begin = Instant::now();
    let strictest = places.iter().map(|place| index.stack(place).state(now)).max();
    report(&format!("as many tenants ({strictest:?})"), begin.elapsed());
    Ok(if again <= LIMIT {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
