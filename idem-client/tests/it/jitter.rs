//! When attempts are made: against a paused clock, without a network, over a thousand clients.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use http::Extensions;
use idem_client::{Client, Key};
use reqwest::{Request, Response};
use reqwest_middleware::{Middleware, Next};
use tokio::time::Instant;

/// Stands in for the network: notes when each attempt came, and answers 503.
#[derive(Clone, Default)]
struct Unavailable {
    attempts: Arc<Mutex<Vec<Instant>>>,
    retry_after: Option<&'static str>,
}

#[async_trait]
impl Middleware for Unavailable {
    async fn handle(&self, _: Request, _: &mut Extensions, _: Next<'_>) -> reqwest_middleware::Result<Response> {
        self.attempts.lock().unwrap().push(Instant::now());
        let mut response = http::Response::builder().status(503);
        if let Some(seconds) = self.retry_after {
            response = response.header("retry-after", seconds);
        }
        Ok(response.body("").unwrap().into())
    }
}

/// A thousand clients that fail together; for each, the times of its attempts since the start, in seconds.
async fn a_thousand_clients(retry_after: Option<&'static str>) -> Vec<Vec<f64>> {
    let started = Instant::now();
    // No client ever gets as far as the network, so they may share a way to it: making one is slow.
    let http = reqwest::Client::builder().redirect(idem_client::redirect_policy()).build().unwrap();
    let clients: Vec<_> = (0..1_000)
        .map(|id| {
            let http = http.clone();
            tokio::spawn(async move {
                let network = Unavailable { retry_after, ..Default::default() };
                let client = Client::builder().http(http).middleware(network.clone()).build().unwrap();
                let sent = client.post("http://shop.example/orders").key(Key::of("order", &id)).send().await;
                assert!(sent.is_err());
                let attempts = network.attempts.lock().unwrap();
                attempts.iter().map(|at| (*at - started).as_secs_f64()).collect::<Vec<_>>()
            })
        })
        .collect();
    let mut times = Vec::new();
    for client in clients {
        times.push(client.await.unwrap());
    }
    times
}

/// The clock's timers fire on whole milliseconds.
const TICK: f64 = 0.001;

/// The greatest distance between the draws' distribution and the uniform one on 0 … `most` (Kolmogorov–Smirnov).
fn distance_from_uniform(mut draws: Vec<f64>, most: f64) -> f64 {
    draws.sort_by(f64::total_cmp);
    let count = draws.len() as f64;
    let distances = draws.iter().enumerate().map(|(index, draw)| {
        let expected = (draw / most).clamp(0.0, 1.0);
        (expected - index as f64 / count).abs().max((expected - (index + 1) as f64 / count).abs())
    });
    distances.fold(0.0, f64::max)
}

fn most_in_any(window: f64, times: &[f64]) -> usize {
    times.iter().map(|from| times.iter().filter(|time| (*from..from + window).contains(*time)).count()).max().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_thousand_clients_spread_over_the_whole_bound() {
    let clients = a_thousand_clients(None).await;
    assert!(clients.iter().all(|attempts| attempts.len() == 4));
    for (retry, most) in [(1, 0.1), (2, 0.2), (3, 0.4)] {
        let waits: Vec<f64> = clients.iter().map(|attempts| attempts[retry] - attempts[retry - 1]).collect();
        for wait in &waits {
            assert!((0.0..=most + TICK).contains(wait), "retry {retry} waited {wait} s");
        }
        // One in ten million samples of a thousand uniform draws is further off than 2.9 / √1000, and the clock's tick
        // adds up to a hundredth.
        let distance = distance_from_uniform(waits, most);
        assert!(distance < 0.092 + TICK / most, "retry {retry}: {distance}");
    }
}

#[tokio::test(start_paused = true)]
async fn clients_that_failed_together_do_not_come_back_together() {
    let clients = a_thousand_clients(None).await;
    assert!(clients.iter().all(|attempts| attempts[0] < TICK), "they start together");
    for (retry, bound) in [(1, 0.1), (2, 0.3), (3, 0.7)] {
        let times: Vec<f64> = clients.iter().map(|attempts| attempts[retry]).collect();
        // A twentieth of the time that they may spread over sees a twentieth of them, and a herd would see all.
        let crowd = most_in_any(bound / 20.0, &times);
        assert!(crowd < 200, "retry {retry}: {crowd} of 1,000 within {} s", bound / 20.0);
    }
}

#[tokio::test(start_paused = true)]
async fn clients_that_were_told_the_same_second_do_not_come_back_together() {
    let clients = a_thousand_clients(Some("2")).await;
    let waits: Vec<f64> = clients.iter().map(|attempts| attempts[1] - attempts[0]).collect();
    for wait in &waits {
        assert!((2.0..=2.1 + TICK).contains(wait), "{wait}");
    }
    assert!(most_in_any(0.005, &waits) < 200);
}
