//! The breaker against a server that dies and comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use idem_client::{BreakerState, Client, Error, Key, Reason};
use reqwest::Url;

use crate::support::{Act, Server, answer};

struct Shop {
    server: Server,
    healthy: Arc<AtomicBool>,
    client: Client,
}

impl Shop {
    async fn start(sick: Act) -> Self {
        let healthy = Arc::new(AtomicBool::new(true));
        let looked_at = Arc::clone(&healthy);
        let well = move || looked_at.load(Ordering::SeqCst);
        let server = Server::start(move |_, _| if well() { Act::Answer(answer(201)) } else { sick.clone() }).await;
        let client = Client::builder().back_off(Duration::from_millis(1), Duration::from_millis(1));
        let client = client.breaker(6, Duration::from_millis(200)).build().unwrap();
        Self { server, healthy, client }
    }

    async fn send(&self, id: i64) -> Result<reqwest::Response, Error> {
        self.client.post(self.server.url("/orders")).key(Key::of("order", &id)).send().await
    }

    fn state(&self) -> BreakerState {
        self.client.breaker(&Url::parse(&self.server.base).unwrap())
    }
}

#[tokio::test]
async fn it_opens_probes_and_closes() {
    for sick in [Act::DropBefore, Act::Refuse(answer(503))] {
        let shop = Shop::start(sick).await;
        shop.send(0).await.unwrap();
        assert_eq!(shop.state(), BreakerState::Closed { failures: 0 });
        shop.healthy.store(false, Ordering::SeqCst);
        assert_eq!(shop.send(1).await.unwrap_err().gave_up().unwrap().reason(), Reason::AttemptsSpent);
        assert_eq!(shop.state(), BreakerState::Closed { failures: 4 });
        // The sixth failure opens it, in the middle of the second request.
        let error = shop.send(2).await.unwrap_err();
        assert_eq!((error.gave_up().unwrap().reason(), error.gave_up().unwrap().attempts()), (Reason::BreakerOpen, 2));
        let BreakerState::Open { probe_in } = shop.state() else { panic!("{:?}", shop.state()) };
        assert!(probe_in <= Duration::from_millis(300), "{probe_in:?}");
        assert_eq!(shop.server.seen().len(), 7);
        // Open: nothing is sent, and the caller knows that nothing happened.
        let unsent = shop.send(3).await.unwrap_err();
        let gave_up = unsent.gave_up().unwrap();
        assert_eq!((gave_up.reason(), gave_up.attempts()), (Reason::BreakerOpen, 0));
        assert!(!gave_up.may_have_happened() && unsent.to_string().contains("never sent"), "{unsent}");
        assert_eq!(shop.server.seen().len(), 7);
        // A failed probe keeps it open: one request goes out, not four.
        tokio::time::sleep(Duration::from_millis(310)).await;
        assert_eq!(shop.send(4).await.unwrap_err().gave_up().unwrap().attempts(), 1);
        assert!(matches!(shop.state(), BreakerState::Open { .. }));
        assert_eq!(shop.server.seen().len(), 8);
        // A good probe closes it.
        shop.healthy.store(true, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(310)).await;
        assert_eq!(shop.send(5).await.unwrap().status(), 201);
        assert_eq!(shop.state(), BreakerState::Closed { failures: 0 });
        assert_eq!(shop.client.breakers().len(), 1);
    }
}

#[tokio::test]
async fn one_probe_at_a_time_however_many_wait() {
    let shop = Arc::new(Shop::start(Act::DropBefore).await);
    shop.healthy.store(false, Ordering::SeqCst);
    shop.send(0).await.unwrap_err();
    shop.send(1).await.unwrap_err();
    let before = shop.server.seen().len();
    tokio::time::sleep(Duration::from_millis(310)).await;
    let sends: Vec<_> = (0..50)
        .map(|id| {
            let shop = Arc::clone(&shop);
            tokio::spawn(async move { shop.send(100 + id).await })
        })
        .collect();
    for send in sends {
        send.await.unwrap().unwrap_err();
    }
    assert_eq!(shop.server.seen().len() - before, 1);
}

#[tokio::test]
async fn answers_that_refuse_are_signs_of_life() {
    for status in [400, 409, 422, 429, 500] {
        let server = Server::script([Act::Refuse(answer(status))]).await;
        let client = Client::builder().back_off(Duration::from_millis(1), Duration::from_millis(1));
        let client = client.breaker(2, Duration::from_secs(5)).build().unwrap();
        for id in 0..3 {
            let _ = client.post(server.url("/orders")).key(Key::of("order", &id)).send().await;
        }
        let state = client.breaker(&Url::parse(&server.base).unwrap());
        assert_eq!(state, BreakerState::Closed { failures: 0 }, "{status}");
    }
}
