CREATE TABLE invoices (
    id text PRIMARY KEY,
    amount_cents bigint NOT NULL CHECK (amount_cents > 0),
    paid_cents bigint NOT NULL DEFAULT 0
);

-- Money that moved, one row a movement. Nothing here is unique by event: that an event counts once is the receiver's work.
CREATE TABLE ledger (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    invoice text NOT NULL REFERENCES invoices,
    amount_cents bigint NOT NULL,
    booked_at timestamptz NOT NULL DEFAULT now()
);
