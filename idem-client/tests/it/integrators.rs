//! The page for integrators: its Python runs, and does what the crate does.

use std::process::{Command, Output};
use std::time::Duration;

use idem_client::{Client, Key, Reason, ResponseExt as _};

use crate::support::{Act, Directory, Server, answer};

const PAGE: &str = include_str!("../../docs/integrators.md");

/// The page's Python, followed by `program`, run with the server's URL as its argument.
async fn python(program: &str, url: &str) -> Output {
    let snippet = PAGE.split("```python\n").nth(1).and_then(|rest| rest.split("```").next()).expect("the page has it");
    let directory = Directory::new();
    let file = directory.path("send.py");
    std::fs::write(&file, format!("{snippet}\nimport sys\nURL = sys.argv[1]\n{program}")).unwrap();
    let url = url.to_owned();
    let run = move || {
        let run = Command::new("python3").arg(&file).arg(url).output();
        run.expect("python3 must be installed: the page's Python is tested by running it")
    };
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    drop(directory);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

async fn printed(program: &str, url: &str) -> String {
    String::from_utf8(python(program, url).await.stdout).unwrap().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_keys_are_the_crates_keys() {
    let program = r#"
for identity in [4711, "4711", ("tenant-7", 4711), ("ab", "c"), ("a", "bc"), (("ab", "c"), "é"), True, b"\x00\xff"]:
    print(key_of("order-confirm", identity))
"#;
    let expected = [
        Key::of("order-confirm", &4711),
        Key::of("order-confirm", "4711"),
        Key::of("order-confirm", &("tenant-7", 4711)),
        Key::of("order-confirm", &("ab", "c")),
        Key::of("order-confirm", &("a", "bc")),
        Key::of("order-confirm", &(("ab", "c"), "é")),
        Key::of("order-confirm", &true),
        Key::of("order-confirm", b"\x00\xff"),
    ];
    let keys = printed(program, "").await;
    assert_eq!(keys.lines().collect::<Vec<_>>(), expected.iter().map(Key::as_str).collect::<Vec<_>>());
    assert!(PAGE.contains(expected[2].as_str()), "the page shows this key");
}

const SEND: &str = r#"
try:
    answer = send(URL, key_of("order-confirm", 4711), b'{"total":7}', attempt_timeout=0.3, base=0.01)
    print(answer.status, answer.body.decode())
except GaveUp as gave_up:
    print("gave up", gave_up.attempts, gave_up.last_status, gave_up.may_have_happened)
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_sends_the_same_request_until_it_is_answered() {
    let problem = r#"{"type":"https://idem.example/problems/in-flight"}"#;
    for first in [
        Act::DropBefore,
        Act::DropAfter,
        Act::ResetMidBody(answer(201).body("a body that is cut short in the middle")),
        Act::Slow(Duration::from_secs(1), answer(201)),
        Act::Refuse(answer(429)),
        Act::Refuse(answer(503).header("retry-after", "1")),
        Act::Refuse(answer(503).header("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT")),
        Act::Refuse(answer(409).header("retry-after", "0")),
        Act::Refuse(answer(409).header("content-type", "application/problem+json").body(problem)),
    ] {
        let server = Server::script([first.clone(), Act::Answer(answer(201))]).await;
        assert_eq!(printed(SEND, &server.url("/orders")).await, "201 answer 201", "{first:?}");
        server.assert_same_request(2);
        let key = Key::of("order-confirm", &4711);
        assert_eq!(server.effects(), [key.as_str()], "{first:?}");
    }
}

const TELL: &str = r#"
try:
    answer = send(URL, key_of("order-confirm", 4711), b'{"total":7}', attempt_timeout=0.3, base=0.01)
    print(answer.status, answer.settled)
except GaveUp as gave_up:
    print("gave up", gave_up.last_status, gave_up.may_have_happened, gave_up.a_person_must_look)
"#;

/// A problem about the key, as our server says it.
fn problem(status: u16, name: &str) -> Act {
    let body = format!(r#"{{"type":"https://shop.example/problems#{name}"}}"#);
    Act::Refuse(answer(status).header("content-type", "application/problem+json").body(body))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_it_calls_settled_is_what_the_crate_calls_settled() {
    let stripes = r#"{"error":{"type":"idempotency_error"}}"#;
    let (lost, in_front) = (Act::DropAfter, |status| Act::Refuse(answer(status)));
    let marked = |status| Act::Answer(answer(status).header("idempotency-replayed", "true"));
    for (acts, said) in [
        (vec![Act::Answer(answer(201))], "201 True"),
        (vec![in_front(400)], "400 True"),
        (vec![in_front(500)], "500 False"),
        (vec![in_front(302)], "302 True"),
        (vec![in_front(307)], "307 False"),
        (vec![lost.clone(), in_front(400)], "400 False"),
        (vec![lost.clone(), in_front(422)], "422 False"),
        (vec![lost.clone(), in_front(429), in_front(401)], "401 False"),
        (vec![lost.clone(), marked(422)], "422 True"),
        (vec![lost.clone(), marked(201)], "201 True"),
        (vec![in_front(429), in_front(401)], "401 True"),
        (vec![in_front(503), in_front(401)], "401 False"),
        (vec![problem(422, "key-reused")], "422 False"),
        (vec![problem(409, "key-reused")], "409 False"),
        (vec![Act::Refuse(answer(400).body(stripes))], "400 False"),
        (vec![problem(500, "effects-unknown")], "gave up 500 True True"),
    ] {
        let server = Server::script(acts.clone()).await;
        assert_eq!(printed(TELL, &server.url("/orders")).await, said, "in Python: {acts:?}");
        let server = Server::script(acts.clone()).await;
        let client = Client::builder().back_off(Duration::from_millis(1), Duration::from_millis(1)).build().unwrap();
        let sent = client.post(server.url("/orders")).key(Key::of("order-confirm", &4711)).send().await;
        let told = match sent {
            Ok(answer) => format!("{} {}", answer.status().as_u16(), if answer.settled() { "True" } else { "False" }),
            Err(error) => {
                let gave_up = error.gave_up().unwrap();
                assert_eq!(gave_up.reason(), Reason::EffectsUnknown);
                format!("gave up {} True True", gave_up.last_status().unwrap().as_u16())
            }
        };
        assert_eq!(told, said, "in Rust: {acts:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_waits_for_an_operation_in_flight_without_using_attempts_up() {
    let in_flight = problem(409, "in-flight");
    let acts = [vec![in_flight; 6], vec![Act::Answer(answer(201))]].concat();
    let server = Server::script(acts).await;
    assert_eq!(printed(SEND, &server.url("/orders")).await, "201 answer 201");
    server.assert_same_request(7);
    assert!(server.gaps().iter().all(|gap| *gap >= Duration::from_millis(95)), "{:?}", server.gaps());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_takes_the_servers_word() {
    for status in [302, 400, 401, 404, 409, 422, 500] {
        let server = Server::script([Act::Answer(answer(status).header("location", "/other"))]).await;
        assert_eq!(printed(SEND, &server.url("/orders")).await, format!("{status} answer {status}"));
        server.assert_same_request(1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_stops_and_says_what_it_knows() {
    for (act, said, times) in [
        (Act::DropAfter, "gave up 4 None True", 4),
        (Act::Refuse(answer(429)), "gave up 4 429 False", 4),
        (Act::Refuse(answer(503)), "gave up 4 503 True", 4),
        (Act::Refuse(answer(503).header("retry-after", "60")), "gave up 1 503 True", 1),
    ] {
        let server = Server::script([act]).await;
        assert_eq!(printed(SEND, &server.url("/orders")).await, said);
        server.assert_same_request(times);
    }
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nowhere = format!("http://{}/", unused.local_addr().unwrap());
    drop(unused);
    assert_eq!(printed(SEND, &nowhere).await, "gave up 4 None False");
}
