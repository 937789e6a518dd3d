-- Money is in cents. The constraints are the last line of defence; the handlers refuse before they strike.
CREATE TABLE customers (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    email text NOT NULL,
    -- SHA-256 of the API token: who reads the table cannot act as the customer.
    token_digest bytea NOT NULL UNIQUE
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
    status text NOT NULL DEFAULT 'reserved' CHECK (status IN ('reserved', 'paid', 'cancelled')),
    -- The provider's reference.
    charge text UNIQUE,
    CONSTRAINT paid_has_charge CHECK ((status = 'paid') = (charge IS NOT NULL))
);
