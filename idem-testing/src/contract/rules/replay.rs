//! What a retry gets.

use std::time::Duration;

use crate::contract::checker::{Checked, Checker, not_tried};

pub(in crate::contract) const RETRY: &str = "a retry gets the first answer, and has no effect";
pub(in crate::contract) const EXPIRY: &str = "after its retention a key is new";

pub(in crate::contract) async fn in_sequence(checker: &Checker<'_, '_>) -> Checked {
    let trial = checker.trial(RETRY).await;
    let first = trial.answer("a request with a new key", &checker.victim.app).await?;
    if first.is_replay(&checker.contract.subject.replay_header) {
        let must = "an answer that is not marked as a replay";
        return Err(trial.found("a request with a new key", first, must).into());
    }
    for (sent, app) in [
        ("the same request again, to the same process", &checker.victim.app),
        ("the same request again, to another process", &checker.lane.other),
    ] {
        let again = trial.answer(sent, app).await?;
        trial.must_count(sent, 1).await?;
        trial.must_be_repeated(sent, &first, &again)?;
    }
    Ok(())
}

pub(in crate::contract) async fn after_its_retention(checker: &Checker<'_, '_>) -> Checked {
    let Some(retention) = checker.contract.expires_after else {
        return not_tried("use `.expires_after(…)`");
    };
    let trial = checker.trial(EXPIRY).await;
    trial.answer("a request with a new key", &checker.victim.app).await?;
    tokio::time::sleep(retention + Duration::from_millis(200)).await;
    let sent = "the same request after its retention";
    let again = trial.answer(sent, &checker.victim.app).await?;
    if again.is_replay(&checker.contract.subject.replay_header) {
        return Err(trial.found(sent, again, "an execution of its own").into());
    }
    trial.must_count(sent, 2).await
}
