//! What the outbox says to Postgres.
//!
//! Two kinds. A relay's own transactions begin with [`BEGIN`], which leaves nothing but `pg_catalog` in the search path. What
//! runs in somebody else's transaction, or in none, names `pg_catalog` at each function and operator: `{=}` stands for
//! `OPERATOR(pg_catalog.=)`.

use std::time::Duration;

use sqlx::SqlStr;

use crate::fingerprint::sha256;
use crate::hex;
use crate::postgres::statements::{push_bytes, push_text, quoted, safe};

/// Whatever the session's defaults are. Plans are made once and kept, perhaps while the table is empty: they must be those for a
/// full one.
pub(super) const BEGIN: &str = "\
    BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; \
    SET LOCAL search_path = pg_catalog, pg_temp; \
    SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off";

/// The statements with the schema's name filled in.
#[derive(Debug)]
pub(crate) struct OutboxStatements {
    pub(crate) sweep: SqlStr,
    // Templates of what goes out in the simple protocol.
    as_begun: String,
    as_before: String,
    send: String,
    send_again: String,
    // A relay's life.
    pub(super) register: SqlStr,
    pub(super) renew: SqlStr,
    pub(super) deregister: SqlStr,
    pub(super) sleep: SqlStr,
    pub(super) wake: SqlStr,
    pub(super) probe: SqlStr,
    // What it does with messages.
    pub(super) poll: SqlStr,
    pub(super) topics: SqlStr,
    pub(super) take: SqlStr,
    pub(super) take_suspect: SqlStr,
    pub(super) adopt: SqlStr,
    pub(super) settle: SqlStr,
    pub(super) admit: SqlStr,
    pub(super) admit_stranded: SqlStr,
    pub(super) free: SqlStr,
    pub(super) forget_relays: SqlStr,
    // A person's.
    pub(super) status: SqlStr,
    pub(super) dead_letters: SqlStr,
    pub(super) redeliver: SqlStr,
    pub(super) discard_dead_letter: SqlStr,
    /// Where sleeping relays listen.
    pub(super) channel: String,
    pub(super) schema: String,
}

/// No relay has it, and none is through with it.
const PENDING: &str = "delivered_at IS NULL AND failure IS NULL";

const READY: &str = "taken_by IS NULL AND delivered_at IS NULL AND failure IS NULL AND NOT suspect";

const SWEEP: &str = "\
    DELETE FROM {outbox} WHERE ctid {=} ANY (ARRAY( \
        SELECT ctid FROM {outbox} WHERE delivered_at {<=} (pg_catalog.clock_timestamp() {-} {retention}) \
        ORDER BY delivered_at LIMIT $1 FOR UPDATE SKIP LOCKED))";

/// At most one a transaction, as Postgres drops equal notifications, and none while every relay is awake: a transaction that
/// notifies commits under a lock of the whole server.
const NOTIFY: &str = "\
    CASE WHEN EXISTS (SELECT FROM {relays} AS r \
                      WHERE r.sleeping AND r.lease_expires_at {>} pg_catalog.clock_timestamp() \
                        AND (r.topics IS NULL OR o.topic {=} ANY (r.topics))) \
        THEN pg_catalog.pg_notify('{channel}', '') END";

/// A handler may have changed the role, as for row-level security, and that role knows nothing of the outbox: what is sent is
/// written as whoever began the transaction, and the role is what it was. (`idem.session` and `idem.role` were set when it began.)
const AS_BEGUN: &str = "\
    SELECT pg_catalog.set_config('idem.sender_session', pg_catalog.current_setting('session_authorization'), true), \
           pg_catalog.set_config('idem.sender_role', pg_catalog.current_setting('role'), true), \
           {become_session}, {become_role}";

const AS_BEFORE: &str = "SELECT {become_sender_session}, {become_sender_role}";

const BECOME: &str = "\
    CASE WHEN pg_catalog.current_setting('idem.{who}', true) {<>} '' \
          AND pg_catalog.current_setting('idem.{who}', true) {<>} pg_catalog.current_setting('{setting}') \
         THEN pg_catalog.set_config('{setting}', pg_catalog.current_setting('idem.{who}'), true) END";

const SEND: &str = "\
    INSERT INTO {outbox} AS o (topic, dedupe_key, group_key, payload) VALUES ({message}) \
    ON CONFLICT (topic, dedupe_key) DO NOTHING RETURNING o.deaths, true AS present, {notify}";

