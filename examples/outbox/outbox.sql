-- An order and the job that follows from it, in one transaction: from any language, at any isolation level.
--
--     SEMEL_STORE="$DATABASE_URL" semel serve &        # makes the outbox, and relays it
--     psql "$DATABASE_URL" -f outbox.sql

CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY);

BEGIN;
INSERT INTO orders (id) VALUES (7) ON CONFLICT DO NOTHING;
-- An Open Job Spec request. One of equal ones runs: of two such entries the second is told `existing`.
INSERT INTO semel.outbox (envelope) VALUES ('{
    "type": "order.ship",
    "args": [{"order": 7}],
    "options": {"unique": {"keys": ["type", "args"], "on_conflict": "ignore"}}
}');
COMMIT;

-- Taken back, it never was.
BEGIN;
INSERT INTO semel.outbox (envelope) VALUES ('{"type": "order.ship", "args": [{"order": 8}]}');
ROLLBACK;

-- A moment later a server, or a program that relays, has relayed it: `SELECT outcome, job FROM semel.outbox`.
