-- Heads that are deleted for good: their bodies, notes and absorbed ids with them, and their places among their keys'
-- holders. The caller holds the locks of the keys, then of the heads.
CREATE OR REPLACE FUNCTION @.forget(p_ids uuid[], p_now int8) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    UPDATE @.key k SET
        version = greatest(k.version + 1, p_now),
        live = ARRAY(SELECT u.id FROM unnest(k.live) AS u(id) WHERE u.id <> ALL (p_ids)),
        done = ARRAY(SELECT u.id FROM unnest(k.done) AS u(id) WHERE u.id <> ALL (p_ids))
    FROM (SELECT DISTINCT h.key FROM unnest(p_ids) AS w(id) JOIN @.head h ON h.id = w.id WHERE h.key IS NOT NULL) AS w
    WHERE k.key = w.key;
    UPDATE @.fact SET gone = w.version
    FROM (SELECT max(h.version) AS version FROM @.head h WHERE h.id = ANY (p_ids)) AS w
    WHERE gone < w.version;
    DELETE FROM @.head WHERE id = ANY (p_ids);
    DELETE FROM @.body WHERE id = ANY (p_ids);
    DELETE FROM @.note WHERE id = ANY (p_ids);
    DELETE FROM @.absorbed WHERE job = ANY (p_ids);
END
$$;

-- Heads that were kept for their keys alone and are needed no longer: at most `p_limit`. Says how many.
CREATE OR REPLACE FUNCTION @.forget_due(p_now int8, p_limit int4) RETURNS int4
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_ids uuid[] := ARRAY(SELECT id FROM @.head WHERE slot = @slot_kept AND slot_at <= p_now ORDER BY slot_at, id LIMIT p_limit);
    v_keys bytea[];
BEGIN
    IF cardinality(v_ids) = 0 THEN
        RETURN 0;
    END IF;
    v_keys := ARRAY(SELECT key FROM @.key WHERE key = ANY (ARRAY(SELECT h.key FROM @.head h WHERE h.id = ANY (v_ids)))
        ORDER BY key FOR UPDATE SKIP LOCKED);
    -- What somebody has locked, or has renewed meanwhile, is left for a later look: nobody waits here while others wait for
    -- what is locked already. A key of which nothing is left knows nothing of them.
    v_ids := ARRAY(SELECT h.id FROM @.head h WHERE h.id = ANY (v_ids) AND h.slot = @slot_kept AND h.slot_at <= p_now
        AND (h.key IS NULL OR h.key = ANY (v_keys) OR NOT EXISTS (SELECT FROM @.key k WHERE k.key = h.key))
        ORDER BY h.id FOR UPDATE SKIP LOCKED);
    PERFORM @.forget(v_ids, p_now);
    RETURN cardinality(v_ids);
END
$$;

-- Carries what commits counted over to the counters: a bounded piece. Says how many rows it folded.
CREATE OR REPLACE FUNCTION @.fold(p_limit int4) RETURNS int4
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_rows int4;
BEGIN
    -- One folds at a time: two would wait for each other's counters.
    IF NOT pg_try_advisory_xact_lock(@class, -1) THEN
        RETURN 0;
    END IF;
    WITH gone AS (
        DELETE FROM @.tally WHERE ctid = ANY (ARRAY(SELECT ctid FROM @.tally LIMIT p_limit)) RETURNING queue, what, n
    ), added AS (
        INSERT INTO @.total AS t (queue, what, n)
        SELECT queue, what, sum(n)::int8 FROM gone GROUP BY queue, what
        ON CONFLICT (queue, what) DO UPDATE SET n = t.n + excluded.n
    )
    SELECT count(*) INTO v_rows FROM gone;
    RETURN v_rows;
END
$$;