/// What is in a new message's place makes room if it is dead or forgotten. Any other row is not even locked: its delivery goes
/// on meanwhile.
const SEND_AGAIN: &str = "\
    WITH message (topic, dedupe_key, group_key, payload) AS MATERIALIZED ( \
        SELECT m.topic::pg_catalog.text, m.dedupe_key::pg_catalog.text, m.group_key::pg_catalog.text, \
               m.payload::pg_catalog.bytea \
        FROM (VALUES ({message})) AS m (topic, dedupe_key, group_key, payload)), \
    again AS ( \
        UPDATE {outbox} AS o \
        SET id = DEFAULT, deliver_at = pg_catalog.clock_timestamp(), delivered_at = NULL, attempts = 0, suspect = false, \
            deaths = CASE WHEN o.failure IS NULL THEN 0 ELSE o.deaths {+} 1 END, \
            group_key = m.group_key, payload = m.payload, failure = NULL \
        FROM message AS m \
        WHERE o.topic {=} m.topic AND o.dedupe_key {=} m.dedupe_key \
          AND (o.failure IS NOT NULL OR o.delivered_at {<=} (pg_catalog.clock_timestamp() {-} {retention})) \
        RETURNING o.deaths, {notify}) \
    SELECT (SELECT deaths FROM again) AS deaths, \
           EXISTS (SELECT FROM {outbox} AS o, message AS m \
                   WHERE o.topic {=} m.topic AND o.dedupe_key {=} m.dedupe_key) AS present";

const REGISTER: &str = "\
    INSERT INTO {relays} (lease_expires_at, topics) VALUES (clock_timestamp() + make_interval(secs => $1), $2) \
    RETURNING id, current_setting('server_encoding') AS encoding";

/// An expired lease is not renewed: others may have what was taken under it.
const RENEW: &str = "\
    UPDATE {relays} SET lease_expires_at = clock_timestamp() + make_interval(secs => $2) \
    WHERE id = $1 AND lease_expires_at > clock_timestamp()";

const DEREGISTER: &str = "DELETE FROM {relays} WHERE id = $1";

const SLEEP: &str = "UPDATE {relays} SET sleeping = true WHERE id = $1";

const WAKE: &str = "UPDATE {relays} SET sleeping = false WHERE id = $1 AND sleeping";

const PROBE: &str = "SELECT pg_catalog.pg_notify('{channel}', $1)";

/// A comparison with `clock_timestamp()` would read an index from end to end: it may change from row to row.
const POLL: &str = "\
    SELECT EXISTS (SELECT FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($4)) AS t (topic, floor) WHERE EXISTS ( \
               SELECT FROM {outbox} AS o WHERE o.topic {=} t.topic AND {ready} \
                 AND o.deliver_at {>=} pg_catalog.to_timestamp(t.floor) \
                 AND o.deliver_at {<=} pg_catalog.statement_timestamp())) AS due, \
           EXISTS (SELECT FROM {outbox} AS o \
                   WHERE o.suspect AND o.delivered_at IS NULL AND o.failure IS NULL AND o.taken_by IS NULL \
                     AND o.deliver_at {<=} pg_catalog.statement_timestamp() \
                     AND (($2 AND o.topic {<>} ALL ($3)) OR o.topic {=} ANY ($1)) \
                     AND (o.group_key IS NULL OR NOT EXISTS ( \
                         SELECT FROM {outbox} AS b WHERE b.group_key {=} o.group_key AND b.taken_by IS NOT NULL))) AS suspects";

/// Each topic costs one look into the index, however many messages it has.
const TOPICS: &str = "\
    WITH RECURSIVE t AS ( \
        (SELECT o.topic FROM {outbox} AS o WHERE {ready} ORDER BY o.topic LIMIT 1) \
        UNION ALL \
        SELECT (SELECT o.topic FROM {outbox} AS o WHERE {ready} AND o.topic {>} t.topic ORDER BY o.topic LIMIT 1) \
        FROM t WHERE t.topic IS NOT NULL) \
    SELECT topic FROM t WHERE topic IS NOT NULL AND topic {<>} ALL ($1)";

