//! Holds a call where the tour asks for it, so that the caller can be killed at an exact moment.

use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// Where a call is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Place {
    /// On its way: nothing has happened yet.
    Request,
    /// On the way back: it has happened, and the caller does not know.
    Answer,
}

/// Which call is held, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Awaited {
    pub(crate) place: Place,
    /// The amount that it is about: others pass.
    pub(crate) amount_cents: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Awaited(Awaited),
    Held,
    Released,
    /// It never arrives.
    Lost,
}

/// One call at a time is held; each arming begins a new one.
#[derive(Clone, Debug)]
pub(super) struct Hold(Arc<Mutex<watch::Sender<Call>>>);

impl Hold {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(watch::Sender::new(Call::Released))))
    }

    fn current(&self) -> watch::Sender<Call> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn arm(&self, awaited: Awaited) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = watch::Sender::new(Call::Awaited(awaited));
    }

    /// Returns at once unless this is the call that the tour waits for. False if it never arrives.
    pub(super) async fn come_by(&self, place: Place, amount_cents: i64) -> bool {
        let call = self.current();
        let this = Call::Awaited(Awaited { place, amount_cents });
        let meets = |call: &mut Call| {
            let met = *call == this;
            if met {
                *call = Call::Held;
            }
            met
        };
        if !call.send_if_modified(meets) {
            return true;
        }
        let mut call = call.subscribe();
        let end = call.wait_for(|call| *call != Call::Held).await;
        !end.is_ok_and(|call| *call == Call::Lost)
    }

    /// The tour's side.
    pub(super) fn router(self) -> Router {
        Router::new()
            .route("/hold", post(async |State(hold): State<Self>, Json(awaited): Json<Awaited>| hold.arm(awaited)))
            .route("/hold/is-held", get(is_held))
            .route("/hold/{end}", post(end))
            .with_state(self)
    }
}

/// Answers when a call is held.
async fn is_held(State(hold): State<Hold>) {
    let _ = hold.current().subscribe().wait_for(|call| *call == Call::Held).await;
}

async fn end(State(hold): State<Hold>, Path(end): Path<String>) -> StatusCode {
    let end = match end.as_str() {
        "release" => Call::Released,
        "lose" => Call::Lost,
        _ => return StatusCode::NOT_FOUND,
    };
    hold.current().send_replace(end);
    StatusCode::NO_CONTENT
}
