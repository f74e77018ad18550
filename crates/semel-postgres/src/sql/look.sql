-- Returns everything a decision reads, from one snapshot: STABLE, so that every query in here sees what the caller's statement sees.
-- Rows by `part`: 0: the time (n) and the raw clock (m); `code` is a sum: 1 if commits wait for a standby, 2 if the database takes no
-- writes, 4 if the default isolation level is stricter than the store's transactions may have, 8 if commits do not wait for the disk,
-- 16 if nothing does; `name` is when this database server started;
-- 1: a head (n: 1 if it is kept only for its key, m: until when); 2: a body; 3: a note (n: its kind);
-- 4: an absorbed id (ref: the job that absorbed it, data: the digest); 5: a key (n: its version), once per holder with the holder's
-- head (code: 1 if it is kept only for its key, m: until when), or once without a head; 7: a queue's settings (n: its version, code: 1
-- if paused, data: what the core keeps with it); 8: one of a queue's counters (n: its value, code: what it counts); 9: a document (n:
-- its version, m: when it is due, code: its kind). An empty list may be NULL.
CREATE OR REPLACE FUNCTION @.look(
    p_clock int8, p_ahead int8, p_floor int8,
    p_heads uuid[], p_fulls uuid[], p_keys bytea[], p_ended boolean[], p_queues text[],
    p_kinds int2[], p_names text[]
) RETURNS TABLE (part int2, ref uuid, n int8, m int8, code int2, data bytea, name text, @short_declared)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    -- Read once, so that the clock that is returned is the one that the time is computed from.
    p_clock := coalesce(p_clock, (extract(epoch FROM clock_timestamp()) * 1000000)::int8);
    RETURN QUERY SELECT 0::int2, NULL::uuid, @now, p_clock,
        (CASE WHEN current_setting('synchronous_standby_names') <> ''
                AND current_setting('synchronous_commit') NOT IN ('off', 'local') THEN 1 ELSE 0 END
            + CASE WHEN current_setting('transaction_read_only')::boolean THEN 2 ELSE 0 END
            + CASE WHEN current_setting('default_transaction_isolation') <> 'read committed' THEN 4 ELSE 0 END
            + CASE WHEN current_setting('synchronous_commit') = 'off' THEN 8 ELSE 0 END
            + CASE WHEN current_setting('fsync')::boolean THEN 0 ELSE 16 END)::int2, NULL::bytea,
        (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::int8::text, @short_nulls;
    IF cardinality(p_keys) > 0 THEN
        RETURN QUERY SELECT 5::int2, NULL::uuid, k.version, h.slot_at, (h.slot = @slot_kept)::int4::int2, k.key, NULL::text, @h.short
            FROM unnest(p_keys, p_ended) AS w(key, ended) JOIN @.key k ON k.key = w.key
            LEFT JOIN LATERAL (SELECT o.* FROM unnest(
                    CASE WHEN cardinality(k.live) > @holders_max THEN @.deciding(k.live) ELSE k.live END
                    || CASE WHEN w.ended THEN k.done ELSE '{}' END) AS u(id)
                JOIN @.head o ON o.id = u.id) AS h ON true;
    END IF;
    IF cardinality(p_heads) > 0 OR cardinality(p_fulls) > 0 THEN
        RETURN QUERY SELECT 1::int2, NULL::uuid, CASE WHEN h.slot = @slot_kept THEN 1 ELSE 0 END::int8, h.slot_at, NULL::int2,
            NULL::bytea, NULL::text, @h.short
            FROM (SELECT DISTINCT unnest(p_heads || p_fulls)) AS w(id) JOIN @.head h ON h.id = w.id;
    END IF;
    IF cardinality(p_fulls) > 0 THEN
        RETURN QUERY SELECT 2::int2, b.id, NULL::int8, NULL::int8, NULL::int2, b.body, NULL::text, @short_nulls
            FROM unnest(p_fulls) AS w(id) JOIN @.body b ON b.id = w.id;
        RETURN QUERY SELECT 3::int2, x.id, x.kind::int8, NULL::int8, NULL::int2, x.text, NULL::text, @short_nulls
            FROM unnest(p_fulls) AS w(id) JOIN @.note x ON x.id = w.id;
        RETURN QUERY SELECT 4::int2, a.job, NULL::int8, NULL::int8, NULL::int2, a.digest, NULL::text,
            a.id, @short_nulls_rest
            FROM unnest(p_fulls) AS w(id) JOIN @.absorbed a ON a.id = w.id;
    END IF;
    IF cardinality(p_queues) > 0 THEN
        RETURN QUERY SELECT 7::int2, NULL::uuid, q.version, NULL::int8, q.paused::int4::int2,
            convert_to(q.settings, 'UTF8'), q.name, @short_nulls
            FROM unnest(p_queues) AS w(name) JOIN @.queue q ON q.name = w.name;
        RETURN QUERY SELECT 8::int2, NULL::uuid, sum(c.n)::int8, NULL::int8, c.what, NULL::bytea, c.queue, @short_nulls
            FROM unnest(p_queues) AS w(name) CROSS JOIN LATERAL (
                SELECT t.queue, t.what, t.n FROM @.total t WHERE t.queue = w.name
                UNION ALL
                SELECT t.queue, t.what, t.n FROM @.tally t WHERE t.queue = w.name
            ) AS c GROUP BY c.queue, c.what;
    END IF;
    IF cardinality(p_names) > 0 THEN
        RETURN QUERY SELECT 9::int2, NULL::uuid, d.version, d.due, d.kind, d.text, d.name, @short_nulls
            FROM unnest(p_kinds, p_names) AS w(kind, name) JOIN @.document d ON d.kind = w.kind AND d.name = w.name;
    END IF;
END
$$;
