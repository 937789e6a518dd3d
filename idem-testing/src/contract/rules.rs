//! The rules, by what they are about.

pub(super) mod external;
pub(super) mod interruption;
pub(super) mod keys;
pub(super) mod owners;
pub(super) mod payload;
pub(super) mod races;
pub(super) mod replay;
