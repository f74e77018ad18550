-- Applies groups of writes in one transaction, each group as a whole or not at all: locks the records that the groups rely on or
-- write, in the same order for every caller; finds the groups that are stale, because a version has moved or because they were decided
-- on top of a stale group; applies the others.
--
-- Locking order: the commit's mark, guards of absent records, keys, heads, queues, documents, absorbed ids, each kind sorted; last the
-- new rows of keys that had none, sorted.
-- A commit does not wait for keys, heads, queues or documents that an open transaction has locked: groups that rely on them or write
-- them are `busy` and not applied. Only inside a caller's own transaction (`p_waits`) does it wait for these locks. There the rows of
-- keys and queues were made beforehand, and the mark is not locked: nobody asks what became of such a commit, and a transaction of
-- thousands of calls would hold one lock per call until it ends, in a table that all sessions of the server share.
--
-- An empty list may be NULL, which costs nothing to send.
CREATE OR REPLACE FUNCTION @.commit(
    p_clock int8, p_ahead int8, p_floor int8,
    p_mark uuid,                                                           -- identifies this commit, so that `resolve` can find it
    p_waits boolean, p_groups int4,                                        -- whether to wait for locks; the number of groups
    p_stale int4[],                                                        -- groups that are stale whatever the database holds
    p_guards int4[], p_owned int4[],                                       -- guards of records that must be absent; of records to write
    ej_group int4[], ej_id uuid[], ej_version int8[], ej_none boolean[],   -- relied-on versions: of jobs
    ek_group int4[], ek_key bytea[], ek_more int8[], ek_least int8[], ek_version int8[],   -- of keys, after the writes of earlier groups
    eq_group int4[], eq_name text[], eq_version int8[],                    -- of queues
    ed_group int4[], ed_kind int2[], ed_name text[], ed_version int8[],    -- of documents
    c_group int4[], c_version int8[],                                      -- versions of new jobs whose ids their callers chose
    p_after int4[], p_before int4[],                                       -- groups, and for each an earlier one it was decided on top of
    p_keys bytea[], p_lookup uuid[],                                       -- keys to lock; jobs whose keys are to be locked as well
    h_group int4[], h_insert boolean[], h_until int8[], h_id uuid[], h_key bytea[], h_hold bytea[], h_type text[], h_queue text[],
    h_worker text[], h_follow_up uuid[], h_numbers int8[],                 -- heads; all numeric columns of each, head after head
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
    v_stale int4[] := coalesce(p_stale, '{}');
    v_more int4[];
    v_ids uuid[];
    v_inserted uuid[];
    v_doomed uuid[];
    v_count int8;
    v_done int8;
    v_crowded bytea[] := '{}';
    v_busy int4[] := '{}';
    v_keys bytea[];
    v_locked bytea[];
    v_fresh bytea[] := '{}';   -- keys without a row: it is inserted once its holders are known
    v_names text[];
    v_guard record;
    v_void text;
    v_n int4 := coalesce(cardinality(h_id), 0);
    v_live bool[];             -- for each write of a head: whether its group is applied,
    v_last bool[];             -- whether it is also the last applied write of its job,
    v_made bool[];             -- and whether this commit inserts the job
BEGIN
    -- Plain expressions, because to start a statement would cost as much again as evaluating them.
    IF NOT p_waits THEN
        -- Bounds the wait for the few locks that cannot be skipped, such as for a row that another transaction is inserting.
        v_void := set_config('lock_timeout', '250ms', true);
        v_void := pg_advisory_xact_lock(@class, hashtext(p_mark::text));
        IF EXISTS (SELECT 1 FROM @.void WHERE mark = p_mark) THEN
            RAISE EXCEPTION 'this commit was given up' USING ERRCODE = 'query_canceled';
        END IF;
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
        p_keys := ARRAY(SELECT unnest(p_keys) UNION
            SELECT h.key FROM unnest(p_lookup) AS w(id) JOIN @.head h ON h.id = w.id WHERE h.key IS NOT NULL);
    END IF;
    IF cardinality(p_keys) > 0 THEN
        IF p_waits THEN
            PERFORM @.make(p_keys, '{}');
            PERFORM 1 FROM @.key WHERE key = ANY (p_keys) ORDER BY key FOR UPDATE;
        ELSE
            -- Usually either all keys are new and there is nothing to lock, or all have rows and none is locked by others.
            v_keys := p_keys;
            IF 0 = ANY (ek_version) THEN
                v_fresh := ARRAY(SELECT DISTINCT e.key FROM unnest(ek_key, ek_version) AS e(key, version)
                    WHERE e.version = 0 AND NOT EXISTS (SELECT 1 FROM @.key k WHERE k.key = e.key));
                IF cardinality(v_fresh) = cardinality(p_keys) THEN
                    v_keys := '{}';
                ELSIF cardinality(v_fresh) > 0 THEN
                    v_keys := ARRAY(SELECT unnest(p_keys) EXCEPT SELECT unnest(v_fresh));
                END IF;
            END IF;
            IF cardinality(v_keys) > 0 THEN
                v_locked := ARRAY(SELECT key FROM @.key WHERE key = ANY (v_keys) ORDER BY key FOR UPDATE SKIP LOCKED);
                IF cardinality(v_locked) < cardinality(v_keys) THEN
                    v_keys := ARRAY(SELECT unnest(v_keys) EXCEPT SELECT unnest(v_locked));
                    v_locked := ARRAY(SELECT w.key FROM unnest(v_keys) AS w(key)
                        WHERE NOT EXISTS (SELECT 1 FROM @.key k WHERE k.key = w.key));
                    v_fresh := v_fresh || v_locked;
                    v_keys := ARRAY(SELECT unnest(v_keys) EXCEPT SELECT unnest(v_locked));
                    IF cardinality(v_keys) > 0 THEN
                        v_busy := ARRAY(
                            SELECT w.g FROM unnest(ek_group, ek_key) AS w(g, key) WHERE w.key = ANY (v_keys)
                            UNION SELECT w.g FROM unnest(h_group, h_key) AS w(g, key) WHERE w.key = ANY (v_keys)
                            UNION SELECT w.g FROM unnest(h_group || f_group, h_id || f_id) AS w(g, id)
                                JOIN @.head h ON h.id = w.id WHERE w.id = ANY (p_lookup) AND h.key = ANY (v_keys));
                    END IF;
                END IF;
            END IF;
        END IF;
    END IF;
    IF cardinality(ej_id) > 0 OR cardinality(n_id) > 0 OR cardinality(f_id) > 0 OR false = ANY (h_insert) THEN
        v_ids := ARRAY(
            SELECT unnest(ej_id) UNION SELECT w.id FROM unnest(h_id, h_insert) AS w(id, made) WHERE NOT w.made
            UNION SELECT unnest(n_id) UNION SELECT unnest(f_id));
    END IF;
    IF cardinality(v_ids) > 0 THEN
        IF p_waits THEN
            PERFORM 1 FROM @.head WHERE id = ANY (v_ids) ORDER BY id FOR UPDATE;
        ELSE
            v_doomed := ARRAY(SELECT id FROM @.head WHERE id = ANY (v_ids) ORDER BY id FOR UPDATE SKIP LOCKED);
            IF cardinality(v_doomed) < cardinality(v_ids) THEN
                v_doomed := ARRAY(SELECT id FROM @.head WHERE id = ANY (v_ids) EXCEPT SELECT unnest(v_doomed));
                IF cardinality(v_doomed) > 0 THEN
                    v_busy := v_busy || ARRAY(
                        SELECT w.g FROM unnest(ej_group || h_group || n_group || f_group, ej_id || h_id || n_id || f_id) AS w(g, id)
                        WHERE w.id = ANY (v_doomed));
                END IF;
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
            -- A kind is a single digit, so kind and name together identify one document.
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
    SELECT @now INTO v_now;

    v_stale := v_stale || v_busy;
    IF cardinality(ej_id) > 0 THEN
        v_stale := v_stale || ARRAY(
            SELECT e.g FROM unnest(ej_group, ej_id, ej_version, ej_none) AS e(g, id, version, none)
            LEFT JOIN @.head h ON h.id = e.id
            WHERE e.version <> CASE
                WHEN h.id IS NULL THEN CASE WHEN EXISTS (SELECT 1 FROM @.absorbed a WHERE a.id = e.id) THEN 1 ELSE 0 END
                WHEN h.slot = @slot_kept AND e.none THEN 0
                ELSE h.version END);
    END IF;
    IF cardinality(ek_key) > 0 THEN
        IF cardinality(v_fresh) = cardinality(p_keys) THEN
            -- No key has a row. If another transaction inserts one meanwhile, the insert below finds out.
            v_stale := v_stale || ARRAY(
                SELECT e.g FROM unnest(ek_group, ek_more, ek_least, ek_version) AS e(g, more, least, version)
                WHERE e.version <> greatest(e.more, e.least));
        ELSE
            v_stale := v_stale || ARRAY(
                SELECT e.g FROM unnest(ek_group, ek_key, ek_more, ek_least, ek_version) AS e(g, key, more, least, version)
                LEFT JOIN @.key k ON k.key = e.key
                WHERE e.version <> greatest(coalesce(k.version, 0) + e.more, e.least));
        END IF;
    END IF;
    IF cardinality(eq_name) > 0 THEN
        v_stale := v_stale || ARRAY(
            SELECT e.g FROM unnest(eq_group, eq_name, eq_version) AS e(g, name, version)
            LEFT JOIN @.queue q ON q.name = e.name
            WHERE e.version <> coalesce(q.version, 0));
    END IF;
    IF cardinality(ed_name) > 0 THEN
        v_stale := v_stale || ARRAY(
            SELECT e.g FROM unnest(ed_group, ed_kind, ed_name, ed_version) AS e(g, kind, name, version)
            LEFT JOIN @.document d ON d.kind = e.kind AND d.name = e.name
            WHERE e.version <> coalesce(d.version, 0));
    END IF;
    IF cardinality(c_group) > 0 THEN
        -- A new job decided before an earlier one with its id was deleted could repeat a version of that one.
        v_stale := v_stale || ARRAY(
            SELECT e.g FROM unnest(c_group, c_version) AS e(g, version), @.fact f WHERE e.version <= f.gone);
    END IF;
    IF cardinality(v_stale) > 0 THEN
        v_stale := ARRAY(SELECT DISTINCT unnest(v_stale));
        LOOP
            v_more := ARRAY(SELECT DISTINCT e.later FROM unnest(p_after, p_before) AS e(later, earlier)
                WHERE e.earlier = ANY (v_stale) AND e.later <> ALL (v_stale));
            EXIT WHEN cardinality(v_more) = 0;
            v_stale := v_stale || v_more;
        END LOOP;
        IF cardinality(v_stale) >= p_groups THEN
            RETURN QUERY SELECT v_now, v_stale, v_crowded, v_busy;
            RETURN;
        END IF;
    END IF;

    -- What applies to each write of a head, by its place, so that the statements below need not search for it again.
    IF cardinality(v_stale) = 0 AND (SELECT count(DISTINCT w.id) FROM unnest(h_id) AS w(id)) = v_n THEN
        v_live := array_fill(true, ARRAY[v_n]);
        v_last := v_live;
        v_made := h_insert;
    ELSE
        SELECT array_agg(w.live ORDER BY w.i), array_agg(w.live AND w.back = 1 ORDER BY w.i), array_agg(w.made ORDER BY w.i)
        INTO v_live, v_last, v_made FROM (
            SELECT w.i, w.live, row_number() OVER (PARTITION BY w.id, w.live ORDER BY w.i DESC) AS back,
                bool_or(w.made) OVER (PARTITION BY w.id, w.live) AS made
            FROM (
                SELECT w.i, h_id[w.i] AS id, h_group[w.i] <> ALL (v_stale) AS live, h_insert[w.i] AS made
                FROM generate_series(1, v_n) AS w(i)
            ) AS w
        ) AS w;
    END IF;
    v_inserted := '{}';
    IF true = ANY (v_made) THEN
        v_inserted := ARRAY(SELECT h_id[w.i] FROM generate_series(1, v_n) AS w(i) WHERE v_last[w.i] AND v_made[w.i]);
    END IF;

    IF v_n > 0 OR cardinality(v_fresh) > 0 THEN
        -- Keys: every write of a holder moves the key's version, in the order of the writes. A key without a row gets one in
        -- any case, which proves that there was none, as the decision relied on.
        WITH w AS MATERIALIZED (
            SELECT x.key, count(*) FILTER (WHERE x.keyed) AS n, max(x.version + x.later) FILTER (WHERE x.keyed) AS least,
                coalesce(array_agg(x.id ORDER BY x.id) FILTER (WHERE x.last), '{}') AS ids,
                coalesce(array_agg(x.id ORDER BY x.id) FILTER (WHERE x.last AND x.keyed AND x.slot <> @slot_done), '{}') AS live,
                coalesce(array_agg(x.id ORDER BY x.id) FILTER (WHERE x.last AND x.keyed AND x.slot = @slot_done), '{}') AS done,
                coalesce(bool_or(NOT x.keyed) FILTER (WHERE x.last), false) AS is_released,
                bool_or(x.id IS NULL) AS is_fresh
            FROM (
                SELECT x.*, row_number() OVER (PARTITION BY x.key, x.keyed ORDER BY x.i DESC) - 1 AS later
                FROM (
                    SELECT w.i, h_id[w.i] AS id, @w.version AS version, @w.slot AS slot, v_last[w.i] AS last,
                        h_key[w.i] IS NOT NULL AS keyed,
                        CASE WHEN h_key[w.i] IS NULL AND v_last[w.i] AND NOT v_made[w.i]
                            THEN (SELECT h.key FROM @.head h WHERE h.id = h_id[w.i])
                            ELSE h_key[w.i] END AS key
                    FROM generate_series(1, v_n) AS w(i) WHERE v_live[w.i]
                    UNION ALL
                    SELECT NULL, NULL, NULL, NULL, false, false, f.key FROM unnest(v_fresh) AS f(key)
                ) AS x WHERE x.key IS NOT NULL
            ) AS x GROUP BY x.key
        ), fresh AS (
            INSERT INTO @.key (key, version, live, done)
            SELECT w.key, greatest(w.n, w.least), w.live,
                CASE WHEN w.done = '{}' THEN w.done
                    ELSE ARRAY(SELECT u.id FROM unnest(w.done) AS u(id) WHERE u.id = ANY (v_inserted)) END
            FROM w WHERE w.is_fresh ORDER BY w.key
            ON CONFLICT DO NOTHING RETURNING 1
        ), written AS (
            UPDATE @.key k SET
                version = greatest(k.version + greatest(w.n, 1), w.least),
                live = CASE WHEN k.live = '{}' OR k.live = w.ids THEN w.live
                    ELSE ARRAY(SELECT u.id FROM unnest(k.live) AS u(id) WHERE u.id <> ALL (w.ids)) || w.live END,
                -- Ended holders that were left out because a later one outlives them are released when the key is, and are
                -- not added again when they are written.
                done = CASE WHEN w.is_released OR k.done = '{}' THEN '{}'
                        ELSE ARRAY(SELECT u.id FROM unnest(k.done) AS u(id) WHERE u.id <> ALL (w.ids)) END
                    || CASE WHEN w.done = '{}' OR w.done = k.live THEN w.done
                        ELSE ARRAY(SELECT u.id FROM unnest(w.done) AS u(id)
                            WHERE u.id = ANY (k.live) OR u.id = ANY (k.done) OR u.id = ANY (v_inserted)) END
            FROM w
            WHERE NOT w.is_fresh AND k.key = w.key
            RETURNING k.key, cardinality(k.done) AS n, w.done <> '{}' AS is_end
        )
        -- The commit whose write doubles a key's ended holders returns the key, to have them thinned out.
        SELECT (SELECT count(*) FROM fresh),
            ARRAY(SELECT written.key FROM written WHERE written.is_end AND @written.is_crowded)
        INTO v_count, v_crowded;
        IF v_count <> cardinality(v_fresh) THEN
            RAISE EXCEPTION 'a key was taken meanwhile' USING ERRCODE = 'serialization_failure';
        END IF;
    END IF;

    IF v_n > 0 THEN
        -- The counters come first, while the heads still have their old states.
        INSERT INTO @.tally (queue, what, n)
        SELECT c.queue, c.what, sum(c.n)::int8 FROM (
            SELECT h_queue[w.i], c.what, 1 FROM generate_series(1, v_n) AS w(i), LATERAL (VALUES (@w.state), (@what_created::int2)) AS c(what)
                WHERE v_last[w.i] AND v_made[w.i]
            UNION ALL
            SELECT c.queue, c.what, c.n FROM generate_series(1, v_n) AS w(i) JOIN @.head h ON h.id = h_id[w.i],
                LATERAL (VALUES (h_queue[w.i], @w.state, 1), (h.queue, h.state, -1)) AS c(queue, what, n)
                WHERE v_last[w.i] AND NOT v_made[w.i] AND h.slot <> @slot_kept
        ) AS c(queue, what, n) GROUP BY c.queue, c.what HAVING sum(c.n) <> 0;

        IF cardinality(v_inserted) > 0 THEN
            INSERT INTO @.head (@head_columns)
                SELECT @head_at
                FROM (SELECT w.i FROM generate_series(1, v_n) AS w(i) WHERE v_last[w.i] AND v_made[w.i] ORDER BY h_id[w.i]) AS w
                ON CONFLICT DO NOTHING;
            GET DIAGNOSTICS v_count = ROW_COUNT;
            IF v_count <> cardinality(v_inserted) THEN
                -- Another transaction stored a job with that id at this moment: decide again, with that job in view. An error would
                -- abort a caller's transaction; there all groups are returned as stale, and the program rolls back to its savepoint.
                IF p_waits THEN
                    RETURN QUERY SELECT v_now, ARRAY(SELECT generate_series(0, p_groups - 1)), v_crowded, v_busy;
                    RETURN;
                END IF;
                RAISE EXCEPTION 'an id was taken meanwhile' USING ERRCODE = 'serialization_failure';
            END IF;
            INSERT INTO @.body (id, body)
                SELECT b_id[w.i], b_body[w.i] FROM generate_series(1, cardinality(b_id)) AS w(i)
                WHERE b_group[w.i] <> ALL (v_stale);
        END IF;

        v_count := cardinality(array_positions(v_last, true)) - cardinality(v_inserted);
        IF v_count > 0 THEN
            UPDATE @.head h SET @head_assigned_at FROM generate_series(1, v_n) AS w(i)
                WHERE v_last[w.i] AND NOT v_made[w.i] AND h.id = h_id[w.i] AND h.slot <> @slot_kept;
            GET DIAGNOSTICS v_done = ROW_COUNT;
            IF v_done < v_count THEN
                -- A head that is kept only for its key is filed by when that ends, or deleted if it need not be kept.
                v_doomed := ARRAY(
                    SELECT CASE WHEN h_key[w.i] IS NULL OR h_until[w.i] IS NULL THEN h.id END
                    FROM generate_series(1, v_n) AS w(i) JOIN @.head h ON h.id = h_id[w.i]
                    WHERE v_last[w.i] AND h.slot = @slot_kept);
                IF cardinality(v_doomed) > 0 THEN
                    UPDATE @.head h SET version = @w.version, renewed_at = @w.renewed_at, slot_at = h_until[w.i]
                    FROM generate_series(1, v_n) AS w(i)
                    WHERE v_last[w.i] AND h.id = h_id[w.i] AND h.slot = @slot_kept AND h.id <> ALL (array_remove(v_doomed, NULL));
                    PERFORM @.forget(array_remove(v_doomed, NULL), v_now);
                END IF;
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
            ) AS w JOIN @.head h ON h.id = w.id AND h.slot <> @slot_kept
            WHERE w.text IS NOT NULL
            ON CONFLICT (id, kind) DO UPDATE SET text = excluded.text;
    END IF;

    IF cardinality(s_id) > 0 THEN
        DELETE FROM @.absorbed a USING (
            SELECT w.id FROM unnest(s_group, s_id) AS w(g, id) WHERE w.g <> ALL (v_stale)
        ) AS w WHERE a.id = w.id;
        WITH wanted AS (
            SELECT w.id, w.job, w.digest FROM (
                SELECT DISTINCT ON (w.id) w.id, w.job, w.digest
                FROM unnest(s_group, s_id, s_job, s_digest) WITH ORDINALITY AS w(g, id, job, digest, place)
                WHERE w.g <> ALL (v_stale) ORDER BY w.id, w.place DESC
            ) AS w WHERE w.job IS NOT NULL
        ), put AS (
            INSERT INTO @.absorbed (id, job, digest) SELECT id, job, digest FROM wanted ORDER BY id
                ON CONFLICT DO NOTHING RETURNING id
        )
        SELECT (SELECT count(*) FROM wanted) - (SELECT count(*) FROM put) INTO v_count;
        IF v_count > 0 THEN
            -- Handled like a job's id that was taken meanwhile, above.
            IF p_waits THEN
                RETURN QUERY SELECT v_now, ARRAY(SELECT generate_series(0, p_groups - 1)), v_crowded, v_busy;
                RETURN;
            END IF;
            RAISE EXCEPTION 'an id was taken meanwhile' USING ERRCODE = 'serialization_failure';
        END IF;
    END IF;

    IF cardinality(f_id) > 0 THEN
        v_ids := ARRAY(SELECT w.id FROM unnest(f_group, f_id) AS w(g, id) WHERE w.g <> ALL (v_stale));
        INSERT INTO @.tally (queue, what, n)
            SELECT c.queue, c.what, sum(c.n)::int8 FROM (
                SELECT h.queue, h.state, -1 FROM @.head h WHERE h.id = ANY (v_ids) AND h.slot <> @slot_kept
                UNION ALL
                SELECT h.queue, @what_purged::int2, 1 FROM @.head h WHERE h.id = ANY (v_ids) AND h.slot <> @slot_kept
            ) AS c(queue, what, n) GROUP BY c.queue, c.what;
        IF v_n > 0 THEN
            -- If a later group has written the head, that write decides until when it is kept only for its key, if at all.
            f_until := ARRAY(
                SELECT CASE WHEN w.until IS NULL OR l.i IS NULL THEN w.until WHEN h_key[l.i] IS NOT NULL THEN h_until[l.i] END
                FROM unnest(f_group, f_id, f_until) WITH ORDINALITY AS w(g, id, until, place)
                LEFT JOIN LATERAL (
                    SELECT x.i FROM generate_series(1, v_n) AS x(i)
                    WHERE v_last[x.i] AND h_id[x.i] = w.id AND h_group[x.i] > w.g
                ) AS l ON true
                ORDER BY w.place);
        END IF;
        UPDATE @.head h SET slot = @slot_kept, slot_at = w.until, dead = false
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

    -- Inserted even without events: the newest record tells when the last commit was.
    IF cardinality(v_stale) = 0 THEN
        INSERT INTO @.event (tx, first, at, kinds, jobs, types, queues, attempts, amounts, mark, stale)
            VALUES (pg_current_xact_id(), @events_before, v_now, coalesce(v_kind, '{}'), coalesce(v_job, '{}'), coalesce(v_type, '{}'),
                coalesce(v_queue, '{}'), coalesce(v_attempt, '{}'), coalesce(v_amount, '{}'), p_mark, v_stale);
    ELSE
        INSERT INTO @.event (tx, first, at, kinds, jobs, types, queues, attempts, amounts, mark, stale)
            SELECT pg_current_xact_id(), @events_before, v_now,
                coalesce(array_agg(w.kind ORDER BY w.place), '{}'), coalesce(array_agg(w.job ORDER BY w.place), '{}'),
                coalesce(array_agg(w.type ORDER BY w.place), '{}'), coalesce(array_agg(w.queue ORDER BY w.place), '{}'),
                coalesce(array_agg(w.attempt ORDER BY w.place), '{}'), coalesce(array_agg(w.amount ORDER BY w.place), '{}'),
                p_mark, v_stale
            FROM unnest(v_group, v_kind, v_job, v_type, v_queue, v_attempt, v_amount) WITH ORDINALITY
                AS w(g, kind, job, type, queue, attempt, amount, place)
            WHERE w.g <> ALL (v_stale);
    END IF;

    RETURN QUERY SELECT v_now, v_stale, v_crowded, v_busy;
END
$$;
