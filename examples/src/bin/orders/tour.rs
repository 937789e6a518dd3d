//! What a client meets, scene by scene, and what it does to the database.

use std::time::Duration;

use idem_examples::{Error, Facts, Reply, Request, Server, Stage, get, post, until_a_handler_waits};
use idem_testing::TestDatabase;
use sqlx::{PgPool, Postgres, Transaction};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

const DUPLICATES: usize = 50;

const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) async fn tour(stage: &mut Stage, database: &TestDatabase) -> Result<(), Error> {
    let pool = database.pool();
    let server = Server::start(&database.url()).await?;
    println!("service on http://{} (process {})", server.address(), server.process_id());
    new_key_and_replay(stage, &server, &pool).await?;
    misuse(stage, &server, &pool).await?;
    another_customer(stage, &server, &pool).await?;
    refusal(stage, &server, &pool).await?;
    cancellation(stage, &server, &pool).await?;
    let second = Server::start(&database.url()).await?;
    duplicates_at_once(stage, [&server, &second], &pool).await?;
    let restarted = crash(stage, server, database, &pool).await?;
    stop(stage, [second, restarted], &pool).await?;
    pool.close().await;
    Ok(())
}

async fn new_key_and_replay(stage: &mut Stage, server: &Server, pool: &PgPool) -> Result<(), Error> {
    stage.scene(
        "A new key",
        "Ada orders two bags of beans. The handler runs, and its response is stored in the commit of its writes.",
    );
    let request = order("coffee-1", r#"{"product": "beans", "quantity": 2}"#);
    let first = stage.send(server, &request).await?;
    let books = Books::show(stage, pool).await?;
    stage.promise("the handler's own answer", (first.status.as_u16(), first.is_replay()), (201, false));
    stage.promise(
        "one order, its goods and its money taken",
        books,
        Books { orders: 1, beans: 98, ada: 7_500, stored: 1, ..Books::START },
    );

    stage.scene(
        "The answer got lost, so the client retries",
        "The same key and the same request: the stored answer, and nothing runs.",
    );
    let retry = stage.send(server, &request).await?;
    let after = Books::show(stage, pool).await?;
    stage.promise("the first answer again, byte for byte, and marked as a replay", retry.replays(&first), true);
    stage.promise("still one order, and nothing moved", after, books);

    stage.scene(
        "The same, written differently",
        "White space and the order of a JSON object's fields do not make another request.",
    );
    let rewritten = stage.send(server, &order("coffee-1", r#"{"quantity":2,"product":"beans"}"#)).await?;
    stage.promise("the first answer again", rewritten.replays(&first), true);
    stage.promise("still one order", Books::read(pool).await?, books);
    Ok(())
}

async fn misuse(stage: &mut Stage, server: &Server, pool: &PgPool) -> Result<(), Error> {
    let before = Books::read(pool).await?;
    stage.scene(
        "The key of another order",
        "A client's mistake that must never be answered with the other order's response.",
    );
    let other = stage.send(server, &order("coffee-1", r#"{"product": "beans", "quantity": 3}"#)).await?;
    stage.promise(
        "refused as a key that was used before",
        (other.status.as_u16(), other.problem().as_str()),
        (422, "key-reused"),
    );
    stage.promise("nothing changed", Books::read(pool).await?, before);

    stage.scene("No key", "An order that could not be retried safely is not accepted.");
    let keyless =
        post("/orders").header("Authorization", "Bearer ada-token").json(r#"{"product": "beans", "quantity": 1}"#);
    let missing = stage.send(server, &keyless).await?;
    stage.promise(
        "refused as a request without a key",
        (missing.status.as_u16(), missing.problem().as_str()),
        (400, "key-missing"),
    );
    stage.promise("nothing changed", Books::read(pool).await?, before);
    Ok(())
}

async fn another_customer(stage: &mut Stage, server: &Server, pool: &PgPool) -> Result<(), Error> {
    let before = Books::read(pool).await?;
    stage.scene(
        "Another customer, the same key",
        "A key belongs to its scope, here the customer: Grace chose Ada's key, and neither sees the other.",
    );
    let body = r#"{"product": "beans", "quantity": 1}"#;
    let request = post("/orders").header("Authorization", "Bearer grace-token").key("coffee-1").json(body);
    let grace = stage.send(server, &request).await?;
    let books = Books::show(stage, pool).await?;
    stage.promise("an order of her own", (grace.status.as_u16(), grace.is_replay()), (201, false));
    stage.promise(
        "one order more, on her account",
        books,
        Books { orders: 2, beans: 97, grace: 8_750, stored: 2, ..before },
    );
    Ok(())
}

async fn refusal(stage: &mut Stage, server: &Server, pool: &PgPool) -> Result<(), Error> {
    let before = Books::read(pool).await?;
    stage.scene(
        "A business refusal",
        "A grinder costs more than Ada has. The handler has taken it from the stock before it finds out.",
    );
    let request = order("grinder-1", r#"{"product": "grinder", "quantity": 1}"#);
    let refused = stage.send(server, &request).await?;
    let books = Books::show(stage, pool).await?;
    stage.promise("refused, because the balance does not cover it", refused.status.as_u16(), 402);
    stage.promise(
        "what the handler wrote is rolled back, the refusal is stored",
        books,
        Books { stored: before.stored + 1, ..before },
    );

    stage.scene(
        "The refusal is an answer",
        "Ada pays 200.00 in and retries: the old key stands for the old answer. A new key is a new order.",
    );
    let deposit = post("/deposits").header("Authorization", "Bearer ada-token").key("deposit-1");
    let paid_in = stage.send(server, &deposit.json(r#"{"amount_cents": 20000}"#)).await?;
    let replay = stage.send(server, &request).await?;
    let ordered = stage.send(server, &order("grinder-2", r#"{"product": "grinder", "quantity": 1}"#)).await?;
    let after = Books::show(stage, pool).await?;
    stage.promise("paid in", paid_in.status.as_u16(), 201);
    stage.promise("the refusal again for the old key", replay.replays(&refused), true);
    stage.promise("the order for the new one", ordered.status.as_u16(), 201);
    let expected = Books { orders: books.orders + 1, grinders: 4, ada: 9_500, stored: books.stored + 2, ..books };
    stage.promise("one grinder sold, for the right money", after, expected);
    Ok(())
}

async fn cancellation(stage: &mut Stage, server: &Server, pool: &PgPool) -> Result<(), Error> {
    let before = Books::read(pool).await?;
    stage.scene(
        "A refund, asked for twice",
        "Ada cancels her first order, and the client retries. Then she cancels it again with a new key.",
    );
    let cancel = |key| post("/orders/1/cancel").header("Authorization", "Bearer ada-token").key(key);
    let cancelled = stage.send(server, &cancel("cancel-1")).await?;
    let replay = stage.send(server, &cancel("cancel-1")).await?;
    let again = stage.send(server, &cancel("cancel-2")).await?;
    let books = Books::show(stage, pool).await?;
    stage.promise("cancelled", (cancelled.status.as_u16(), cancelled.field("status")), (200, "cancelled".into()));
    stage.promise("the same answer to the retry", replay.replays(&cancelled), true);
    stage.promise("a refusal for the new key", again.status.as_u16(), 409);
    stage.promise(
        "one refund",
        books,
        Books { beans: before.beans + 2, ada: before.ada + 2_500, stored: before.stored + 2, ..before },
    );
    let read =
        stage.client.send(server.address(), &get("/orders/1").header("Authorization", "Bearer ada-token")).await?;
    stage.promise("reading the order agrees", read.field("status"), "cancelled".into());
    Ok(())
}

async fn duplicates_at_once(stage: &mut Stage, servers: [&Server; 2], pool: &PgPool) -> Result<(), Error> {
    let before = Books::read(pool).await?;
    stage.scene(
        "Fifty duplicates at once",
        "One order fifty times, to two server processes, while a slow transaction holds Ada's account. \
         Only Postgres knows of both.",
    );
    let request = order("rush-1", r#"{"product": "beans", "quantity": 1}"#);
    stage.show_request(&request);
    let account = hold_account(pool).await?;
    let mut sending = JoinSet::new();
    for number in 0..DUPLICATES {
        let (client, address, request) =
            (stage.client.clone(), servers[number % 2].address().to_owned(), request.clone());
        sending.spawn(async move { client.send(&address, &request).await });
    }
    let mut early = Vec::new();
    while early.len() < DUPLICATES - 1 {
        early.push(sending.join_next().await.ok_or("a request must be left")???);
    }
    stage.say("One handler is at work, and waits for the account. The others have their answers:");
    stage.show_tally(&early);
    account.rollback().await?;
    let winner = sending.join_next().await.ok_or("the first must be left")???;
    stage.say("The account is free, and the one handler ends:");
    stage.show_reply(&winner);
    stage.say("The others retry, as they were told:");
    let mut late = Vec::new();
    for number in 0..early.len() {
        late.push(stage.client.send(servers[number % 2].address(), &request).await?);
    }
    stage.show_tally(&late);
    let books = Books::show(stage, pool).await?;
    let busy =
        |reply: &&Reply| reply.status == 409 && reply.problem() == "in-flight" && reply.header("retry-after") == "1";
    stage.promise("49 were told at once that it is in flight", early.iter().filter(busy).count(), DUPLICATES - 1);
    stage.promise("one got the handler's own answer", (winner.status.as_u16(), winner.is_replay()), (201, false));
    stage.promise("49 retries replay it", late.iter().filter(|reply| reply.replays(&winner)).count(), DUPLICATES - 1);
    let expected = Books {
        orders: before.orders + 1,
        beans: before.beans - 1,
        ada: before.ada - 1_250,
        stored: before.stored + 1,
        ..before
    };
    stage.promise("one order", books, expected);
    Ok(())
}

async fn crash(stage: &mut Stage, server: Server, database: &TestDatabase, pool: &PgPool) -> Result<Server, Error> {
    let before = Books::read(pool).await?;
    stage.scene(
        "The server is killed in the middle of a handler",
        "The goods are taken, the money not yet: then SIGKILL. No code of ours runs after it, and no recovery job.",
    );
    let request = order("crash-1", r#"{"product": "beans", "quantity": 4}"#);
    stage.show_request(&request);
    let account = hold_account(pool).await?;
    let (client, address, sent) = (stage.client.clone(), server.address().to_owned(), request.clone());
    let sending = tokio::spawn(async move { client.send(&address, &sent).await });
    until_a_handler_waits(pool).await?;
    stage.say(format!("The handler waits for the account. kill -KILL {}", server.process_id()));
    server.kill().await?;
    account.rollback().await?;
    let unanswered = sending.await?.is_err();
    stage.say("The client gets no answer: the connection is gone.");
    let after_crash = Books::show(stage, pool).await?;

    let restarted = Server::start(&database.url()).await?;
    stage.say(format!("The service is started again (process {}), and the client retries.", restarted.process_id()));
    let begun = Instant::now();
    let answer = send_until_answered(stage, &restarted, &request).await?;
    let waited = begun.elapsed();
    stage.show_reply(&answer);
    let replay = stage.send(&restarted, &request).await?;
    let books = Books::show(stage, pool).await?;
    stage.promise("the client of the killed server got no answer", unanswered, true);
    stage.promise("the crash left nothing behind", after_crash, before);
    stage.promise("the retry ran", (answer.status.as_u16(), answer.is_replay()), (201, false));
    stage.promise("the client waited for no lease to run out", waited < Duration::from_secs(10), true);
    stage.promise("its retry replays", replay.replays(&answer), true);
    let expected = Books {
        orders: before.orders + 1,
        beans: before.beans - 4,
        ada: before.ada - 5_000,
        stored: before.stored + 1,
        ..before
    };
    stage.promise("one order", books, expected);
    Ok(restarted)
}

async fn stop(stage: &mut Stage, servers: [Server; 2], pool: &PgPool) -> Result<(), Error> {
    let before = Books::read(pool).await?;
    stage.scene(
        "A deploy",
        "The servers are asked to stop while an order is in flight: it ends first, and so does its answer.",
    );
    let request = order("deploy-1", r#"{"product": "beans", "quantity": 1}"#);
    stage.show_request(&request);
    let account = hold_account(pool).await?;
    let (client, address) = (stage.client.clone(), servers[0].address().to_owned());
    let sending = tokio::spawn(async move { client.send(&address, &request).await });
    until_a_handler_waits(pool).await?;
    let address = servers[0].address().to_owned();
    let stopping: Vec<_> = servers.into_iter().map(|server| tokio::spawn(server.stop())).collect();
    until_nobody_listens(&address).await?;
    stage.say("Nobody listens there any more. The account is free, and the handler ends:");
    account.rollback().await?;
    let answer = sending.await??;
    stage.show_reply(&answer);
    for stopped in stopping {
        stage.promise("a server ended orderly", stopped.await??.success(), true);
    }
    let books = Books::show(stage, pool).await?;
    stage.promise("the order in flight was answered", answer.status.as_u16(), 201);
    let expected = Books {
        orders: before.orders + 1,
        beans: before.beans - 1,
        ada: before.ada - 1_250,
        stored: before.stored + 1,
        ..before
    };
    stage.promise("one order", books, expected);
    Ok(())
}

/// An order of Ada's.
fn order(key: &str, body: &str) -> Request {
    post("/orders").header("Authorization", "Bearer ada-token").key(key).json(body)
}

/// Holds the row that `create_order` writes second, so that a handler stops in its middle.
async fn hold_account(pool: &PgPool) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
    let mut transaction = pool.begin().await?;
    sqlx::query("SELECT FROM customers WHERE name = 'ada' FOR UPDATE").execute(&mut *transaction).await?;
    Ok(transaction)
}

async fn until_nobody_listens(address: &str) -> Result<(), Error> {
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(address).await.is_ok() {
        if Instant::now() > deadline {
            return Err("the server still listens after it was asked to stop".into());
        }
        sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Retries as a client does, while the answer is that the operation is in flight or the database away.
async fn send_until_answered(stage: &Stage, server: &Server, request: &Request) -> Result<Reply, Error> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let reply = stage.client.send(server.address(), request).await?;
        match reply.header("retry-after").parse() {
            Ok(seconds) if Instant::now() < deadline => sleep(Duration::from_secs(seconds)).await,
            _ => return Ok(reply),
        }
    }
}

/// What the tables say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx::FromRow)]
struct Books {
    orders: i64,
    beans: i32,
    grinders: i32,
    ada: i64,
    grace: i64,
    stored: i64,
}

impl Books {
    const START: Self = Self { orders: 0, beans: 100, grinders: 5, ada: 10_000, grace: 10_000, stored: 0 };

    async fn read(pool: &PgPool) -> Result<Self, sqlx::Error> {
        sqlx::query_as(
            "SELECT (SELECT count(*) FROM orders) AS orders,
                    (SELECT stock FROM products WHERE name = 'beans') AS beans,
                    (SELECT stock FROM products WHERE name = 'grinder') AS grinders,
                    (SELECT balance_cents FROM customers WHERE name = 'ada') AS ada,
                    (SELECT balance_cents FROM customers WHERE name = 'grace') AS grace,
                    (SELECT count(*) FROM idem.idempotency_keys) AS stored",
        )
        .fetch_one(pool)
        .await
    }

    async fn show(stage: &mut Stage, pool: &PgPool) -> Result<Self, sqlx::Error> {
        let books = Self::read(pool).await?;
        let money = |cents: i64| format!("{}.{:02}", cents / 100, cents % 100);
        let facts: Facts = vec![
            ("orders", books.orders.to_string()),
            ("stock", format!("{} beans, {} grinders", books.beans, books.grinders)),
            ("balances", format!("Ada {}, Grace {}", money(books.ada), money(books.grace))),
            ("stored responses", books.stored.to_string()),
        ];
        stage.show_facts(&facts);
        Ok(books)
    }
}
