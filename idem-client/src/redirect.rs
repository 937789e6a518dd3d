//! Redirects of a request that changes something.
//!
//! 307 and 308 repeat the request elsewhere, key and body included, and 303 fetches the outcome: all three are
//! followed. 301 and 302 turn a POST into a GET by old custom: the operation would silently not happen while the GET
//! answers 200. For anything but GET and HEAD they are not followed, and the caller gets the 301 or 302 itself.

use std::cell::Cell;

use http::Method;
use reqwest::redirect::{Action, Attempt, Policy};

const MOST_REDIRECTS: usize = 10;

tokio::task_local! {
    static PRESENT: Present;
}

/// What the policy needs to know about the attempt under way, and what it tells back.
struct Present {
    changes_nothing: bool,
    followed: Cell<bool>,
}

/// The redirect policy that [`crate::Client`] uses. Set it on a `reqwest::Client` of your own:
/// `reqwest::Client::builder().redirect(idem_client::redirect_policy())`.
#[must_use]
pub fn redirect_policy() -> Policy {
    Policy::custom(decide)
}

fn decide(attempt: Attempt<'_>) -> Action {
    let rewrites = matches!(attempt.status().as_u16(), 301 | 302);
    let changes_nothing = PRESENT.try_with(|present| present.changes_nothing).unwrap_or(true);
    if rewrites && !changes_nothing {
        return attempt.stop();
    }
    if attempt.previous().len() > MOST_REDIRECTS {
        return attempt.error("more than 10 redirects");
    }
    let _ = PRESENT.try_with(|present| present.followed.set(true));
    attempt.follow()
}

/// Runs one attempt so that the policy knows its method; says whether a redirect was followed.
pub(crate) async fn watch<T>(method: &Method, attempt: impl Future<Output = T>) -> (T, bool) {
    let changes_nothing = matches!(*method, Method::GET | Method::HEAD);
    let present = Present { changes_nothing, followed: Cell::new(false) };
    PRESENT
        .scope(present, async {
            let outcome = attempt.await;
            (outcome, PRESENT.with(|present| present.followed.get()))
        })
        .await
}
