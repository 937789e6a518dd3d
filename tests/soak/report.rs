//! What a person reads.

use std::time::Duration;

use crate::arguments::Arguments;
use crate::faults::Faults;
use crate::fleet::Fleet;
use crate::ledger::{Kind, Ledger, Verdict};
use crate::provider::Provider;

/// How many violations are shown.
const SHOWN: usize = 20;

pub(crate) fn progress(elapsed: Duration, ledger: &Ledger, fleet: &Fleet) {
    let (totals, (alive, starts)) = (ledger.totals(), fleet.alive());
    let operations: usize = totals.operations.iter().sum();
    println!(
        "{:>3}:{:02}  {:>9} operations, {} a second, {} under way; {alive} of {} servers up and left alone, {starts} starts",
        elapsed.as_secs() / 60,
        elapsed.as_secs() % 60,
        thousands(operations as u64),
        (operations as f64 / elapsed.as_secs_f64()) as u64,
        totals.under_way,
        fleet.len(),
    );
}

pub(crate) fn summary(
    arguments: &Arguments,
    elapsed: Duration,
    ledger: &Ledger,
    faults: &Faults,
    provider: &Provider,
    fleet: &Fleet,
    verdict: &Verdict,
) {
    println!("\n{arguments}; took {} s", elapsed.as_secs());
    operations(ledger, provider);
    let total: u64 = faults.values().sum();
    line("faults", total);
    for (fault, count) in faults {
        line(&format!("  {fault}"), *count);
    }
    match fleet.furthest_clock() {
        Some(hours) => line("  furthest clock of a server, in hours", hours),
        None => println!("  (the servers' clocks were right)"),
    }
    println!();
    let messages = &verdict.messages;
    line("messages, each with its order", messages.sent);
    line("  received", messages.received);
    line("  received again", messages.repeated);
    line("  received in the order of their group", messages.in_order);
    line("  that end their process, dead after their attempts", messages.poison_dead);
    line("  others dead after their attempts", messages.others_dead);
    promises(ledger, verdict);
}

fn operations(ledger: &Ledger, provider: &Provider) {
    let totals = ledger.totals();
    line("operations", totals.operations.iter().sum::<usize>() as u64);
    for (kind, count) in Kind::ALL.into_iter().zip(totals.operations) {
        line(&format!("  POST {}", kind.path()), count as u64);
    }
    let tally = ledger.tally().clone();
    line("requests", tally.requests);
    let mut statuses: Vec<_> = tally.statuses.into_iter().collect();
    statuses.sort_unstable();
    for (status, count) in statuses {
        line(&format!("  answered {status}"), count);
    }
    line("  answered with a replay", tally.replays);
    line("  client hung up", tally.hang_ups);
    line("  connection lost, or no answer in time", tally.unanswered);
    let (calls, keys) = provider.calls();
    line("calls that reached the provider", calls);
    line("  keys among them", keys as u64);
    println!("{:<52}{:>8.1} s", "longest way to a final answer", tally.longest.as_secs_f64());
}

fn promises(ledger: &Ledger, verdict: &Verdict) {
    let totals = ledger.totals();
    println!();
    line("successes, each with its effects exactly once", totals.successes as u64);
    line("refusals, each without its effects", totals.refusals as u64);
    line("final answers compared with the first one", totals.compared);
    line("operations without a final answer", (totals.abandoned + totals.under_way) as u64);
    line("violations", verdict.violations.len() as u64);
    for violation in verdict.violations.iter().take(SHOWN) {
        println!("  {violation}");
    }
    if verdict.violations.len() > SHOWN {
        println!("  and {} more", verdict.violations.len() - SHOWN);
    }
    println!("{}", if verdict.holds() { "the promise holds" } else { "THE PROMISE IS BROKEN" });
}

fn line(name: &str, count: u64) {
    println!("{name:<52}{:>10}", thousands(count));
}

fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
