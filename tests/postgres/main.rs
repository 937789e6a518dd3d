//! Behaviours of idempotent handlers against a real Postgres. The numbers in names are those of the table in `README.md`.

mod completer;
mod contract;
mod environment;
mod faults;
mod functions;
mod hang_up;
mod outbox;
mod outcomes;
mod pooler;
mod pools;
mod processes;
mod races;
mod retention;
mod steps;
mod telemetry;