/// Takes what is due, for each topic as many as there are places. What waits for another one of its group is put aside, so that
/// it is not met again and again; the row that it waits for is locked meanwhile, so that whoever settles it sees that. A message
/// whose attempts are used up dies: the process that made the last one did not live to say so.
const TAKE: &str = "\
    WITH due AS MATERIALIZED ( \
        SELECT d.*, w.places FROM unnest($1::text[], $4::int4[], $6::float8[]) AS w (topic, places, floor) CROSS JOIN LATERAL ( \
            SELECT o.id, o.topic, o.group_key, o.attempts, o.deliver_at FROM {outbox} AS o \
            WHERE o.topic = w.topic AND {ready} \
              AND o.deliver_at >= to_timestamp(w.floor) AND o.deliver_at <= statement_timestamp() \
            ORDER BY o.deliver_at LIMIT w.places + $5::int4 FOR UPDATE SKIP LOCKED) AS d), \
    judged AS MATERIALIZED ( \
        SELECT d.*, \
            CASE WHEN d.group_key IS NOT NULL THEN \
                (SELECT b.id FROM {outbox} AS b WHERE b.group_key = d.group_key AND b.id < d.id AND {pending} LIMIT 1) END AS before, \
            d.group_key IS NOT NULL AND EXISTS ( \
                SELECT FROM {outbox} AS b WHERE b.group_key = d.group_key AND b.taken_by IS NOT NULL) AS busy \
        FROM due AS d), \
    held AS MATERIALIZED ( \
        SELECT b.id FROM {outbox} AS b \
        WHERE b.id = ANY (ARRAY(SELECT j.before FROM judged AS j WHERE j.before IS NOT NULL \
                                EXCEPT SELECT j.id FROM judged AS j)) AND {pending} \
        FOR SHARE SKIP LOCKED), \
    aside AS ( \
        UPDATE {outbox} AS o SET deliver_at = 'infinity' WHERE o.id = ANY (ARRAY( \
            SELECT j.id FROM judged AS j \
            WHERE j.before IN (SELECT k.id FROM judged AS k UNION ALL SELECT h.id FROM held AS h))) \
        RETURNING 1), \
    chosen AS MATERIALIZED ( \
        SELECT c.id, c.attempts FROM ( \
            SELECT j.*, row_number() OVER (PARTITION BY j.topic ORDER BY j.deliver_at, j.id) AS place \
            FROM judged AS j WHERE j.before IS NULL AND NOT j.busy) AS c \
        WHERE c.place <= c.places), \
    {taken_and_died} \
    UNION ALL SELECT NULL, NULL, NULL, NULL, NULL, count(*)::int4, 'aside', NULL FROM aside HAVING count(*) > 0";

/// The same for one message that was under way when a relay died.
const TAKE_SUSPECT: &str = "\
    WITH chosen AS MATERIALIZED ( \
        SELECT o.id, o.attempts FROM {outbox} AS o \
        WHERE o.suspect AND {pending} AND o.taken_by IS NULL AND o.deliver_at <= statement_timestamp() \
          AND ($1::text[] IS NULL OR o.topic = ANY ($1::text[])) AND o.topic <> ALL ($4::text[]) \
          AND (o.group_key IS NULL OR NOT EXISTS ( \
              SELECT FROM {outbox} AS b WHERE b.group_key = o.group_key AND b.id <> o.id AND b.taken_by IS NOT NULL)) \
        ORDER BY o.deliver_at LIMIT 1 FOR UPDATE SKIP LOCKED), \
    {taken_and_died}";

const TAKEN_AND_DIED: &str = "\
    taken AS ( \
        UPDATE {outbox} AS o SET attempts = o.attempts + 1, taken_by = $2::int8 \
        WHERE o.id = ANY (ARRAY(SELECT c.id FROM chosen AS c WHERE c.attempts < $3::int4)) \
          AND EXISTS (SELECT FROM {relays} AS r WHERE r.id = $2::int8 AND r.lease_expires_at > clock_timestamp()) \
        RETURNING o.id, o.topic, o.dedupe_key, o.group_key, o.payload, o.attempts, o.deliver_at), \
    died AS ( \
        UPDATE {outbox} AS o SET failure = CASE WHEN o.suspect \
            THEN 'the process that delivered it for the last time died or stopped answering' ELSE 'its attempts were used up' END \
        WHERE o.id = ANY (ARRAY(SELECT c.id FROM chosen AS c WHERE c.attempts >= $3::int4)) \
        RETURNING o.id, o.topic, o.group_key, o.attempts) \
    SELECT t.id, t.topic, t.dedupe_key, t.group_key, t.payload, t.attempts, 'taken' AS what, \
           extract(epoch FROM t.deliver_at)::float8 AS since FROM taken AS t \
    UNION ALL SELECT d.id, d.topic, NULL, d.group_key, NULL, d.attempts, 'died', NULL FROM died AS d";

/// What this relay has taken and does not know of: the answer was lost.
const ADOPT: &str = "\
    SELECT id, topic, dedupe_key, group_key, payload, attempts, 'taken' AS what, NULL::float8 AS since FROM {outbox} \
    WHERE taken_by IS NOT NULL AND taken_by = $1 AND id <> ALL ($2)";

