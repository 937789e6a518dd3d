//! The README's first example, as it stands there, against our API's shape and against Stripe's.

use crate::support::{Act, Answer, Directory, Server, answer};

const README: &str = include_str!("../../README.md");

mod place {
    include!("place.rs");

    pub(super) async fn run(journal: &std::path::Path, url: &str, order_id: i64) -> (String, usize) {
        let client = client(journal).unwrap();
        let said = place(&client, url, order_id).await;
        (said, client.pending().await.unwrap().len())
    }
}

#[test]
fn the_example_is_what_is_tested() {
    let shown = README.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    assert_eq!(shown, include_str!("place.rs"), "copy the one to the other");
}

fn ours(status: u16, problem: &str) -> Answer {
    let body = format!(r#"{{"type":"https://shop.example/problems#{problem}","title":"no","status":{status}}}"#);
    answer(status).header("content-type", "application/problem+json").body(body)
}

fn stripes(status: u16, kind: &str, code: &str) -> Answer {
    let body = format!(r#"{{"error":{{"type":"{kind}","code":"{code}","message":"no"}}}}"#);
    answer(status).header("content-type", "application/json").body(body)
}

#[tokio::test]
async fn it_does_what_it_says_against_both() {
    let replayed = |name: &str, status| Act::Answer(answer(status).header(name, "true"));
    let (lost, created) = (Act::DropAfter, Act::Answer(answer(201)));
    let again = "it may have happened: gave up";
    for (acts, said, pending) in [
        (vec![created.clone()], "answered 201", 0),
        (vec![lost.clone(), replayed("idempotency-replayed", 201)], "answered 201", 0),
        (vec![lost.clone(), replayed("idempotent-replayed", 200)], "answered 200", 0),
        (vec![Act::Refuse(ours(409, "in-flight")), created.clone()], "answered 201", 0),
        (vec![Act::Refuse(stripes(409, "idempotency_error", "idempotency_key_in_use")), created], "answered 201", 0),
        (vec![Act::Refuse(stripes(402, "card_error", "card_declined"))], "answered 402", 0),
        (vec![lost.clone(), replayed("idempotent-replayed", 402)], "answered 402", 0),
        (vec![Act::Refuse(ours(422, "key-reused"))], "answered 422 Unprocessable Entity, and it may have happened", 1),
        (vec![Act::Refuse(ours(409, "key-reused"))], "answered 409 Conflict, and it may have happened", 1),
        (
            vec![Act::Refuse(stripes(400, "idempotency_error", ""))],
            "answered 400 Bad Request, and it may have happened",
            1,
        ),
        (vec![lost.clone(), Act::Refuse(answer(401))], "answered 401 Unauthorized, and it may have happened", 1),
        (vec![lost], again, 1),
        (vec![Act::Answer(ours(500, "effects-unknown"))], "it may have happened: gave up", 1),
        (vec![Act::Refuse(answer(429))], "it has not happened: gave up", 0),
    ] {
        let directory = Directory::new();
        let server = Server::script(acts.clone()).await;
        let (told, left) = place::run(&directory.path("orders.journal"), &server.url("/v1/orders"), 4711).await;
        assert!(told.starts_with(said), "{acts:?}: {told}");
        assert_eq!(left, pending, "{acts:?}");
        server.assert_same_request(server.seen().len());
        assert_eq!(server.seen()[0].body, "product=gift&quantity=1");
    }
}
