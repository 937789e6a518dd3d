//! What the tests of all tours share.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

pub(crate) fn assert_every_promise_holds(example: &str) {
    let output = Command::new(example).output().expect("the example runs");
    let (shown, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{shown}\n{errors}", output.status);
    assert!(shown.contains("and every one held"), "{shown}");
    assert!(!shown.contains('✗'), "{shown}");
}

/// Reads its output up to the first line with `before` an address, and returns the address.
fn address(lines: &mut impl Iterator<Item = std::io::Result<String>>, before: &str) -> String {
    for line in lines {
        let line = line.expect("its output");
        if let Some((_, rest)) = line.split_once(before) {
            return rest.split([' ', '/']).next().expect("never empty").to_owned();
        }
    }
    panic!("the example ended before it said where it serves");
}

/// Ends an example with a signal once it serves, at the address that it prints after `before`; returns the exit code, after
/// which nothing may be left.
pub(crate) fn end_with(example: &str, signal: &str, arguments: &[&str], before: &str) -> Option<i32> {
    let mut example = Command::new(example)
        .args(arguments)
        .env_remove("DATABASE_URL")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the example runs");
    let mut lines = BufReader::new(example.stdout.take().expect("piped")).lines();
    let address = address(&mut lines, before);
    let directory = directory_of_postgres(example.id());
    assert!(directory.exists(), "Postgres runs in {}", directory.display());
    assert!(TcpStream::connect(&address).is_ok(), "it serves");

    let signalled = Command::new("kill").args([signal, &example.id().to_string()]).status().expect("kill runs");
    assert!(signalled.success());
    lines.for_each(drop);
    let status = example.wait().expect("it ends");

    let gone = || TcpStream::connect(&address).is_err() && !directory.exists();
    // Postgres and the other processes end by themselves, a moment after the last one that holds them.
    for _ in 0..1_000 {
        if gone() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(TcpStream::connect(&address).is_err(), "{address} still serves");
    assert!(!directory.exists(), "{} is left", directory.display());
    status.code()
}

fn directory_of_postgres(process: u32) -> PathBuf {
    std::env::temp_dir().join(format!("idem-private-{process}-0"))
}
