//! A request of every kind, and what the metrics say of them.

use idem_examples::{Error, Request, Server, Stage, get, post, until_a_handler_waits};
use idem_testing::TestDatabase;
use sqlx::PgPool;

pub(crate) async fn tour(stage: &mut Stage, database: &TestDatabase) -> Result<(), Error> {
    let pool = database.pool();
    let server = Server::start(&database.url()).await?;
    println!("service on http://{} (process {})", server.address(), server.process_id());
    paid_out_and_replayed(stage, &server, &pool).await?;
    misused(stage, &server, &pool).await?;
    released(stage, &server, &pool).await?;
    in_flight(stage, &server, &pool).await?;
    durations(stage, &server).await?;
    let stopped = server.stop().await?;
    stage.promise("the server ended orderly", stopped.success(), true);
    pool.close().await;
    Ok(())
}

async fn paid_out_and_replayed(stage: &mut Stage, server: &Server, pool: &PgPool) -> Result<(), Error> {
    stage.scene("A payout and three retries", "The handler runs once, and its answer is replayed three times.");
    let request = payout("payout-1", 4_900);
    stage.send(server, &request).await?;
    let mut retries = Vec::new();
    for _ in 0..3 {
        retries.push(stage.client.send(server.address(), &request).await?);
    }
    stage.show_tally(&retries);
    let counters = Counters::show(stage, server).await?;
    stage.promise("counted", counters, Counters { claimed: 1, replayed: 3, ..Counters::default() });
    stage.promise("as many payouts as claims", payouts(pool).await?, 1);
    Ok(())
}

async fn misused(stage: &mut Stage, server: &Server, pool: &PgPool) -> Result<(), Error> {
    let before = Counters::read(server, stage).await?;
    stage.scene(
        "Mistakes of clients",
        "Another payout under the same key, one without a key, and one with an empty key.",
    );
    let keyless = post("/merchants/shop/payouts").json(r#"{"amount_cents": 4900}"#);
    let mistakes = [payout("payout-1", 9_900), keyless.clone(), keyless.key("")];
    for request in &mistakes {
        stage.send(server, request).await?;
    }
    let counters = Counters::show(stage, server).await?;
    stage.promise(
        "each has its own name",
        counters,
        Counters { mismatch: 1, missing_key: 1, invalid_key: 1, ..before },
    );
    stage.promise("nothing was paid out", payouts(pool).await?, 1);
    Ok(())
}

async fn released(stage: &mut Stage, server: &Server, pool: &PgPool) -> Result<(), Error> {
    let before = Counters::read(server, stage).await?;
    stage.scene(
        "A failure",
        "The bank is closed: the handler answers 503, nothing is stored, and the key is free again.",
    );
    let request = payout("payout-2", 100);
    sqlx::query("UPDATE bank SET open = false").execute(pool).await?;
    stage.send(server, &request).await?;
    sqlx::query("UPDATE bank SET open = true").execute(pool).await?;
    stage.say("The bank opens, and the client retries:");
    stage.send(server, &request).await?;
    let counters = Counters::show(stage, server).await?;
    let expected = Counters { released: 1, claimed: before.claimed + 1, ..before };
    stage.promise("counted as released, and then as claimed", counters, expected);
    stage.promise("as many payouts as claims", payouts(pool).await?, 2);
    Ok(())
}

async fn in_flight(stage: &mut Stage, server: &Server, pool: &PgPool) -> Result<(), Error> {
    let before = Counters::read(server, stage).await?;
    stage.scene(
        "Duplicates in flight",
        "A slow transaction holds the bank, so the handler waits; two duplicates arrive meanwhile.",
    );
    let request = payout("payout-3", 200);
    stage.show_request(&request);
    let mut bank = pool.begin().await?;
    sqlx::query("SELECT FROM bank FOR UPDATE").execute(&mut *bank).await?;
    let (client, address, sent) = (stage.client.clone(), server.address().to_owned(), request.clone());
    let first = tokio::spawn(async move { client.send(&address, &sent).await });
    until_a_handler_waits(pool).await?;
    let mut duplicates = Vec::new();
    for _ in 0..2 {
        duplicates.push(stage.client.send(server.address(), &request).await?);
    }
    stage.show_tally(&duplicates);
    bank.rollback().await?;
    let first = first.await??;
    stage.say("The bank is free, and the handler ends:");
    stage.show_reply(&first);
    let counters = Counters::show(stage, server).await?;
    let expected = Counters { in_flight: 2, claimed: before.claimed + 1, ..before };
    stage.promise("counted as in flight, and one as claimed", counters, expected);
    stage.promise("as many payouts as claims", payouts(pool).await?, 3);
    Ok(())
}

async fn durations(stage: &mut Stage, server: &Server) -> Result<(), Error> {
    stage.scene("Durations", "A histogram by handler and outcome: a replay is fast, whatever the handler costs.");
    let text = scrape(stage, server).await?;
    let is_shown = |line: &&str| line.starts_with("idem_operation_duration_seconds") && line.contains("\"replayed\"");
    stage.show_lines("/metrics", text.lines().filter(is_shown));
    let counters = Counters::of(&text, "idem_operations_total");
    let histogram = Counters::of(&text, "idem_operation_duration_seconds_count");
    stage.promise("every operation is in it", histogram, counters);
    Ok(())
}

fn payout(key: &str, amount_cents: u32) -> Request {
    post("/merchants/shop/payouts").key(key).json(format!(r#"{{"amount_cents": {amount_cents}}}"#))
}

async fn payouts(pool: &PgPool) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("SELECT count(*) FROM payouts").fetch_one(pool).await
}

async fn scrape(stage: &Stage, server: &Server) -> Result<String, Error> {
    let reply = stage.client.send(server.address(), &get("/metrics")).await?;
    Ok(String::from_utf8(reply.body.to_vec())?)
}

/// What `/metrics` says of the handler, by outcome.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counters {
    claimed: u64,
    replayed: u64,
    in_flight: u64,
    mismatch: u64,
    missing_key: u64,
    invalid_key: u64,
    released: u64,
    unavailable: u64,
}

impl Counters {
    fn of(text: &str, name: &str) -> Self {
        let value = |outcome: &str| {
            let outcome = format!("outcome=\"{outcome}\"");
            let is_it = |line: &&str| line.starts_with(&format!("{name}{{")) && line.contains(&outcome);
            text.lines().filter(is_it).filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
        };
        Self {
            claimed: value("claimed"),
            replayed: value("replayed"),
            in_flight: value("in_flight"),
            mismatch: value("mismatch"),
            missing_key: value("missing_key"),
            invalid_key: value("invalid_key"),
            released: value("released"),
            unavailable: value("unavailable"),
        }
    }

    async fn read(server: &Server, stage: &Stage) -> Result<Self, Error> {
        Ok(Self::of(&scrape(stage, server).await?, "idem_operations_total"))
    }

    async fn show(stage: &mut Stage, server: &Server) -> Result<Self, Error> {
        let text = scrape(stage, server).await?;
        let mut lines: Vec<&str> = text.lines().filter(|line| line.starts_with("idem_operations_total")).collect();
        lines.sort();
        stage.show_lines("/metrics", lines);
        Ok(Self::of(&text, "idem_operations_total"))
    }
}
