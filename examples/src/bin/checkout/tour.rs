//! What dies, what resumes it, and what the provider, the mail service and the database have counted.

mod kills;
mod stops;
mod world;

use std::time::Duration;

use idem_examples::{Error, Reply, Stage, get, post, until};
use idem_testing::TestDatabase;
use tokio::time::sleep;

use crate::outside::Place;
use kills::{kill_at, killed_everywhere};
use stops::{Guard, Stop};
use world::{Books, Cart, PATIENCE, World, status};

pub(crate) async fn tour(stage: &mut Stage, database: &TestDatabase) -> Result<(), Error> {
    let world = World::start(stage, database).await?;
    println!("payment provider on http://{} (process {})", world.provider.address(), world.provider.process_id());
    println!("mail service     on http://{} (process {})", world.mail.address(), world.mail.process_id());
    the_control(stage, database).await?;
    a_checkout(stage, &world).await?;
    charged_and_killed(stage, &world).await?;
    killed_everywhere(stage, &world).await?;
    a_late_call(stage, &world).await?;
    asleep(stage, &world).await?;
    without_keys(stage, &world).await?;
    declined(stage, &world).await?;
    nobody_comes_back(stage, &world).await?;
    failed(stage, &world).await?;
    audit(stage, &world).await?;
    world.pool.close().await;
    Ok(())
}

/// A tour that cannot fail shows nothing.
async fn the_control(stage: &mut Stage, database: &TestDatabase) -> Result<(), Error> {
    stage.scene(
        "The control: a checkout without idem",
        "Its own database, provider and mail service. The server is killed with SIGKILL when the provider has taken the \
         money and the answer is on the way; the client retries.",
    );
    let database = TestDatabase::create_on(database.postgres()).await?;
    crate::prepare(&database.pool()).await?;
    let world = World::start(stage, &database).await?;
    let cart = Cart { path: "/checkout/unprotected", ..Cart::new("control-1") };
    stage.show_request(&cart.request());
    kill_at(&world, Stop::Charge(Place::Answer), &cart).await?;
    let server = world.server().await?;
    let answer = world.client.send(server.address(), &cart.request()).await?;
    stage.show_reply(&answer);
    let charges: u32 = world.provider_ledger().await?.values().map(|line| line.effects).sum();
    let orders: Vec<String> =
        sqlx::query_scalar("SELECT status FROM orders ORDER BY id").fetch_all(&world.pool).await?;
    stage.show_lines("provider", [format!("{charges} charges")]);
    stage.show_lines("database", [format!("orders {}", orders.join(", "))]);
    stage.promise("charged twice, and goods reserved for nobody: the counting counts", charges, 2);
    server.stop().await?;
    world.pool.close().await;
    Ok(())
}

async fn a_checkout(stage: &mut Stage, world: &World) -> Result<(), Error> {
    stage.scene(
        "A checkout",
        "Ada buys two bags of beans: stock is reserved, the card charged, the order marked as paid, the receipt sent. \
         Then her client sends the same again.",
    );
    let server = world.server().await?;
    let request = Cart::new("cart-1").request();
    let first = stage.send(&server, &request).await?;
    world.until_delivered().await?;
    let books = world.show_books(stage, "cart-1", &first).await?;
    let replay = stage.send(&server, &request).await?;
    stage.promise("bought", (first.status.as_u16(), first.is_replay()), (201, false));
    stage.promise("one call, one charge, one e-mail, one order", books, Books::once(1));
    stage.promise("the retry gets the same answer", replay.replays(&first), true);
    stage.promise("and nothing else happens", world.books("cart-1", &first).await?, Books::once(1));
    server.stop().await?;
    Ok(())
}

