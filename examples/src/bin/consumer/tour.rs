//! What is delivered, what dies, and what is booked.

mod world;

use std::time::Duration;

use idem_examples::{Error, Server, Stage, until, until_a_handler_waits};
use idem_testing::TestDatabase;
use tokio::time::{Instant, sleep};

use crate::service::{ARCHIVE, DELIVERIES, RECEIPTS};
use world::{Books, World};

/// The storm: payments, how often each is published, consumers, and how many of them are killed.
const PAYMENTS: usize = 300;
const PUBLICATIONS: usize = 3;
const CONSUMERS: usize = 3;
const KILLS: usize = 8;

pub(crate) async fn tour(stage: &mut Stage, database: &TestDatabase) -> Result<(), Error> {
    let world = World::start(database).await?;
    println!("Redis on {} (process {})", world.redis.address(), world.redis.process_id());
    the_control(stage, database).await?;
    one_message(stage, &world).await?;
    published_again(stage, &world).await?;
    booked_and_killed(stage, &world).await?;
    killed_while_booking(stage, &world).await?;
    another_payment_with_the_same_id(stage, &world).await?;
    storm(stage, &world).await?;
    a_poison_message(stage, &world).await?;
    a_slow_topic(stage, &world).await?;
    world.stop().await
}

/// A tour that cannot fail shows nothing.
async fn the_control(stage: &mut Stage, database: &TestDatabase) -> Result<(), Error> {
    stage.scene(
        "The control: a consumer without an inbox",
        "Its own database and broker. The consumer books a payment and is killed with SIGKILL before it acknowledges the \
         message, so the broker delivers it to the next one.",
    );
    let database = TestDatabase::create_on(database.postgres()).await?;
    crate::prepare(&database.pool()).await?;
    let world = World::start(&database).await?;
    let unprotected = [("INBOX", "off")];
    kill_after_booking(stage, &world, "pay-1", &unprotected).await?;
    let consumer = world.consumer(&unprotected).await?;
    world.until_acknowledged().await?;
    let books = world.show_books(stage).await?;
    stage.promise(
        "booked twice: the counting counts",
        books,
        Books { bookings: 2, payments: 1, ada: 1_000, ..Books::default() },
    );
    consumer.stop().await?;
    world.stop().await
}

async fn one_message(stage: &mut Stage, world: &World) -> Result<(), Error> {
    stage.scene("A payment", "Published, delivered, booked and acknowledged.");
    let consumer = world.consumer(&[]).await?;
    world.publish(stage, "pay-1", 500).await?;
    world.until_acknowledged().await?;
    let books = world.show_books(stage).await?;
    stage.promise("booked once", books, Books { bookings: 1, payments: 1, ada: 500, ..Books::default() });
    consumer.stop().await?;
    Ok(())
}

async fn published_again(stage: &mut Stage, world: &World) -> Result<(), Error> {
    let before = world.books().await?;
    stage.scene(
        "The producer retries",
        "It did not hear the broker's answer, and publishes the same payment four times more: new messages for the broker, \
         the same payment for the inbox.",
    );
    for _ in 0..4 {
        world.publish(stage, "pay-1", 500).await?;
    }
    let consumer = world.consumer(&[]).await?;
    world.until_acknowledged().await?;
    let books = world.show_books(stage).await?;
    stage.promise("all are acknowledged, and nothing is booked", books, before);
    consumer.stop().await?;
    Ok(())
}

/// Holds the booking until the broker takes no acknowledgement any more, lets it commit, and kills the consumer.
async fn kill_after_booking(
    stage: &mut Stage,
    world: &World,
    payment: &str,
    environment: &[(&str, &str)],
) -> Result<(), Error> {
    let before = world.books().await?;
    let account = world.hold_account().await?;
    let consumer = world.consumer(environment).await?;
    world.publish(stage, payment, 500).await?;
    until_a_handler_waits(&world.pool).await?;
    world.refuse_writes().await?;
    account.rollback().await?;
    until("the payment is booked", || async { Ok(world.books().await?.bookings == before.bookings + 1) }).await?;
    stage.say(format!("It is booked, and not acknowledged. kill -KILL {}", consumer.process_id()));
    consumer.kill().await?;
    world.accept_writes().await
}

