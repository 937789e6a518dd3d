//! What the outbox says to Postgres.

use std::time::Duration;

use sqlx::SqlStr;

use crate::postgres::statements::{quoted, safe};

/// The statements with the schema's name filled in.
#[derive(Debug)]
pub(crate) struct OutboxStatements {
    pub(crate) sweep: SqlStr,
    pub(super) send: SqlStr,
    pub(super) reserve_messages: SqlStr,
    pub(super) delivered: SqlStr,
    pub(super) not_delivered: SqlStr,
    pub(super) dead_letters: SqlStr,
    pub(super) redeliver: SqlStr,
    pub(super) discard_dead_letter: SqlStr,
}

const SWEEP: &str = "\
    DELETE FROM {outbox} WHERE ctid = ANY (ARRAY( \
        SELECT ctid FROM {outbox} WHERE delivered_at <= clock_timestamp() - make_interval(secs => {outbox_retention}) \
        ORDER BY delivered_at LIMIT $1 FOR UPDATE SKIP LOCKED))";

const SEND: &str = "\
    INSERT INTO {outbox} (topic, dedupe_key, group_key, payload) VALUES ($1, $2, $3, $4) \
    ON CONFLICT (topic, dedupe_key) DO NOTHING";

/// Committed messages that are due and, within their group, first.
const RESERVE_MESSAGES: &str = "\
    UPDATE {outbox} AS o SET attempts = o.attempts + 1, deliver_at = clock_timestamp() + make_interval(secs => $2) \
    FROM (SELECT id FROM {outbox} AS due \
          WHERE delivered_at IS NULL AND failure IS NULL AND deliver_at <= clock_timestamp() \
            AND NOT EXISTS (SELECT FROM {outbox} AS before \
                            WHERE before.group_key = due.group_key AND before.id < due.id \
                              AND before.delivered_at IS NULL AND before.failure IS NULL) \
          ORDER BY deliver_at LIMIT $1 FOR UPDATE SKIP LOCKED) AS reserved \
    WHERE o.id = reserved.id RETURNING o.id, o.topic, o.dedupe_key, o.payload, o.attempts";

const DELIVERED: &str = "\
    UPDATE {outbox} SET delivered_at = clock_timestamp(), payload = NULL \
    WHERE id = $1 AND attempts = $2 AND delivered_at IS NULL AND failure IS NULL";

const NOT_DELIVERED: &str = "\
    UPDATE {outbox} SET failure = $3, \
        deliver_at = clock_timestamp() + least(300, power(2, least(attempts - 1, 16))) * (0.5 + random() / 2) * interval '1 second' \
    WHERE id = $1 AND attempts = $2 AND delivered_at IS NULL AND failure IS NULL";

const DEAD_LETTERS: &str = "\
    SELECT id, topic, dedupe_key, payload, attempts, failure FROM {outbox} \
    WHERE delivered_at IS NULL AND failure IS NOT NULL ORDER BY id LIMIT $1";

const REDELIVER: &str = "\
    UPDATE {outbox} SET failure = NULL, attempts = 0, deliver_at = clock_timestamp() \
    WHERE id = $1 AND delivered_at IS NULL AND failure IS NOT NULL";

const DISCARD_DEAD_LETTER: &str = "DELETE FROM {outbox} WHERE id = $1 AND delivered_at IS NULL AND failure IS NOT NULL";

impl OutboxStatements {
    pub(crate) fn new(schema: &str, retention: Duration) -> Self {
        let outbox = format!("{}.outbox", quoted(schema));
        let retention = retention.as_secs_f64().to_string();
        let fill =
            |template: &str| safe(template.replace("{outbox}", &outbox).replace("{outbox_retention}", &retention));
        Self {
            sweep: fill(SWEEP),
            send: fill(SEND),
            reserve_messages: fill(RESERVE_MESSAGES),
            delivered: fill(DELIVERED),
            not_delivered: fill(NOT_DELIVERED),
            dead_letters: fill(DEAD_LETTERS),
            redeliver: fill(REDELIVER),
            discard_dead_letter: fill(DISCARD_DEAD_LETTER),
        }
    }
}
