//! Everything that is said to Postgres, and what its answers mean.

pub(crate) mod connection;
pub(crate) mod ending;
pub(crate) mod schema;
pub(crate) mod sqlstate;
pub(crate) mod statements;
pub(crate) mod transaction;
