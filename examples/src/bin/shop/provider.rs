//! A payment provider that honours idempotency keys: the same key is one charge.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use tokio::net::TcpListener;

type Charges = Arc<Mutex<HashSet<String>>>;

pub(crate) struct Provider {
    address: SocketAddr,
    charges: Charges,
    serving: tokio::task::JoinHandle<()>,
}

impl Provider {
    pub(crate) async fn start() -> io::Result<Self> {
        let charges = Charges::default();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let app = Router::new().route("/charges", post(charge)).with_state(Arc::clone(&charges));
        let serving = tokio::spawn(async move {
            let _ = axum::serve(listener, app).await;
        });
        Ok(Self { address, charges, serving })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn charges(&self) -> u64 {
        self.charges.lock().expect("no holder panics").len() as u64
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn charge(State(charges): State<Charges>, headers: HeaderMap) -> (StatusCode, String) {
    let Some(key) = headers.get("idempotency-key").and_then(|key| key.to_str().ok()) else {
        return (StatusCode::BAD_REQUEST, "a charge must have an idempotency key".to_owned());
    };
    charges.lock().expect("no holder panics").insert(key.to_owned());
    (StatusCode::CREATED, format!("charge of {key}"))
}
