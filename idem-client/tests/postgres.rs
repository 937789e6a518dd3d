//! The journal in Postgres.

#[allow(dead_code, reason = "shared with the tests that use the rest of it")]
#[path = "it/support.rs"]
mod support;
#[allow(dead_code, reason = "shared with the tests that use the rest of it")]
#[path = "it/world.rs"]
mod world;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use idem_client::{Client, Journal as _, Key, PostgresJournal, Record};
use idem_testing::TestDatabase;
use tokio::net::TcpListener;
use tokio::sync::Barrier;

fn record(id: i64) -> Record {
    Record::new("order-confirm", Key::of("order-confirm", &id), "POST http://shop.example/orders", [7; 32])
}

async fn journal(database: &TestDatabase) -> PostgresJournal {
    let journal = PostgresJournal::new(database.pool());
    journal.migrate().await.unwrap();
    journal
}

#[tokio::test]
async fn what_was_begun_and_not_struck_off_is_pending() {
    let database = TestDatabase::create().await.unwrap();
    let before = SystemTime::now() - Duration::from_secs(1);
    let first_run = journal(&database).await;
    for id in 0..4 {
        assert_eq!(first_run.begin(&record(id)).await.unwrap(), None);
    }
    first_run.strike_off("order-confirm", &record(1).key).await.unwrap();
    first_run.strike_off("order-confirm", &record(1).key).await.unwrap();
    first_run.strike_off("another-operation", &record(2).key).await.unwrap();

    let second_run = journal(&database).await;
    let pending = second_run.pending().await.unwrap();
    let keys: Vec<_> = pending.iter().map(|record| record.key.clone()).collect();
    assert_eq!(keys, [record(0).key, record(2).key, record(3).key]);
    assert_eq!((pending[0].operation.as_str(), pending[0].request_hash), ("order-confirm", [7; 32]));
    assert_eq!(pending[0].target, record(0).target);
    assert!(pending[0].begun_at > before && pending[0].begun_at < SystemTime::now() + Duration::from_secs(1));
    let mut another = record(2);
    another.request_hash = [8; 32];
    let there = second_run.begin(&another).await.unwrap().expect("it is pending");
    assert_eq!((there.request_hash, there.begun_at), ([7; 32], pending[1].begun_at));
    assert_eq!(second_run.pending().await.unwrap(), pending);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_that_begin_at_once_one_is_first() {
    let database = TestDatabase::create().await.unwrap();
    let barrier = Arc::new(Barrier::new(8));
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let (pool, barrier) = (database.pool(), Arc::clone(&barrier));
            tokio::spawn(async move {
                let journal = PostgresJournal::new(pool);
                barrier.wait().await;
                journal.migrate().await.unwrap();
                journal.begin(&record(1)).await.unwrap().is_none()
            })
        })
        .collect();
    let mut first = 0;
    for task in tasks {
        first += usize::from(task.await.unwrap());
    }
    assert_eq!(first, 1);
    assert_eq!(journal(&database).await.pending().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_sender_withdraws_its_own_record_and_only_while_it_is_alone() {
    let database = TestDatabase::create().await.unwrap();
    let journal = journal(&database).await;
    let (first, second, third) = (record(1), record(1), record(1));
    assert!(journal.begin(&first).await.unwrap().is_none());
    assert!(journal.begin(&second).await.unwrap().is_some());
    assert!(!journal.withdraw(&first).await.unwrap(), "the second one's outcome may be another");
    assert!(!journal.withdraw(&second).await.unwrap(), "it is not its own");
    journal.strike_off("order-confirm", &first.key).await.unwrap();
    assert!(journal.begin(&third).await.unwrap().is_none());
    assert!(!journal.withdraw(&first).await.unwrap(), "the record is the third one's now");
    assert_eq!(journal.pending().await.unwrap().len(), 1);
    assert!(journal.withdraw(&third).await.unwrap());
    assert_eq!(journal.pending().await.unwrap(), []);
}

#[tokio::test]
async fn what_nobody_waited_for_was_never_begun() {
    let database = TestDatabase::create().await.unwrap();
    let journal = journal(&database).await;
    // Another one holds the row's place, so that the caller has time to go away.
    let mut holder = database.pool().begin().await.unwrap();
    sqlx::query("LOCK TABLE idem_client_journal IN EXCLUSIVE MODE").execute(&mut *holder).await.unwrap();
    let abandoned = record(1);
    let begin = tokio::time::timeout(Duration::from_millis(200), journal.begin(&abandoned));
    assert!(begin.await.is_err(), "it waits for the lock");
    holder.rollback().await.unwrap();
    // The record is written now, and withdrawn.
    let withdrawn = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND state = 'idle' AND query LIKE '%DELETE FROM idem_client_journal%begun_by%' AND query NOT LIKE '%LIKE%'";
    while sqlx::query_scalar::<_, i64>(withdrawn).fetch_one(&database.pool()).await.unwrap() == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(journal.pending().await.unwrap(), []);
}

#[tokio::test]
async fn the_client_leaves_a_lost_answer_on_record_and_an_answered_one_not() {
    let database = TestDatabase::create().await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/orders", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        // The first connection is closed without an answer, the second is answered.
        drop(listener.accept().await.unwrap());
        let (mut stream, _) = listener.accept().await.unwrap();
        tokio::io::AsyncReadExt::read(&mut stream, &mut [0; 4096]).await.unwrap();
        let answer = b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n";
        tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await.unwrap();
    });
    let client = Client::builder().journal(journal(&database).await).attempts(1).build().unwrap();
    let send = || client.post(&url).key(Key::of("order", &1)).body("x").send();
    assert!(send().await.unwrap_err().gave_up().unwrap().may_have_happened());
    assert_eq!(client.pending().await.unwrap().len(), 1);
    assert_eq!(send().await.unwrap().status(), 201);
    assert_eq!(client.pending().await.unwrap(), []);
    server.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_says_the_truth_whatever_becomes_of_the_attempts() {
    let database = TestDatabase::create().await.unwrap();
    let keeping = world::Keeping::Postgres(journal(&database).await);
    let sample = world::all_of(1).chain(world::all_of(2)).chain(world::some_of(3, 100)).chain(world::some_of(4, 100));
    world::run_all(keeping, sample).await;
}
