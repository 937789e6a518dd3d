//! The journal: what is on it while, after, and instead of an answer; and after the process was killed.

use std::collections::HashSet;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use idem_client::{Client, Error, FileJournal, Journal, JournalError, Key, Reason, Record, Refusal, ResponseExt as _};
use sha2::{Digest as _, Sha256};

use crate::support::{Act, Directory, Server, answer};

fn client(journal: impl Journal) -> Client {
    let builder = Client::builder().journal(journal).back_off(Duration::from_millis(1), Duration::from_millis(1));
    builder.attempt_timeout(Duration::from_millis(300)).build().unwrap()
}

async fn pending_keys(client: &Client) -> Vec<Key> {
    client.pending().await.unwrap().into_iter().map(|record| record.key).collect()
}

/// Notes what was on the journal when each request came in.
async fn on_record_when_sent(script: Vec<Act>) -> (Vec<usize>, Vec<Key>) {
    let directory = Directory::new();
    let path = directory.path("orders.journal");
    let watched = path.clone();
    let counts = Arc::new(std::sync::Mutex::new(Vec::new()));
    let noted = Arc::clone(&counts);
    let server = Server::start(move |number, request| {
        let text = std::fs::read_to_string(&watched).unwrap();
        noted.lock().unwrap().push(text.lines().filter(|line| line.contains(request.key().unwrap())).count());
        script[number.min(script.len() - 1)].clone()
    })
    .await;
    let client = client(FileJournal::open(&path).unwrap());
    let _ = client.post(server.url("/orders")).key(Key::of("order", &1)).body("x").send().await;
    let counts = counts.lock().unwrap().clone();
    (counts, pending_keys(&client).await)
}

#[tokio::test]
async fn an_operation_is_on_record_before_it_is_sent_and_struck_off_when_answered() {
    let key = Key::of("order", &1);
    for (script, attempts, left) in [
        (vec![Act::Answer(answer(201))], 1, false),
        (vec![Act::Answer(answer(422))], 1, false),
        (vec![Act::DropAfter, Act::Answer(answer(201))], 2, false),
        // A 5xx says nothing final, and neither does a refusal at the door after a lost answer.
        (vec![Act::Answer(answer(500))], 1, true),
        (vec![Act::DropAfter, Act::Refuse(answer(401))], 2, true),
        (vec![Act::Refuse(answer(401))], 1, false),
        // Giving up: pending if it may have happened.
        (vec![Act::DropAfter], 4, true),
        (vec![Act::Refuse(answer(429))], 4, false),
    ] {
        let (on_record, pending) = on_record_when_sent(script.clone()).await;
        assert_eq!(on_record, vec![1; attempts], "{script:?}");
        assert_eq!(pending, if left { vec![key.clone()] } else { vec![] }, "{script:?}");
    }
}

#[tokio::test]
async fn a_record_says_what_was_sent_and_no_secrets() {
    let directory = Directory::new();
    let server = Server::script([Act::DropAfter]).await;
    let client = client(FileJournal::open(directory.path("orders.journal")).unwrap());
    let key = Key::of("order-confirm", &("tenant", 1));
    let url = server.url("/orders?token=s3cret").replace("http://", "http://user:hunter2@");
    client.post(&url).key(&key).body("s3cret body").send().await.unwrap_err();
    client.put(server.url("/orders/1")).header("idempotency-key", "by-hand").send().await.unwrap_err();
    let pending = client.pending().await.unwrap();
    assert_eq!((pending[0].operation.as_str(), &pending[0].key), ("order-confirm", &key));
    assert_eq!(pending[0].target, format!("POST {}", server.url("/orders")));
    assert_eq!((pending[1].operation.as_str(), pending[1].key.as_str()), ("PUT /orders/1", "by-hand"));
    let mut hash = Sha256::new();
    for part in [&b"POST"[..], b"/orders?token=s3cret", &Sha256::digest("s3cret body")] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    assert_eq!(pending[0].request_hash, <[u8; 32]>::from(hash.finalize()));
    let text = std::fs::read_to_string(directory.path("orders.journal")).unwrap();
    assert!(!text.contains("s3cret") && !text.contains("hunter2"), "{text}");
}

