//! Clients that send one request after another, each as soon as it has its answer.

use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use tokio::task::JoinSet;
use tower::ServiceExt;

use crate::Result;

/// As many clients as the measurements have at once.
pub const CLIENTS: usize = 8;

/// What [`CLIENTS`] got through.
#[derive(Debug, Clone, Copy)]
pub struct Throughput {
    /// Requests that were answered.
    pub requests: u64,
    /// Requests a second.
    pub rate: f64,
}

/// What [`CLIENTS`] get through in `time`, inside this process.
///
/// # Errors
/// If an answer is not a success.
pub async fn throughput<R>(router: &Router, time: Duration, request: R) -> Result<Throughput>
where
    R: Fn() -> Request<Body> + Clone + Send + 'static,
{
    let begin = Instant::now();
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (router, request) = (router.clone(), request.clone());
        clients.spawn(async move {
            let mut answered = 0_u64;
            while begin.elapsed() < time {
                send(&router, request()).await?;
                answered += 1;
            }
            Ok::<_, crate::Error>(answered)
        });
    }
    let mut requests = 0;
    while let Some(client) = clients.join_next().await {
        requests += client??;
    }
    Ok(Throughput { requests, rate: requests as f64 / begin.elapsed().as_secs_f64() })
}

/// How long each of `requests` takes, one after another.
///
/// # Errors
/// If an answer is not a success.
pub async fn latencies(router: &Router, requests: usize, request: impl Fn() -> Request<Body>) -> Result<Vec<f64>> {
    let mut latencies = Vec::with_capacity(requests);
    for _ in 0..requests {
        let request = request();
        let begin = Instant::now();
        send(router, request).await?;
        latencies.push(begin.elapsed().as_secs_f64());
    }
    Ok(latencies)
}

/// Sends one request and reads the answer whole.
///
/// # Errors
/// If the answer is not a success.
pub async fn send(router: &Router, request: Request<Body>) -> Result<()> {
    let (status, body) = answer(router, request).await;
    if status.is_success() { Ok(()) } else { Err(format!("{status}: {}", String::from_utf8_lossy(&body)).into()) }
}

/// The status and the body of the answer to a request.
pub async fn answer(router: &Router, request: Request<Body>) -> (StatusCode, Vec<u8>) {
    let response = router.clone().oneshot(request).await.unwrap_or_else(|error| match error {});
    let status = response.status();
    let body = response.into_body().collect().await.map(|body| body.to_bytes().to_vec()).unwrap_or_default();
    (status, body)
}
