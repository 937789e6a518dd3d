//! What the guarantee costs, measured: claims that nobody measured are worth nothing.
//!
//! `cargo run --release --bin bench -- all` runs every measurement against a throwaway Postgres with `fsync` on. What is
//! compared is run in alternating slices of a second or less, so that a noisy machine disturbs both sides alike, and
//! the numbers that count are medians of the ratios of neighbouring slices.

pub mod application;
pub mod commands;
pub mod deliveries;
pub mod load;
pub mod measure;
pub mod options;
mod plot;
pub mod processor;
pub mod progress;
pub mod report;
pub mod stage;
mod summary;

/// Whatever goes wrong ends the program, with its text.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// The result of a measurement's step.
pub type Result<T> = std::result::Result<T, Error>;
