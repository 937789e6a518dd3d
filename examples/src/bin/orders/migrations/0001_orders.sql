-- Money is in cents. The constraints are the last line of defence; the handlers refuse before they strike.
CREATE TABLE customers (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    -- SHA-256 of the API token: who reads the table cannot act as the customer.
    token_digest bytea NOT NULL UNIQUE,
    balance_cents bigint NOT NULL CHECK (balance_cents >= 0)
);

CREATE TABLE products (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    price_cents bigint NOT NULL CHECK (price_cents > 0),
    stock integer NOT NULL CHECK (stock >= 0)
);

CREATE TABLE orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer_id bigint NOT NULL REFERENCES customers,
    product text NOT NULL REFERENCES products (name),
    quantity integer NOT NULL CHECK (quantity > 0),
    total_cents bigint NOT NULL,
    status text NOT NULL DEFAULT 'placed' CHECK (status IN ('placed', 'cancelled')),
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE deposits (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer_id bigint NOT NULL REFERENCES customers,
    amount_cents bigint NOT NULL CHECK (amount_cents > 0),
    created_at timestamptz NOT NULL DEFAULT now()
);
