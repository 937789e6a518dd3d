//! The two protocols of idem-runtime as models, checked exhaustively: every order of every step of every process, with
//! crashes, restarts, lost and late messages and expiry at every place, up to a stated bound.
//!
//! A test runs some orders. Here nothing is sampled: what the checker does not find does not happen within the bound.
//! Each protocol is checked again with one of its parts broken, so that it shows which part carries which promise, and
//! that the checker would notice.
//!
//! - [`claim`]: one transaction (idem-runtime's `lifecycle/`).
//! - [`lease`]: several commits (idem-runtime's `operation/`).
//!
//! Whoever changes those files changes these models in the same commit.

mod claim;
mod lease;
