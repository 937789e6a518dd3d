//! An outcome as the table holds it.

use bytes::Bytes;

/// A response as it is stored and replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredResponse {
    pub(crate) status: u16,
    /// `name:value` lines in the order they were set, the most common of them abbreviated. No header value can hold a line
    /// feed.
    pub(crate) headers: Vec<u8>,
    pub(crate) body: Bytes,
}
