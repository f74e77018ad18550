-- Inserts missing rows of keys that no job holds and of queues without settings, so that there is something to lock. Rows that exist
-- are left out: an insert would wait for a transaction that is writing one.
CREATE OR REPLACE FUNCTION @.make(p_keys bytea[], p_queues text[]) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    -- Queues before keys, as `commit` inserts them.
    IF cardinality(p_queues) > 0 THEN
        INSERT INTO @.queue (name, paused, version)
            SELECT w.name, false, 0 FROM (SELECT DISTINCT unnest(p_queues)) AS w(name)
            WHERE NOT EXISTS (SELECT 1 FROM @.queue q WHERE q.name = w.name) ORDER BY w.name
            ON CONFLICT DO NOTHING;
    END IF;
    IF cardinality(p_keys) > 0 THEN
        INSERT INTO @.key (key, version, live, done)
            SELECT w.key, 0, '{}', '{}' FROM (SELECT DISTINCT unnest(p_keys)) AS w(key)
            WHERE NOT EXISTS (SELECT 1 FROM @.key k WHERE k.key = w.key) ORDER BY w.key
            ON CONFLICT DO NOTHING;
    END IF;
END
$$;

-- Locks keys inside a caller's transaction: waits for each, in the same order for every caller. Returns how many of them have rows.
CREATE OR REPLACE FUNCTION @.hold(p_keys bytea[]) RETURNS int8
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM 1 FROM @.key WHERE key = ANY (p_keys) ORDER BY key FOR UPDATE;
    RETURN (SELECT count(*) FROM @.key WHERE key = ANY (p_keys));
END
$$;
