-- Deletes heads for good, with their bodies, notes and absorbed ids, and removes them from the holders of their keys. The caller
-- has locked first the keys, then the heads.
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

-- Deletes heads that were kept only for their keys and are no longer needed, at most `p_limit`. Returns how many.
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
    -- What another transaction has locked, or has renewed meanwhile, is left for a later call: this one must not wait while
    -- others wait for what it has locked. A key without a row lists no holders, so there is nothing to lock.
    v_ids := ARRAY(SELECT h.id FROM @.head h WHERE h.id = ANY (v_ids) AND h.slot = @slot_kept AND h.slot_at <= p_now
        AND (h.key IS NULL OR h.key = ANY (v_keys) OR NOT EXISTS (SELECT FROM @.key k WHERE k.key = h.key))
        ORDER BY h.id FOR UPDATE SKIP LOCKED);
    PERFORM @.forget(v_ids, p_now);
    RETURN cardinality(v_ids);
END
$$;

-- Moves what commits counted from `tally` to the counters in `total`: at most `p_limit` rows, from page `p_page` of `tally` on. Returns
-- how many rows it folded, and the page of the first of them.
CREATE OR REPLACE FUNCTION @.fold(p_limit int4, p_page int8, OUT folded int4, OUT page int8)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_rows tid[];
BEGIN
    folded := 0;
    page := p_page;
    -- One call at a time: two would wait for each other's counters.
    IF NOT pg_try_advisory_xact_lock(@class, -1) THEN
        RETURN;
    END IF;
    v_rows := ARRAY(SELECT ctid FROM @.tally WHERE ctid >= ('(' || p_page || ',0)')::tid LIMIT p_limit);
    IF cardinality(v_rows) = 0 THEN
        RETURN;
    END IF;
    page := split_part(ltrim(v_rows[1]::text, '('), ',', 1);
    WITH gone AS (
        DELETE FROM @.tally WHERE ctid = ANY (v_rows) RETURNING queue, what, n
    ), added AS (
        INSERT INTO @.total AS t (queue, what, n)
        SELECT queue, what, sum(n)::int8 FROM gone GROUP BY queue, what
        ON CONFLICT (queue, what) DO UPDATE SET n = t.n + excluded.n
    )
    SELECT count(*) INTO folded FROM gone;
END
$$;
