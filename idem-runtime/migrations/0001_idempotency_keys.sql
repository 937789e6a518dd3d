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
    -- NULL while a multi-step operation is in progress; 0 where the handler left its transaction, so that its effects are not known:
    -- `failure` says why, and the row stays until a person frees the key.
    status smallint,
    scope text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    fingerprint bytea NOT NULL,
    headers bytea,
    body bytea,
    -- Multi-step operations only: what has been done, one line a step; what to send again. Then, why a person is needed.
    recovery_points bytea,
    request bytea,
    failure text,
    PRIMARY KEY (scope, key),
    -- One constraint and no more: Postgres reads their texts anew at every insert. Lengths are the runtime's to check.
    CONSTRAINT completed_or_claimed CHECK (
        CASE WHEN status IS NULL
            THEN (token, attempt, started_at, lease_expires_at, recover_at, recoveries, recovery_points) IS NOT NULL
            ELSE (headers, body) IS NOT NULL AND (status = 0) = (failure IS NOT NULL)
        END
    )
);

-- The sweeper walks it; expiry times arrive in order, so it costs one append a row.
CREATE INDEX idempotency_keys_expires_at ON idempotency_keys (expires_at);

-- The completer walks it; it holds nothing but operations in progress.
CREATE INDEX idempotency_keys_recover_at ON idempotency_keys (recover_at) WHERE status IS NULL;

-- What needs a person.
CREATE INDEX idempotency_keys_failure ON idempotency_keys (started_at) WHERE failure IS NOT NULL;

-- Fails with a SQLSTATE that nobody else raises, so that no trigger of the application's can be taken for one of the checks.
--
-- IDM01: this is not the transaction that holds the claim. Before that is said, its lock is looked for: `RESET ALL` takes the claim's
-- settings away and leaves the lock (IDM04), and PREPARE TRANSACTION leaves it to the prepared one (IDM05).
CREATE FUNCTION fail(code text, lock bigint) RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE
    holder integer;
    held boolean;
BEGIN
    IF code = 'IDM01' THEN
        SELECT pid, true INTO holder, held FROM pg_locks
        WHERE locktype = 'advisory' AND granted AND objsubid = 1
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND classid = ((lock >> 32) & 4294967295)::oid AND objid = (lock & 4294967295)::oid
        LIMIT 1;
        IF held AND holder IS NULL THEN
            code := 'IDM05';
        ELSIF holder = pg_backend_pid() THEN
            code := 'IDM04';
        END IF;
    END IF;
    RAISE EXCEPTION USING ERRCODE = code, MESSAGE = 'idem: ' || CASE code
        WHEN 'IDM01' THEN 'this is not the transaction that holds the claim'
        WHEN 'IDM02' THEN 'the transaction that held the claim was committed by the handler'
        WHEN 'IDM03' THEN 'another attempt has taken the operation over'
        WHEN 'IDM04' THEN 'the settings of the claim were reset'
        WHEN 'IDM05' THEN 'the transaction that holds the claim was prepared'
        ELSE code
    END;
END
$$;
