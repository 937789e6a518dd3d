//! What goes over the wire: forms, queries, files, and the same bytes on every attempt.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use idem_client::{Client, Error, FileJournal, Key, Reason, Refusal, ReplayableBody, ResponseExt as _};
use reqwest::multipart::{Form, Part};

use crate::support::{Act, Directory, Server, answer};

fn client() -> Client {
    let builder = Client::builder().back_off(Duration::from_millis(1), Duration::from_millis(1));
    builder.attempt_timeout(Duration::from_secs(1)).build().unwrap()
}

async fn losing_the_first() -> Server {
    Server::script([Act::DropAfter, Act::Answer(answer(201))]).await
}

#[tokio::test]
async fn forms_queries_and_basic_auth_are_there_without_a_second_dependency() {
    let server = losing_the_first().await;
    let request =
        client().post(server.url("/v1/charges")).key(Key::of("charge", &1)).basic_auth("sk_test", None::<&str>);
    let request = request.query(&[("expand", "customer")]).form(&[("amount", "700"), ("currency", "eur")]);
    assert_eq!(request.send().await.unwrap().status(), 201);
    server.assert_same_request(2);
    for request in server.seen() {
        assert_eq!(
            (request.path.as_str(), request.body.as_str()),
            ("/v1/charges?expand=customer", "amount=700&currency=eur")
        );
        assert_eq!(request.header("content-type"), Some("application/x-www-form-urlencoded"));
        assert_eq!(request.header("authorization"), Some("Basic c2tfdGVzdDo="));
    }
}

#[tokio::test]
async fn a_multipart_form_has_the_same_bytes_on_every_attempt_files_and_streams_included() {
    let stream = || {
        let chunks = ["a stream ", "in two pieces"].map(Ok::<_, std::io::Error>);
        Part::stream(reqwest::Body::wrap_stream(futures_util::stream::iter(chunks))).file_name("stream.txt")
    };
    let server = losing_the_first().await;
    let form = Form::new().text("purpose", "receipt").part("file", stream());
    let key = Key::of("upload", &1);
    assert_eq!(client().post(server.url("/files")).key(&key).multipart(form).send().await.unwrap().status(), 201);
    server.assert_same_request(2);
    let seen = server.seen();
    assert!(seen[0].body.contains("a stream in two pieces") && seen[0].body.contains("receipt"), "{}", seen[0].body);
    let boundary = seen[0].header("content-type").unwrap().split_once("boundary=").unwrap().1;
    assert!(seen[0].body.contains(boundary));
    assert_eq!(seen[0].header("content-type"), seen[1].header("content-type"));
    assert_eq!(seen[0].header("content-length"), Some(seen[0].body.len().to_string().as_str()));
    assert_eq!(server.effects(), [key.as_str()]);
}

#[tokio::test]
async fn a_file_is_read_again_for_each_attempt_and_its_hash_is_on_the_journal() {
    let directory = Directory::new();
    let file = directory.path("report.csv");
    let long: String = (0..60_000).map(|line| format!("{line},")).collect();
    std::fs::write(&file, &long).unwrap();
    let journal = || FileJournal::open(directory.path("journal")).unwrap();
    let client = Client::builder().journal(journal()).back_off(Duration::from_millis(1), Duration::from_millis(1));
    let client = client.build().unwrap();
    let upload =
        |server: &Server, body| client.put(server.url("/report")).key(Key::of("upload", &1)).replayable(body).send();
    let server = losing_the_first().await;
    assert_eq!(upload(&server, ReplayableBody::file(&file)).await.unwrap().status(), 201);
    server.assert_same_request(2);
    assert_eq!(server.seen()[1].body, long);
    assert_eq!(server.seen()[1].header("content-length"), Some(long.len().to_string().as_str()));
    // The same bytes from memory are the same request.
    let losing = Server::script([Act::DropAfter]).await;
    upload(&losing, ReplayableBody::file(&file)).await.unwrap_err();
    let from_file = client.pending().await.unwrap().remove(0);
    client.strike_off(&from_file).await.unwrap();
    client.put(losing.url("/report")).key(Key::of("upload", &1)).body(long).send().await.unwrap_err();
    assert_eq!(client.pending().await.unwrap()[0].request_hash, from_file.request_hash);
}

#[tokio::test]
async fn a_body_that_changes_between_attempts_never_arrives_whole() {
    for (second, starts_alike) in [("another report", false), ("the repXrt", true), ("short", false), ("", false)] {
        let made = Arc::new(AtomicUsize::new(0));
        let body = ReplayableBody::new(move || {
            // Made once for its hash, then for each attempt.
            let text = if made.fetch_add(1, Ordering::SeqCst) < 2 { "the report" } else { second };
            async move { Ok(text.into()) }
        });
        let server = losing_the_first().await;
        let error = client().post(server.url("/report")).key(Key::of("upload", &1)).replayable(body).send().await;
        let error = error.unwrap_err();
        assert!(error.may_have_happened(), "the first attempt was lost: {error}");
        assert_eq!(server.seen().len(), 1, "{second} ({starts_alike}): {error}");
    }
}

#[tokio::test]
async fn a_body_that_cannot_be_read_is_refused_unsent() {
    let server = losing_the_first().await;
    let missing = ReplayableBody::file("/there/is/no/such/file");
    let refused = client().post(server.url("/report")).key(Key::of("upload", &1)).replayable(missing).send().await;
    let refused = refused.unwrap_err();
    assert!(matches!(refused, Error::Refused(Refusal::Body(_))), "{refused}");
    assert!(!refused.may_have_happened());
    // It goes missing before the second attempt: the first one was sent.
    let made = Arc::new(AtomicUsize::new(0));
    let vanishing = ReplayableBody::new(move || {
        let there = made.fetch_add(1, Ordering::SeqCst) < 2;
        async move { if there { Ok("x".into()) } else { Err(std::io::ErrorKind::NotFound.into()) } }
    });
    let error = client().post(server.url("/report")).key(Key::of("upload", &2)).replayable(vanishing).send().await;
    let error = error.unwrap_err();
    assert_eq!((error.gave_up().unwrap().reason(), error.may_have_happened()), (Reason::Hopeless, true), "{error}");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn keys_can_be_sent_as_quoted_strings() {
    let server = losing_the_first().await;
    let client = Client::builder().quoted_keys(true).build().unwrap();
    client.post(server.url("/orders")).key(Key::new(r#"a"b\c"#).unwrap()).send().await.unwrap();
    server.assert_same_request(2);
    assert_eq!(server.seen()[0].key(), Some(r#""a\"b\\c""#));
}

#[tokio::test]
async fn a_replay_is_known_by_the_header_that_the_server_has() {
    for (header, set) in [("idempotency-replayed", None), ("idempotent-replayed", None), ("x-seen", Some("x-seen"))] {
        let server = Server::script([Act::DropAfter, Act::Answer(answer(422).header(header, "true"))]).await;
        let builder = Client::builder();
        let builder = match set {
            Some(name) => builder.replay_header(http::HeaderName::from_static(name)),
            None => builder,
        };
        let response = builder.build().unwrap().post(server.url("/orders")).key(Key::random()).send().await.unwrap();
        assert!(response.is_replay() && response.settled(), "{header}");
    }
    let server = Server::script([Act::DropAfter, Act::Answer(answer(422).header("x-seen", "true"))]).await;
    let response = client().post(server.url("/orders")).key(Key::random()).send().await.unwrap();
    assert!(!response.is_replay() && !response.settled());
}
