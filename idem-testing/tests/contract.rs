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
    let broken: BTreeSet<_> = report.findings().map(|finding| finding.rule).collect();
    for expected in [
        "a request without a key is refused, or has its effect each time where keys are optional",
        "a malformed key is refused",
        "`key` and `\"key\"` are one key, or one of them is refused",
        "a client that hangs up and retries has one effect",
    ] {
        assert!(broken.contains(expected), "{expected}: {report}");
    }
    let interrupted = report.findings().find(|finding| finding.rule.starts_with("a client that hangs up")).unwrap();
    assert_eq!(interrupted.came_back, "an effect of 2", "{report}");
    // What it does right is not held against it, and what could only fail for the same reason is not tried.
    assert!(!broken.contains("a retry gets the first answer, and has no effect"), "{report}");
    assert!(report.not_tried().any(|(rule, _)| rule.starts_with("a process killed")), "{report}");
    let shown = report.to_string();
    assert!(shown.contains("✗ a malformed key is refused\n    sent       an empty key"), "{shown}");
    assert!(shown.contains("not tried: use `.other_scope(…)`"), "{shown}");
}

#[tokio::test]
async fn a_store_that_looks_before_it_acts_is_caught() {
    let report = contract(racy_store, order()).effects(count_orders).run().await;
    let mut findings = report.findings().filter(|finding| finding.rule == "two at once have one effect");
    assert!(findings.any(|finding| finding.came_back.starts_with("an effect of")), "{report}");
}

#[tokio::test]
#[should_panic(expected = "✗ a malformed key is refused")]
async fn the_assertion_fails_with_the_list() {
    contract(broken_store, order()).run().await.assert_ok();
}
