-- Applies the most common kind of commit: new jobs, and writes of jobs whose versions have not moved, no two of the same job or the
-- same key. It stores what `commit` would. If a record is locked, or is not as the caller saw it, it writes nothing and returns NULL
-- as `now_at`, and the caller goes on to `commit`; if another transaction inserts one of the new keys at the same moment, an error
-- undoes the transaction.
--
-- The only rows it waits for are keys that another transaction is inserting, so only new keys are sorted. It must be the first call in
-- its transaction: its event record has place 0. Empty lists are NULL.
CREATE OR REPLACE FUNCTION @.brief(
    p_clock int8, p_ahead int8, p_floor int8,
    p_mark uuid,                                                           -- identifies this commit, so that `resolve` can find it
    p_new int4,                                                            -- how many of the heads are new; these come first
    h_id uuid[], h_key bytea[], h_hold bytea[], h_type text[], h_queue text[], h_worker text[], h_follow_up uuid[],
    h_numbers int8[],                                                      -- all numeric columns of each head, head after head
    b_body bytea[],                                                        -- of the new jobs
    k_key bytea[], k_id uuid[], k_version int8[],                          -- keys of version 0 and the new jobs that hold them, sorted
    u_version int8[],                                                      -- the versions of the existing jobs when they were read
    o_key bytea[], o_stored int8[], o_id uuid[], o_version int8[], o_live boolean[],   -- keys with a row, to be locked and written:
                                                                           -- the version required (NULL: any), the holder to write
    n_id uuid[], n_kind int2[], n_text bytea[],
    t_queue text[], t_what int2[], t_n int8[],                             -- counts to add; old states are subtracted below
    v_kind int2[], v_job uuid[], v_type text[], v_queue text[], v_attempt int8[], v_amount int8[],
    OUT now_at int8, OUT stale int4[], OUT crowded bytea[], OUT busy int4[]
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_n int4 := cardinality(h_id);
    v_count int8;
    v_gone boolean;
    v_there boolean;
    v_void text;
    v_queues text[];
    v_states int2[];
BEGIN
    v_void := set_config('lock_timeout', '250ms', true);
    v_void := pg_advisory_xact_lock(@class, hashtext(p_mark::text));
    SELECT @now, EXISTS (SELECT 1 FROM @.void v WHERE v.mark = p_mark), EXISTS (SELECT 1 FROM @.key k WHERE k.key = ANY (k_key))
        INTO now_at, v_gone, v_there;
    IF v_gone THEN
        RAISE EXCEPTION 'this commit was given up' USING ERRCODE = 'query_canceled';
    END IF;
    IF v_there THEN
        -- A key that was made but never held has a row, of version 0: an insert would wait for a transaction that is writing it.
        now_at := NULL;
        RETURN;
    END IF;
    stale := '{}';
    crowded := '{}';
    busy := '{}';
    IF v_n > p_new OR cardinality(o_key) > 0 THEN
        -- Keys before heads, as `commit` locks them.
        WITH k AS MATERIALIZED (
            SELECT 1 FROM unnest(o_key, o_stored) AS w(key, version) JOIN @.key k ON k.key = w.key
            WHERE k.version = coalesce(w.version, k.version) FOR UPDATE OF k SKIP LOCKED
        )
        SELECT count(*) + (SELECT count(*) FROM k), array_agg(l.queue), array_agg(l.state) INTO v_count, v_queues, v_states FROM (
            SELECT h.queue, h.state FROM generate_series(p_new + 1, v_n) AS w(i) JOIN @.head h ON h.id = h_id[w.i]
            WHERE (SELECT count(*) FROM k) = coalesce(cardinality(o_key), 0)
                AND h.version = u_version[w.i - p_new] AND h.slot <> @slot_kept AND h.key IS NOT DISTINCT FROM h_key[w.i]
            FOR UPDATE OF h SKIP LOCKED
        ) AS l;
        IF v_count <> v_n - p_new + coalesce(cardinality(o_key), 0) THEN
            now_at := NULL;
            RETURN;
        END IF;
        IF cardinality(o_key) > 0 THEN
            WITH w AS (
                UPDATE @.key k SET
                    version = greatest(k.version + 1, w.version),
                    live = CASE WHEN k.live = '{}' OR k.live = ARRAY[w.id] THEN w.live ELSE array_remove(k.live, w.id) || w.live END,
                    done = CASE WHEN k.done = '{}' THEN k.done ELSE array_remove(k.done, w.id) END
                        || CASE WHEN w.live = '{}' AND (w.id = ANY (k.live) OR w.id = ANY (k.done)) THEN ARRAY[w.id] ELSE '{}' END
                FROM (
                    SELECT w.key, w.id, w.version, CASE WHEN w.live THEN ARRAY[w.id] ELSE '{}' END AS live
                    FROM unnest(o_key, o_id, o_version, o_live) AS w(key, id, version, live)
                ) AS w
                WHERE k.key = w.key
                RETURNING k.key, cardinality(k.done) AS n, w.live = '{}' AS is_end
            )
            -- The commit whose write doubles a key's ended holders returns the key, to have them thinned out.
            SELECT coalesce(array_agg(w.key) FILTER (WHERE w.is_end AND @w.is_crowded), '{}') INTO crowded FROM w;
        END IF;
        IF v_n > p_new THEN
            UPDATE @.head h SET @head_assigned_at FROM generate_series(p_new + 1, v_n) AS w(i) WHERE h.id = h_id[w.i];
        END IF;
    END IF;
    IF p_new > 0 THEN
        IF cardinality(k_key) > 0 THEN
            INSERT INTO @.key (key, version, live, done)
                SELECT w.key, greatest(1, w.version), ARRAY[w.id], '{}' FROM unnest(k_key, k_id, k_version) AS w(key, id, version)
                ON CONFLICT DO NOTHING;
            GET DIAGNOSTICS v_count = ROW_COUNT;
            IF v_count <> cardinality(k_key) THEN
                RAISE EXCEPTION 'a key is there already' USING ERRCODE = 'serialization_failure';
            END IF;
        END IF;
        INSERT INTO @.head (@head_columns) SELECT @head_at FROM generate_series(1, p_new) AS w(i);
        INSERT INTO @.body (id, body) SELECT h_id[w.i], b_body[w.i] FROM generate_series(1, p_new) AS w(i);
    END IF;
    IF cardinality(n_id) > 0 THEN
        INSERT INTO @.note AS x (id, kind, text) SELECT w.id, w.kind, w.text FROM unnest(n_id, n_kind, n_text) AS w(id, kind, text)
            ON CONFLICT (id, kind) DO UPDATE SET text = excluded.text;
    END IF;
    INSERT INTO @.tally (queue, what, n)
        SELECT c.queue, c.what, sum(c.n)::int8 FROM (
            SELECT t.queue, t.what, t.n FROM unnest(t_queue, t_what, t_n) AS t(queue, what, n)
            UNION ALL
            SELECT o.queue, o.what, -1 FROM unnest(v_queues, v_states) AS o(queue, what)
        ) AS c(queue, what, n) GROUP BY c.queue, c.what HAVING sum(c.n) <> 0;
    INSERT INTO @.event (tx, first, at, kinds, jobs, types, queues, attempts, amounts, mark, stale)
        VALUES (pg_current_xact_id(), 0, now_at, coalesce(v_kind, '{}'), coalesce(v_job, '{}'), coalesce(v_type, '{}'),
            coalesce(v_queue, '{}'), coalesce(v_attempt, '{}'), coalesce(v_amount, '{}'), p_mark, '{}');
END
$$;
