//! Every ending of a handler's transaction asks two questions: is this still the transaction that was begun, and has nobody
//! committed it? They travel in the message that ends it.
//!
//! An answer that cannot be had, or that is wrong, is an *escape*: whether the handler's effects are there is not known, and no
//! retry may repeat them.

use std::fmt;

use super::sqlstate::{
    self, COMMITTED, NOT_OURS, PREPARED, SETTINGS_RESET, has_code, is_conflict, is_in_failed_transaction,
    is_outside_of_a_transaction, is_taken,
};
use super::statements::Mark;
use super::transaction::Tx;

/// The handler left its transaction, and what it wrote may have been committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Escape {
    /// Its transaction was committed, and not by us.
    Committed,
    /// Another transaction is open, or none. What became of the first one is not known.
    Left,
    /// It was prepared: somebody else decides.
    Prepared,
    /// The handler of another operation has it.
    Swapped,
    /// sqlx had ended the transaction, and statements ran after it, each committed at once.
    WroteAfterTheEnd,
}

impl fmt::Display for Escape {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Committed => "the handler, or a helper of it, committed the transaction; remove `COMMIT` from its SQL",
            Self::Left => {
                "the handler, or a helper of it, ended the transaction; remove `COMMIT`, `ROLLBACK` and `BEGIN` from its SQL"
            }
            Self::Prepared => {
                "the handler, or a helper of it, prepared the transaction; remove `PREPARE TRANSACTION` from its SQL, and commit \
                 or roll back what is prepared"
            }
            Self::Swapped => "the handler exchanged its transaction with that of another operation; pass it on by reference",
            Self::WroteAfterTheEnd => {
                "a savepoint was begun after a statement had failed, which ended the transaction, and statements ran after it; \
                 return the first error"
            }
        })
    }
}

/// What the handler did to its transaction that cannot be committed, and that was rolled back for certain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Untidy {
    /// A savepoint was begun and neither committed nor rolled back: what it holds may be half done.
    SavepointOpen,
    /// A savepoint was begun after a statement had failed. Such a savepoint cannot be begun, and sqlx ends the transaction.
    SavepointFailed,
    /// `RESET ALL` took away what marks the transaction as the claim's.
    SettingsReset,
}

impl fmt::Display for Untidy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::SavepointOpen => {
                "a savepoint was left open, so the transaction was rolled back; commit it or roll it back in the handler"
            }
            Self::SavepointFailed => {
                "a savepoint was begun after a statement had failed, so the transaction was rolled back; return the first error"
            }
            Self::SettingsReset => {
                "`RESET ALL` took away what marks the transaction as the claim's, so it was rolled back; reset single settings"
            }
        })
    }
}

/// Why a transaction could not be ended as it should.
#[derive(Debug)]
pub(crate) enum NotEnded {
    Escaped(Escape),
    Untidy(Untidy),
    /// The server refused, or is gone. Unless the connection is lost, the transaction is rolled back, and nobody had committed it.
    Failed(sqlx::Error),
}

impl From<sqlx::Error> for NotEnded {
    fn from(error: sqlx::Error) -> Self {
        Self::Failed(error)
    }
}

