-- What most commits are: new jobs, and writes of jobs that are as they were seen, no two of one job or of one key. It leaves behind
-- what `commit` would. Where anything is locked or not as it was seen it answers no time and has done nothing, so that the caller
-- asks `commit`; where a key is made by somebody else at this moment, everything is undone.
--
-- Nothing is waited for but a key that somebody is about to make, so only those are in an order. It is the first of its transaction.
-- A list without anything in it is NULL.
CREATE OR REPLACE FUNCTION @.brief(
    p_clock int8, p_ahead int8, p_floor int8,
    p_mark uuid,                                                           -- its own, to be asked about later
    p_new int4,                                                            -- so many of the heads are new, the first of them
    h_id uuid[], h_key bytea[], h_hold bytea[], h_type text[], h_queue text[], h_worker text[], h_follow_up uuid[],
    h_numbers int8[],                                                      -- what is a number of each, one after the other
    b_body bytea[],                                                        -- of the new ones
    k_key bytea[], k_id uuid[], k_version int8[],                          -- keys of the new ones, in order
    u_version int8[],                                                      -- the versions that the others have
    o_key bytea[], o_stored int8[], o_id uuid[], o_version int8[], o_live boolean[],   -- keys that are there, as far as it matters
                                                                           -- with which version, and what is written of them
    n_id uuid[], n_kind int2[], n_text bytea[],
    t_queue text[], t_what int2[], t_n int8[],                             -- what is to be counted but for what the others were
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
        -- A key that was made and never held has a row: an insert would wait for whoever is writing that.
        now_at := NULL;
        RETURN;
    END IF;
    stale := '{}';
    crowded := '{}';
    busy := '{}';
    IF v_n > p_new OR cardinality(o_key) > 0 THEN
        -- Keys before heads, as everywhere.
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
            -- Looked over when they have doubled, by whoever has added one.
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
