-- Messages that became true with the transaction that wrote them, until they are delivered; then, without their payload,
-- until their deduplication is over.
CREATE TABLE outbox (
    -- The order within a group: a group's writers take turns, each until it commits.
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- When a relay may take it: at once, after a pause, or (infinity) when its group has come so far.
    deliver_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    delivered_at timestamptz,
    -- The relay that delivers it at the moment.
    taken_by bigint,
    -- Counted when it is taken, so that a delivery that ends its process counts.
    attempts integer NOT NULL DEFAULT 0,
    -- How often a relay has given up on this topic and key, and it was sent again.
    deaths integer NOT NULL DEFAULT 0,
    -- It was under way when a relay died: it is tried alone.
    suspect boolean NOT NULL DEFAULT false,
    topic text COLLATE "C" NOT NULL,
    dedupe_key text COLLATE "C" NOT NULL,
    group_key text COLLATE "C",
    payload bytea,
    -- Why the relay gave up: a dead letter.
    failure text,
    UNIQUE (topic, dedupe_key),
    CONSTRAINT delivered_or_dead_or_pending CHECK (
        CASE WHEN delivered_at IS NULL
            THEN payload IS NOT NULL AND (failure IS NULL OR taken_by IS NULL)
            ELSE failure IS NULL AND taken_by IS NULL
        END
    )
);

-- What a relay may take, by topic and time.
CREATE INDEX outbox_ready ON outbox (topic, deliver_at)
    WHERE taken_by IS NULL AND delivered_at IS NULL AND failure IS NULL AND NOT suspect;
CREATE INDEX outbox_suspects ON outbox (deliver_at)
    WHERE suspect AND delivered_at IS NULL AND failure IS NULL;
CREATE INDEX outbox_group ON outbox (group_key, id)
    WHERE group_key IS NOT NULL AND delivered_at IS NULL AND failure IS NULL;
-- The judge: one delivery of a group at a time.
CREATE UNIQUE INDEX outbox_taken ON outbox (group_key) WHERE taken_by IS NOT NULL;
CREATE INDEX outbox_dead ON outbox (id) WHERE failure IS NOT NULL;
CREATE INDEX outbox_delivered_at ON outbox (delivered_at) WHERE delivered_at IS NOT NULL;

-- One row is one relay that runs.
CREATE TABLE relays (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- What it has taken is free again after this.
    lease_expires_at timestamptz NOT NULL,
    -- It waits to be woken: whoever sends a message notifies.
    sleeping boolean NOT NULL DEFAULT false,
    -- NULL for one that takes every topic.
    topics text[]
);
