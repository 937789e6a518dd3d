//! The consumer's tour holds its promises, over a real Redis.

mod support;

use std::process::Command;

const CONSUMER: &str = env!("CARGO_BIN_EXE_consumer");

fn is_redis_installed() -> bool {
    let installed = Command::new("redis-server").arg("--version").output().is_ok_and(|output| output.status.success());
    assert!(installed || std::env::var_os("CI").is_none(), "no Redis; install it (`apt-get install redis-server`)");
    installed
}

#[test]
fn every_promise_of_the_tour_holds() {
    if is_redis_installed() {
        support::assert_every_promise_holds(CONSUMER);
    }
}

#[test]
fn whatever_ends_the_tour_ends_redis() {
    if is_redis_installed() {
        assert_eq!(support::end_with(CONSUMER, "-INT", &[], "Redis on "), Some(130));
        assert_eq!(support::end_with(CONSUMER, "-KILL", &[], "Redis on "), None);
        assert_eq!(support::end_with(CONSUMER, "-TERM", &["--serve"], "Redis on "), Some(0));
    }
}

#[test]
fn a_missing_redis_is_an_error_that_says_how_to_install_it() {
    let output = Command::new(CONSUMER).env("PATH", "/nonexistent").output().expect("the example runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    let install = if cfg!(target_os = "macos") { "brew install redis" } else { "apt-get install redis-server" };
    assert!(errors.contains(install), "{errors}");
}
