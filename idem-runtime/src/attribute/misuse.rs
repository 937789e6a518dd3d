//! Methods that are not there, in words of ours. Without them the compiler would look through the dereference to the
//! connection and advise to import a trait.

use std::future::{Ready, ready};

use crate::postgres::transaction::Tx;

/// What a handler may end by itself. A [`Tx`] is not: the lifetime keeps the compiler from saying so here.
#[diagnostic::on_unimplemented(
    message = "`tx` must not be committed or rolled back here: the claim, the writes and the outcome are one commit",
    label = "remove the call; return `Ok` or 2xx to commit, `Err` or another status to roll back",
    note = "for a part to undo, use a savepoint: `let mut savepoint = tx.begin().await?`"
)]
pub trait EndsWithTheFunction<'a> {}

impl Tx {
    /// Does not compile.
    ///
    /// # Errors
    /// The compiler's.
    #[doc(hidden)]
    pub fn commit<'a>(&mut self) -> Ready<sqlx::Result<()>>
    where
        Self: EndsWithTheFunction<'a>,
    {
        ready(Ok(()))
    }

    /// Does not compile.
    ///
    /// # Errors
    /// The compiler's.
    #[doc(hidden)]
    pub fn rollback<'a>(&mut self) -> Ready<sqlx::Result<()>>
    where
        Self: EndsWithTheFunction<'a>,
    {
        ready(Ok(()))
    }
}
