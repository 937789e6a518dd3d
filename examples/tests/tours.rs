//! Every tour ends with every promise held, and leaves nothing running, whatever ends it.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

fn assert_every_promise_holds(example: &str) {
    let output = Command::new(example).output().expect("the example runs");
    let (shown, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{shown}\n{errors}", output.status);
    assert!(shown.contains("and every one held"), "{shown}");
    assert!(!shown.contains('✗'), "{shown}");
}

#[test]
fn orders() {
    assert_every_promise_holds(env!("CARGO_BIN_EXE_orders"));
}

#[test]
fn an_argument_that_does_not_exist_is_refused() {
    let output = Command::new(env!("CARGO_BIN_EXE_orders")).arg("--server").output().expect("the example runs");
    assert_eq!(output.status.code(), Some(2));
}

/// Reads its output up to the first line with an address, and returns the address.
fn address(lines: &mut impl Iterator<Item = std::io::Result<String>>) -> String {
    for line in lines {
        let line = line.expect("its output");
        if let Some((_, rest)) = line.split_once("on http://") {
            return rest.split(' ').next().expect("never empty").to_owned();
        }
    }
    panic!("the example ended before it said where it serves");
}

/// Ends an example with a signal once it serves; returns the exit code, after which nothing may be left.
fn end_with(signal: &str, arguments: &[&str]) -> Option<i32> {
    let mut example = Command::new(env!("CARGO_BIN_EXE_orders"))
        .args(arguments)
        .env_remove("DATABASE_URL")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the example runs");
    let mut lines = BufReader::new(example.stdout.take().expect("piped")).lines();
    let address = address(&mut lines);
    let directory = directory_of_postgres(example.id());
    assert!(directory.exists(), "Postgres runs in {}", directory.display());
    assert!(TcpStream::connect(&address).is_ok(), "it serves");

    let signalled = Command::new("kill").args([signal, &example.id().to_string()]).status().expect("kill runs");
    assert!(signalled.success());
    lines.for_each(drop);
    let status = example.wait().expect("it ends");

    let gone = || TcpStream::connect(&address).is_err() && !directory.exists();
    // After a SIGKILL nobody waits for the server and Postgres, which end by themselves.
    for _ in 0..1_000 {
        if gone() || signal != "-KILL" {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(gone(), "something is left of {address} and {}", directory.display());
    status.code()
}

fn directory_of_postgres(process: u32) -> PathBuf {
    std::env::temp_dir().join(format!("idem-private-{process}-0"))
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
