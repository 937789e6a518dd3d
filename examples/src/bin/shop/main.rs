//! The two halves together: a shop behind a flaky network, and a client that places orders through it. The shop is the
//! `checkout` example's: stock in Postgres, money at a payment provider, receipts by e-mail.
//!
//! ```sh
//! cargo run --bin shop                            # 1,000 orders, a new seed
//! cargo run --bin shop -- --seed 7 --orders 200
//! ```
//!
//! Of the requests on the way to the shop a fifth lose their answer, a fifth time out and a fifth are reset. The orders
//! are placed twice: with idem-client, and for contrast with the loop that everybody writes first. It ends with 0 only
//! if what was ordered with idem-client and what is in the database match.

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
    let naive = run(&arguments, "naive retries", Client::Naive).await?;
    print_table(arguments.orders, &careful, &naive);
    Ok(verdict(arguments.orders, &careful, &naive))
}

#[derive(Clone, Copy)]
enum Client {
    Idem,
    Naive,
}

/// A new shop, and the same network faults for the same order each time.
async fn run(arguments: &Arguments, name: &str, client: Client) -> Result<Outcome, Error> {
    let shop = Shop::open(arguments.orders).await?;
    let network = Arc::new(FlakyNetwork::start(shop.address(), arguments.seed).await?);
    let url = format!("http://{}/checkout", network.address());
    let progress = progress::Bar::start(name, arguments.orders, Arc::clone(&network));
    let notes = match client {
        Client::Idem => placing::with_idem_client(&url, arguments.orders, &progress).await?,
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
}

impl Arguments {
    fn parse() -> Result<Self, Error> {
        let mut arguments = Self { seed: fastrand::u64(0..1_000_000), orders: 1_000 };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(|| format!("`{word}` must be followed by a number"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("`{word}` must be a number; it is `{value}`"));
            match word.as_str() {
                "--seed" => arguments.seed = number()?,
                "--orders" => arguments.orders = u32::try_from(number()?)?,
                _ => return Err(format!("`{word}` is unknown; use `--seed N` and `--orders N`").into()),
            }
        }
        Ok(arguments)
    }
}

fn print_table(orders: u32, careful: &Outcome, naive: &Outcome) {
    let row = |name: &str, of: &dyn Fn(&Outcome) -> u64| {
        println!("{name:<38}{:>12}{:>16}", grouped(of(careful)), grouped(of(naive)));
    };
    println!("\n{:<38}{:>12}{:>16}", "", "idem-client", "naive retries");
    println!("{}", "─".repeat(66));
    row("orders wanted", &|_| orders.into());
    row("requests sent", &|outcome| outcome.requests.sent);
    row("answers lost", &|outcome| outcome.requests.answers_lost);
    row("  arrived late, after the client left", &|outcome| outcome.requests.late);
    row("given up, then reconciled", &|outcome| outcome.notes.reconciled);
    row("given up for good", &|outcome| outcome.notes.given_up);
    println!("{}", "─".repeat(66));
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

/// Every order once, paid once, and nothing left to ask about; and the network was bad enough to tell the difference.
fn verdict(orders: u32, careful: &Outcome, naive: &Outcome) -> ExitCode {
    let wanted = u64::from(orders);
    let books = &careful.books;
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
    expect("operations left on the client's journal", careful.notes.left_on_journal, 0);
    if careful.requests.answers_lost == 0 || naive.books.duplicates() == 0 {
        wrong.push("the network lost too little to show anything; use more orders".to_owned());
    }
    if !wrong.is_empty() {
        println!("\nthey do NOT match\n{}", wrong.join("\n"));
        return ExitCode::FAILURE;
    }
    println!(
        "\nthey match: with idem-client every order is there once and paid once, although {} answers were lost.\n\
         The naive client ordered {} times too often, and paid for it.",
        careful.requests.answers_lost,
        naive.books.duplicates()
    );
    ExitCode::SUCCESS
}
