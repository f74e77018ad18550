-- Makes the rows of keys that nobody holds and of queues without settings, so that there is something to lock. What is there already
-- is not touched: an insert would wait for whoever has it locked.
CREATE OR REPLACE FUNCTION @.make(p_keys bytea[], p_queues text[]) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    -- Queues first, as a commit makes them.
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

-- Inside a caller's transaction: waits for the keys, in one order for everybody.
CREATE OR REPLACE FUNCTION @.hold(p_keys bytea[]) RETURNS int8
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM 1 FROM @.key WHERE key = ANY (p_keys) ORDER BY key FOR UPDATE;
    RETURN (SELECT count(*) FROM @.key WHERE key = ANY (p_keys));
END
$$;
