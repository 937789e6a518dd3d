//! What an answer tells about the operation.

use reqwest::Response;

use crate::classify::{self, Known};
use crate::layer::Attempts;

/// What is known about the operation beside the answer, among the answer's extensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    pub(crate) known: Known,
    pub(crate) is_replay: bool,
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for reqwest::Response {}
}

/// What an answer tells about the operation: for `reqwest`'s response, when it came through the retry layer.
///
/// An answer is the server's word about *this* attempt. When an earlier one was lost, a refusal may come from in front of
/// the operation (a token check, a body parser, a proxy) and says nothing about what the lost attempt did.
///
/// | answer | [`settled`](Self::settled) | [`may_have_happened`](Self::may_have_happened) |
/// | --- | --- | --- |
/// | 2xx, 3xx (but a 307 or 308 that was not followed) | yes | yes: it has |
/// | marked as a replay | yes | yes |
/// | 4xx, and no attempt before it was lost | yes | no |
/// | 4xx after a lost attempt; a key that was used with another request; 307, 308, 5xx | no | yes |
///
/// What is not settled is on [`pending`](crate::Layer::pending), and what is settled is not.
pub trait ResponseExt: sealed::Sealed {
    /// Whether the answer tells what became of the operation. If not: mend the cause (for a 401, the token), and send the
    /// same request with the *same* key again, or ask the server.
    fn settled(&self) -> bool;

    /// Whether the operation may have happened. `false` is certain, and then alone a new key is safe.
    fn may_have_happened(&self) -> bool;

    /// Whether the answer is marked as the outcome of an earlier attempt: `Idempotency-Replayed: true`,
    /// `Idempotent-Replayed: true`, or the header that the client was built with.
    fn is_replay(&self) -> bool;

    /// How often the request was sent, waits for an operation in flight included.
    fn attempts(&self) -> u32;
}

impl ResponseExt for Response {
    fn settled(&self) -> bool {
        self.extensions().get::<Standing>().is_some_and(|standing| standing.known != Known::Unknown)
    }

    fn may_have_happened(&self) -> bool {
        self.extensions().get::<Standing>().is_none_or(|standing| standing.known != Known::NotDone)
    }

    fn is_replay(&self) -> bool {
        let standing = self.extensions().get::<Standing>();
        standing.map_or_else(|| classify::is_replay(self.headers(), None), |standing| standing.is_replay)
    }

    fn attempts(&self) -> u32 {
        self.extensions().get::<Attempts>().map_or(1, |attempts| attempts.0)
    }
}
