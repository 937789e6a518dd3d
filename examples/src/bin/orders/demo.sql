INSERT INTO customers (name, token_digest, balance_cents) VALUES
    ('ada', sha256('ada-token'), 10000),
    ('grace', sha256('grace-token'), 10000);

INSERT INTO products (name, price_cents, stock) VALUES
    ('beans', 1250, 100),
    ('grinder', 18000, 5);