async fn charged_and_killed(stage: &mut Stage, world: &World) -> Result<(), Error> {
    stage.scene(
        "Charged, and killed before the answer",
        "The worst moment: the provider has taken the money and its answer is on the way. The server is killed with \
         SIGKILL, so the database does not know of the charge.",
    );
    let cart = Cart::new("cart-2");
    let request = cart.request();
    stage.show_request(&request);
    let killed = kill_at(world, Stop::Charge(Place::Answer), &cart).await?;
    stage.say(format!("kill -KILL {}. On the books of those who live:", killed.process_id));
    let nothing = Reply::default();
    let charged = world.show_books(stage, "cart-2", &nothing).await?;
    let server = world.server().await?;
    stage.say(format!("The service is started again (process {}). What happened to the key?", server.process_id()));
    let asked = stage.send(&server, &status("cart-2")).await?;
    stage.say(format!(
        "The client retries. Until the dead process's lease of {PATIENCE} s is over it is told to wait; a service would \
         rather give a process a minute."
    ));
    let answer = world.send_until_answered(&server, &request).await?;
    stage.show_reply(&answer);
    world.until_delivered().await?;
    let books = world.show_books(stage, "cart-2", &answer).await?;
    stage.promise("the client of the killed server got no answer", killed.answered, false);
    stage.promise("the money was taken", (charged.calls, charged.charges), (1, 1));
    stage.promise("the service knows how far it came", asked.field("step"), "reserve stock".into());
    stage.promise("the retry finished it", (answer.status.as_u16(), answer.is_replay()), (201, false));
    stage.promise("two calls with one derived key: one charge, one e-mail, one order", books, Books::once(2));
    server.stop().await?;
    Ok(())
}

async fn a_late_call(stage: &mut Stage, world: &World) -> Result<(), Error> {
    stage.scene(
        "The dead server's call arrives late",
        "Killed while its call is stuck in the network. The retry calls, is charged and answered; then the first call arrives.",
    );
    let cart = Cart::new("late-1");
    let request = cart.request();
    let guard = Guard::at(world, Stop::Charge(Place::Request), cart.total_cents()).await?;
    kills::kill_when_met(world, &guard, &request).await?;
    let server = world.server().await?;
    let answer = world.send_until_answered(&server, &request).await?;
    stage.show_reply(&answer);
    let before = world.books("late-1", &answer).await?;
    guard.release().await?;
    until("the late call arrives", || async { Ok(world.books("late-1", &answer).await?.calls == 2) }).await?;
    world.until_delivered().await?;
    stage.say("The late call arrives.");
    let books = world.show_books(stage, "late-1", &answer).await?;
    stage.promise("the retry was charged first", (before.calls, before.charges), (1, 1));
    stage.promise("the late call carried the same key: still one charge", books, Books::once(2));
    server.stop().await?;
    Ok(())
}

async fn asleep(stage: &mut Stage, world: &World) -> Result<(), Error> {
    stage.scene(
        "Not dead, only asleep",
        "A server is stopped in the middle of its charge (SIGSTOP, as a paused virtual machine). Its lease runs out, another \
         server takes over and finishes. Then the first wakes up and goes on.",
    );
    let cart = Cart::new("asleep-1");
    let request = cart.request();
    let (sleeper, other) = (world.server().await?, world.server().await?);
    let guard = Guard::at(world, Stop::Charge(Place::Answer), cart.total_cents()).await?;
    let sending = {
        let (client, address, sent) = (world.client.clone(), sleeper.address().to_owned(), request.clone());
        tokio::spawn(async move { client.send(&address, &sent).await })
    };
    guard.is_met().await?;
    sleeper.suspend().await?;
    stage.say(format!("kill -STOP {}; the client sends it to process {}:", sleeper.process_id(), other.process_id()));
    let answer = world.send_until_answered(&other, &request).await?;
    stage.show_reply(&answer);
    guard.release().await?;
    sleeper.resume().await?;
    let late = sending.await??;
    stage.say(format!(
        "kill -CONT {}; it has its charge, but the operation is not its own any more:",
        sleeper.process_id()
    ));
    stage.show_reply(&late);
    world.until_delivered().await?;
    let books = world.show_books(stage, "asleep-1", &answer).await?;
    stage.promise("the other server finished it", (answer.status.as_u16(), answer.is_replay()), (201, false));
    stage.promise("the sleeper could change nothing, and gives the other's answer", late.replays(&answer), true);
    stage.promise("two calls, one charge, one e-mail, one order", books, Books::once(2));
    sleeper.stop().await?;
    other.stop().await?;
    Ok(())
}

async fn without_keys(stage: &mut Stage, world: &World) -> Result<(), Error> {
    stage.scene(
        "A provider without idempotency keys",
        "Every call is a charge there, so a retry must not simply call again: `.reconcile(…)` asks the provider first. Killed \
         once before the call arrived, and once after the charge.",
    );
    let keyless = |key| Cart { path: "/checkout/keyless", ..Cart::new(key) };
    let kills = [
        ("keyless-1", Stop::Charge(Place::Request), "charge: the call lost"),
        ("keyless-2", Stop::Charge(Place::Answer), "charge: the answer lost"),
    ];
    for (key, stop, _) in kills {
        kill_at(world, stop, &keyless(key)).await?;
    }
    let server = world.server().await?;
    let mut rows = Vec::new();
    let mut all = Vec::new();
    for (key, _, what) in kills {
        let answer = world.send_until_answered(&server, &keyless(key).request()).await?;
        world.until_delivered().await?;
        let books = world.books(key, &answer).await?;
        rows.push(kills::row(key, what, "charge", &books));
        all.push((answer.status.as_u16(), books));
    }
    stage.show_table(kills::COLUMNS, &rows);
    stage.promise("the lost call was made", all[0].clone(), (201, Books::once(1)));
    stage.promise("the charge that was made was found, and not made again", all[1].clone(), (201, Books::once(1)));
    server.stop().await?;
    Ok(())
}

