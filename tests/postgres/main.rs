//! Behaviours of idempotent handlers against a real Postgres. The numbers in names are those of the table in `README.md`.

mod contract;
mod environment;
mod faults;
mod hang_up;
mod outcomes;
mod pooler;
mod pools;
mod processes;
mod races;
mod retention;
mod steps;
