//! Whole simulations of the sample trace.

use std::path::Path;

use super::*;

const READING: Reading = Reading {
    jobs: None,
    tenants: 8,
    seed: 0,
};

fn sample() -> Trace {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces/philly-500.csv");
    Trace::open(&path, READING).unwrap()
}

fn outcome(options: &Options) -> Outcome {
    simulate(&sample(), options, &mut |_| {}).unwrap()
}

#[test]
fn the_sample_gives_the_same_report_every_time() {
    let options = Options {
        nodes: 8,
        ..Options::default()
    };
    let first = outcome(&options);
    assert_eq!(first, outcome(&options));
    insta::assert_yaml_snapshot!(first.report);
}

#[test]
fn slow_scrubs_leave_more_demand_stranded() {
    let with = |scrub| {
        let options = Options {
            nodes: 8,
            scrub,
            ..Options::default()
        };
        outcome(&options).report
    };
    let (quick, slow) = (with(0), with(4 * 3600));
    assert_eq!(quick.fixed, slow.fixed);
    assert!(
        quick.stranded_demand_served > slow.stranded_demand_served,
        "{quick:#?}\n{slow:#?}"
    );
    assert!(quick.dynamic.scrub_node_hours < 1e-9);
}

#[test]
fn the_chart_shows_both_replays() {
    let options = Options {
        nodes: 8,
        ..Options::default()
    };
    let svg = draw_chart(&outcome(&options)).unwrap();
    for text in [
        "<svg",
        "GPUs in use, of 64",
        "Stranded demand",
        "static partitions",
        "nodes follow demand",
    ] {
        assert!(svg.contains(text), "{text}");
    }
}

#[test]
fn options_out_of_range_are_refused() {
    let trace = sample();
    let refused = |options: Options| simulate(&trace, &options, &mut |_| {}).unwrap_err().to_string();
    let nodes = Options {
        nodes: 5,
        ..Options::default()
    };
    assert!(refused(nodes).contains("the largest job of each of 6 tenants"));
    let load = Options {
        load: f64::NAN,
        ..Options::default()
    };
    assert_eq!(refused(load), "the load must be between 0.01 and 10");
    let scrub = Options {
        scrub: -1,
        ..Options::default()
    };
    assert!(refused(scrub).starts_with("durations must"));
}
