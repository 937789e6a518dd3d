//! What the examples share: the frame that starts a throwaway Postgres and server processes, and the stage on which a
//! tour shows what it sends, what comes back and what is in the database.
//!
//! Nothing here belongs to a service: what a user writes is in `bin/<example>/service.rs` and beside it.

mod http;
mod locks;
mod patience;
mod run;
mod server;
mod signals;
mod stage;

pub use http::{Client, Reply, Request, get, post};
pub use locks::until_a_handler_waits;
pub use patience::until;
pub use run::{Example, run};
pub use server::Server;
pub use stage::{Facts, Stage};

/// What ends an example early.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
