//! Behaviours of idempotent handlers against a real Postgres. The numbers in names are those of the table in `README.md`.

mod completer;
mod conflicts;
mod contract;
mod endings;
mod environment;
mod faults;
mod functions;
mod handles;
mod hang_up;
mod hostile;
mod identities;
mod outbox;
mod outcomes;
mod pooler;
mod pools;
mod processes;
mod races;
mod recovered;
mod relay;
mod results;
mod retention;
mod roles;
mod steps;
mod surroundings;
mod telemetry;

/// The tables of `README.md` are part of the documentation: a test that is renamed must be renamed there.
#[test]
fn the_tables_name_tests_that_exist() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(folder.join("README.md")).expect("the tables");
    let named: Vec<&str> = readme.split('`').filter(|name| name.contains("::")).collect();
    assert!(named.len() > 50, "{named:?}");
    for name in named {
        let (module, test) = name.split_once("::").expect("module::test");
        let source = std::fs::read_to_string(folder.join("postgres").join(format!("{module}.rs"))).expect(name);
        assert!(source.contains(&format!("async fn {test}()")), "{name} does not exist");
    }
}
