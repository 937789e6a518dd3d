-- Messages that became true with the transaction that wrote them, until they are delivered; then, without their payload,
-- until their deduplication is over.
CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- When the relay may look at it: at once, after a pause, or when the node that took it must have died.
    deliver_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    delivered_at timestamptz,
    attempts integer NOT NULL DEFAULT 0,
    topic text COLLATE "C" NOT NULL,
    dedupe_key text COLLATE "C" NOT NULL,
    -- Messages of one group are delivered in order.
    group_key text COLLATE "C",
    payload bytea,
    -- Why the relay gave up: a dead letter.
    failure text,
    UNIQUE (topic, dedupe_key),
    CONSTRAINT undelivered_has_payload CHECK (delivered_at IS NOT NULL OR payload IS NOT NULL),
    CONSTRAINT dead_is_undelivered CHECK (failure IS NULL OR delivered_at IS NULL)
);

CREATE INDEX outbox_deliver_at ON outbox (deliver_at) WHERE delivered_at IS NULL AND failure IS NULL;
CREATE INDEX outbox_group ON outbox (group_key, id) WHERE delivered_at IS NULL AND failure IS NULL;
CREATE INDEX outbox_delivered_at ON outbox (delivered_at) WHERE delivered_at IS NOT NULL;
