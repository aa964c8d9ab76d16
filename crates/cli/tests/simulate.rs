//! `berth simulate` as a user runs it.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::process::{Command, Output};

use serde_json::Value;

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/traces/philly-500.csv");

fn simulate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_berth"))
        .arg("simulate")
        .args(arguments)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn the_sample_is_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let chart = dir.path().join("use.svg");
    let output = simulate(&[SAMPLE, "--nodes", "8", "-o", "json", "--chart", chart.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["trace"]["jobs"], 500);
    assert_eq!(report["tenants"].as_array().unwrap().len(), 6);
    assert!(report["stranded_demand_served"].is_number());
    assert!(report["dynamic"]["gpu_use"].as_f64() > report["static"]["gpu_use"].as_f64());
    assert!(std::fs::read_to_string(chart).unwrap().starts_with("<svg"));

    let table = simulate(&[SAMPLE, "--nodes", "8", "--jobs", "100"]);
    let table = text(&table.stdout);
    assert!(
        table.starts_with("100 jobs of ") && table.contains("stranded demand served: "),
        "{table}"
    );
}

#[test]
fn bad_input_is_refused_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.csv");
    std::fs::write(&path, "timestamp,duration,num_gpus,tenant\n1,10,1,a\n2,ten,1,a\n").unwrap();
    let path = path.to_str().unwrap();
    let output = simulate(&[path]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stderr),
        format!("error: {path}: line 3: duration \"ten\" is not a valid number\n")
    );
    let output = simulate(&["/nowhere.csv"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot read"));
    let output = simulate(&[SAMPLE, "--nodes", "2"]);
    assert!(text(&output.stderr).contains("2 nodes are too few"));
    let output = simulate(&[SAMPLE, "--scrub", "soon"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("90s, 5m or 1h30m"));
}