#[tokio::test]
async fn what_is_under_way_is_not_pending_and_what_was_dropped_is() {
    let directory = Directory::new();
    let server = Server::script([Act::Never]).await;
    let client = client(FileJournal::open(directory.path("orders.journal")).unwrap());
    let request = client.post(server.url("/orders")).key(Key::of("order", &1)).send();
    let sending = tokio::spawn(request);
    while server.seen().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(pending_keys(&client).await, []);
    sending.abort();
    let _ = sending.await;
    assert_eq!(pending_keys(&client).await, [Key::of("order", &1)]);
}

#[tokio::test]
async fn a_request_that_did_nothing_does_not_strike_off_another_one_with_the_same_key() {
    for status in [429, 401, 404] {
        let directory = Directory::new();
        let refused_late = Act::Slow(Duration::from_millis(200), answer(status));
        let server = Server::script([refused_late, Act::Never]).await;
        let client = Client::builder().journal(FileJournal::open(directory.path("orders.journal")).unwrap());
        let client = client.build().unwrap();
        let send = || tokio::spawn(client.post(server.url("/orders")).key(Key::of("order", &1)).attempts(1).send());
        let arrived = async |requests| {
            while server.seen().len() < requests {
                tokio::task::yield_now().await;
            }
        };
        let refused = send();
        arrived(1).await;
        let hanging = send();
        arrived(2).await;
        let _ = refused.await.unwrap();
        hanging.abort();
        let _ = hanging.await;
        assert_eq!(pending_keys(&client).await, [Key::of("order", &1)], "{status}");
    }
}

#[derive(Debug)]
struct FullDisk;

#[async_trait::async_trait]
impl Journal for FullDisk {
    async fn begin(&self, _: &Record) -> Result<Option<Record>, JournalError> {
        Err(JournalError::new("the disk is full"))
    }

    async fn strike_off(&self, _: &str, _: &Key) -> Result<(), JournalError> {
        Err(JournalError::new("the disk is full"))
    }

    async fn withdraw(&self, _: &Record) -> Result<bool, JournalError> {
        Err(JournalError::new("the disk is full"))
    }

    async fn pending(&self) -> Result<Vec<Record>, JournalError> {
        Ok(Vec::new())
    }
}

#[tokio::test]
async fn what_cannot_be_recorded_is_not_sent() {
    let server = Server::script([Act::Answer(answer(201))]).await;
    let refused = client(FullDisk).post(server.url("/orders")).key(Key::of("order", &1)).send().await.unwrap_err();
    assert!(matches!(refused, Error::Refused(Refusal::Journal(_))), "{refused}");
    assert_eq!(refused.to_string(), "the operation was not begun: the disk is full");
    assert_eq!(server.seen().len(), 0);
}

#[tokio::test]
async fn a_record_of_an_earlier_run_makes_the_outcome_unknown_until_an_answer_settles_it() {
    let directory = Directory::new();
    let journal = FileJournal::open(directory.path("orders.journal")).unwrap();
    let server = Server::script([
        Act::Refuse(answer(429)),
        Act::Refuse(answer(422)),
        Act::Refuse(answer(401)),
        Act::Answer(answer(201)),
    ])
    .await;
    let key = Key::of("order", &1);
    let target = format!("POST {}", server.url("/orders"));
    journal.begin(&Record::new("order", key.clone(), target, [9; 32])).await.unwrap();
    let client = client(journal);
    let send = || client.post(server.url("/orders")).key(&key).attempts(1).body("another body").send();
    let error = send().await.unwrap_err();
    assert!(error.gave_up().unwrap().may_have_happened(), "the earlier run may have done it: {error}");
    // 422: the key belongs to another request, the one on record. 401: a refusal at the door.
    assert_eq!((send().await.unwrap().status().as_u16(), pending_keys(&client).await.len()), (422, 1));
    assert_eq!((send().await.unwrap().status().as_u16(), pending_keys(&client).await.len()), (401, 1));
    assert_eq!((send().await.unwrap().status().as_u16(), pending_keys(&client).await.len()), (201, 0));
}

