-- Writes an order and the job that follows from it in one transaction. Works from any language, at any isolation level.
--
--     SEMEL_STORE="$DATABASE_URL" semel serve &        # creates and relays the outbox
--     psql "$DATABASE_URL" -f outbox.sql

CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY);

BEGIN;
INSERT INTO orders (id) VALUES (7) ON CONFLICT DO NOTHING;
-- An Open Job Spec request. Equal requests make one job: the second entry gets the outcome `existing`.
INSERT INTO semel.outbox (envelope) VALUES ('{
    "type": "order.ship",
    "args": [{"order": 7}],
    "options": {"unique": {"keys": ["type", "args"], "on_conflict": "ignore"}}
}');
COMMIT;

-- Rolled back: this entry never existed.
BEGIN;
INSERT INTO semel.outbox (envelope) VALUES ('{"type": "order.ship", "args": [{"order": 8}]}');
ROLLBACK;

-- A moment later a server, or a program that relays the outbox, has relayed the entry: `SELECT outcome, job FROM semel.outbox`.
