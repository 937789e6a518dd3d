//! What must not compile does not, with an error that says what to write; what must compile does, without a warning.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Each file has one mistake; the errors beside it are those of the compiler that `rust-toolchain.toml` names. After
/// a change of an error, `TRYBUILD=overwrite` writes them anew, to be read by a person.
#[test]
fn misuse_does_not_compile() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("ui/fail/*.rs");
}

#[test]
fn what_must_compile_does_in_edition_2024() {
    check("2024", "idem-runtime", "ui/pass");
}

#[test]
fn what_must_compile_does_in_edition_2021() {
    check("2021", "idem-runtime", "ui/pass");
}

#[test]
fn what_must_compile_does_with_the_runtime_renamed() {
    check("2024", "once", "ui/renamed");
}

/// Checks all programs of a folder with clippy, each a binary of one package. Warnings are errors: the programs deny
/// them, and the package's own lints do so for what the programs may not say in every edition.
fn check(edition: &str, runtime: &str, folder: &str) {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let package = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ui").join(format!("{runtime}-{edition}"));
    let programs = programs(&tests.join(folder));
    assert!(!programs.is_empty(), "the programs must be found");
    fs::create_dir_all(&package).unwrap();
    fs::write(package.join("Cargo.toml"), manifest(edition, runtime, &programs)).unwrap();
    fs::copy(tests.join("../Cargo.lock"), package.join("Cargo.lock")).unwrap();
    let output = Command::new(env!("CARGO"))
        .args([subcommand(), "--bins", "--keep-going", "--offline", "--quiet", "--manifest-path"])
        .arg(package.join("Cargo.toml"))
        .env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("ui/target"))
        .env_remove("RUSTFLAGS")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(!errors.contains(folder), "a warning in a program:\n{errors}");
}

fn programs(folder: &Path) -> Vec<PathBuf> {
    let mut programs: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    programs.retain(|program| program.extension().is_some_and(|extension| extension == "rs"));
    programs.sort();
    programs
}

fn manifest(edition: &str, runtime: &str, programs: &[PathBuf]) -> String {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut manifest = format!(
        r#"[package]
name = "ui-{runtime}-{edition}"
version = "0.0.0"
edition = "{edition}"
publish = false

[workspace]

[dependencies]
{runtime} = {{ package = "idem-runtime", path = {path:?} }}
axum = {{ version = "0.8", default-features = false, features = ["form", "json", "macros", "matched-path", "multipart", "original-uri", "query"] }}
serde = {{ version = "1", features = ["derive"] }}
sqlx = {{ version = "0.9", default-features = false, features = ["postgres", "runtime-tokio"] }}
tracing = {{ version = "0.1", default-features = false, features = ["attributes"] }}
utoipa = {{ version = "6", features = ["axum_extras"] }}
uuid = {{ version = "1", default-features = false }}

[profile.dev]
debug = 0
"#,
        path = workspace.join("idem-runtime"),
    );
    for program in programs {
        let name = program.file_stem().unwrap_or_default().to_string_lossy();
        write!(manifest, "\n[[bin]]\nname = {name:?}\npath = {program:?}\n").unwrap();
    }
    manifest
}

/// Clippy if it is installed: it finds everything that a check finds, and more.
fn subcommand() -> &'static str {
    let clippy = Command::new(env!("CARGO")).args(["clippy", "--version"]).output();
    if clippy.is_ok_and(|output| output.status.success()) { "clippy" } else { "check" }
}
