-- Applies groups of writes, each all or none, in one transaction: locks what they rely on and write, in one order for every
-- caller; finds the groups whose versions have moved, and those that were decided on top of such; writes the others.
--
-- Locks: the commit's mark, guards of what is absent, keys, heads, queues, documents, absorbed ids; each kind sorted.
-- Nobody's commit waits for what an open transaction has locked: groups that rely on such records are `busy` and not applied. Only
-- inside a caller's own transaction (`p_waits`) locks are waited for; its keys and queues were made beforehand.
CREATE OR REPLACE FUNCTION @.commit(
    p_clock int8, p_ahead int8, p_floor int8,
    p_mark uuid,                                                           -- its own, to be asked about later
    p_waits boolean, p_groups int4,                                        -- whether locks are waited for; how many groups
    p_stale int4[],                                                        -- groups that are stale whatever is stored
    p_guards int4[], p_owned int4[],                                       -- what must be absent; what is to be taken
    ej_group int4[], ej_id uuid[], ej_version int8[], ej_none boolean[],   -- versions of jobs
    ek_group int4[], ek_key bytea[], ek_more int8[], ek_least int8[], ek_version int8[],   -- of keys, after earlier groups
    eq_group int4[], eq_name text[], eq_version int8[],                    -- of queues
    ed_group int4[], ed_kind int2[], ed_name text[], ed_version int8[],    -- of documents
    c_group int4[], c_version int8[],                                      -- versions of new jobs whose ids callers chose
    p_after int4[], p_before int4[],                                       -- the first is decided on top of the second
    p_keys bytea[], p_lookup uuid[],                                       -- to lock; whose keys are to be locked as well
    h_group int4[], h_insert boolean[], h_until int8[], @head_arrays,
    b_group int4[], b_id uuid[], b_body bytea[],
    n_group int4[], n_id uuid[], n_kind int2[], n_text bytea[],
    s_group int4[], s_id uuid[], s_job uuid[], s_digest bytea[],
    f_group int4[], f_id uuid[], f_until int8[],
    q_group int4[], q_name text[], q_paused boolean[], q_settings text[], q_version int8[],
    d_group int4[], d_kind int2[], d_name text[], d_version int8[], d_due int8[], d_text bytea[],
    v_group int4[], v_kind int2[], v_job uuid[], v_type text[], v_queue text[], v_attempt int8[], v_amount int8[]
) RETURNS TABLE (now_at int8, stale int4[], crowded bytea[], busy int4[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now int8;
    v_stale int4[];
    v_more int4[];
    v_inserted uuid[];
    v_ids uuid[];
    v_doomed uuid[];
    v_count int8;
    v_crowded bytea[] := '{}';
    v_busy int4[] := '{}';
    v_keys bytea[];
    v_names text[];
    v_guard record;
BEGIN
    IF NOT p_waits THEN
        -- For the few locks that cannot be passed over: a row that somebody is about to insert.
        PERFORM set_config('lock_timeout', '250ms', true);
    END IF;
    PERFORM pg_advisory_xact_lock(@class, hashtext(p_mark::text));
    IF EXISTS (SELECT 1 FROM @.void WHERE mark = p_mark) THEN
        RAISE EXCEPTION 'this commit was given up' USING ERRCODE = 'query_canceled';
    END IF;
    IF cardinality(p_guards) > 0 OR cardinality(p_owned) > 0 THEN
        FOR v_guard IN
            SELECT g.guard, bool_or(g.owned) AS owned
            FROM (SELECT unnest(p_guards), false UNION ALL SELECT unnest(p_owned), true) AS g(guard, owned)
            GROUP BY g.guard ORDER BY g.guard
        LOOP
            IF v_guard.owned THEN
                PERFORM pg_advisory_xact_lock(@class, v_guard.guard);
            ELSE
                PERFORM pg_advisory_xact_lock_shared(@class, v_guard.guard);
            END IF;
        END LOOP;
    END IF;

    IF cardinality(p_lookup) > 0 THEN
        p_keys := p_keys || ARRAY(
            SELECT h.key FROM unnest(p_lookup) AS w(id) JOIN @.head h ON h.id = w.id WHERE h.key IS NOT NULL);
    END IF;
    IF cardinality(p_keys) > 0 THEN
        PERFORM @.make(p_keys, '{}');
        IF p_waits THEN
            PERFORM 1 FROM @.key WHERE key = ANY (p_keys) ORDER BY key FOR UPDATE;
        ELSE
            v_keys := ARRAY(SELECT key FROM @.key WHERE key = ANY (p_keys) ORDER BY key FOR UPDATE SKIP LOCKED);
            v_keys := ARRAY(SELECT unnest(p_keys) EXCEPT SELECT unnest(v_keys));
            IF cardinality(v_keys) > 0 THEN
                v_busy := ARRAY(
                    SELECT w.g FROM unnest(ek_group, ek_key) AS w(g, key) WHERE w.key = ANY (v_keys)
                    UNION SELECT w.g FROM unnest(h_group, h_key) AS w(g, key) WHERE w.key = ANY (v_keys)
                    UNION SELECT w.g FROM unnest(h_group || f_group, h_id || f_id) AS w(g, id)
                        JOIN @.head h ON h.id = w.id WHERE w.id = ANY (p_lookup) AND h.key = ANY (v_keys));
            END IF;
        END IF;
    END IF;
    v_inserted := ARRAY(SELECT w.id FROM unnest(h_id, h_insert) AS w(id, made) WHERE w.made);
    v_ids := ej_id || ARRAY(SELECT w.id FROM unnest(h_id, h_insert) AS w(id, made) WHERE NOT w.made) || n_id || f_id;
    IF cardinality(v_ids) > 0 THEN
        IF p_waits THEN
            PERFORM 1 FROM @.head WHERE id = ANY (v_ids) ORDER BY id FOR UPDATE;
        ELSE
            v_doomed := ARRAY(SELECT id FROM @.head WHERE id = ANY (v_ids) ORDER BY id FOR UPDATE SKIP LOCKED);
            v_doomed := ARRAY(SELECT id FROM @.head WHERE id = ANY (v_ids) EXCEPT SELECT unnest(v_doomed));
            IF cardinality(v_doomed) > 0 THEN
                v_busy := v_busy || ARRAY(
                    SELECT w.g FROM unnest(ej_group || h_group || n_group || f_group, ej_id || h_id || n_id || f_id) AS w(g, id)
                    WHERE w.id = ANY (v_doomed));
            END IF;
        END IF;
    END IF;
    IF cardinality(eq_name) > 0 OR cardinality(q_name) > 0 THEN
        PERFORM @.make('{}', eq_name || q_name);
        IF p_waits THEN
            PERFORM 1 FROM @.queue WHERE name = ANY (eq_name || q_name) ORDER BY name FOR UPDATE;
        ELSE
            v_names := ARRAY(SELECT name FROM @.queue WHERE name = ANY (eq_name || q_name) ORDER BY name FOR UPDATE SKIP LOCKED);
            v_busy := v_busy || ARRAY(SELECT w.g FROM unnest(eq_group || q_group, eq_name || q_name) AS w(g, name)
                WHERE w.name <> ALL (v_names));
        END IF;
    END IF;
    IF cardinality(ed_name) > 0 OR cardinality(d_name) > 0 THEN
        IF p_waits THEN
            PERFORM 1 FROM @.document d
                WHERE (d.kind, d.name) IN (SELECT unnest(ed_kind || d_kind), unnest(ed_name || d_name))
                ORDER BY d.kind, d.name FOR UPDATE;
        ELSE
            -- Kinds are single digits: the text names one document.
            v_names := ARRAY(SELECT d.kind || d.name FROM @.document d
                WHERE (d.kind, d.name) IN (SELECT unnest(ed_kind || d_kind), unnest(ed_name || d_name))
                ORDER BY d.kind, d.name FOR UPDATE SKIP LOCKED);
            v_busy := v_busy || ARRAY(
                SELECT w.g FROM unnest(ed_group || d_group, ed_kind || d_kind, ed_name || d_name) AS w(g, kind, name)
                JOIN @.document d ON d.kind = w.kind AND d.name = w.name
                WHERE w.kind || w.name <> ALL (v_names));
        END IF;
    END IF;
    IF cardinality(ej_id) > 0 THEN
        PERFORM 1 FROM @.absorbed WHERE id = ANY (ej_id) ORDER BY id FOR UPDATE;
    END IF;
    v_now := @.time(p_clock, p_ahead, p_floor);

    v_stale := ARRAY(
        SELECT unnest(p_stale || v_busy)
        UNION
        SELECT e.g FROM unnest(ej_group, ej_id, ej_version, ej_none) AS e(g, id, version, none)
            LEFT JOIN @.head h ON h.id = e.id
            LEFT JOIN @.absorbed a ON a.id = e.id
            WHERE e.version <> CASE
                WHEN h.id IS NULL AND a.id IS NULL THEN 0
                WHEN h.id IS NULL THEN 1
                WHEN h.slot = -1 AND e.none THEN 0
                ELSE h.version END
        UNION
        SELECT e.g FROM unnest(ek_group, ek_key, ek_more, ek_least, ek_version) AS e(g, key, more, least, version)
            LEFT JOIN @.key k ON k.key = e.key
            WHERE e.version <> greatest(coalesce(k.version, 0) + e.more, e.least)
        UNION
        SELECT e.g FROM unnest(eq_group, eq_name, eq_version) AS e(g, name, version)
            LEFT JOIN @.queue q ON q.name = e.name
            WHERE e.version <> coalesce(q.version, 0)
        UNION
        SELECT e.g FROM unnest(ed_group, ed_kind, ed_name, ed_version) AS e(g, kind, name, version)
            LEFT JOIN @.document d ON d.kind = e.kind AND d.name = e.name
            WHERE e.version <> coalesce(d.version, 0)
        UNION
        -- Decided on before an earlier job with that id was gone, it would have that one's version.
        SELECT e.g FROM unnest(c_group, c_version) AS e(g, version), @.fact f WHERE e.version <= f.gone);
    IF cardinality(v_stale) > 0 THEN
        LOOP
            v_more := ARRAY(SELECT DISTINCT e.later FROM unnest(p_after, p_before) AS e(later, earlier)
                WHERE e.earlier = ANY (v_stale) AND e.later <> ALL (v_stale));
            EXIT WHEN cardinality(v_more) = 0;
            v_stale := v_stale || v_more;
        END LOOP;
        v_inserted := ARRAY(SELECT w.id FROM unnest(h_id, h_insert, h_group) AS w(id, made, g)
            WHERE w.made AND w.g <> ALL (v_stale));
    END IF;

    IF cardinality(h_id) > 0 THEN
        -- The counters, while the old states are still there.
        INSERT INTO @.tally (queue, what, n)
        WITH newest AS (
            SELECT DISTINCT ON (w.id) w.id, w.queue, w.state
            FROM unnest(h_group, h_id, h_queue, h_state) WITH ORDINALITY AS w(g, id, queue, state, place)
            WHERE w.g <> ALL (v_stale) ORDER BY w.id, w.place DESC
        )
        SELECT c.queue, c.what, sum(c.n)::int8 FROM (
            SELECT w.queue, w.state, 1 FROM newest w LEFT JOIN @.head h ON h.id = w.id
                WHERE h.id IS NULL OR h.slot <> -1
            UNION ALL
            SELECT h.queue, h.state, -1 FROM newest w JOIN @.head h ON h.id = w.id WHERE h.slot <> -1
            UNION ALL
            SELECT w.queue, 100::int2, 1 FROM newest w WHERE w.id = ANY (v_inserted)
        ) AS c(queue, what, n) GROUP BY c.queue, c.what HAVING sum(c.n) <> 0;

        -- Keys: every write of a holder moves the version, in the order of the writes.
        WITH moved AS (
            SELECT w.key, count(*) AS n, max(w.version + w.later) AS least FROM (
                SELECT w.key, w.version, row_number() OVER (PARTITION BY w.key ORDER BY w.place DESC) - 1 AS later
                FROM unnest(h_group, h_key, h_version) WITH ORDINALITY AS w(g, key, version, place)
                WHERE w.g <> ALL (v_stale) AND w.key IS NOT NULL
            ) AS w GROUP BY w.key
        ), newest AS (
            SELECT DISTINCT ON (w.id) w.id, w.key, w.slot
            FROM unnest(h_group, h_id, h_key, h_slot) WITH ORDINALITY AS w(g, id, key, slot, place)
            WHERE w.g <> ALL (v_stale) ORDER BY w.id, w.place DESC
        ), holders AS (
            SELECT coalesce(w.key, h.key) AS key, array_agg(w.id) AS ids,
                coalesce(array_agg(w.id) FILTER (WHERE w.key IS NOT NULL AND w.slot <> 4), '{}') AS live,
                coalesce(array_agg(w.id) FILTER (WHERE w.key IS NOT NULL AND w.slot = 4), '{}') AS done,
                bool_or(w.key IS NULL) AS is_released
            FROM newest w LEFT JOIN @.head h ON w.key IS NULL AND h.id = w.id
            WHERE coalesce(w.key, h.key) IS NOT NULL
            GROUP BY coalesce(w.key, h.key)
        ), written AS (
            UPDATE @.key k SET
                version = greatest(k.version + coalesce(m.n, 1), m.least),
                live = ARRAY(SELECT u.id FROM unnest(k.live) AS u(id) WHERE u.id <> ALL (w.ids)) || w.live,
                -- Ended holders that were left out in favour of a later one are released with the key, and do not come
                -- back by being written.
                done = CASE WHEN w.is_released THEN '{}'
                        ELSE ARRAY(SELECT u.id FROM unnest(k.done) AS u(id) WHERE u.id <> ALL (w.ids)) END
                    || ARRAY(SELECT u.id FROM unnest(w.done) AS u(id)
                        WHERE u.id = ANY (k.live) OR u.id = ANY (k.done) OR u.id = ANY (v_inserted))
            FROM holders w LEFT JOIN moved m ON m.key = w.key
            WHERE k.key = w.key
            RETURNING k.key, cardinality(k.done) AS n
        )
        -- Looked over when they have doubled.
        SELECT coalesce(array_agg(key), '{}') INTO v_crowded FROM written WHERE n >= 8 AND n & (n - 1) = 0;

        IF cardinality(v_inserted) > 0 THEN
            INSERT INTO @.head (@head_columns)
                SELECT DISTINCT ON (w.id) @w.head
                FROM unnest(h_group, @head_names) WITH ORDINALITY AS w(g, @head_columns, place)
                WHERE w.g <> ALL (v_stale) AND w.id = ANY (v_inserted) ORDER BY w.id, w.place DESC
                ON CONFLICT DO NOTHING;
            GET DIAGNOSTICS v_count = ROW_COUNT;
            IF v_count <> cardinality(v_inserted) THEN
                -- Somebody else stored a job with that id at this moment: to be decided again, seeing it.
                RAISE EXCEPTION 'an id was taken meanwhile' USING ERRCODE = 'serialization_failure';
            END IF;
            INSERT INTO @.body (id, body)
                SELECT w.id, w.body FROM unnest(b_group, b_id, b_body) AS w(g, id, body) WHERE w.g <> ALL (v_stale);
        END IF;

        IF cardinality(h_id) > cardinality(v_inserted) THEN
            UPDATE @.head h SET @head_assigned
            FROM (
                SELECT DISTINCT ON (w.id) @w.head
                FROM unnest(h_group, @head_names) WITH ORDINALITY AS w(g, @head_columns, place)
                WHERE w.g <> ALL (v_stale) AND w.id <> ALL (v_inserted) ORDER BY w.id, w.place DESC
            ) AS w
            WHERE h.id = w.id AND h.slot <> -1;
            -- Heads that are kept for their keys alone are filed by the end of that, or not at all.
            v_doomed := ARRAY(
                SELECT DISTINCT ON (w.id) CASE WHEN w.key IS NULL OR w.until IS NULL THEN w.id END
                FROM unnest(h_group, h_id, h_key, h_until) WITH ORDINALITY AS w(g, id, key, until, place)
                JOIN @.head h ON h.id = w.id
                WHERE w.g <> ALL (v_stale) AND h.slot = -1 ORDER BY w.id, w.place DESC);
            IF cardinality(v_doomed) > 0 THEN
                UPDATE @.head h SET version = w.version, renewed_at = w.renewed_at, slot_at = w.until
                FROM (
                    SELECT DISTINCT ON (w.id) w.*
                    FROM unnest(h_group, h_id, h_version, h_renewed_at, h_until) WITH ORDINALITY
                        AS w(g, id, version, renewed_at, until, place)
                    WHERE w.g <> ALL (v_stale) ORDER BY w.id, w.place DESC
                ) AS w
                WHERE h.id = w.id AND h.slot = -1 AND h.id <> ALL (array_remove(v_doomed, NULL));
                PERFORM @.forget(array_remove(v_doomed, NULL), v_now);
            END IF;
        END IF;
    END IF;

    IF cardinality(n_id) > 0 THEN
        DELETE FROM @.note x USING (
            SELECT DISTINCT ON (w.id, w.kind) w.id, w.kind, w.text
            FROM unnest(n_group, n_id, n_kind, n_text) WITH ORDINALITY AS w(g, id, kind, text, place)
            WHERE w.g <> ALL (v_stale) ORDER BY w.id, w.kind, w.place DESC
        ) AS w WHERE w.text IS NULL AND x.id = w.id AND x.kind = w.kind;
        INSERT INTO @.note AS x (id, kind, text)
            SELECT w.id, w.kind, w.text FROM (
                SELECT DISTINCT ON (w.id, w.kind) w.id, w.kind, w.text
                FROM unnest(n_group, n_id, n_kind, n_text) WITH ORDINALITY AS w(g, id, kind, text, place)
                WHERE w.g <> ALL (v_stale) ORDER BY w.id, w.kind, w.place DESC
            ) AS w JOIN @.head h ON h.id = w.id AND h.slot <> -1
            WHERE w.text IS NOT NULL
            ON CONFLICT (id, kind) DO UPDATE SET text = excluded.text;
    END IF;

    IF cardinality(s_id) > 0 THEN
        DELETE FROM @.absorbed a USING (
            SELECT w.id FROM unnest(s_group, s_id) AS w(g, id) WHERE w.g <> ALL (v_stale)
        ) AS w WHERE a.id = w.id;
        INSERT INTO @.absorbed (id, job, digest)
            SELECT w.id, w.job, w.digest FROM (
                SELECT DISTINCT ON (w.id) w.id, w.job, w.digest
                FROM unnest(s_group, s_id, s_job, s_digest) WITH ORDINALITY AS w(g, id, job, digest, place)
                WHERE w.g <> ALL (v_stale) ORDER BY w.id, w.place DESC
            ) AS w WHERE w.job IS NOT NULL ORDER BY w.id;
    END IF;

    IF cardinality(f_id) > 0 THEN
        v_ids := ARRAY(SELECT w.id FROM unnest(f_group, f_id) AS w(g, id) WHERE w.g <> ALL (v_stale));
        INSERT INTO @.tally (queue, what, n)
            SELECT c.queue, c.what, sum(c.n)::int8 FROM (
                SELECT h.queue, h.state, -1 FROM @.head h WHERE h.id = ANY (v_ids) AND h.slot <> -1
                UNION ALL
                SELECT h.queue, 101::int2, 1 FROM @.head h WHERE h.id = ANY (v_ids) AND h.slot <> -1
            ) AS c(queue, what, n) GROUP BY c.queue, c.what;
        UPDATE @.fact SET gone = w.version
            FROM (SELECT max(h.version) AS version FROM @.head h WHERE h.id = ANY (v_ids)) AS w
            WHERE gone < w.version;
        UPDATE @.head h SET slot = -1, slot_at = w.until, dead = false
            FROM unnest(f_group, f_id, f_until) AS w(g, id, until)
            WHERE h.id = w.id AND w.until IS NOT NULL AND w.g <> ALL (v_stale);
        PERFORM @.forget(ARRAY(SELECT w.id FROM unnest(f_group, f_id, f_until) AS w(g, id, until)
            WHERE w.until IS NULL AND w.g <> ALL (v_stale)), v_now);
        DELETE FROM @.body WHERE id = ANY (v_ids);
        DELETE FROM @.note WHERE id = ANY (v_ids);
        DELETE FROM @.absorbed WHERE job = ANY (v_ids);
    END IF;

    IF cardinality(q_name) > 0 THEN
        UPDATE @.queue q SET paused = w.paused, settings = w.settings, version = w.version FROM (
            SELECT DISTINCT ON (w.name) w.name, w.paused, w.settings, w.version
            FROM unnest(q_group, q_name, q_paused, q_settings, q_version) WITH ORDINALITY
                AS w(g, name, paused, settings, version, place)
            WHERE w.g <> ALL (v_stale) ORDER BY w.name, w.place DESC
        ) AS w WHERE q.name = w.name;
    END IF;

    IF cardinality(d_name) > 0 THEN
        DELETE FROM @.document d USING (
            SELECT DISTINCT ON (w.kind, w.name) w.kind, w.name, w.text
            FROM unnest(d_group, d_kind, d_name, d_text) WITH ORDINALITY AS w(g, kind, name, text, place)
            WHERE w.g <> ALL (v_stale) ORDER BY w.kind, w.name, w.place DESC
        ) AS w WHERE w.text IS NULL AND d.kind = w.kind AND d.name = w.name;
        INSERT INTO @.document (kind, name, version, due, text)
            SELECT w.kind, w.name, w.version, w.due, w.text FROM (
                SELECT DISTINCT ON (w.kind, w.name) w.*
                FROM unnest(d_group, d_kind, d_name, d_version, d_due, d_text) WITH ORDINALITY
                    AS w(g, kind, name, version, due, text, place)
                WHERE w.g <> ALL (v_stale) ORDER BY w.kind, w.name, w.place DESC
            ) AS w WHERE w.text IS NOT NULL
            ON CONFLICT (kind, name) DO UPDATE SET version = excluded.version, due = excluded.due, text = excluded.text;
    END IF;

    IF cardinality(v_stale) = p_groups THEN
        RETURN QUERY SELECT v_now, v_stale, v_crowded, v_busy;
        RETURN;
    END IF;
    -- Also when there is nothing to tell: it says when the last commit was.
    INSERT INTO @.event (tx, first, at, kinds, jobs, types, queues, attempts, amounts, mark, stale)
        SELECT pg_current_xact_id(), @.events_before(), v_now,
            coalesce(array_agg(w.kind ORDER BY w.place), '{}'), coalesce(array_agg(w.job ORDER BY w.place), '{}'),
            coalesce(array_agg(w.type ORDER BY w.place), '{}'), coalesce(array_agg(w.queue ORDER BY w.place), '{}'),
            coalesce(array_agg(w.attempt ORDER BY w.place), '{}'), coalesce(array_agg(w.amount ORDER BY w.place), '{}'),
            p_mark, v_stale
        FROM unnest(v_group, v_kind, v_job, v_type, v_queue, v_attempt, v_amount) WITH ORDINALITY
            AS w(g, kind, job, type, queue, attempt, amount, place)
        WHERE w.g <> ALL (v_stale);

    RETURN QUERY SELECT v_now, v_stale, v_crowded, v_busy;
END
$$;
