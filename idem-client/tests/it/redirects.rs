//! Redirects: followed when the request survives them, handed to the caller when it would not.

use idem_client::{
    Attempts, Client, Error, FileJournal, Key, NetworkEdge, Reason, ReplayableBody, ResponseExt as _, redirect_policy,
};
use reqwest_middleware::ClientBuilder;

use crate::support::{Act, Directory, Server, answer};

async fn redirecting(status: u16) -> Server {
    Server::start(move |_, request| match request.path.as_str() {
        "/old" => Act::Refuse(answer(status).header("location", "/new")),
        _ => Act::Answer(answer(201)),
    })
    .await
}

async fn post(server: &Server) -> reqwest::Response {
    let client = Client::builder().build().unwrap();
    client.post(server.url("/old")).key(Key::of("order", &1)).body("x").send().await.unwrap()
}

#[tokio::test]
async fn a_redirect_that_repeats_the_request_keeps_key_and_body() {
    for status in [307, 308] {
        let server = redirecting(status).await;
        let response = post(&server).await;
        assert_eq!(response.status(), 201);
        assert_eq!(response.url().path(), "/new");
        assert_eq!(response.extensions().get(), Some(&Attempts(1)), "a redirect is no attempt");
        let seen = server.seen();
        assert_eq!(seen.len(), 2);
        assert_eq!((seen[1].method.as_str(), seen[1].path.as_str(), seen[1].body.as_str()), ("POST", "/new", "x"));
        assert_eq!(seen[0].key(), seen[1].key());
        assert!(seen[1].key().is_some());
    }
}

#[tokio::test]
async fn a_redirect_that_would_turn_the_post_into_a_get_is_not_followed() {
    for status in [301, 302] {
        let server = redirecting(status).await;
        let response = post(&server).await;
        assert_eq!((response.status().as_u16(), response.headers()["location"].as_bytes()), (status, &b"/new"[..]));
        assert_eq!(server.seen().len(), 1);
        // A GET stays a GET.
        let client = Client::builder().build().unwrap();
        assert_eq!(client.get(server.url("/old")).send().await.unwrap().status(), 201);
    }
}

#[tokio::test]
async fn see_other_is_fetched() {
    let server = redirecting(303).await;
    assert_eq!(post(&server).await.status(), 201);
    let seen = server.seen();
    assert_eq!((seen[1].method.as_str(), seen[1].body.as_str()), ("GET", ""));
}

#[tokio::test]
async fn a_refusal_of_the_page_behind_a_303_does_not_deny_the_operation() {
    for status in [401, 404, 429, 500] {
        let directory = Directory::new();
        let server = Server::start(move |_, request| match request.path.as_str() {
            "/old" => Act::Answer(answer(303).header("location", "/new")),
            _ => Act::Refuse(answer(status)),
        })
        .await;
        let journal = FileJournal::open(directory.path("journal")).unwrap();
        let client = Client::builder().journal(journal).attempts(1).build().unwrap();
        let may_have_happened = match client.post(server.url("/old")).key(Key::of("order", &1)).send().await {
            Ok(response) => {
                assert!(!response.settled(), "{status}");
                response.may_have_happened()
            }
            Err(error) => error.may_have_happened(),
        };
        assert!(may_have_happened, "{status}: it has happened, the server said where to look");
        assert_eq!(client.pending().await.unwrap().len(), 1, "{status}");
        // Behind a 307 the refusal is that of the request itself.
        let server = Server::start(move |_, request| match request.path.as_str() {
            "/old" => Act::Refuse(answer(307).header("location", "/new")),
            _ => Act::Refuse(answer(404)),
        })
        .await;
        let response = client.post(server.url("/old")).key(Key::of("order", &2)).send().await.unwrap();
        assert_eq!((response.settled(), response.may_have_happened()), (true, false));
    }
}

#[tokio::test]
async fn a_redirect_that_could_not_be_followed_is_not_the_operations_word() {
    for status in [307, 308] {
        let server = redirecting(status).await;
        let body = ReplayableBody::new(|| async { Ok("x".into()) });
        let client = Client::builder().build().unwrap();
        let request = client.post(server.url("/old")).key(Key::of("order", &1)).replayable(body);
        let response = request.send().await.unwrap();
        let said = (response.status().as_u16(), response.settled(), server.effects().len());
        assert!(said == (status, false, 0) || said == (201, true, 1), "{said:?}");
    }
}

#[tokio::test]
async fn an_answer_lost_behind_a_redirect_starts_from_the_beginning() {
    let server = Server::start(|number, request| match (request.path.as_str(), number) {
        ("/old", _) => Act::Refuse(answer(307).header("location", "/new")),
        (_, 1) => Act::DropAfter,
        _ => Act::Answer(answer(201)),
    })
    .await;
    assert_eq!(post(&server).await.status(), 201);
    let paths: Vec<_> = server.seen().into_iter().map(|request| request.path).collect();
    assert_eq!(paths, ["/old", "/new", "/old", "/new"]);
    assert_eq!(server.effects(), [Key::of("order", &1).as_str()]);
}

