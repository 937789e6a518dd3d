//! The two halves together: a shop behind a flaky network, and a client that places orders through it. The shop is the
//! `checkout` example's: stock in Postgres, money at a payment provider, receipts by e-mail.
//!
//! ```sh
//! cargo run --release --bin shop                            # 1,000 orders, a new seed
//! cargo run --release --bin shop -- --seed 7 --orders 200
//! cargo run --release --bin shop -- --faults                # idem-client alone
//! ```
//!
//! Of the requests on the way to the shop a fifth lose their answer, a fifth time out and a fifth are reset. The orders
//! are placed twice: with idem-client, and for contrast with the loop that everybody writes first. Then two batches of a
//! hundred are sent at once with idem-client. It ends with 0 only if what was ordered with idem-client and what is in
//! the database match, if at least 99 of 100 orders were answered within the deadline of 15 s, and if of a batch at most
//! 5 of 100 were given up.
//!
//! Seed 7, and the same limits and faults before each host had a budget and a breaker of its own that wait for a batch:
//!
//! | of 1,000 orders, and of batches of 100 at once | before | now |
//! | --- | --- | --- |
//! | answered by the first send, within 15 s | 999 | 999 |
//! | of a batch given up, with this network's limits | 0 | 0 |
//! | of a batch given up, with the default limits | 59 | 18 |
//! | ordered twice | 0 | 0 |
//!
//! The defaults send four times at most, and six attempts of ten fail here: of a batch 13 are expected to fail all four.

mod network;
mod placing;
mod progress;
mod shop;

// The service is that of the `checkout` example, as it is, and so is what it depends on.
#[allow(dead_code, unused_imports, reason = "the example's own tour uses the rest of it")]
#[path = "../checkout/outside/mod.rs"]
mod outside;
#[allow(dead_code, reason = "the example's own tour uses the rest of it")]
#[path = "../checkout/service/mod.rs"]
mod service;

use std::process::ExitCode;
use std::sync::Arc;

use idem_examples::Error;

use network::{Counts, FlakyNetwork};
use shop::{Books, Shop};

/// What one way of placing the orders came to.
struct Outcome {
    requests: Counts,
    books: Books,
    notes: placing::Notes,
}

#[tokio::main]
async fn main() -> Result<ExitCode, Error> {
    let arguments = Arguments::parse()?;
    println!("seed {} (again with: cargo run --bin shop -- --seed {0})", arguments.seed);
    println!(
        "{} orders through a network that loses, delays and resets a fifth of the requests each\n",
        arguments.orders
    );
    let careful = run(&arguments, "idem-client", Client::Idem).await?;
    let naive = if arguments.faults { None } else { Some(run(&arguments, "naive retries", Client::Naive).await?) };
    print_table(&arguments, &careful, naive.as_ref());
    Ok(verdict(&arguments, &careful, naive.as_ref()))
}

#[derive(Clone, Copy)]
enum Client {
    Idem,
    Naive,
}

/// A new shop, and the same network faults for the same order each time.
async fn run(arguments: &Arguments, name: &str, client: Client) -> Result<Outcome, Error> {
    let shop = Shop::open(arguments.orders + 2 * arguments.batch()).await?;
    let network = Arc::new(FlakyNetwork::start(shop.address(), arguments.seed).await?);
    let url = format!("http://{}/checkout", network.address());
    let progress = progress::Bar::start(name, arguments.orders, Arc::clone(&network));
    let notes = match client {
        Client::Idem => placing::with_idem_client(&url, arguments.orders, arguments.batch(), &progress).await?,
        Client::Naive => placing::naively(&url, arguments.orders, &progress).await?,
    };
    progress.finish();
    // What the network still holds back arrives late, as it does in life; then the books are closed.
    network.drain().await;
    Ok(Outcome { requests: network.counts(), books: shop.close().await?, notes })
}

struct Arguments {
    seed: u64,
    orders: u32,
    faults: bool,
}

impl Arguments {
    fn parse() -> Result<Self, Error> {
        let mut arguments = Self { seed: fastrand::u64(0..1_000_000), orders: 1_000, faults: false };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            if word == "--faults" {
                arguments.faults = true;
                continue;
            }
            let value = words.next().ok_or_else(|| format!("`{word}` must be followed by a number"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("`{word}` must be a number; it is `{value}`"));
            match word.as_str() {
                "--seed" => arguments.seed = number()?,
                "--orders" => arguments.orders = u32::try_from(number()?)?,
                _ => return Err(format!("`{word}` is unknown; use `--seed N`, `--orders N` and `--faults`").into()),
            }
        }
        Ok(arguments)
    }