async fn declined(stage: &mut Stage, world: &World) -> Result<(), Error> {
    let stock = stock(world).await?;
    stage.scene(
        "A declined card",
        "A decline is an answer, recorded like any other: the goods go back in a transaction of their own. The server is \
         killed in the middle of it.",
    );
    let cart = Cart { card: "tok_declined", ..Cart::new("declined-1") };
    let request = cart.request();
    stage.show_request(&request);
    kill_at(world, Stop::Statement("return stock"), &cart).await?;
    let after_crash = self::stock(world).await?;
    let server = world.server().await?;
    let asked = world.status(&server, "declined-1").await?;
    let answer = world.send_until_answered(&server, &request).await?;
    let replay = world.client.send(server.address(), &request).await?;
    stage.show_reply(&answer);
    let books = world.books("declined-1", &answer).await?;
    stage.show_lines("provider", [format!("declined-1 .. {} call, {} charges", books.calls, books.charges)]);
    stage.show_lines(
        "database",
        [format!("stock .. {stock}, reserved {after_crash}, returned {}", self::stock(world).await?)],
    );
    stage.promise("killed with the decline recorded", asked, ("in_flight".to_owned(), "charge".to_owned()));
    stage.promise("the goods were reserved when it died", after_crash, stock - 2);
    stage.promise("declined, by the retry", (answer.status.as_u16(), answer.is_replay()), (402, false));
    stage.promise("the card was tried once, and nothing charged", (books.calls, books.charges), (1, 0));
    stage.promise("the goods went back once", self::stock(world).await?, stock);
    stage.promise("a retry gets the same refusal", replay.replays(&answer), true);
    server.stop().await?;
    Ok(())
}

async fn nobody_comes_back(stage: &mut Stage, world: &World) -> Result<(), Error> {
    stage.scene(
        "Nobody comes back",
        "Charged and killed again, and this time the client is gone for good. The completer of another server sends the \
         stored request through the application once more.",
    );
    let cart = Cart::new("gone-1");
    let request = cart.request();
    kill_at(world, Stop::Charge(Place::Answer), &cart).await?;
    let server = world.server_with([]).await?;
    let asked = stage.send(&server, &status("gone-1")).await?;
    world.until_completed(&server, "gone-1").await?;
    world.until_delivered().await?;
    stage.say("No request, and a moment later:");
    let later = stage.send(&server, &status("gone-1")).await?;
    // Only now, to learn the order's number.
    let answer = world.client.send(server.address(), &request).await?;
    let books = world.show_books(stage, "gone-1", &answer).await?;
    let state = |reply: &Reply| reply.field("state").as_str().unwrap_or_default().to_owned();
    stage.promise("abandoned", state(&asked), "in_flight".to_owned());
    stage.promise(
        "completed by the completer",
        (state(&later), later.field("status")),
        ("completed".to_owned(), 201.into()),
    );
    stage.promise("two calls, one charge, one e-mail, one order", books, Books::once(2));
    stage.promise("the client, should it ever ask, gets the replay", answer.is_replay(), true);
    server.stop().await?;
    Ok(())
}