/// A delivery settles its message while it is the last one: a slow relay changes nothing of its successor's. A pause of 1 s,
/// doubling up to 5 min, of which a random half to whole is kept.
const SETTLE: &str = "\
    UPDATE {outbox} AS o \
    SET taken_by = NULL, suspect = false, \
        delivered_at = CASE WHEN s.failure IS NULL THEN clock_timestamp() END, \
        payload = CASE WHEN s.failure IS NULL THEN NULL ELSE o.payload END, \
        failure = CASE WHEN o.attempts >= $5 THEN s.failure END, \
        deliver_at = CASE WHEN s.failure IS NULL THEN o.deliver_at ELSE clock_timestamp() \
            + least(300, power(2, least(o.attempts - 1, 16))) * (0.5 + random() / 2) * interval '1 second' END \
    FROM unnest($1::int8[], $2::int4[], $3::text[], $4::int8[]) AS s (id, attempt, failure, relay) \
    WHERE o.id = s.id AND o.attempts = s.attempt AND (o.taken_by IS NULL OR o.taken_by = s.relay) \
      AND o.delivered_at IS NULL AND o.failure IS NULL \
    RETURNING o.group_key";

/// The first of each group need not wait any longer.
const ADMIT: &str = "\
    UPDATE {outbox} AS o SET deliver_at = clock_timestamp() \
    WHERE o.id = ANY (ARRAY( \
        SELECT (SELECT b.id FROM {outbox} AS b WHERE b.group_key >= g.key AND b.group_key <= g.key AND {pending} \
                ORDER BY b.group_key, b.id LIMIT 1) \
        FROM unnest($1::text[]) AS g (key))) \
      AND o.deliver_at = 'infinity' AND {pending}";

/// Somebody deleted the row that they were waiting for.
const ADMIT_STRANDED: &str = "\
    UPDATE {outbox} AS o SET deliver_at = clock_timestamp() \
    WHERE o.deliver_at = 'infinity' AND {pending} AND o.taken_by IS NULL AND NOT EXISTS ( \
        SELECT FROM {outbox} AS b WHERE b.group_key = o.group_key AND b.id < o.id \
          AND b.delivered_at IS NULL AND b.failure IS NULL)";

/// What a relay had taken that is no more.
const FREE: &str = "\
    UPDATE {outbox} AS o SET taken_by = NULL, suspect = true, deliver_at = clock_timestamp() \
    WHERE o.taken_by IS NOT NULL AND NOT EXISTS ( \
        SELECT FROM {relays} AS r WHERE r.id = o.taken_by AND r.lease_expires_at > clock_timestamp())";

const FORGET_RELAYS: &str = "DELETE FROM {relays} WHERE lease_expires_at <= clock_timestamp()";

/// Counted in the partial indexes: what is delivered is not looked at.
const STATUS: &str = "\
    WITH living AS MATERIALIZED (SELECT topics FROM {relays} WHERE lease_expires_at > clock_timestamp()), \
    counted AS ( \
        SELECT topic, count(*) AS waiting, 0 AS under_way, 0 AS dead FROM {outbox} WHERE {ready} GROUP BY topic \
        UNION ALL SELECT topic, count(*), 0, 0 FROM {outbox} \
            WHERE suspect AND delivered_at IS NULL AND failure IS NULL AND taken_by IS NULL GROUP BY topic \
        UNION ALL SELECT topic, 0, count(*), 0 FROM {outbox} WHERE taken_by IS NOT NULL GROUP BY topic \
        UNION ALL SELECT topic, 0, 0, count(*) FROM {outbox} WHERE failure IS NOT NULL GROUP BY topic) \
    SELECT c.topic, sum(c.waiting)::int8 AS waiting, sum(c.under_way)::int8 AS under_way, sum(c.dead)::int8 AS dead, \
        (SELECT count(*) FROM living AS l WHERE l.topics IS NULL OR c.topic = ANY (l.topics)) AS relays \
    FROM counted AS c GROUP BY c.topic ORDER BY c.topic";

const DEAD_LETTERS: &str = "\
    SELECT id, topic, dedupe_key, group_key, payload, attempts, failure FROM {outbox} \
    WHERE delivered_at IS NULL AND failure IS NOT NULL ORDER BY id LIMIT $1";

const REDELIVER: &str = "\
    UPDATE {outbox} AS o SET failure = NULL, attempts = 0, deliver_at = clock_timestamp() \
    WHERE o.id = $1 AND o.delivered_at IS NULL AND o.failure IS NOT NULL RETURNING {notify}";

const DISCARD_DEAD_LETTER: &str = "DELETE FROM {outbox} WHERE id = $1 AND delivered_at IS NULL AND failure IS NOT NULL";

