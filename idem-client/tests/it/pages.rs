//! The pages agree with each other and with the code, in every number and rule.

use std::time::Duration;

use http::StatusCode;
use idem_client::classify::{self, Fate, Verdict};
use idem_client::{Limits, back_off};

const INTEGRATORS: &str = include_str!("../../docs/integrators.md");
const README: &str = include_str!("../../README.md");

/// The server half's page, which is in this repository and not in this package.
fn contract() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../idem-runtime/src/contract.md");
    std::fs::read_to_string(path).expect("the test is run in the repository")
}

fn section<'a>(page: &'a str, title: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!("\n# {title}\n")).unwrap_or_else(|| panic!("there is no `{title}`"));
    rest.split("\n# ").next().unwrap()
}

/// `100 ms` or `5 s`, as the pages write it.
fn written(duration: Duration) -> String {
    match duration.as_millis() {
        whole if whole.is_multiple_of(1_000) => format!("{} s", whole / 1_000),
        milliseconds => format!("{milliseconds} ms"),
    }
}

fn assert_says(page: &str, what: &str) {
    let folded = page.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(folded.contains(what), "`{what}` is not said in:\n{page}");
}

#[test]
fn every_page_has_the_same_numbers() {
    let limits = Limits::default();
    let [base, cap, connect, attempt, deadline] =
        [limits.base, limits.cap, limits.connect_timeout, limits.attempt_timeout, limits.deadline].map(written);
    let (attempts, least) = (limits.attempts, written(back_off::LEAST_ASKED));
    let contract = contract();
    let how = section(&contract, "How to retry");
    for said in [
        format!("time-out: {attempt} is usual"),
        format!("limit of its own, {connect}"),
        format!("between 0 and min({cap}, {base} · 2ⁿ⁻¹)"),
        format!("Stop after {attempts} attempts (the first and {} retries)", attempts - 1),
        format!("after {deadline} in all"),
        format!("less than {least} counts as {least}"),
    ] {
        assert_says(how, &said);
    }
    let the_loop = section(INTEGRATORS, "The loop");
    for said in [
        format!("deadline = now + {deadline}"),
        format!("while attempt ≤ {attempts}:"),
        format!("connect time-out = {connect}, time-out = min({attempt}, deadline - now)"),
        format!("random(0 … min({cap}, {base} · 2^(attempt - 1)))"),
        format!("max(Retry-After, {least})"),
        format!("max(wait, {least})"),
    ] {
        assert_says(the_loop, &said);
    }
    let seconds = |duration: Duration| format!("{:?}", duration.as_secs_f64());
    let python = section(INTEGRATORS, "In Python");
    for said in [
        format!("attempts={attempts}, base={}, cap={}", seconds(limits.base), seconds(limits.cap)),
        format!(
            "connect_timeout={}, attempt_timeout={}",
            seconds(limits.connect_timeout),
            seconds(limits.attempt_timeout)
        ),
        format!("deadline={}", seconds(limits.deadline)),
        format!("max({}, seconds)", seconds(back_off::LEAST_ASKED)),
    ] {
        assert_says(python, &said);
    }
    for said in [
        format!("| {attempts} |"),
        "base · 2ⁿ⁻¹".to_owned(),
        format!("| {base}, {cap} |"),
        format!("| {connect}; {attempt}; {deadline} |"),
    ] {
        assert_says(README, &said);
    }
}

#[test]
fn there_is_one_formula_of_the_wait_and_it_is_the_codes() {
    let limits = Limits::default();
    for retry in 1..=10 {
        let by_the_pages = limits.cap.min(limits.base * 2_u32.pow(retry - 1));
        assert_eq!(back_off::bound(limits.base, limits.cap, retry), by_the_pages, "retry {retry}");
    }
    let contract = contract();
    for (page, formula) in [(contract.as_str(), " · 2ⁿ⁻¹"), (INTEGRATORS, " · 2^(attempt - 1)"), (README, " · 2ⁿ⁻¹")]
    {
        assert_eq!(page.matches("· 2").count(), page.matches(formula).count(), "a second formula");
        assert!(page.contains(formula));
    }
}

/// The statuses that a table's first column names.
fn statuses(row: &str) -> Vec<u16> {
    let first = row.split('|').nth(1).unwrap_or_default();
    first.split(|character: char| !character.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn every_page_retries_what_the_code_retries() {
    let retried = |fate| {
        let of = |code: &u16| classify::status(StatusCode::from_u16(*code).unwrap(), false) == Verdict::Retry(fate);
        (100..600).filter(of).collect::<Vec<u16>>()
    };
    let (refused, unknown) = (retried(Fate::Refused), retried(Fate::Unknown));
    let table = section(INTEGRATORS, "What to do on an answer");
    let row = |meaning: &str| table.lines().find(|line| line.contains(meaning)).unwrap();
    assert_eq!(statuses(row("| not carried out |")), refused);
    assert_eq!(statuses(row("| unknown | wait, send the same again |")), unknown);
    let mut all = [refused.clone(), unknown.clone()].concat();
    all.sort_unstable();
    let listed = all.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
    assert_says(section(INTEGRATORS, "In Python"), &format!("status in ({listed})"));
    let and = listed.replace(", 504", " or 504");
    assert_says(section(INTEGRATORS, "The loop"), &format!("answer is {and}"));
    let not_carried_out = refused.iter().map(u16::to_string).collect::<Vec<_>>();
    assert_says(section(INTEGRATORS, "The loop"), &format!("neither {}", not_carried_out.join(" nor ")));
    assert_says(section(INTEGRATORS, "In Python"), &format!("status not in ({})", not_carried_out.join(", ")));
    let contract = contract();
    assert_says(section(&contract, "How to retry"), &format!("only {}, or no connection", not_carried_out.join(", ")));
    let listed_in_readme = README.lines().find(|line| line.starts_with("| retried |")).unwrap();
    for code in all {
        assert!(listed_in_readme.contains(&code.to_string()), "{code}: {listed_in_readme}");
    }
}

#[test]
fn no_page_gives_a_new_key_to_what_may_have_happened() {
    let contract = contract();
    for page in [INTEGRATORS, README, contract.as_str()] {
        for line in page.lines().filter(|line| line.to_lowercase().contains("new** key") || line.contains("new key")) {
            let guarded = [
                "no attempt before it was lost",
                "if this was your only attempt",
                "never a new key",
                "*new* operation",
                "A new operation needs",
                "do not make a new key",
                "Do not send it with a new key",
                "not make a new key",
                "before anything gets a new key",
                "a new key | the operation's own answer",
                "Only what has not happened is safe",
            ];
            assert!(guarded.iter().any(|guard| line.contains(guard)), "{line}");
        }
    }
    // A proxy's refusal after a lost answer is told from the operation's on both.
    assert_says(section(INTEGRATORS, "What to do on an answer"), "any other 4xx after a lost attempt");
    assert_says(section(&contract, "What comes back"), "A 4xx may also come from in front of the operation");
}
