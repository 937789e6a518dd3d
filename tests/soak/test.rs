//! The soak, for half a minute; and that it notices.

use std::process::{Command, Output};

fn soak(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_soak")).args(arguments).output().expect("the soak runs")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_promise_holds_for_half_a_minute() {
    let output = soak(&["--seconds", "30", "--clients", "24"]);
    println!("{}", text(&output));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
}

#[test]
fn every_kind_of_broken_promise_is_noticed() {
    for (sabotage, words) in [
        ("two-keys", "effects are not exactly once"),
        ("extra-row", "effects are not exactly once: 2 orders"),
        ("missing-row", "effects are not exactly once: 0 orders"),
        ("other-answer", "and then"),
        ("open-transaction", "left open: idle in transaction"),
        ("lost-message", "its message is lost"),
        ("repeated-message", "its message came"),
        ("swapped-messages", "out of order"),
    ] {
        let output = soak(&["--seconds", "3", "--clients", "8", "--pause", "1000000", "--sabotage", sabotage]);
        assert_eq!(output.status.code(), Some(1), "{sabotage}: {}", text(&output));
        assert!(text(&output).contains(words), "{sabotage}: {}", text(&output));
    }
}

#[test]
fn a_wrong_argument_is_an_error_with_the_usage() {
    let output = soak(&["--sabotage", "nothing"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("usage: soak"), "{}", text(&output));
}
