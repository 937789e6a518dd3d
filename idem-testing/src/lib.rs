//! idem-testing
