-- Money is in cents.
CREATE TABLE accounts (
    name text PRIMARY KEY,
    balance_cents bigint NOT NULL DEFAULT 0
);

-- No constraint keeps a payment from being booked twice: that is the inbox's work.
CREATE TABLE bookings (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    payment text NOT NULL,
    account text NOT NULL REFERENCES accounts,
    amount_cents bigint NOT NULL
);