/// A journal whose store is away while it is told so.
#[derive(Debug)]
struct Shaky {
    journal: FileJournal,
    away: Arc<std::sync::atomic::AtomicBool>,
}

impl Shaky {
    fn here(&self) -> Result<&FileJournal, JournalError> {
        if self.away.load(Ordering::SeqCst) { Err(JournalError::new("the store is away")) } else { Ok(&self.journal) }
    }
}

#[async_trait::async_trait]
impl Journal for Shaky {
    async fn begin(&self, record: &Record) -> Result<Option<Record>, JournalError> {
        self.here()?.begin(record).await
    }

    async fn strike_off(&self, operation: &str, key: &Key) -> Result<(), JournalError> {
        self.here()?.strike_off(operation, key).await
    }

    async fn withdraw(&self, record: &Record) -> Result<bool, JournalError> {
        self.here()?.withdraw(record).await
    }

    async fn pending(&self) -> Result<Vec<Record>, JournalError> {
        self.here()?.pending().await
    }
}

#[tokio::test]
async fn what_was_settled_while_the_journal_was_away_is_struck_off_later() {
    let directory = Directory::new();
    for (status, settled) in [(201, true), (422, false)] {
        let away = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let path = directory.path(&status.to_string());
        let leaving = Arc::clone(&away);
        let server = Server::start(move |_, _| {
            leaving.store(true, Ordering::SeqCst);
            Act::Answer(answer(status))
        })
        .await;
        let client = client(Shaky { journal: FileJournal::open(&path).unwrap(), away: Arc::clone(&away) });
        let response = client.post(server.url("/orders")).key(Key::of("order", &1)).send().await.unwrap();
        // That nothing has happened is not said while the record is there and others may have begun it.
        assert_eq!((response.settled(), response.may_have_happened()), (settled, true));
        away.store(false, Ordering::SeqCst);
        assert_eq!(pending_keys(&client).await.len(), usize::from(!settled), "{status}");
        drop(client);
        let file = std::fs::File::open(&path).unwrap();
        while file.try_lock().is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(file);
        assert_eq!(FileJournal::open(&path).unwrap().pending().await.unwrap().len(), usize::from(!settled), "{status}");
    }
}

#[tokio::test]
async fn a_refusal_does_not_deny_what_an_earlier_run_may_have_done() {
    let directory = Directory::new();
    let server = Server::script([Act::DropAfter]).await;
    let client = client(FileJournal::open(directory.path("orders.journal")).unwrap());
    let post = |id: i64| client.post(server.url("/orders")).key(Key::of("order", &id)).attempts(1);
    post(1).send().await.unwrap_err();
    let stream = || reqwest::Body::wrap_stream(futures_util::stream::iter([Ok::<_, std::io::Error>("x")]));
    let refusals = [
        post(1).body(stream()).send().await.unwrap_err(),
        post(1).deadline(Duration::MAX).send().await.unwrap_err(),
        post(1).replayable(idem_client::ReplayableBody::file("/no/such/file")).send().await.unwrap_err(),
        post(1).header("idempotency-key", "another").send().await.unwrap_err(),
        post(1).header("idempotency-key", "not a key").send().await.unwrap_err(),
    ];
    for error in refusals {
        let gave_up = error.gave_up().unwrap();
        assert_eq!((gave_up.reason(), gave_up.attempts(), gave_up.may_have_happened()), (Reason::Refused, 0, true));
        assert!(!error.to_string().contains("has not happened"), "{error}");
    }
    let unbuilt = post(1).header("no header", "x").send().await.unwrap_err();
    assert!(matches!(unbuilt, Error::Unbuilt { .. }) && unbuilt.may_have_happened(), "{unbuilt}");
    let unbuilt = post(2).header("no header", "x").send().await.unwrap_err();
    assert!(matches!(unbuilt, Error::Unbuilt { .. }) && !unbuilt.may_have_happened(), "{unbuilt}");
    // Of another key nothing is known, and nothing was sent.
    let error = post(2).deadline(Duration::MAX).send().await.unwrap_err();
    assert!(matches!(error, Error::Refused(Refusal::Setting(_))) && !error.may_have_happened(), "{error}");
    assert_eq!((server.seen().len(), pending_keys(&client).await), (1, vec![Key::of("order", &1)]));
}

