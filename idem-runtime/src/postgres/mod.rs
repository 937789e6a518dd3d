//! Everything that is said to Postgres, and what its answers mean.

pub(crate) mod schema;
pub(crate) mod statements;
pub(crate) mod transaction;