async fn booked_and_killed(stage: &mut Stage, world: &World) -> Result<(), Error> {
    let before = world.books().await?;
    stage.scene(
        "Booked, and killed before the acknowledgement",
        "The worst moment: the effect is committed, and the broker does not know. The consumer is killed with SIGKILL.",
    );
    kill_after_booking(stage, world, "pay-2", &[]).await?;
    let pending = world.pending().await?;
    world.show_books(stage).await?;
    let consumer = world.consumer(&[]).await?;
    stage.say(format!("Another consumer (process {}) is given what the dead one left.", consumer.process_id()));
    world.until_acknowledged().await?;
    let books = world.show_books(stage).await?;
    stage.promise("the broker waited for the acknowledgement", pending, 1);
    stage.promise(
        "delivered twice, acknowledged, booked once",
        books,
        Books { bookings: before.bookings + 1, payments: before.payments + 1, ada: before.ada + 500, ..before },
    );
    consumer.stop().await?;
    Ok(())
}

async fn killed_while_booking(stage: &mut Stage, world: &World) -> Result<(), Error> {
    let before = world.books().await?;
    stage.scene("Killed while it books", "The transaction is open, and nothing committed.");
    let account = world.hold_account().await?;
    let consumer = world.consumer(&[]).await?;
    world.publish(stage, "pay-3", 500).await?;
    until_a_handler_waits(&world.pool).await?;
    stage.say(format!("kill -KILL {}", consumer.process_id()));
    consumer.kill().await?;
    account.rollback().await?;
    let consumer = world.consumer(&[]).await?;
    world.until_acknowledged().await?;
    let books = world.show_books(stage).await?;
    stage.promise(
        "delivered again, and booked once",
        books,
        Books { bookings: before.bookings + 1, payments: before.payments + 1, ada: before.ada + 500, ..before },
    );
    consumer.stop().await?;
    Ok(())
}

async fn another_payment_with_the_same_id(stage: &mut Stage, world: &World) -> Result<(), Error> {
    let before = world.books().await?;
    stage.scene(
        "Another payment with the same id",
        "A producer's mistake. It must neither be booked nor vanish as a duplicate: the inbox sees that it is another payment.",
    );
    let consumer = world.consumer(&[("RUST_LOG", "off")]).await?;
    world.publish(stage, "pay-1", 999).await?;
    world.until_acknowledged().await?;
    let books = world.show_books(stage).await?;
    stage.promise(
        "nothing is booked, and a person finds it among the dead",
        books,
        Books { dead: before.dead + 1, ..before },
    );
    consumer.stop().await?;
    Ok(())
}

async fn storm(stage: &mut Stage, world: &World) -> Result<(), Error> {
    let before = world.books().await?;
    stage.scene(
        "A storm",
        &format!(
            "{PAYMENTS} payments, each published {PUBLICATIONS} times, to {CONSUMERS} consumers of which one after the other \
             is killed with SIGKILL and replaced, {KILLS} times."
        ),
    );
    let begun = Instant::now();
    world.publish_storm(PAYMENTS, PUBLICATIONS).await?;
    let mut consumers: Vec<Server> = Vec::new();
    for _ in 0..CONSUMERS {
        consumers.push(world.consumer(&[("RUST_LOG", "off")]).await?);
    }
    let mut interrupted = 0;
    for _ in 0..KILLS {
        sleep(Duration::from_millis(20 + fastrand::u64(0..60))).await;
        interrupted += usize::from(world.pending().await? > 0);
        consumers.remove(0).kill().await?;
        consumers.push(world.consumer(&[("RUST_LOG", "off")]).await?);
    }
    world.until_acknowledged().await?;
    let books = world.show_books(stage).await?;
    stage.say(format!(
        "{} messages in {:.1} s; {interrupted} of {KILLS} kills hit while messages were being worked on.",
        PAYMENTS * PUBLICATIONS,
        begun.elapsed().as_secs_f64()
    ));
    let amount: i64 = (0..PAYMENTS as i64).map(world::storm_amount).sum();
    stage.promise("the kills interrupted work", interrupted > 0, true);
    stage.promise(
        "every payment is booked once, and the balance is right to the cent",
        books,
        Books {
            bookings: before.bookings + PAYMENTS as i64,
            payments: before.payments + PAYMENTS as i64,
            grace: before.grace + amount,
            ..before
        },
    );
    for consumer in consumers {
        consumer.stop().await?;
    }
    Ok(())
}

