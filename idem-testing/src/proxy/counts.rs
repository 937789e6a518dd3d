//! What passed through a proxy.

use std::ops::Sub;

/// How much passed through a [`Proxy`](super::Proxy). The difference of two counts is what passed between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections accepted.
    pub connections: u64,
    /// Messages from clients.
    pub frontend_messages: u64,
    /// Messages from the server.
    pub backend_messages: u64,
    /// Simple queries and executions of prepared statements. A simple query with several commands is one.
    pub statements: u64,
    /// How often a client sent something and had to wait for the answer; connecting is one.
    pub round_trips: u64,
    /// Transactions committed: acknowledged `COMMIT`s, and writing statements outside of a transaction.
    pub commits: u64,
}

impl Sub for Counts {
    type Output = Counts;

    fn sub(self, earlier: Counts) -> Counts {
        Counts {
            connections: self.connections - earlier.connections,
            frontend_messages: self.frontend_messages - earlier.frontend_messages,
            backend_messages: self.backend_messages - earlier.backend_messages,
            statements: self.statements - earlier.statements,
            round_trips: self.round_trips - earlier.round_trips,
            commits: self.commits - earlier.commits,
        }
    }
}
