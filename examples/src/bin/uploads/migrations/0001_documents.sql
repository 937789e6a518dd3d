CREATE TABLE users (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- SHA-256 of the API token.
    token_digest bytea NOT NULL UNIQUE
);

CREATE TABLE documents (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner_id bigint NOT NULL REFERENCES users,
    name text NOT NULL,
    sha256 bytea NOT NULL CHECK (octet_length(sha256) = 32),
    content bytea NOT NULL
);
