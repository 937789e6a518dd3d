//! Keys, scopes and fingerprints: what is one operation and what is not.

use axum::body::Body;
use axum::http::Request;
use idem_tests::{App, Then, entry, request};

fn bytes(key: &str, content_type: &str, body: impl Into<Body>) -> Request<Body> {
    Request::post("/bytes")
        .header("tenant", "a")
        .header("idempotency-key", key)
        .header("content-type", content_type)
        .body(body.into())
        .expect("a request")
}

#[tokio::test]
async fn a_retry_gets_the_first_answer_byte_for_byte() {
    let (_database, app) = App::start().await;
    let body = entry("once", Then::Created);
    let first = app.post("/entries", "k", &body).await;
    assert_eq!((first.status, first.replayed()), (201, false));
    assert_eq!(first.header("set-cookie"), "session=secret");
    for _ in 0..3 {
        app.post("/entries", "k", &body).await.assert_replays(&first);
    }
    assert_eq!((app.entries().await, app.stored().await), (1, 1));
}

#[tokio::test]
async fn another_process_replays_too() {
    let (database, app) = App::start().await;
    let body = entry("once", Then::Created);
    let first = app.post("/entries", "k", &body).await;
    App::another(&database).post("/entries", "k", &body).await.assert_replays(&first);
    assert_eq!(app.entries().await, 1);
}

#[tokio::test]
async fn a_missing_key_is_400_and_nothing_runs_26_27() {
    let (_database, app) = App::start().await;
    let body = entry("never", Then::Created);
    let missing = app.send(request("/entries", &[("tenant", "a")], &body)).await;
    assert_eq!((missing.status, missing.problem().as_str()), (400, "key-missing"));
    let long = "k".repeat(256);
    for malformed in ["", " ", "\"\"", "\"open", "a b", "\"a\"b", &long] {
        let reply = app.post("/entries", malformed, &body).await;
        assert_eq!((reply.status, reply.problem().as_str()), (400, "key-invalid"), "{malformed:?}");
        assert!(malformed.len() < 3 || !reply.json().to_string().contains(malformed), "a key must not be echoed");
    }
    let twice = [("tenant", "a"), ("idempotency-key", "k"), ("idempotency-key", "k")];
    let reply = app.send(request("/entries", &twice, &body)).await;
    assert_eq!((reply.status, reply.problem().as_str()), (400, "key-invalid"));
    assert_eq!((app.entries().await, app.stored().await), (0, 0));
}

#[tokio::test]
async fn bare_and_quoted_and_odd_keys_are_accepted_28() {
    let (_database, app) = App::start().await;
    for (number, key) in ["order:1/2", "a;b", "~'$1--", "%00", "\\x41"].into_iter().enumerate() {
        let body = entry(key, Then::Created);
        let first = app.post("/entries", key, &body).await;
        assert_eq!(first.status, 201, "{key}");
        let quoted = format!("\"{}\"", key.replace('\\', "\\\\"));
        app.post("/entries", &quoted, &body).await.assert_replays(&first);
        assert_eq!(app.entries().await, number as i64 + 1);
    }
}

#[tokio::test]
async fn who_asks_is_settled_before_which_key_is_sent() {
    let (_database, app) = App::start().await;
    let reply = app.send(request("/entries", &[], &entry("never", Then::Created))).await;
    assert_eq!(reply.status, 401);
    let malformed = Request::post("/entries").header("tenant", "a").header("content-type", "application/json");
    let reply = app.send(malformed.header("idempotency-key", "k").body(Body::from("{")).expect("a request")).await;
    assert_eq!(reply.status, 400);
    assert_eq!(app.stored().await, 0, "rejections are never stored");
    assert_eq!(app.post("/entries", "k", &entry("now", Then::Created)).await.status, 201);
}

#[tokio::test]
async fn another_payload_is_422_and_never_a_replay_20_21() {
    let (_database, app) = App::start().await;
    let body = entry("first", Then::Created);
    assert_eq!(app.post("/entries", "k", &body).await.status, 201);
    for (path, other) in [
        ("/entries", entry("second", Then::Created)),
        ("/entries?dry_run=1", entry("first", Then::Created)),
        ("/entries/1/refund", entry("first", Then::Created)),
        ("/nested/entries", entry("first", Then::Created)),
        ("/patient", entry("first", Then::Created)),
    ] {
        let reply = app.post(path, "k", &other).await;
        assert_eq!((reply.status, reply.problem().as_str()), (422, "key-reused"), "{path}");
        assert!(!reply.replayed());
    }
    assert_eq!(app.entries().await, 1);
}

