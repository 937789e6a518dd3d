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
    /// A 303 was followed: the request itself was answered, and what comes is the answer to a GET.
    is_elsewhere: Cell<bool>,
}

/// Which redirects were followed in an attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Followed {
    pub(crate) any: bool,
    /// The answer is that of a GET, although the request was another one: see [`Present::is_elsewhere`].
    pub(crate) is_elsewhere: bool,
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
    let _ = PRESENT.try_with(|present| {
        present.followed.set(true);
        let becomes_get = attempt.status().as_u16() == 303 && !present.changes_nothing;
        present.is_elsewhere.set(present.is_elsewhere.get() || becomes_get);
    });
    attempt.follow()
}

/// Whether a redirect was followed in the attempt that is under way.
pub(crate) fn was_followed() -> bool {
    PRESENT.try_with(|present| present.followed.get()).unwrap_or(false)
}

/// Whether the client follows redirects in a way that is not ours: its policy is a number of redirects, as it is by
/// default. There is no other way to ask than the client's debug form; what it does not tell is found at run time.
pub(crate) fn follows_by_itself(client: &reqwest::Client) -> bool {
    let shown = format!("{client:?}");
    !["Policy(Custom)", "Policy(None)"].iter().any(|policy| shown.contains(policy))
}

/// Runs one attempt so that the policy knows its method; says which redirects were followed.
pub(crate) async fn watch<T>(method: &Method, attempt: impl Future<Output = T>) -> (T, Followed) {
    let changes_nothing = matches!(*method, Method::GET | Method::HEAD);
    let present = Present { changes_nothing, followed: Cell::new(false), is_elsewhere: Cell::new(false) };
    PRESENT
        .scope(present, async {
            let outcome = attempt.await;
            let followed =
                |present: &Present| Followed { any: present.followed.get(), is_elsewhere: present.is_elsewhere.get() };
            (outcome, PRESENT.with(followed))
        })
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_follows_by_itself_is_told_from_one_that_does_not() {
        let with = |policy| reqwest::Client::builder().redirect(policy).build().unwrap();
        assert!(follows_by_itself(&reqwest::Client::new()));
        assert!(follows_by_itself(&with(Policy::limited(3))));
        assert!(!follows_by_itself(&with(Policy::none())));
        assert!(!follows_by_itself(&with(redirect_policy())));
    }
}
