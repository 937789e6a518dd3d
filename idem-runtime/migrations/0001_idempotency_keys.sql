-- One row is one claimed or completed operation. The primary key is the only judge of who may run.
CREATE TABLE idempotency_keys (
    -- Wide columns first: no padding between them.
    expires_at timestamptz NOT NULL,
    -- NULL while a multi-step operation is in progress.
    status smallint,
    scope text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    fingerprint bytea NOT NULL,
    headers bytea,
    body bytea,
    -- Multi-step operations only: the fencing token, and until when its owner holds the claim.
    attempt integer,
    lease_expires_at timestamptz,
    PRIMARY KEY (scope, key),
    CONSTRAINT completed_or_claimed CHECK (status IS NOT NULL OR (attempt IS NOT NULL AND lease_expires_at IS NOT NULL)),
    CONSTRAINT completed_has_response CHECK (status IS NULL OR (headers IS NOT NULL AND body IS NOT NULL)),
    CONSTRAINT scope_length CHECK (octet_length(scope) <= 255),
    CONSTRAINT key_length CHECK (octet_length(key) BETWEEN 1 AND 255),
    CONSTRAINT fingerprint_length CHECK (octet_length(fingerprint) = 32)
);

-- The sweeper walks it; expiry times arrive in order, so it costs one append a row.
CREATE INDEX idempotency_keys_expires_at ON idempotency_keys (expires_at);
