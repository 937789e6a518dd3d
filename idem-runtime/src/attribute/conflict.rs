//! What a handler has returned may lead to a lost conflict, which is no outcome: a retry may win.

use std::error::Error;
use std::fmt;

use axum::response::Response;

use crate::lifecycle::handler::LostConflict;
use crate::postgres::sqlstate;

/// What a handler has returned. Whether an error in it can be looked through is a question of its type, which only the place where it
/// is returned knows.
pub struct Returned<'a, R>(pub &'a R);

impl<T, E: Error + 'static> Returned<'_, Result<T, E>> {
    /// Whether the error leads to one of Postgres that says so.
    #[must_use]
    pub fn lost_conflict(&self) -> bool {
        self.0.as_ref().is_err_and(|error| leads_to_conflict(error))
    }
}

/// Every other type.
pub trait ReturnsNothingToLookThrough {
    /// Nothing is known of it.
    fn lost_conflict(&self) -> bool {
        false
    }
}

impl<R> ReturnsNothingToLookThrough for &Returned<'_, R> {}

impl<R> fmt::Debug for Returned<'_, R> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Returned")
    }
}

fn leads_to_conflict(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        match error.downcast_ref::<sqlx::Error>() {
            Some(error) if sqlstate::is_conflict(error) => return true,
            _ => next = error.source(),
        }
    }
    false
}

/// The handler's answer, and whether it came out of a lost conflict.
#[must_use]
pub fn answer(mut response: Response, lost_conflict: bool) -> Response {
    if lost_conflict {
        response.extensions_mut().insert(LostConflict);
    }
    response
}

/// Whether what a handler has returned leads to a lost conflict.
#[doc(hidden)]
#[macro_export]
macro_rules! lost_conflict {
    ($returned:ident) => {{
        #[allow(unused_imports)]
        use $crate::attribute::ReturnsNothingToLookThrough as _;
        (&$crate::attribute::Returned(&$returned)).lost_conflict()
    }};
}
