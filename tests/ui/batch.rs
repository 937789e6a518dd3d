//! Many programs in one compile: each is a module, and the errors in its lines are its own. The compiler looks at every
//! module whatever is wrong with the others.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::package;

/// A program in a module of its own, and what the compiler said about it.
pub(crate) struct Outcome {
    pub(crate) name: String,
    pub(crate) text: String,
    /// The first line of each error, in the compiler's words.
    pub(crate) errors: Vec<String>,
    pub(crate) warnings: Vec<String>,
}

/// Compiles the modules `(name, text)` against the application.
pub(crate) fn compile(batch: &str, modules: &[(String, String)]) -> Vec<Outcome> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ui").join(batch);
    fs::create_dir_all(&folder).unwrap();
    let program = folder.join("programs.rs");
    let application = Path::new(env!("CARGO_MANIFEST_DIR")).join("ui/application.rs");
    let mut text =
        format!("#![allow(unused, dead_code)]\n#[path = {application:?}]\nmod application;\nfn main() {{}}\n");
    let mut starts = Vec::new();
    for (number, (_, module)) in modules.iter().enumerate() {
        starts.push(text.lines().count() + 1);
        writeln!(text, "mod program_{number} {{\nuse super::application::*;\n{module}\n}}").unwrap();
    }
    fs::write(&program, &text).unwrap();
    let manifest = package::write(batch, "2024", "idem-runtime", &[program]);
    let output = package::cargo("check", &manifest).args(["--message-format=json", "--bins"]).output().unwrap();
    let mut outcomes: Vec<Outcome> = modules
        .iter()
        .map(|(name, text)| Outcome {
            name: name.clone(),
            text: text.clone(),
            errors: Vec::new(),
            warnings: Vec::new(),
        })
        .collect();
    let mut reached = false;
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let message: Value = serde_json::from_str(line).unwrap();
        reached |= message["target"]["name"] == "programs";
        if message["reason"] == "compiler-message" && message["target"]["name"] == "programs" {
            sort_in(&message["message"], &starts, &mut outcomes);
        }
    }
    assert!(reached, "the programs must be compiled: {}", String::from_utf8_lossy(&output.stderr));
    outcomes
}

fn sort_in(message: &Value, starts: &[usize], outcomes: &mut [Outcome]) {
    let text = message["message"].as_str().unwrap_or_default().to_owned();
    let spans = message["spans"].as_array().cloned().unwrap_or_default();
    let primary = spans.iter().find(|span| span["is_primary"] == true).map(outermost);
    let Some(primary) = primary.filter(|span| span["file_name"].as_str().unwrap_or_default().ends_with("programs.rs"))
    else {
        let is_summary = text.starts_with("aborting due to")
            || text.contains("warning emitted")
            || text.contains("warnings emitted");
        let is_hint = text.starts_with("For more information") || text.starts_with("Some errors have");
        assert!(is_summary || is_hint, "an error that belongs to no program: {message}");
        return;
    };
    let line = usize::try_from(primary["line_start"].as_u64().unwrap()).unwrap();
    let number = starts.partition_point(|start| *start <= line) - 1;
    let outcome = &mut outcomes[number];
    match message["level"].as_str() {
        Some("error") => outcome.errors.push(text),
        _ => outcome.warnings.push(text),
    }
}

/// Where the user wrote the macro that the span is in.
fn outermost(span: &Value) -> Value {
    let is_ours = span["file_name"].as_str().unwrap_or_default().ends_with("programs.rs");
    match span.get("expansion") {
        Some(expansion) if !is_ours && expansion.is_object() => outermost(&expansion["span"]),
        _ => span.clone(),
    }
}

/// Fails with every program that did not do as it must.
pub(crate) fn report(faults: &[String]) {
    assert!(faults.is_empty(), "{} programs:\n{}", faults.len(), faults.join("\n"));
}
