//! Every tour ends with every promise held, and leaves nothing running, whatever ends it.

mod support;

use std::process::Command;

use support::assert_every_promise_holds;

#[test]
fn orders() {
    assert_every_promise_holds(env!("CARGO_BIN_EXE_orders"));
}

#[test]
fn webhook() {
    assert_every_promise_holds(env!("CARGO_BIN_EXE_webhook"));
}

#[test]
fn uploads() {
    assert_every_promise_holds(env!("CARGO_BIN_EXE_uploads"));
}

#[test]
fn metrics() {
    assert_every_promise_holds(env!("CARGO_BIN_EXE_metrics"));
}

#[test]
fn shop() {
    let arguments = ["--seed", "7", "--orders", "60"];
    let output = Command::new(env!("CARGO_BIN_EXE_shop")).args(arguments).output().expect("the example runs");
    let (shown, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{shown}\n{errors}", output.status);
    assert!(shown.contains("they match"), "{shown}");
}

#[test]
fn an_argument_that_does_not_exist_is_refused() {
    let output = Command::new(env!("CARGO_BIN_EXE_orders")).arg("--server").output().expect("the example runs");
    assert_eq!(output.status.code(), Some(2));
}

fn end_with(signal: &str, arguments: &[&str]) -> Option<i32> {
    support::end_with(env!("CARGO_BIN_EXE_orders"), signal, arguments, "on http://")
}

#[test]
fn an_interrupted_tour_leaves_nothing_running() {
    assert_eq!(end_with("-INT", &[]), Some(130));
    assert_eq!(end_with("-TERM", &[]), Some(143));
}

#[test]
fn a_killed_tour_leaves_nothing_running() {
    assert_eq!(end_with("-KILL", &[]), None);
}

#[test]
fn an_interrupted_service_shuts_down_and_leaves_nothing_running() {
    assert_eq!(end_with("-INT", &["--serve"]), Some(0));
    assert_eq!(end_with("-TERM", &["--serve"]), Some(0));
}
