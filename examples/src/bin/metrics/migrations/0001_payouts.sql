CREATE TABLE bank (
    name text PRIMARY KEY,
    open boolean NOT NULL
);

CREATE TABLE payouts (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    merchant text NOT NULL,
    amount_cents bigint NOT NULL CHECK (amount_cents > 0)
);
