-- Does what `lease` does, but in three statements, if nothing keeps the first jobs of a single queue from being granted, which is usual;
-- otherwise it calls `lease`. Its parameters and rows are those of `lease`, except that a head has few columns, numbers in one list.
CREATE OR REPLACE FUNCTION @.take(
    p_clock int8, p_ahead int8, p_floor int8,
    p_queues text[], p_workers text[], p_limits int4[], p_looks int4, p_visibility_ms int8, p_timeout_ms int8,
    p_state int2, p_slot int2, p_event int2, p_closed int8[], p_lane_looks int4, p_front_priority int4[], p_front_at int8[]
) RETURNS TABLE (part int2, n int8, whose int4, data bytea, @short_declared)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now int8;
    v_walked int8 := @walked;
    v_limit int4 := p_limits[1];
    v_whose int4[];
    v_queue text := p_queues[1];
    v_is_long boolean := cardinality(p_queues) <> 1 OR p_front_priority IS NOT NULL;
    v_round uuid[];
BEGIN
    IF cardinality(p_workers) > 1 THEN
        IF 1 = ALL (p_limits) THEN
            v_limit := cardinality(p_limits);
        ELSE
            v_whose := ARRAY(SELECT w.place::int4 FROM unnest(p_limits) WITH ORDINALITY AS w(n, place), generate_series(1, w.n)
                ORDER BY w.place);
            v_limit := cardinality(v_whose);
        END IF;
    END IF;
    IF NOT v_is_long THEN
        SELECT @now, EXISTS (SELECT 1 FROM @.queue q WHERE q.name = v_queue AND q.paused)
            OR EXISTS (SELECT 1 FROM @.head h WHERE h.slot = @slot_ready AND h.lane IS NOT NULL AND h.queue = v_queue)
        INTO v_now, v_is_long;
    END IF;
    IF NOT v_is_long THEN
        -- Commits lock keys before heads: with heads locked, waiting for a key could deadlock.
        WITH r AS MATERIALIZED (
            SELECT h.id, h.key, @h.is_special AS is_special FROM @.head h
            WHERE h.slot = @slot_ready AND h.lane IS NULL AND h.queue = v_queue
            ORDER BY h.priority DESC, h.slot_at, h.id LIMIT v_limit FOR UPDATE SKIP LOCKED
        ), k AS MATERIALIZED (
            SELECT 1 FROM r JOIN @.key k ON k.key = r.key FOR UPDATE OF k SKIP LOCKED
        )
        SELECT array_agg(r.id), bool_or(r.is_special) OR count(r.key) <> (SELECT count(*) FROM k) INTO v_round, v_is_long FROM r;
    END IF;
    IF v_is_long THEN
        RETURN QUERY SELECT l.part, l.n, l.whose, l.data, @l.short FROM @.lease(p_clock, p_ahead, p_floor, p_queues, p_workers, p_limits,
            p_looks, p_visibility_ms, p_timeout_ms, p_state, p_slot, p_event, p_closed, p_lane_looks, p_front_priority, p_front_at) AS l;
        RETURN;
    END IF;
    part := 0;
    n := v_now;
    RETURN NEXT;
    v_walked := @walked - v_walked;
    IF v_walked > @walk_max + v_limit THEN
        part := 4;
        n := v_walked;
        RETURN NEXT;
    END IF;
    IF v_round IS NULL THEN
        RETURN;
    END IF;
    -- Each write of a holder moves its key's version. Returns the jobs as they were before the grant.
    RETURN QUERY WITH w AS (
        UPDATE @.head h SET
            @h.granted_to(p_workers[o.whose])
        FROM (
            SELECT p.place, b.body, p.id AS which, coalesce(v_whose[p.place], CASE WHEN cardinality(p_workers) = 1 THEN 1 ELSE p.place END)
                AS whose, @was.head
            FROM (SELECT g.place, v_round[g.place] AS id FROM generate_series(1, cardinality(v_round)) AS g(place)) AS p
            JOIN @.head was ON was.id = p.id LEFT JOIN @.body b ON b.id = p.id
        ) AS o
        WHERE h.id = o.which
        RETURNING o.*, h.attempt AS new_attempt, h.version AS new_version
    ), moved AS (
        UPDATE @.key k SET version = greatest(k.version + m.n, m.least)
        FROM (SELECT w.key, count(*) AS n, max(w.new_version) + count(*) - 1 AS least FROM w WHERE w.key IS NOT NULL GROUP BY w.key) AS m
        WHERE k.key = m.key
    ), counted AS (
        INSERT INTO @.tally (queue, what, n)
        SELECT v_queue, w.state, -count(*) FROM w GROUP BY w.state
        UNION ALL SELECT v_queue, p_state, count(*) FROM w
    ), told AS (
        INSERT INTO @.event (tx, first, at, kinds, jobs, types, queues, attempts, amounts)
        SELECT pg_current_xact_id(), @events_before, v_now, array_fill(p_event, ARRAY[count(*)::int4]),
            array_agg(w.id ORDER BY w.place), array_agg(w.type ORDER BY w.place), array_fill(v_queue, ARRAY[count(*)::int4]),
            array_agg(w.new_attempt ORDER BY w.place), array_fill(0::int8, ARRAY[count(*)::int4]) FROM w
    )
    -- A job whose body is missing is leased but not returned to its worker, so that it does not hold up the others.
    SELECT 1::int2, w.place::int8, w.whose, w.body, @w_short FROM w WHERE w.body IS NOT NULL
    UNION ALL
    SELECT 2::int2, x.kind::int8, NULL::int4, x.text, x.id, @short_nulls_rest FROM w JOIN @.note x ON x.id = w.id
    ORDER BY 1, 2;
END
$$;
