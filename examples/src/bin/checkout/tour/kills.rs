//! SIGKILL at every step.

use idem_examples::{Error, Reply, Request, Stage};

use super::stops::{Guard, Stop};
use super::world::{Books, Cart, World};
use crate::outside::Place;

pub(super) const COLUMNS: [&str; 7] = ["key", "killed in", "recorded", "calls", "charges", "mails", "order"];

pub(super) fn row(key: &str, killed: &str, recorded: &str, books: &Books) -> [String; 7] {
    let order = books.orders.join(", ");
    let [calls, charges, emails] = [books.calls, books.charges, books.emails].map(|count| count.to_string());
    [key.to_owned(), killed.to_owned(), recorded.to_owned(), calls, charges, emails, order]
}

/// What became of a purchase.
pub(super) struct Killed {
    /// The process that died.
    pub(super) process_id: u32,
    /// Whether the client had its answer by then.
    pub(super) answered: bool,
}

/// Sends a purchase to a server of its own and kills that when it comes to `stop`.
pub(super) async fn kill_at(world: &World, stop: Stop, cart: &Cart<'_>) -> Result<Killed, Error> {
    let guard = Guard::at(world, stop, cart.total_cents()).await?;
    let killed = kill_when_met(world, &guard, &cart.request()).await?;
    guard.leave().await?;
    Ok(killed)
}

pub(super) async fn kill_when_met(world: &World, guard: &Guard<'_>, request: &Request) -> Result<Killed, Error> {
    let server = world.server().await?;
    let (client, address, sent) = (world.client.clone(), server.address().to_owned(), request.clone());
    let sending = tokio::spawn(async move { client.send(&address, &sent).await });
    guard.is_met().await?;
    let process_id = server.process_id();
    server.kill().await?;
    Ok(Killed { process_id, answered: sending.await?.is_ok() })
}

/// Where, in words and as a place; the last step that must be on record by then; how often the provider is called in all.
type Kill = (&'static str, Stop, &'static str, u32);

const KILLS: [Kill; 9] = [
    ("reserve stock: its COMMIT", Stop::Statement("reserve stock"), "nothing", 1),
    ("charge: the call lost", Stop::Charge(Place::Request), "reserve stock", 1),
    ("charge: the answer lost", Stop::Charge(Place::Answer), "reserve stock", 2),
    ("charge: not recorded yet", Stop::Statement("record charge"), "reserve stock", 2),
    ("mark paid: its COMMIT", Stop::Statement("mark paid"), "charge", 1),
    ("mark paid: done", Stop::Statement("store response"), "mark paid", 1),
    ("e-mail: the call lost", Stop::Email(Place::Request), "the answer", 1),
    ("e-mail: the answer lost", Stop::Email(Place::Answer), "the answer", 1),
    ("e-mail: not recorded yet", Stop::Statement("record delivery"), "the answer", 1),
];

pub(super) async fn killed_everywhere(stage: &mut Stage, world: &World) -> Result<(), Error> {
    stage.scene(
        "Killed in every step",
        "Nine checkouts, nine servers, nine times SIGKILL: inside and after each step, and while the relay sends the receipt. \
         Then a new server, and each client retries as it is told to.",
    );
    let orders = count_orders(world).await?;
    let keys: Vec<String> = (1..=KILLS.len()).map(|number| format!("kill-{number}")).collect();
    let carts: Vec<Cart<'_>> =
        keys.iter().zip(3..).map(|(key, quantity)| Cart { quantity, ..Cart::new(key) }).collect();
    let mut answered = Vec::new();
    for ((_, stop, ..), cart) in KILLS.iter().zip(&carts) {
        answered.push(kill_at(world, *stop, cart).await?.answered);
    }
    let server = world.server().await?;
    let mut recorded = Vec::new();
    for key in &keys {
        let (state, step) = world.status(&server, key).await?;
        recorded.push(match state.as_str() {
            "unknown" => "nothing".to_owned(),
            "completed" => "the answer".to_owned(),
            _ => step,
        });
    }
    let mut answers = Vec::new();
    for cart in &carts {
        answers.push(world.send_until_answered(&server, &cart.request()).await?);
    }
    world.until_delivered().await?;
    let mut rows = Vec::new();
    let mut all = Vec::new();
    for (number, (killed, ..)) in KILLS.into_iter().enumerate() {
        let key = &keys[number];
        let books = world.books(key, &answers[number]).await?;
        rows.push(row(key, killed, &recorded[number], &books));
        all.push(books);
    }
    stage.show_table(COLUMNS, &rows);
    stage.promise("each died where it should", recorded, KILLS.map(|(.., step, _)| step.to_owned()).to_vec());
    stage.promise(
        "whose server died before the answer got none",
        answered,
        KILLS.map(|kill| kill.2 == "the answer").to_vec(),
    );
    stage.promise("every retry was answered with 201", answers.iter().all(|answer| answer.status == 201), true);
    stage.promise(
        "a replay if it had been answered, else what was left to do",
        answers.iter().map(Reply::is_replay).collect::<Vec<_>>(),
        KILLS.map(|kill| kill.2 == "the answer").to_vec(),
    );
    stage.promise(
        "one charge, one e-mail, one paid order each",
        all,
        KILLS.map(|(.., calls)| Books::once(calls)).to_vec(),
    );
    stage.promise("nine orders more", count_orders(world).await? - orders, 9);
    server.stop().await?;
    Ok(())
}

async fn count_orders(world: &World) -> Result<i64, Error> {
    Ok(sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(&world.pool).await?)
}
