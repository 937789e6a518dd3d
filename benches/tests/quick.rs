//! Every command at its smallest: what is exact must hold at any size and on any machine. Timings are not looked at.

use std::process::Command;

use serde_json::{Map, Value};

/// Runs a command and reads the object in the last line of its output.
fn bench(arguments: &[&str]) -> Map<String, Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_bench")).args(arguments).args(["--quick", "--json"]).output();
    let output = output.expect("the program must start");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {text}{errors}");
    let last = text.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
}

/// Asserts that exactly these numbers are there, and positive.
fn assert_measured(object: &Map<String, Value>, names: &[&str]) {
    let mut found: Vec<_> = object.keys().map(String::as_str).collect();
    found.sort_unstable();
    let mut expected = names.to_vec();
    expected.sort_unstable();
    assert_eq!(found, expected);
    for name in names {
        assert!(object[*name].as_f64().is_some_and(|number| number > 0.0), "{name}: {object:?}");
    }
}

#[test]
fn overhead() {
    assert_measured(&bench(&["overhead"]), &["vs_plain", "vs_usual"]);
}

#[test]
fn a_fresh_key_costs_one_commit_and_at_most_one_round_trip_more() {
    let cost = bench(&["cost"]);
    assert_eq!(cost.len(), 3, "{cost:?}");
    assert_eq!(cost["commits"], 1);
    assert!(cost["extra_round_trips"].as_f64().is_some_and(|count| count <= 1.0), "{cost:?}");
    assert!(cost["extra_wal_bytes"].as_f64().is_some_and(|bytes| bytes > 0.0), "{cost:?}");
}

#[test]
fn latency() {
    assert_measured(&bench(&["latency"]), &["vs_plain"]);
}

#[test]
fn an_operation_costs_at_most_one_commit_beyond_its_parts() {
    let steps = bench(&["steps"]);
    assert_measured(&steps, &["vs_parts", "commits", "extra_commits", "round_trips", "extra_round_trips"]);
    assert_eq!((&steps["commits"].as_f64(), &steps["extra_commits"]), (&Some(5.0), &1.into()), "{steps:?}");
}

#[test]
fn replay() {
    assert_measured(&bench(&["replay"]), &["vs_select"]);
}

#[test]
fn a_storm_executes_once_over_one_connection() {
    let storm = bench(&["storm"]);
    assert_eq!(storm.len(), 3, "{storm:?}");
    assert_eq!((&storm["executions"], &storm["errors"], &storm["connections"]), (&1.into(), &0.into(), &1.into()));
}

#[test]
fn growth() {
    assert_measured(&bench(&["growth", "--rows", "20000"]), &["time_ratio"]);
}

#[test]
fn sweep() {
    assert_measured(&bench(&["sweep"]), &["foreground", "size_ratio"]);
}

/// Without the peer, whose package takes minutes to build.
#[test]
fn a_backlog_costs_less_than_a_commit_for_each_message() {
    let relay = bench(&["relay"]);
    assert_eq!(relay.len(), 3, "{relay:?}");
    assert!(relay["pick_up_p50"].as_f64().is_some_and(|milliseconds| milliseconds > 0.0), "{relay:?}");
    assert!(relay["commits_per_message"].as_f64().is_some_and(|commits| commits < 0.5), "{relay:?}");
    assert!(relay["own"]["ordered"].as_f64().is_some_and(|rate| rate > 0.0), "{relay:?}");
}

#[test]
fn a_mistyped_command_is_an_error_that_names_the_commands() {
    let output = Command::new(env!("CARGO_BIN_EXE_bench")).arg("speed").output().expect("the program must start");
    assert!(!output.status.success());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("`speed`") && errors.contains("overhead, cost, latency"), "{errors}");
}