#[tokio::test]
async fn an_operation_is_the_same_wherever_it_is_sent_to() {
    let directory = Directory::new();
    let client = client(FileJournal::open(directory.path("orders.journal")).unwrap());
    let (before, after) = (Server::script([Act::DropAfter]).await, Server::script([Act::Answer(answer(201))]).await);
    let send = |server: &Server| client.post(server.url("/orders")).key(Key::of("order", &1)).send();
    send(&before).await.unwrap_err();
    assert_eq!(client.pending().await.unwrap()[0].target, format!("POST {}", before.url("/orders")));
    send(&after).await.unwrap();
    assert_eq!(pending_keys(&client).await, [], "the server has moved, the operation has not");
    // Another operation with the same key is another one.
    let same_key = |name: &str| client.post(before.url("/orders")).key(Key::of("order", &2)).operation(name).send();
    same_key("one").await.unwrap_err();
    same_key("two").await.unwrap_err();
    assert_eq!(pending_keys(&client).await.len(), 2);
}

#[tokio::test]
async fn of_two_requests_with_one_key_neither_denies_what_the_other_did() {
    for journalled in [true, false] {
        for status in [401, 429] {
            let directory = Directory::new();
            let refused_late = Act::Slow(Duration::from_millis(150), answer(status));
            let server = Server::start(move |number, _| match number {
                // Slow carries out in this server; the one that counts is the second.
                0 => Act::Refuse(answer(status)),
                1 => Act::DropAfter,
                _ => refused_late.clone(),
            })
            .await;
            let builder = Client::builder();
            let builder = match journalled {
                true => builder.journal(FileJournal::open(directory.path("orders.journal")).unwrap()),
                false => builder,
            };
            let client = builder.attempts(1).build().unwrap();
            let send = || client.post(server.url("/orders")).key(Key::of("order", &1)).send();
            let (first, second) = tokio::join!(send(), send());
            let said: Vec<bool> = [first, second]
                .into_iter()
                .map(|sent| {
                    sent.map_or_else(|error| error.may_have_happened(), |response| response.may_have_happened())
                })
                .collect();
            assert_eq!(said, [true, true], "{status}");
            assert_eq!(pending_keys(&client).await.len(), usize::from(journalled));
            // Nor does one that comes later.
            let said = match send().await {
                Ok(response) => response.may_have_happened(),
                Err(error) => error.may_have_happened(),
            };
            assert!(said, "{status}, journal: {journalled}");
        }
    }
}

