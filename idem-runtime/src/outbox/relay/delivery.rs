//! One delivery, in a task of its own: whatever it does, the relay goes on.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::outbox::message::Message;

/// What a topic's messages are given to. It is called inside of the delivery's task.
pub(super) type Handler = Arc<dyn Fn(Message) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

pub(super) fn handler<F, Fut, E>(deliver: F) -> Handler
where
    F: Fn(Message) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: Display + Send + 'static,
{
    let deliver = Arc::new(deliver);
    Arc::new(move |message| {
        let deliver = Arc::clone(&deliver);
        Box::pin(async move { deliver(message).await.map_err(|error| error.to_string()) })
    })
}

/// How a delivery ended.
pub(super) struct Landed {
    pub(super) id: i64,
    pub(super) attempt: i32,
    pub(super) topic: Arc<str>,
    /// The relay under whose lease it was taken.
    pub(super) relay: i64,
    pub(super) failure: Option<String>,
}

/// The application's task, which must not outlive the delivery.
struct Task(JoinHandle<Result<(), String>>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// In a second task: one that blocks its thread cannot be ended, but its place can be given away.
pub(super) async fn deliver(
    message: Message,
    topic: Arc<str>,
    relay: i64,
    handler: Handler,
    limit: Duration,
) -> Landed {
    let (id, attempt) = (message.id, message.attempt);
    // From the call on: a panic of the application's closure is one of its delivery.
    let mut task = Task(tokio::spawn(async move { handler(message).await }));
    let failure = match timeout(limit, &mut task.0).await {
        Ok(Ok(Ok(()))) => None,
        Ok(Ok(Err(error))) => Some(error),
        Ok(Err(_)) => Some("the delivery panicked".to_owned()),
        Err(_) => Some("the delivery took too long".to_owned()),
    };
    Landed { id, attempt, topic, relay, failure }
}

/// The longest text of a failure that is kept, in bytes.
const LONGEST: usize = 8 * 1024;

/// A text that the database stores: without NUL, not endless, and where the database does not speak UTF-8, in ASCII.
pub(super) fn storable(text: &str, utf8: bool) -> String {
    let end = (0..=LONGEST.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    let letters = text[..end].chars();
    if utf8 {
        letters.map(|letter| if letter == '\0' { char::REPLACEMENT_CHARACTER } else { letter }).collect()
    } else {
        letters.map(|letter| if letter.is_ascii() && letter != '\0' { letter } else { '?' }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{LONGEST, storable};

    #[test]
    fn whatever_a_receiver_says_can_be_stored() {
        assert_eq!(storable("no\0t now: \u{20ac}", true), "no\u{fffd}t now: \u{20ac}");
        assert_eq!(storable("no\0t now: \u{20ac}", false), "no?t now: ?");
        let long = "\u{20ac}".repeat(LONGEST);
        assert_eq!(storable(&long, true).len(), LONGEST / 3 * 3);
        assert_eq!(storable("", true), "");
    }
}