#[tokio::test]
async fn the_original_path_counts_under_nest() {
    let (_database, app) = App::start().await;
    let body = entry("nested", Then::Created);
    let first = app.post("/nested/entries", "k", &body).await;
    assert_eq!(first.status, 201);
    assert_eq!(app.post("/entries", "k", &body).await.status, 422);
    app.post("/nested/entries", "k", &body).await.assert_replays(&first);
}

#[tokio::test]
async fn json_counts_by_meaning_18() {
    let (_database, app) = App::start().await;
    let send = |body: &'static str| {
        let request = Request::post("/entries").header("tenant", "a").header("idempotency-key", "k");
        app.send(request.header("content-type", "application/json").body(Body::from(body)).expect("a request"))
    };
    let first = send(r#"{"text":"é","then":"created"}"#).await;
    assert_eq!(first.status, 201);
    send("{ \"then\" : \"created\",\n\"text\" : \"\\u00e9\" }").await.assert_replays(&first);
    assert_eq!(send(r#"{"text":"e","then":"created"}"#).await.status, 422);
    assert_eq!(app.entries().await, 1);
}

#[tokio::test]
async fn a_body_nested_a_hundred_thousand_deep_is_an_answer() {
    let (_database, app) = App::start().await;
    let deep = "[".repeat(100_000);
    let first = app.send(bytes("k", "application/json", deep.clone())).await;
    assert_eq!(first.status, 200);
    app.send(bytes("k", "application/json", deep)).await.assert_replays(&first);
    let request = Request::post("/entries").header("tenant", "a").header("idempotency-key", "k2");
    let request = request.header("content-type", "application/json").body(Body::from("[".repeat(100_000)));
    assert_eq!(app.send(request.expect("a request")).await.status, 422, "axum's own answer for JSON that does not fit");
    assert_eq!(app.entries().await, 1);
}

#[tokio::test]
async fn multipart_counts_by_its_parts_and_bytes_30() {
    let (_database, app) = App::start().await;
    let form = |boundary: &str, file: &[u8]| {
        let mut body = format!("--{boundary}\r\ncontent-disposition: form-data; name=\"f\"\r\n\r\n").into_bytes();
        body.extend_from_slice(file);
        body.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
        (format!("multipart/form-data; boundary={boundary}"), body)
    };
    let send = |boundary: &str, file: &[u8]| {
        let (content_type, body) = form(boundary, file);
        app.send(bytes("k", &content_type, body))
    };
    let first = send("one", b"\xff\xfe\x00").await;
    assert_eq!(first.status, 200);
    send("two", b"\xff\xfe\x00").await.assert_replays(&first);
    assert_eq!(send("two", b"\xff\xfd\x00").await.status, 422, "different bytes must not compare equal");
    assert_eq!(app.entries().await, 1);
}

#[tokio::test]
async fn other_bodies_count_byte_for_byte_and_replay_so_16() {
    let (_database, app) = App::start().await;
    for (key, body) in [
        ("empty", b"".as_slice()),
        ("null", b"null"),
        ("false", b"false"),
        ("nul", b"{\"a\":\"\\u0000\",\"n\":1e2}"),
        ("binary", b"\x00\xff\xfe"),
    ] {
        let first = app.send(bytes(key, "application/octet-stream", body)).await;
        assert_eq!((first.status, first.body.as_ref()), (200, body), "{key}");
        app.send(bytes(key, "application/octet-stream", body)).await.assert_replays(&first);
        assert_eq!(app.send(bytes(key, "application/octet-stream", [body, b" "].concat())).await.status, 422, "{key}");
    }
}

#[tokio::test]
async fn a_refreshed_credential_does_not_count() {
    let (_database, app) = App::start().await;
    let send = |token: &'static str| {
        let headers = [("tenant", "a"), ("idempotency-key", "k"), ("authorization", token)];
        app.send(request("/entries", &headers, &entry("once", Then::Created)))
    };
    let first = send("Bearer 1").await;
    send("Bearer 2").await.assert_replays(&first);
}

#[tokio::test]
async fn scopes_do_not_see_each_other_22() {
    let (_database, app) = App::start().await;
    let body = entry("each", Then::Created);
    let mut ids = Vec::new();
    for tenant in ["a", "b", "(1:a", "ü", "a'--"] {
        let headers = [("tenant", tenant), ("idempotency-key", "k")];
        if tenant.is_ascii() {
            let first = app.send(request("/entries", &headers, &body)).await;
            assert_eq!(first.status, 201, "{tenant}");
            assert!(!first.replayed());
            ids.push(first.json()["id"].clone());
            app.send(request("/entries", &headers, &body)).await.assert_replays(&first);
        }
    }
    assert_eq!(app.entries().await, ids.len() as i64);
}

#[tokio::test]
async fn a_scope_that_cannot_be_stored_is_an_error_and_not_a_truncation() {
    let (_database, app) = App::start().await;
    let long = "t".repeat(256);
    let reply = app
        .send(request("/entries", &[("tenant", &long), ("idempotency-key", "k")], &entry("never", Then::Created)))
        .await;
    assert_eq!((reply.status, reply.problem().as_str()), (500, "internal"));
    assert_eq!((app.entries().await, app.stored().await), (0, 0));
}

#[tokio::test]
async fn without_a_key_an_optional_handler_runs_each_time_19() {
    let (_database, app) = App::start().await;
    for expected in 1..=3 {
        let reply = app.send(request("/optional", &[("tenant", "a")], &entry("each", Then::Created))).await;
        assert_eq!((reply.status, reply.replayed()), (201, false));
        assert_eq!(app.entries().await, expected);
    }
    let refused = app.send(request("/optional", &[("tenant", "a")], &entry("none", Then::Status(404)))).await;
    assert_eq!(refused.status, 404);
    assert_eq!((app.entries().await, app.stored().await), (3, 0), "a refusal rolls back, keys or not");
    let first = app.post("/optional", "k", &entry("once", Then::Created)).await;
    app.post("/optional", "k", &entry("once", Then::Created)).await.assert_replays(&first);
    let malformed = app.post("/optional", "", &entry("never", Then::Created)).await;
    assert_eq!(malformed.status, 400, "a malformed key is no missing key");
    assert_eq!(app.entries().await, 4);
}

#[tokio::test]
async fn the_key_may_come_from_the_payload() {
    let (_database, app) = App::start().await;
    let first = app.send(request("/event", &[], &entry("evt_1", Then::Created))).await;
    assert_eq!(first.status, 201);
    app.send(request("/event", &[], &entry("evt_1", Then::Created))).await.assert_replays(&first);
    assert_eq!(app.send(request("/event", &[], &entry("evt_2", Then::Created))).await.status, 201);
    assert_eq!(app.send(request("/event", &[], &entry("", Then::Created))).await.status, 400);
    assert_eq!(app.entries().await, 2);
}

#[tokio::test]
async fn a_fingerprint_of_ones_own_replaces_the_request() {
    let (_database, app) = App::start().await;
    let first = app.post("/lenient", "k", &entry("same", Then::Created)).await;
    app.post("/lenient?attempt=2", "k", &entry("same", Then::Status(402))).await.assert_replays(&first);
    assert_eq!(app.post("/lenient", "k", &entry("other", Then::Created)).await.status, 422);
    assert_eq!(app.entries().await, 1);
}

#[tokio::test]
async fn a_handler_without_a_body_replays_204() {
    let (_database, app) = App::start().await;
    let send = || {
        let request = Request::post("/bodiless").header("tenant", "a").header("idempotency-key", "k");
        app.send(request.body(Body::empty()).expect("a request"))
    };
    let first = send().await;
    assert_eq!((first.status, first.body.len()), (204, 0));
    send().await.assert_replays(&first);
    assert_eq!(app.entries().await, 1);
}

#[tokio::test]
async fn without_a_key_nothing_is_claimed_that_was_not_committed() {
    let (_database, app) = App::start().await;
    for then in [Then::Swallow, Then::LeakSavepoint] {
        let ending = format!("{then:?}");
        let reply = app.send(request("/optional", &[("tenant", "a")], &entry("lost", then))).await;
        assert_eq!((reply.status, reply.problem().as_str()), (500, "internal"), "{ending}");
    }
    let conflict = app.send(request("/optional", &[("tenant", "a")], &entry("lost", Then::Conflict(500)))).await;
    assert_eq!(
        (conflict.status, conflict.header("retry-after")),
        (503, "1"),
        "a lost conflict is the same without a key"
    );
    assert_eq!(app.entries().await, 0);
}

#[tokio::test]
async fn a_lost_conflict_is_no_refusal() {
    let (_database, app) = App::start().await;
    for (path, status) in [("/entries", 409), ("/entries", 500), ("/stubborn", 400), ("/stubborn", 500)] {
        let key = format!("{}{status}", &path[1..]);
        for _ in 0..2 {
            let reply = app.post(path, &key, &entry("lost", Then::Conflict(status))).await;
            assert_eq!(
                (reply.status, reply.replayed(), reply.header("retry-after")),
                (503, false, "1"),
                "{path} {status}"
            );
        }
    }
    assert_eq!((app.entries().await, app.stored().await), (0, 0));
}