/// A program of its own that runs one of the ignored tests below.
fn program(test: &str, shell: &str) -> Command {
    let mut command = Command::new("sh");
    let binary = std::env::current_exe().unwrap();
    command.args(["-c", &format!("{shell}; exec \"$0\" --exact journal::{test} --ignored --nocapture")]).arg(binary);
    command
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by the test that leaves it little room"]
async fn the_program_with_little_room() {
    let setting = |name: &str| std::env::var(name).expect("started by the test that leaves it little room");
    let builder = Client::builder().journal(FileJournal::open(setting("SHOP_JOURNAL")).unwrap());
    let client = builder.breaker(10_000, Duration::from_secs(1)).build().unwrap();
    let url = setting("SHOP_URL");
    let send = |id: i64| client.post(&url).key(Key::of("order", &id)).attempts(1).send();
    let mut sent = 0;
    let refused = loop {
        match send(sent).await.unwrap_err() {
            Error::GaveUp(gave_up) => assert!(gave_up.may_have_happened()),
            refused => break refused,
        }
        sent += 1;
        assert!(sent < 100, "there is more room than there should be");
    };
    assert!(matches!(refused, Error::Refused(Refusal::Journal(_))) && !refused.may_have_happened(), "{refused}");
    for _ in 0..3 {
        send(sent).await.unwrap_err();
        assert_eq!(pending_keys(&client).await.len() as i64, sent, "what was never begun is not pending");
    }
    let pid = std::process::id().to_string();
    let given = Command::new("prlimit").args(["--pid", &pid, "--fsize=unlimited"]).status();
    assert!(given.expect("prlimit must be installed").success());
    assert!(
        matches!(send(sent).await.unwrap_err(), Error::GaveUp(_)),
        "there is room again, and nobody had to restart"
    );
    assert_eq!(pending_keys(&client).await.len() as i64, sent + 1);
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_full_disk_nothing_is_sent_and_with_room_it_goes_on_by_itself() {
    let directory = Directory::new();
    let path = directory.path("orders.journal");
    let server = Server::script([Act::DropAfter]).await;
    // A file that may not grow is what a full disk is to the one who writes it.
    let mut program = program("the_program_with_little_room", "trap '' XFSZ; ulimit -S -f 8");
    let program = program.env("SHOP_URL", server.url("/orders")).env("SHOP_JOURNAL", &path);
    let mut program = program.stdout(Stdio::null()).spawn().unwrap();
    let ended = tokio::task::spawn_blocking(move || program.wait().unwrap()).await.unwrap();
    assert!(ended.success(), "{ended}");
    let journal = FileJournal::open(&path).unwrap();
    assert_eq!(journal.cut_tail(), 0);
    let pending: HashSet<String> =
        journal.pending().await.unwrap().iter().map(|record| record.key.to_string()).collect();
    let effects: HashSet<String> = server.effects().into_iter().collect();
    assert_eq!(pending, effects, "what was sent is on record, and nothing else is");
}

#[tokio::test]
#[ignore = "started by the test that has it change its directory"]
async fn the_program_that_changes_its_directory() {
    let elsewhere = std::env::var("ELSEWHERE").expect("started by the test that has it change its directory");
    let journal = FileJournal::open("orders.journal").unwrap();
    std::env::set_current_dir(elsewhere).unwrap();
    for id in 0..60 {
        let record = Record::new("order", Key::of("order", &id), "x".repeat(30_000), [7; 32]);
        journal.begin(&record).await.unwrap();
        if id % 10 != 0 {
            journal.strike_off("order", &record.key).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_change_of_directory_does_not_move_the_journal() {
    let (here, elsewhere) = (Directory::new(), Directory::new());
    let mut program = program("the_program_that_changes_its_directory", "true");
    let program = program.current_dir(here.path("")).env("ELSEWHERE", elsewhere.path("")).stdout(Stdio::null());
    assert!(program.status().unwrap().success());
    assert_eq!(std::fs::read_dir(elsewhere.path("")).unwrap().count(), 0);
    assert_eq!(FileJournal::open(here.path("orders.journal")).unwrap().pending().await.unwrap().len(), 6);
    assert_eq!(std::fs::read_dir(here.path("")).unwrap().count(), 1, "nothing is left beside it");
}

/// The program that is killed: this test binary again, run for [`the_program_that_is_killed`] alone.
fn start_program(url: &str, journal: &std::path::Path, orders: u32) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "journal::the_program_that_is_killed", "--ignored", "--nocapture"])
        .env("SHOP_URL", url)
        .env("SHOP_JOURNAL", journal)
        .env("SHOP_ORDERS", orders.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by the tests that kill it"]
async fn the_program_that_is_killed() {
    let setting = |name: &str| std::env::var(name).expect("started by the tests that kill it");
    let journal = FileJournal::open(setting("SHOP_JOURNAL")).unwrap();
    let client = Client::builder().journal(journal).build().unwrap();
    let url = setting("SHOP_URL");
    let orders: u32 = setting("SHOP_ORDERS").parse().unwrap();
    let sends: Vec<_> = (0..8.min(orders))
        .map(|lane| {
            let (client, url) = (client.clone(), url.clone());
            tokio::spawn(async move {
                for id in (lane..orders).step_by(8) {
                    let request = client.post(&url).key(Key::of("order", &id)).body(format!("order {id}"));
                    request.send().await.unwrap();
                }
            })
        })
        .collect();
    for send in sends {
        send.await.unwrap();
    }
}

#[tokio::test]
async fn it_survives_a_kill_between_send_and_answer_and_reconciles() {
    let directory = Directory::new();
    let path = directory.path("orders.journal");
    let restarted = Arc::new(AtomicUsize::new(0));
    let now = Arc::clone(&restarted);
    let server = Server::start(move |_, _| match now.load(Ordering::SeqCst) {
        0 => Act::Never,
        _ => Act::Answer(answer(201).header("idempotency-replayed", "true")),
    })
    .await;
    let mut program = start_program(&server.url("/orders"), &path, 1);
    while server.effects().is_empty() {
        assert!(program.try_wait().unwrap().is_none(), "the program ended early");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The server has done it, the answer is not out: SIGKILL.
    program.kill().unwrap();
    program.wait().unwrap();
    restarted.store(1, Ordering::SeqCst);

    let client = client(FileJournal::open(&path).unwrap());
    let pending = client.pending().await.unwrap();
    assert_eq!(pending.len(), 1);
    assert_eq!((pending[0].operation.as_str(), &pending[0].key), ("order", &Key::of("order", &0)));
    let again = client.post(server.url("/orders")).key(&pending[0].key).body("order 0").send().await.unwrap();
    assert_eq!(again.headers()["idempotency-replayed"], "true");
    assert_eq!(pending_keys(&client).await, []);
    assert_eq!(server.effects(), [Key::of("order", &0).as_str()], "once");
    let seen = server.seen();
    assert_eq!((seen.len(), seen[0].key(), &seen[0].body), (2, seen[1].key(), &seen[1].body));
}

#[tokio::test]
async fn whenever_it_is_killed_every_unanswered_operation_is_on_record() {
    let mut left_behind = 0;
    for round in 0..12_u64 {
        let directory = Directory::new();
        let path = directory.path("orders.journal");
        let server = Server::script([Act::Slow(Duration::from_millis(3), answer(201))]).await;
        let mut program = start_program(&server.url("/orders"), &path, 1_000_000);
        while server.seen().len() < 20 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_millis(7 * round)).await;
        program.kill().unwrap();
        program.wait().unwrap();

        let client = client(FileJournal::open(&path).unwrap());
        let pending: HashSet<String> = pending_keys(&client).await.iter().map(ToString::to_string).collect();
        let answered: HashSet<String> = server.answered().into_iter().collect();
        for request in server.seen() {
            let key = request.key().unwrap();
            assert!(pending.contains(key) || answered.contains(key), "round {round}: `{key}` is forgotten");
        }
        assert!(pending.len() <= 8, "round {round}: only what was under way is left, {}", pending.len());
        left_behind += pending.len();
        // Reconcile: send each again with its key; the effects do not become more.
        let effects: HashSet<String> = server.effects().into_iter().chain(pending.iter().cloned()).collect();
        for record in client.pending().await.unwrap() {
            client.post(server.url("/orders")).key(record.key).send().await.unwrap();
        }
        assert_eq!(pending_keys(&client).await, []);
        assert_eq!(server.effects().into_iter().collect::<HashSet<_>>(), effects);
        assert_eq!(server.effects().len(), effects.len());
    }
    assert!(left_behind > 12, "the kills hit operations under way: {left_behind}");
}
