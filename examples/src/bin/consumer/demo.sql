INSERT INTO accounts (name) VALUES ('ada'), ('grace');