#[tokio::test]
async fn redirects_in_a_circle_end() {
    let server = Server::script([Act::Refuse(answer(307).header("location", "/old"))]).await;
    let client = Client::builder().build().unwrap();
    let sent = client.post(server.url("/old")).key(Key::of("order", &1)).send().await.unwrap_err();
    let gave_up = sent.gave_up().unwrap();
    assert!(gave_up.may_have_happened(), "the host that was reached last is not known to have refused");
    assert_eq!(gave_up.attempts(), 1, "another attempt would go the same way");
    assert_eq!(server.seen().len(), 11);
}

#[tokio::test]
async fn a_host_that_cannot_be_reached_behind_a_redirect_proves_nothing() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nowhere = format!("http://{}/", unused.local_addr().unwrap());
    drop(unused);
    let server = Server::start(move |_, _| Act::Answer(answer(303).header("location", nowhere.clone()))).await;
    let client = Client::builder().build().unwrap();
    let error: Error = client.post(server.url("/old")).key(Key::of("order", &1)).send().await.unwrap_err();
    assert!(error.gave_up().unwrap().may_have_happened(), "{error}");
}

#[tokio::test]
async fn a_client_that_follows_redirects_by_itself_is_refused_at_build() {
    let limited = reqwest::Client::builder().redirect(reqwest::redirect::Policy::limited(2)).build().unwrap();
    for http in [reqwest::Client::new(), limited] {
        let refused = Client::builder().http(http).build().unwrap_err().to_string();
        assert!(
            refused.contains("must not follow redirects by itself") && refused.contains("redirect_policy()"),
            "{refused}"
        );
    }
    let none = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let ours = reqwest::Client::builder().redirect(redirect_policy()).build().unwrap();
    for http in [none, ours] {
        let server = redirecting(301).await;
        let client = Client::builder().http(http).build().unwrap();
        let response = client.post(server.url("/old")).key(Key::of("order", &1)).send().await.unwrap();
        assert_eq!((response.status().as_u16(), server.seen().len()), (301, 1));
    }
    // A policy of one's own may do anything, so it is found at run time.
    let own = reqwest::redirect::Policy::custom(|attempt| attempt.follow());
    let http = reqwest::Client::builder().redirect(own).build().unwrap();
    let server = redirecting(301).await;
    let client = Client::builder().http(http).build().unwrap();
    let error = client.post(server.url("/old")).key(Key::of("order", &1)).send().await.unwrap_err();
    assert_eq!((error.gave_up().unwrap().reason(), error.may_have_happened()), (Reason::Redirected, true), "{error}");
    // A builder's policy is replaced.
    let server = redirecting(302).await;
    let client = Client::builder().http_builder(reqwest::Client::builder()).build().unwrap();
    assert_eq!(client.post(server.url("/old")).key(Key::of("order", &1)).send().await.unwrap().status(), 302);
}

#[tokio::test]
async fn in_a_stack_of_ones_own_it_is_found_at_run_time() {
    for status in [301, 302, 303] {
        for edge in [false, true] {
            let directory = Directory::new();
            let server = redirecting(status).await;
            let journal = FileJournal::open(directory.path("journal")).unwrap();
            let layer = Client::builder().journal(journal).build_layer().unwrap();
            let stack = ClientBuilder::new(reqwest::Client::new()).with(layer.clone());
            let stack = if edge { stack.with(NetworkEdge) } else { stack };
            let request = stack.build().post(server.url("/old")).header("idempotency-key", "k").body("x");
            let error = Error::from(request.send().await.unwrap_err());
            assert_eq!(error.gave_up().unwrap().reason(), Reason::Redirected, "{error}");
            assert!(error.may_have_happened() && error.to_string().contains("redirect_policy()"), "{error}");
            assert_eq!(layer.pending().await.unwrap().len(), 1);
        }
    }
    // With our policy, and for what changes nothing, redirects are no reason to complain.
    let server = redirecting(303).await;
    let http = reqwest::Client::builder().redirect(redirect_policy()).build().unwrap();
    let stack = ClientBuilder::new(http).with(Client::builder().build_layer().unwrap()).build();
    let response = stack.post(server.url("/old")).header("idempotency-key", "k").send().await.unwrap();
    assert!(response.settled());
    let stack = ClientBuilder::new(reqwest::Client::new()).with(Client::builder().build_layer().unwrap()).build();
    assert_eq!(stack.get(server.url("/old")).send().await.unwrap().status(), 201);
}