async fn a_poison_message(stage: &mut Stage, world: &World) -> Result<(), Error> {
    stage.scene(
        "A message that kills",
        "Each booking sends a receipt through the outbox, in the booking's own commit. Delivering one of them ends the process, at \
         once, as a stack overflow would. A supervisor starts the service again.",
    );
    let environment = [("POISON", "pay-poison"), ("RUST_LOG", "off")];
    let mut consumer = world.consumer(&environment).await?;
    for payment in ["pay-before", "pay-poison", "pay-after", "pay-later"] {
        world.publish(stage, payment, 100).await?;
    }
    let (mut deaths, deadline) = (0, Instant::now() + Duration::from_secs(60));
    while world.dead_letters().await?.is_empty() && Instant::now() < deadline {
        if consumer.has_ended()? {
            deaths += 1;
            stage.say(format!("The process has ended, for the {deaths}. time. Another one starts."));
            consumer = world.consumer(&environment).await?;
        }
        sleep(Duration::from_millis(20)).await;
    }
    world.until_acknowledged().await?;
    world.until_told().await?;
    let told = world.told(RECEIPTS).await?;
    let neighbours = ["pay-before", "pay-after", "pay-later"].map(|payment| told.contains(payment));
    stage.promise("it is given up after its attempts, which count although nobody lived to say so", deaths, DELIVERIES);
    stage.promise(
        "a person finds it among the dead letters",
        world.dead_letters().await?,
        vec![("pay-poison".to_owned(), DELIVERIES.cast_signed())],
    );
    stage.promise("its neighbours are delivered, those of its own account too", neighbours, [true; 3]);
    consumer.stop().await?;
    Ok(())
}

async fn a_slow_topic(stage: &mut Stage, world: &World) -> Result<(), Error> {
    stage.scene(
        "A slow topic beside a quick one",
        "Each booking also sends a copy to the archive, which takes two seconds for each and two at a time.",
    );
    let consumer = world.consumer(&[("ARCHIVE_PAUSE", "2000"), ("RUST_LOG", "off")]).await?;
    let payments: Vec<String> = (0..10).map(|number| format!("pay-slow-{number}")).collect();
    let begun = Instant::now();
    for payment in &payments {
        world.publish(stage, payment, 100).await?;
    }
    until("every receipt is there", || async {
        let told = world.told(RECEIPTS).await?;
        Ok(payments.iter().all(|payment| told.contains(payment)))
    })
    .await?;
    let archived = world.told(ARCHIVE).await?;
    let archived = payments.iter().filter(|payment| archived.contains(*payment)).count();
    stage.say(format!("Ten receipts after {:.1} s, and {archived} copies.", begun.elapsed().as_secs_f64()));
    stage.promise("the receipts have not waited for the archive", archived <= 2, true);
    consumer.stop().await?;
    let consumer = world.consumer(&[]).await?;
    world.until_told().await?;
    let archived = world.told(ARCHIVE).await?;
    stage.promise(
        "another process delivers the rest",
        payments.iter().filter(|payment| archived.contains(*payment)).count(),
        payments.len(),
    );
    consumer.stop().await?;
    Ok(())
}
