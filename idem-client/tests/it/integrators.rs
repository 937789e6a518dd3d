//! The page for integrators: its Python runs, and does what the crate does.

use std::process::{Command, Output};
use std::time::Duration;

use idem_client::Key;

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
    status, headers, body = send(URL, key_of("order-confirm", 4711), b'{"total":7}', attempt_timeout=0.3, base=0.01)
    print(status, body.decode())
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
