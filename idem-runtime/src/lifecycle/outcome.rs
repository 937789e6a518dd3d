//! An outcome as the table holds it.

use bytes::Bytes;

/// What stands in the place of a status where the handler left its transaction, so that nobody knows what it changed.
const EFFECTS_UNKNOWN: u16 = 0;

/// A response as it is stored and replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredResponse {
    pub(crate) status: u16,
    /// `name:value` lines in the order they were set, the most common of them abbreviated. No header value can hold a line
    /// feed.
    pub(crate) headers: Vec<u8>,
    pub(crate) body: Bytes,
}

impl StoredResponse {
    /// The outcome of an operation whose effects are not known.
    pub(crate) fn effects_unknown() -> Self {
        Self { status: EFFECTS_UNKNOWN, headers: Vec::new(), body: Bytes::new() }
    }

    pub(crate) fn is_effects_unknown(&self) -> bool {
        self.status == EFFECTS_UNKNOWN
    }
}
