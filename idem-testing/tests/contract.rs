//! The contract check catches what it must. What it passes is tested with the real runtime, in the package
//! `idem-tests`.

mod common;

use std::collections::BTreeSet;

use common::{broken_store, count_orders, order, racy_store};
use idem_testing::contract;

#[tokio::test]
async fn a_store_with_two_commits_and_no_fence_is_caught() {
    let report = contract(broken_store, order()).effects(count_orders).run().await;
    println!("{report}");
    let broken: BTreeSet<_> = report.findings().map(|(rule, _)| rule).collect();
    for expected in [
        "another request under a used key is refused",
        "a request without a key is refused, or has its effect each time where keys are optional",
        "a malformed key is refused",
        "`key` and `\"key\"` are one key",
        "a process killed in the middle leaves the key free and one effect",
    ] {
        assert!(broken.contains(expected), "{expected}: {report}");
    }
    let twice = report.findings().filter(|(_, finding)| finding.came_back == "an effect of 2");
    let killed = twice.filter(|(rule, _)| rule.starts_with("a process killed")).count();
    assert!(killed >= 2, "{report}");
    // What it does right is not held against it.
    assert!(!broken.contains("a retry gets the first answer, and has no effect"), "{report}");
    let shown = report.to_string();
    assert!(shown.contains("✗ a malformed key is refused\n    sent       an empty key"), "{shown}");
    assert!(shown.contains("not checked: use `.other_scope(…)`"), "{shown}");
}

#[tokio::test]
async fn a_store_that_looks_before_it_acts_is_caught() {
    let report = contract(racy_store, order()).effects(count_orders).run().await;
    for rule in ["two at once have one effect", "twenty at once have one effect"] {
        let mut findings = report.findings().filter(|(broken, _)| *broken == rule);
        assert!(findings.any(|(_, finding)| finding.came_back.starts_with("an effect of")), "{rule}: {report}");
    }
}

#[tokio::test]
#[should_panic(expected = "✗ a malformed key is refused")]
async fn the_assertion_fails_with_the_list() {
    contract(broken_store, order()).run().await.assert_ok();
}
