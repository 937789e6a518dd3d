-- One row is one claimed or completed operation. The primary key is the only judge of who may run.
CREATE TABLE idempotency_keys (
    -- Wide columns first: no padding between them. 'infinity' while a multi-step operation is in progress.
    expires_at timestamptz NOT NULL,
    -- Multi-step operations only, all NULL otherwise: since when, until when its owner holds the claim, when the
    -- completer may look at it, and the fencing token, which every statement of the owner checks.
    started_at timestamptz,
    lease_expires_at timestamptz,
    recover_at timestamptz,
    token bigint,
    attempt integer,
    recoveries integer,
    -- NULL while a multi-step operation is in progress.
    status smallint,
    scope text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    fingerprint bytea NOT NULL,
    headers bytea,
    body bytea,
    -- Multi-step operations only: what has been done, one line a step; what to send again; why the completer gave up.
    recovery_points bytea,
    request bytea,
    failure text,
    PRIMARY KEY (scope, key),
    -- One constraint and no more: Postgres reads their texts anew at every insert. Lengths are the runtime's to check.
    CONSTRAINT completed_or_claimed CHECK (
        CASE WHEN status IS NULL
            THEN (token, attempt, started_at, lease_expires_at, recover_at, recoveries, recovery_points) IS NOT NULL
            ELSE (headers, body) IS NOT NULL AND failure IS NULL
        END
    )
);

-- The sweeper walks it; expiry times arrive in order, so it costs one append a row.
CREATE INDEX idempotency_keys_expires_at ON idempotency_keys (expires_at);

-- The completer walks it; it holds nothing but operations in progress.
CREATE INDEX idempotency_keys_recover_at ON idempotency_keys (recover_at) WHERE status IS NULL;