impl Tx {
    /// Ends the transaction with `statement`, which checks the mark and commits.
    ///
    /// `statement` ends with `COMMIT AND CHAIN`: on success an empty transaction is open.
    pub(crate) async fn commit_with(&mut self, mark: &Mark, statement: sqlx::SqlStr) -> Result<(), NotEnded> {
        if self.mark() != mark {
            return Err(self.give_up(Escape::Swapped).await);
        }
        if let Some(lost) = self.lost_connection() {
            return Err(lost.into());
        }
        match self.depth() {
            0 => return Err(self.ended_by_sqlx(mark).await),
            1 => {}
            _ => return Err(self.left_savepoint(mark).await),
        }
        self.drain().await?;
        match self.send(statement).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.not_committed(mark, error).await),
        }
    }

    /// Rolls the handler's writes back, and goes on with `then` in the next transaction. When it returns, the key is free, and
    /// if the server does not answer, as soon as it notices that we are gone.
    ///
    /// On success an empty transaction is open.
    pub(crate) async fn roll_back_and(&mut self, mark: &Mark, then: &str) -> Result<(), NotEnded> {
        if self.mark() != mark {
            return Err(self.give_up(Escape::Swapped).await);
        }
        if let Some(lost) = self.lost_connection() {
            return Err(lost.into());
        }
        match self.depth() {
            0 => return Err(self.ended_by_sqlx(mark).await),
            1 => {}
            _ if then.is_empty() => {
                tracing::warn!(
                    handler = self.handler(),
                    "a savepoint was left open, and is rolled back with the transaction"
                );
            }
            _ => return Err(self.left_savepoint(mark).await),
        }
        self.drain().await?;
        let roll_back = self.idempotency().statements().roll_back(mark, then);
        let error = match self.send(roll_back).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if self.is_out_of_step() {
            return Err(self.answer_of_the_last(mark, error).await);
        }
        if is_of_a_check(&error) {
            return Err(self.diagnose(mark, &error).await);
        }
        if sqlstate::is_lost(&error) || is_taken(&error) || is_conflict(&error) {
            return Err(error.into());
        }
        // Not ours: a statement of the handler had failed. What a lost conflict made of the handler is no outcome.
        let lost_conflict = is_in_failed_transaction(&error) && self.met_conflict();
        self.roll_back_failed(mark, if lost_conflict { "" } else { then }).await?;
        if lost_conflict { Err(error.into()) } else { Ok(()) }
    }

    async fn roll_back_failed(&mut self, mark: &Mark, then: &str) -> Result<(), NotEnded> {
        let roll_back = self.idempotency().statements().roll_back_failed(mark, then);
        match self.send(roll_back).await {
            Ok(()) => Ok(()),
            Err(error) if is_of_a_check(&error) => Err(self.diagnose(mark, &error).await),
            // No transaction is open, and it was not we who ended it.
            Err(error) if is_outside_of_a_transaction(&error) => Err(self.give_up_after_asking(mark).await),
            Err(error) => Err(error.into()),
        }
    }

    /// Why the commit failed: by itself, or because this is not the transaction that was begun.
    async fn not_committed(&mut self, mark: &Mark, error: sqlx::Error) -> NotEnded {
        if self.is_out_of_step() {
            return self.answer_of_the_last(mark, error).await;
        }
        if is_of_a_check(&error) {
            return self.diagnose(mark, &error).await;
        }
        if sqlstate::is_lost(&error) {
            return error.into();
        }
        let statements = self.idempotency().statements();
        let (roll_back, ask) = (statements.roll_back_failed(mark, ""), statements.ask_the_witness(mark));
        match self.send(roll_back).await {
            Err(found) if is_of_a_check(&found) => self.diagnose(mark, &found).await,
            // COMMIT itself failed, and has rolled back.
            Err(found) if is_outside_of_a_transaction(&found) => match self.send(ask).await {
                Err(found) if is_of_a_check(&found) => self.diagnose(mark, &found).await,
                _ => error.into(),
            },
            _ => error.into(),
        }
    }

    /// What the server said to the message before comes with the next one.
    async fn answer_of_the_last(&mut self, mark: &Mark, error: sqlx::Error) -> NotEnded {
        let ask = self.idempotency().statements().ask_the_witness(mark);
        match self.send(ask).await {
            Err(last) if is_of_a_check(&last) => NotEnded::Escaped(Escape::Left),
            _ => error.into(),
        }
    }

    async fn left_savepoint(&mut self, mark: &Mark) -> NotEnded {
        match Box::pin(self.roll_back_and(mark, "")).await {
            Ok(()) => NotEnded::Untidy(Untidy::SavepointOpen),
            Err(not_ended) => not_ended,
        }
    }

    /// sqlx has queued a ROLLBACK of its own. What runs after that is committed at once.
    async fn ended_by_sqlx(&mut self, mark: &Mark) -> NotEnded {
        let unsent = self.has_unsent_rollback();
        let ask = self.idempotency().statements().ask_the_witness(mark);
        let asked = match self.drain().await {
            Ok(()) => self.send(ask).await,
            Err(error) => Err(error),
        };
        match asked {
            Ok(()) if unsent => NotEnded::Untidy(Untidy::SavepointFailed),
            Err(error) if has_code(&error, COMMITTED) => NotEnded::Escaped(Escape::Committed),
            Err(error) if unsent => error.into(),
            _ => NotEnded::Escaped(Escape::WroteAfterTheEnd),
        }
    }

    /// What a failed check says, and what the witness says about it. Nothing is open afterwards.
    async fn diagnose(&mut self, mark: &Mark, error: &sqlx::Error) -> NotEnded {
        let code = sqlstate::code(error).unwrap_or_default();
        match &*code {
            SETTINGS_RESET => {
                let roll_back = self.idempotency().statements().roll_back_all(mark);
                match self.send(roll_back).await {
                    Ok(()) => NotEnded::Untidy(Untidy::SettingsReset),
                    Err(error) if has_code(&error, COMMITTED) => NotEnded::Escaped(Escape::Committed),
                    Err(error) => error.into(),
                }
            }
            COMMITTED => self.give_up(Escape::Committed).await,
            PREPARED => self.give_up(Escape::Prepared).await,
            _ => self.give_up_after_asking(mark).await,
        }
    }

    async fn give_up_after_asking(&mut self, mark: &Mark) -> NotEnded {
        let roll_back = self.idempotency().statements().roll_back_all(mark);
        match self.send(roll_back).await {
            Err(error) if has_code(&error, COMMITTED) => NotEnded::Escaped(Escape::Committed),
            _ => NotEnded::Escaped(Escape::Left),
        }
    }

    async fn give_up(&mut self, escape: Escape) -> NotEnded {
        let roll_back = self.idempotency().statements().roll_back_all(self.mark());
        let _ = self.send(roll_back).await;
        NotEnded::Escaped(escape)
    }
}

fn is_of_a_check(error: &sqlx::Error) -> bool {
    [NOT_OURS, COMMITTED, SETTINGS_RESET, PREPARED].iter().any(|code| has_code(error, code))
}