impl OutboxStatements {
    pub(crate) fn new(schema: &str, retention: Duration) -> Self {
        let channel = format!("idem_outbox_{}", &hex::encode(&sha256(&[schema.as_bytes()]))[..16]);
        let names = [
            ("{taken_and_died}", TAKEN_AND_DIED.to_owned()),
            ("{notify}", NOTIFY.to_owned()),
            ("{outbox}", format!("{}.outbox", quoted(schema))),
            ("{relays}", format!("{}.relays", quoted(schema))),
            ("{channel}", channel.clone()),
            ("{retention}", format!("'{} s'::pg_catalog.interval", retention.as_secs_f64())),
            ("{become_session}", become_again("session", "session_authorization")),
            ("{become_role}", become_again("role", "role")),
            ("{become_sender_session}", become_again("sender_session", "session_authorization")),
            ("{become_sender_role}", become_again("sender_role", "role")),
            ("{ready}", READY.to_owned()),
            ("{pending}", PENDING.to_owned()),
        ];
        let operators = ["=", "<>", "<=", ">=", ">", "+", "-"];
        let text = |template: &str| {
            let named = names.iter().fold(template.to_owned(), |sql, (name, value)| sql.replace(name, value));
            operators.iter().fold(named, |sql, operator| {
                sql.replace(&format!("{{{operator}}}"), &format!("OPERATOR(pg_catalog.{operator})"))
            })
        };
        let fill = |template: &str| safe(text(template));
        Self {
            sweep: fill(SWEEP),
            as_begun: text(AS_BEGUN),
            as_before: text(AS_BEFORE),
            send: text(SEND),
            send_again: text(SEND_AGAIN),
            register: fill(REGISTER),
            renew: fill(RENEW),
            deregister: fill(DEREGISTER),
            sleep: fill(SLEEP),
            wake: fill(WAKE),
            probe: fill(PROBE),
            poll: fill(POLL),
            topics: fill(TOPICS),
            take: fill(TAKE),
            take_suspect: fill(TAKE_SUSPECT),
            adopt: fill(ADOPT),
            settle: fill(SETTLE),
            admit: fill(ADMIT),
            admit_stranded: fill(ADMIT_STRANDED),
            free: fill(FREE),
            forget_relays: fill(FORGET_RELAYS),
            status: fill(STATUS),
            dead_letters: fill(DEAD_LETTERS),
            redeliver: fill(REDELIVER),
            discard_dead_letter: fill(DISCARD_DEAD_LETTER),
            channel,
            schema: schema.to_owned(),
        }
    }

    /// Writes a message, in one round trip. The lock comes before the id: a group's ids are in the order of its commits.
    pub(super) fn send(&self, letter: &Letter<'_>) -> SqlStr {
        let turn = letter.group.map(|group| self.group_lock(group));
        let turn = turn.map(|lock| format!("SELECT pg_catalog.pg_advisory_xact_lock({lock}); ")).unwrap_or_default();
        let Self { as_begun, as_before, send, .. } = self;
        safe(format!("{turn}{as_begun}; {}; {as_before}", send.replace("{message}", &letter.literals())))
    }

    /// The same where the topic and key are taken.
    pub(super) fn send_again(&self, letter: &Letter<'_>) -> SqlStr {
        let Self { as_begun, as_before, send_again, .. } = self;
        safe(format!("{as_begun}; {}; {as_before}", send_again.replace("{message}", &letter.literals())))
    }

    /// The number of the advisory lock that a group's writers hold until they commit.
    fn group_lock(&self, group: &str) -> i64 {
        let digest = sha256(&[b"outbox group", self.schema.as_bytes(), group.as_bytes()]);
        digest[..8].iter().fold(0, |number, byte| number << 8 | i64::from(*byte))
    }
}

fn become_again(who: &str, setting: &str) -> String {
    BECOME.replace("{who}", who).replace("{setting}", setting)
}

/// A message on its way into the outbox.
pub(super) struct Letter<'a> {
    pub(super) topic: &'a str,
    pub(super) dedupe_key: &'a str,
    pub(super) group: Option<&'a str>,
    pub(super) payload: &'a [u8],
}

impl Letter<'_> {
    fn literals(&self) -> String {
        let mut sql = String::with_capacity(128 + 2 * self.payload.len());
        push_text(&mut sql, self.topic);
        sql.push_str(", ");
        push_text(&mut sql, self.dedupe_key);
        sql.push_str(", ");
        match self.group {
            Some(group) => push_text(&mut sql, group),
            None => sql.push_str("NULL"),
        }
        sql.push_str(", ");
        push_bytes(&mut sql, self.payload);
        sql
    }
}
