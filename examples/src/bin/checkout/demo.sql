INSERT INTO customers (name, email, token_digest) VALUES ('ada', 'ada@example.org', sha256('ada-token'));

INSERT INTO products (name, price_cents, stock) VALUES ('beans', 1250, 1000);
