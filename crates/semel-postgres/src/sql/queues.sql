-- Lists all queues: a row for each counter, and for each queue one without `what`, with its settings, its version (n) and since when its
-- oldest ready job has waited. Rows of workers and limits, whose names begin as no queue's can, are left out: there may be far more.
CREATE OR REPLACE FUNCTION @.queues() RETURNS TABLE (name text, what int2, n int8, paused boolean, oldest int8, settings text)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
        SELECT c.queue, c.what, sum(c.n)::int8, NULL::boolean, NULL::int8, NULL::text
        FROM (SELECT t.queue, t.what, t.n FROM @.total t UNION ALL SELECT t.queue, t.what, t.n FROM @.tally t) AS c
        GROUP BY c.queue, c.what;
    RETURN QUERY
        SELECT u.name, NULL::int2, coalesce(q.version, 0), coalesce(q.paused, false), least((
            -- The first job of each priority is the oldest of that priority.
            WITH RECURSIVE firsts AS (
                (SELECT h.priority, h.slot_at FROM @.head h WHERE h.slot = @slot_ready AND h.lane IS NULL AND h.queue = u.name
                    ORDER BY h.priority DESC, h.slot_at LIMIT 1)
                UNION ALL
                SELECT n.priority, n.slot_at FROM firsts f, LATERAL (
                    SELECT h.priority, h.slot_at FROM @.head h
                    WHERE h.slot = @slot_ready AND h.lane IS NULL AND h.queue = u.name AND h.priority < f.priority
                    ORDER BY h.priority DESC, h.slot_at LIMIT 1) AS n
            )
            SELECT min(f.slot_at) FROM firsts f
        ), (
            SELECT min(h.slot_at) FROM @.head h WHERE h.slot = @slot_ready AND h.lane IS NOT NULL AND h.queue = u.name
        )), q.settings
        FROM (
            SELECT t.queue AS name FROM @.total t UNION SELECT t.queue FROM @.tally t
            UNION SELECT q.name FROM @.queue q WHERE q.version > 0 AND left(q.name, 1) <> '~'
        ) AS u LEFT JOIN @.queue q ON q.name = u.name;
END
$$;
