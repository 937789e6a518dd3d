//! What a provider's deliveries meet, and what they do to the books.

use std::sync::Arc;

use idem_examples::{Error, Request, Server, Stage, post};
use idem_testing::TestDatabase;
use sqlx::PgPool;
use tokio::task::JoinSet;

use crate::service::SECRET;
use crate::service::signature::{self, Secret, sign};

const DELIVERIES: usize = 20;

pub(crate) async fn tour(stage: &mut Stage, database: &TestDatabase) -> Result<(), Error> {
    let pool = database.pool();
    let server = Server::start(&database.url()).await?;
    println!("service on http://{} (process {})", server.address(), server.process_id());
    delivered_and_redelivered(stage, &server, &pool).await?;
    forged(stage, &server, &pool).await?;
    at_once(stage, &server, &pool).await?;
    too_early(stage, &server, &pool).await?;
    let stopped = server.stop().await?;
    stage.promise("the server ended orderly", stopped.success(), true);
    pool.close().await;
    Ok(())
}

async fn delivered_and_redelivered(stage: &mut Stage, server: &Server, pool: &PgPool) -> Result<(), Error> {
    stage.scene(
        "An event",
        "The provider says that invoice 1 is paid. Its signature covers the time and the body's bytes.",
    );
    let data = r#"{"type":"payment.succeeded","invoice":"inv_1","amount_cents":4900}"#;
    let first = stage.send(server, &delivery("evt_1", 1, data)).await?;
    let books = Books::show(stage, pool).await?;
    stage.promise("accepted", (first.status.as_u16(), first.is_replay()), (204, false));
    stage.promise(
        "booked once",
        books,
        Books { entries: 1, booked_cents: 4_900, paid_1: 4_900, stored: 1, ..Books::START },
    );

    stage.scene(
        "Delivered again",
        "Our answer got lost, so the provider sends the event again: another attempt, a new signature, the same event.",
    );
    let again = stage.send(server, &delivery("evt_1", 2, data)).await?;
    let after = Books::show(stage, pool).await?;
    stage.promise("accepted again, as a replay", again.replays(&first), true);
    stage.promise("still booked once", after, books);

    stage.scene("The same number, another event", "What claims to be event 1 and says something else is not event 1.");
    let other = data.replace("4900", "9900");
    let mismatch = stage.send(server, &delivery("evt_1", 3, &other)).await?;
    let reply = (mismatch.status.as_u16(), mismatch.problem());
    stage.promise("refused as a key that was used before", reply, (422, "key-reused".to_owned()));
    stage.promise("nothing changed", Books::read(pool).await?, books);
    Ok(())
}

async fn forged(stage: &mut Stage, server: &Server, pool: &PgPool) -> Result<(), Error> {
    let before = Books::read(pool).await?;
    stage.scene(
        "A forgery, and an old letter",
        "Somebody without the secret sends event 2, and then what the provider signed ten minutes ago.",
    );
    let data = r#"{"type":"payment.succeeded","invoice":"inv_2","amount_cents":12000}"#;
    let wrong = Secret(Arc::from(b"a guess".as_slice()));
    let forgery = stage.send(server, &signed(&wrong, signature::now(), "evt_2", 1, data)).await?;
    let old = stage.send(server, &signed(&secret(), signature::now() - 600, "evt_2", 1, data)).await?;
    let books = Books::show(stage, pool).await?;
    stage.promise("the forgery is refused", forgery.status.as_u16(), 401);
    stage.promise("the old letter is refused", old.status.as_u16(), 401);
    stage.promise("nothing is booked, and nothing is stored under the event's number", books, before);

    stage.scene("The real one", "A forgery cannot use a number up: the provider's own event 2 arrives after it.");
    let real = stage.send(server, &delivery("evt_2", 1, data)).await?;
    let books = Books::show(stage, pool).await?;
    stage.promise("accepted", (real.status.as_u16(), real.is_replay()), (204, false));
    let expected = Books {
        entries: before.entries + 1,
        booked_cents: before.booked_cents + 12_000,
        paid_2: 12_000,
        stored: before.stored + 1,
        ..before
    };
    stage.promise("booked once", books, expected);
    Ok(())
}