async fn failed(stage: &mut Stage, world: &World) -> Result<(), Error> {
    stage.scene(
        "What cannot be finished waits for a person",
        "The card network is away. The client gives up, the completer tries twice more and gives up too. An operator lists \
         what failed, has the cause mended, and hands it back.",
    );
    let server = world.server_with([("RECOVERY_ATTEMPTS", "2"), ("RUST_LOG", "off")]).await?;
    let request = Cart { card: "tok_outage", ..Cart::new("failed-1") }.request();
    let refused = stage.send(&server, &request).await?;
    let list = get("/admin/failed").header("Authorization", "Bearer operator-token");
    until("the completer gives up", || async {
        Ok(world.client.send(server.address(), &list).await?.body.as_ref() != b"[]")
    })
    .await?;
    let listed = stage.send(&server, &list).await?;
    let unpaid = world.books("failed-1", &Reply::default()).await?;
    world.client.send(world.provider.address(), &post("/repair")).await?;
    stage.say("The card network is back.");
    let retry = post("/admin/failed/retry").header("Authorization", "Bearer operator-token");
    let accepted = stage.send(&server, &retry.json(r#"{"scope": "1", "key": "failed-1"}"#)).await?;
    world.until_completed(&server, "failed-1").await?;
    world.until_delivered().await?;
    let answer = world.client.send(server.address(), &request).await?;
    let books = world.show_books(stage, "failed-1", &answer).await?;
    let emptied = world.client.send(server.address(), &list).await?;
    let first: serde_json::Value = serde_json::from_slice(&listed.body)?;
    stage.promise("a failure is no answer", refused.status.as_u16(), 502);
    stage.promise(
        "the list names the key, the last step and the reason",
        (&first[0]["key"], &first[0]["step"], &first[0]["reason"]),
        (&"failed-1".into(), &"reserve stock".into(), &"the last answer was 502 Bad Gateway".into()),
    );
    stage.promise("nothing was charged until then", unpaid.charges, 0);
    stage.promise(
        "handed back, and off the list",
        (accepted.status.as_u16(), emptied.body.as_ref()),
        (202, &b"[]"[..]),
    );
    stage.promise("one charge, one e-mail, one order", Books { calls: 1, ..books }, Books::once(1));
    server.stop().await?;
    Ok(())
}

/// The totals of all scenes.
async fn audit(stage: &mut Stage, world: &World) -> Result<(), Error> {
    stage.scene(
        "The audit",
        "Everything that the provider and the mail service have on their books, against everything in the database.",
    );
    // Time for whatever should not happen any more.
    sleep(Duration::from_secs(1)).await;
    let (provider, mail) = (world.provider_ledger().await?, world.mail_ledger().await?);
    let shown = |(key, line): (&String, &crate::outside::Line)| {
        [key.clone(), line.calls.to_string(), line.effects.to_string(), line.about.clone()]
    };
    stage.show_table(
        ["key at the provider", "calls", "charges", "outcome"],
        &provider.iter().map(shown).collect::<Vec<_>>(),
    );
    let charged = provider.values().filter(|line| line.about == "charged").count();
    let amount: i64 = provider.values().map(|line| line.amount_cents).sum();
    let totals =
        "SELECT count(*) FILTER (WHERE status = 'paid'), count(*) FILTER (WHERE status = 'reserved'), count(*),
                         coalesce(sum(total_cents) FILTER (WHERE status = 'paid'), 0)::bigint,
                         1000 - coalesce(sum(quantity) FILTER (WHERE status <> 'cancelled'), 0)::bigint
                  FROM orders";
    let (paid, reserved, orders, total_cents, left): (i64, i64, i64, i64, i64) =
        sqlx::query_as(totals).fetch_one(&world.pool).await?;
    let open = "SELECT count(*) FROM idem.idempotency_keys WHERE status IS NULL";
    let open: i64 = sqlx::query_scalar(open).fetch_one(&world.pool).await?;
    let emails: u32 = mail.values().map(|line| line.effects).sum();
    let deliveries: u32 = mail.values().map(|line| line.calls).sum();
    stage.show_lines("provider", [format!("{charged} charges, {amount} cents")]);
    stage.show_lines("mail", [format!("{deliveries} deliveries, {emails} e-mails")]);
    stage.show_lines("database", [format!("{paid} paid orders of {orders}, {total_cents} cents; {left} beans left")]);
    stage.promise("no key was charged twice", provider.values().filter(|line| line.effects > 1).count(), 0);
    stage.promise("an order for every checkout, and no other", orders, i64::try_from(provider.len())?);
    stage.promise("as many charges as paid orders", i64::try_from(charged)?, paid);
    stage.promise("to the cent", amount, total_cents);
    stage.promise("as many e-mails as paid orders", i64::from(emails), paid);
    stage.promise("the stock is what the orders left of it", i64::from(stock(world).await?), left);
    stage.promise("nothing is reserved, and nothing in progress", (reserved, open), (0, 0));
    Ok(())
}

async fn stock(world: &World) -> Result<i32, Error> {
    Ok(sqlx::query_scalar("SELECT stock FROM products WHERE name = 'beans'").fetch_one(&world.pool).await?)
}
