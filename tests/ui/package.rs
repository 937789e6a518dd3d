//! A package of its own for programs, with the versions of the workspace.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("ui")
}

/// Writes a package in which each program is a binary; gives the path of its manifest.
pub(crate) fn write(name: &str, edition: &str, runtime: &str, programs: &[PathBuf]) -> PathBuf {
    let package = folder().join(name);
    fs::create_dir_all(&package).unwrap();
    fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.lock"), package.join("Cargo.lock")).unwrap();
    let path = package.join("Cargo.toml");
    fs::write(&path, manifest(name, edition, runtime, programs)).unwrap();
    path
}

/// Cargo on the package. The packages share what is compiled for them.
pub(crate) fn cargo(subcommand: &str, manifest: &Path) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args([subcommand, "--offline", "--quiet", "--manifest-path"]).arg(manifest);
    command.env("CARGO_TARGET_DIR", folder().join("target")).env_remove("RUSTFLAGS");
    command
}

fn manifest(name: &str, edition: &str, runtime: &str, programs: &[PathBuf]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../idem-runtime");
    let mut manifest = format!(
        r#"[package]
name = "ui-{name}"
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
"#
    );
    for program in programs {
        let name = program.file_stem().unwrap_or_default().to_string_lossy();
        write!(manifest, "\n[[bin]]\nname = {name:?}\npath = {program:?}\n").unwrap();
    }
    manifest
}