async fn at_once(stage: &mut Stage, server: &Server, pool: &PgPool) -> Result<(), Error> {
    let before = Books::read(pool).await?;
    stage.scene(
        "Twenty deliveries at once",
        "A refund, from all of the provider's machines. One is booked, the others wait for its answer.",
    );
    let data = r#"{"type":"payment.refunded","invoice":"inv_2","amount_cents":2000}"#;
    stage.show_request(&delivery("evt_3", 1, data));
    let mut sending = JoinSet::new();
    for attempt in 1..=DELIVERIES {
        let (client, address) = (stage.client.clone(), server.address().to_owned());
        let request = delivery("evt_3", attempt, data);
        sending.spawn(async move { client.send(&address, &request).await });
    }
    let replies = sending.join_all().await.into_iter().collect::<Result<Vec<_>, _>>()?;
    stage.show_tally(&replies);
    let books = Books::show(stage, pool).await?;
    stage.promise("all accepted", replies.iter().filter(|reply| reply.status == 204).count(), DELIVERIES);
    stage.promise("one ran", replies.iter().filter(|reply| !reply.is_replay()).count(), 1);
    let expected = Books {
        entries: before.entries + 1,
        booked_cents: before.booked_cents - 2_000,
        paid_2: before.paid_2 - 2_000,
        stored: before.stored + 1,
        ..before
    };
    stage.promise("one refund", books, expected);
    Ok(())
}

async fn too_early(stage: &mut Stage, server: &Server, pool: &PgPool) -> Result<(), Error> {
    let before = Books::read(pool).await?;
    stage.scene(
        "An event that comes too early",
        "The provider is faster than our own invoice. The handler says 503, which leaves the event's number free.",
    );
    let data = r#"{"type":"payment.succeeded","invoice":"inv_3","amount_cents":100}"#;
    let early = stage.send(server, &delivery("evt_4", 1, data)).await?;
    stage.promise("not now", early.status.as_u16(), 503);
    stage.promise("nothing is booked and nothing is stored", Books::read(pool).await?, before);

    sqlx::query("INSERT INTO invoices (id, amount_cents) VALUES ('inv_3', 100)").execute(pool).await?;
    stage.say("The invoice is there now, and the provider delivers again:");
    let late = stage.send(server, &delivery("evt_4", 2, data)).await?;
    let books = Books::show(stage, pool).await?;
    stage.promise("accepted", (late.status.as_u16(), late.is_replay()), (204, false));
    let expected = Books {
        entries: before.entries + 1,
        booked_cents: before.booked_cents + 100,
        stored: before.stored + 1,
        ..before
    };
    stage.promise("booked once", books, expected);
    Ok(())
}

fn secret() -> Secret {
    Secret(Arc::from(SECRET.as_bytes()))
}

fn delivery(id: &str, attempt: usize, data: &str) -> Request {
    signed(&secret(), signature::now(), id, attempt, data)
}

fn signed(secret: &Secret, time: u64, id: &str, attempt: usize, data: &str) -> Request {
    let body = format!(r#"{{"id":"{id}","attempt":{attempt},"data":{data}}}"#);
    post("/webhooks/payments").header("Webhook-Signature", sign(secret, time, body.as_bytes())).json(body)
}

/// What the tables say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx::FromRow)]
struct Books {
    entries: i64,
    booked_cents: i64,
    paid_1: i64,
    paid_2: i64,
    stored: i64,
}

impl Books {
    const START: Self = Self { entries: 0, booked_cents: 0, paid_1: 0, paid_2: 0, stored: 0 };

    async fn read(pool: &PgPool) -> Result<Self, sqlx::Error> {
        sqlx::query_as(
            "SELECT (SELECT count(*) FROM ledger) AS entries,
                    (SELECT coalesce(sum(amount_cents), 0)::bigint FROM ledger) AS booked_cents,
                    (SELECT paid_cents FROM invoices WHERE id = 'inv_1') AS paid_1,
                    (SELECT paid_cents FROM invoices WHERE id = 'inv_2') AS paid_2,
                    (SELECT count(*) FROM idem.idempotency_keys) AS stored",
        )
        .fetch_one(pool)
        .await
    }

    async fn show(stage: &mut Stage, pool: &PgPool) -> Result<Self, sqlx::Error> {
        let books = Self::read(pool).await?;
        stage.show_facts(&vec![
            ("ledger entries", books.entries.to_string()),
            ("booked", format!("{} cents", books.booked_cents)),
            ("paid", format!("invoice 1: {}, invoice 2: {}", books.paid_1, books.paid_2)),
            ("events remembered", books.stored.to_string()),
        ]);
        Ok(books)
    }
}
