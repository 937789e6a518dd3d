//! What must not compile does not, with an error that says what to write; what must compile does, without a warning.

mod batch;
mod compile_time;
mod dangers;
mod package;
mod pairs;

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
    check("pass-2024", "2024", "idem-runtime", "ui/pass");
}

#[test]
fn what_must_compile_does_in_edition_2021() {
    check("pass-2021", "2021", "idem-runtime", "ui/pass");
}

#[test]
fn what_must_compile_does_with_the_runtime_renamed() {
    check("renamed", "2024", "once", "ui/renamed");
}

/// Checks all programs of a folder with clippy. The programs themselves make every warning an error.
fn check(package: &str, edition: &str, runtime: &str, folder: &str) {
    let programs = programs(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder));
    assert!(!programs.is_empty(), "the programs must be found");
    for program in &programs {
        let text = fs::read_to_string(program).unwrap();
        assert!(text.contains("#![deny(warnings)]"), "{} must deny warnings", program.display());
    }
    let manifest = package::write(package, edition, runtime, &programs);
    let output = package::cargo(subcommand(), &manifest).args(["--bins", "--keep-going"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn programs(folder: &Path) -> Vec<PathBuf> {
    let mut programs: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    programs.retain(|program| program.extension().is_some_and(|extension| extension == "rs"));
    programs.sort();
    programs
}

/// Clippy if it is installed: it finds everything that a check finds, and more.
fn subcommand() -> &'static str {
    let clippy = Command::new(env!("CARGO")).args(["clippy", "--version"]).output();
    if clippy.is_ok_and(|output| output.status.success()) { "clippy" } else { "check" }
}

/// The map names every case, and no other; its examples are the errors as they print.
#[test]
fn the_map_is_true() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("ui");
    let map = fs::read_to_string(folder.join("README.md")).unwrap();
    let rows: Vec<&str> = map.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| subject")).collect();
    let names = |column: usize| -> Vec<String> {
        let cells = rows.iter().filter_map(|row| row.split(" | ").nth(column));
        cells.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()).collect()
    };
    for (kind, column) in [("fail", 2), ("pass", 3)] {
        let files: Vec<String> = programs(&folder.join(kind))
            .iter()
            .map(|program| program.file_stem().unwrap().to_string_lossy().into_owned())
            .collect();
        for name in names(column) {
            assert!(files.contains(&name), "{kind}/{name}.rs is on the map, and not there");
        }
        if kind == "fail" {
            for file in files {
                assert!(names(column).contains(&file), "{kind}/{file}.rs is not on the map");
            }
        }
    }
    for example in map.split("```text\n").skip(2).filter_map(|rest| rest.split("```").next()) {
        let case = example.split("ui/fail/").nth(1).and_then(|rest| rest.split(".rs").next()).expect("its place");
        let printed = fs::read_to_string(folder.join(format!("fail/{case}.stderr"))).unwrap();
        assert_eq!(printed.trim(), example.trim(), "{case}");
    }
}

/// The README shows errors as they print.
#[test]
fn the_readme_shows_real_errors() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(folder.join("../README.md")).expect("the README");
    let block = readme.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).expect("the errors");
    let shown: Vec<&str> = block.trim().split("\n\n").collect();
    assert_eq!(shown.len(), 5);
    for error in shown {
        let file = error.split("ui/fail/").nth(1).and_then(|rest| rest.split(".rs").next()).expect("its place");
        let printed = std::fs::read_to_string(folder.join(format!("ui/fail/{file}.stderr"))).expect(file);
        assert!(printed.contains(error), "{file} prints\n{printed}\nand the README shows\n{error}");
    }
}