    /// How many are sent at once, after the orders.
    fn batch(&self) -> u32 {
        self.orders.min(100)
    }
}

fn print_table(arguments: &Arguments, careful: &Outcome, naive: Option<&Outcome>) {
    let row = |name: &str, of: &dyn Fn(&Outcome) -> u64| {
        let naive = naive.map(|naive| grouped(of(naive))).unwrap_or_default();
        println!("{name:<42}{:>12}{naive:>16}", grouped(of(careful)));
    };
    let naively = if naive.is_some() { "naive retries" } else { "" };
    println!("\n{:<42}{:>12}{naively:>16}", "", "idem-client");
    println!("{}", "─".repeat(70));
    row("orders wanted", &|_| arguments.orders.into());
    println!("{:<42}{:>12}", "  answered by the first send, within 15 s", grouped(careful.notes.answered));
    println!("{:<42}{:>10.1} s", "  the slowest of them", careful.notes.slowest.as_secs_f64());
    row("given up, then reconciled", &|outcome| outcome.notes.reconciled);
    row("given up for good", &|outcome| outcome.notes.given_up);
    println!("{:<42}{:>12}", "and two batches, each at once", format!("2 × {}", arguments.batch()));
    println!("{:<42}{:>12}", "  given up, with this network's limits", careful.notes.batch_given_up);
    println!("{:<42}{:>12}", "  given up, with the default limits", careful.notes.batch_given_up_by_default);
    row("requests sent", &|outcome| outcome.requests.sent);
    row("answers lost", &|outcome| outcome.requests.answers_lost);
    row("  arrived late, after the client left", &|outcome| outcome.requests.late);
    println!("{}", "─".repeat(70));
    row("orders in the database", &|outcome| outcome.books.orders);
    row("  of them duplicates", &|outcome| outcome.books.duplicates());
    row("charges at the provider", &|outcome| outcome.books.charges);
    row("receipts sent by e-mail", &|outcome| outcome.books.emails);
}

/// With the thousands apart: 12,345.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let from_end = |index: usize| digits.len() - index;
    let apart = |index: usize| index > 0 && from_end(index).is_multiple_of(3);
    digits.char_indices().fold(String::new(), |text, (index, digit)| {
        let comma = if apart(index) { "," } else { "" };
        format!("{text}{comma}{digit}")
    })
}

/// Every order once, paid once, and nothing left to ask about; nearly all of them in time; and the network was bad enough
/// to tell the difference.
fn verdict(arguments: &Arguments, careful: &Outcome, naive: Option<&Outcome>) -> ExitCode {
    let (orders, batch) = (u64::from(arguments.orders), u64::from(arguments.batch()));
    let (books, notes, wanted) = (&careful.books, &careful.notes, orders + 2 * batch);
    let mut wrong = Vec::new();
    let mut expect = |what: &str, is: u64, must_be: u64| {
        if is != must_be {
            wrong.push(format!("{what}: {is}, must be {must_be}"));
        }
    };
    expect("orders in the database", books.orders, wanted);
    expect("different orders in the database", books.distinct, wanted);
    expect("orders paid", books.paid, wanted);
    expect("charges at the provider", books.charges, wanted);
    expect("receipts sent by e-mail", books.emails, wanted);
    expect("operations left on the client's journal", notes.left_on_journal, 0);
    if (orders - notes.answered) * 100 > orders.max(100) {
        wrong.push(format!("answered by the first send: {}, must be 99 of 100 of {orders}", notes.answered));
    }
    if notes.batch_given_up * 20 > batch.max(20) {
        wrong.push(format!("given up of a batch: {}, must be at most 5 of 100 of {batch}", notes.batch_given_up));
    }
    if careful.requests.answers_lost == 0 || naive.is_some_and(|naive| naive.books.duplicates() == 0) {
        wrong.push("the network lost too little to show anything; use more orders".to_owned());
    }
    if !wrong.is_empty() {
        println!("\nthey do NOT match\n{}", wrong.join("\n"));
        return ExitCode::FAILURE;
    }
    println!(
        "\nthey match: with idem-client every order is there once and paid once, although {} answers were lost.",
        careful.requests.answers_lost
    );
    if let Some(naive) = naive {
        println!("The naive client ordered {} times too often, and paid for it.", naive.books.duplicates());
    }
    ExitCode::SUCCESS
}
