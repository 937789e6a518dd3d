//! What names an operation: a key within its scope.

use std::sync::Arc;

/// A key within its scope.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct OperationId {
    pub(crate) scope: Arc<str>,
    pub(crate) key: Arc<str>,
}
