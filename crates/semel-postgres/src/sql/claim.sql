-- How many events this transaction has told already; at least one for each record, so that no two have one place.
CREATE OR REPLACE FUNCTION @.events_before() RETURNS int4
LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(max(first + greatest(cardinality(kinds), 1)), 0) FROM @.event WHERE tx = pg_current_xact_id()
$$;

-- Grants leases on ready jobs, by a template: at most `p_limit`, from the queues in the order named, within one by
-- (priority descending, slot_at, id). Jobs that others have locked are passed over. Ready jobs that may not be granted
-- come back as well, unchanged, for the program to settle; so do, in their places, jobs under limits that are not closed.
-- part 0: the time; 1: a granted job as it was before, its body in `data`; 2: one of its notes (n: the kind);
-- 3: one that was not granted (n: why).
CREATE OR REPLACE FUNCTION @.claim(
    p_clock int8, p_ahead int8, p_floor int8,
    p_queues text[], p_limit int4, p_looks int4, p_worker text, p_visibility_ms int8, p_timeout_ms int8,
    p_state int2, p_slot int2, p_event int2, p_closed int8[], p_lane_looks int4
) RETURNS TABLE (part int2, n int8, data bytea, @head_declared)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now int8 := @.time(p_clock, p_ahead, p_floor);
    v_queue text;
    v_granted uuid[] := '{}';
    v_round uuid[];
    v_seen uuid[];
    -- Those under limits that were shown keep their places, before the next queue too.
    v_wanted int4 := p_limit;
    v_looks int4;
    v_free bytea[];
    v_open uuid[];
    v_why int2[];
    v_given uuid[];
    v_limited uuid[];
    v_is_last boolean;
    v_last record;
BEGIN
    RETURN QUERY SELECT 0::int2, v_now, NULL::bytea, @head_nulls;
    FOREACH v_queue IN ARRAY p_queues LOOP
        EXIT WHEN v_wanted <= 0;
        CONTINUE WHEN EXISTS (SELECT 1 FROM @.queue q WHERE q.name = v_queue AND q.paused);
        v_looks := v_wanted + p_looks;
        v_seen := '{}';
        -- The first of each limit, found from limit to limit; not locked, because nothing is done to them here.
        v_limited := ARRAY(
            WITH RECURSIVE lanes AS (
                SELECT (SELECT h.lane FROM @.head h WHERE h.slot = 0 AND h.lane IS NOT NULL AND h.queue = v_queue
                    ORDER BY h.lane LIMIT 1) AS lane
                UNION ALL
                SELECT (SELECT h.lane FROM @.head h
                    WHERE h.slot = 0 AND h.lane IS NOT NULL AND h.queue = v_queue AND h.lane > l.lane
                    ORDER BY h.lane LIMIT 1)
                FROM lanes l WHERE l.lane IS NOT NULL
            )
            SELECT f.id FROM lanes l CROSS JOIN LATERAL (
                SELECT h.id, h.priority, h.slot_at FROM @.head h
                WHERE h.slot = 0 AND h.lane IS NOT NULL AND h.queue = v_queue AND h.lane = l.lane
                ORDER BY h.priority DESC, h.slot_at, h.id LIMIT least(v_wanted, p_lane_looks)
            ) AS f
            WHERE l.lane IS NOT NULL AND l.lane <> ALL (p_closed)
            ORDER BY f.priority DESC, f.slot_at, f.id LIMIT v_looks);
        LOOP
            EXIT WHEN v_wanted <= 0 OR v_looks <= 0;
            v_round := ARRAY(SELECT h.id FROM @.head h
                WHERE h.slot = 0 AND h.lane IS NULL AND h.queue = v_queue AND h.id <> ALL (v_seen)
                ORDER BY h.priority DESC, h.slot_at, h.id LIMIT least(v_wanted, v_looks) FOR UPDATE SKIP LOCKED);
            v_is_last := cardinality(v_round) < least(v_wanted, v_looks);
            v_seen := v_seen || v_round;
            -- Others lock keys before heads; who has the heads must not wait for a key.
            v_free := ARRAY(SELECT k.key FROM @.key k
                WHERE k.key = ANY (ARRAY(SELECT h.key FROM @.head h WHERE h.id = ANY (v_round) AND h.key IS NOT NULL))
                FOR UPDATE SKIP LOCKED);
            IF cardinality(v_limited) > 0 THEN
                -- Both in one order; what comes after the last of this round waits for the next.
                SELECT h.priority, h.slot_at, h.id INTO v_last FROM @.head h WHERE h.id = v_round[cardinality(v_round)];
                v_round := ARRAY(SELECT h.id FROM @.head h
                    WHERE h.id = ANY (v_round || v_limited)
                        AND (v_is_last OR (-h.priority, h.slot_at, h.id) <= (-v_last.priority, v_last.slot_at, v_last.id))
                    ORDER BY h.priority DESC, h.slot_at, h.id);
                v_limited := ARRAY(SELECT l.id FROM unnest(v_limited) WITH ORDINALITY AS l(id, place)
                    WHERE l.id <> ALL (v_round) ORDER BY l.place);
            END IF;
            EXIT WHEN cardinality(v_round) = 0;
            v_looks := v_looks - cardinality(v_round);
            SELECT array_agg(c.id ORDER BY c.place), array_agg(c.why ORDER BY c.place) INTO v_open, v_why FROM (
                SELECT h.id, r.place,
                    CASE
                        WHEN h.lane IS NOT NULL THEN 3
                        WHEN h.expires_at <= v_now THEN 0
                        WHEN h.exhausted THEN 1
                        WHEN h.role <> 0 AND (
                            EXISTS (SELECT 1 FROM @.key k, unnest(k.live) AS u(id) JOIN @.head o ON o.id = u.id
                                WHERE k.key = h.key AND o.id <> h.id AND o.visible_until IS NOT NULL)
                            OR EXISTS (SELECT 1 FROM unnest(v_round) WITH ORDINALITY AS e(id, place) JOIN @.head o ON o.id = e.id
                                WHERE e.place < r.place AND o.lane IS NULL AND o.key = h.key AND NOT o.exhausted
                                    AND (o.expires_at IS NULL OR o.expires_at > v_now))
                        ) THEN 2
                    END::int2 AS why
                FROM unnest(v_round) WITH ORDINALITY AS r(id, place) JOIN @.head h ON h.id = r.id
                WHERE h.lane IS NOT NULL OR h.key IS NULL OR h.key = ANY (v_free)
            ) AS c;
            -- Up to where so many are granted or under limits.
            SELECT array_agg(c.id ORDER BY c.place), array_agg(c.why ORDER BY c.place) INTO v_open, v_why FROM (
                SELECT o.id, o.why, o.place,
                    count(*) FILTER (WHERE o.why IS NULL OR o.why = 3) OVER (ORDER BY o.place)
                        - CASE WHEN o.why IS NULL OR o.why = 3 THEN 1 ELSE 0 END AS before
                FROM unnest(v_open, v_why) WITH ORDINALITY AS o(id, why, place)
            ) AS c WHERE c.before < v_wanted;
            v_given := ARRAY(SELECT o.id FROM unnest(v_open, v_why) WITH ORDINALITY AS o(id, why, place)
                WHERE o.why IS NULL ORDER BY o.place);
            RETURN QUERY SELECT 3::int2, o.why::int8, NULL::bytea, o.id, @head_nulls_rest
                FROM unnest(v_open, v_why) WITH ORDINALITY AS o(id, why, place) WHERE o.why IS NOT NULL ORDER BY o.place;
            v_wanted := v_wanted - (SELECT count(*)::int4 FROM unnest(v_why) AS o(why) WHERE o.why = 3);
            IF cardinality(v_given) > 0 THEN
                RETURN QUERY SELECT 1::int2, o.place, b.body, @h.head
                    FROM unnest(v_given) WITH ORDINALITY AS o(id, place)
                    JOIN @.head h ON h.id = o.id JOIN @.body b ON b.id = o.id ORDER BY o.place;
                RETURN QUERY SELECT 2::int2, x.kind::int8, x.text, x.id, @head_nulls_rest
                    FROM unnest(v_given) AS o(id) JOIN @.note x ON x.id = o.id;
                INSERT INTO @.tally (queue, what, n)
                    SELECT c.queue, c.what, sum(c.n)::int8 FROM (
                        SELECT h.queue, h.state, -1 FROM @.head h WHERE h.id = ANY (v_given)
                        UNION ALL
                        SELECT h.queue, p_state, 1 FROM @.head h WHERE h.id = ANY (v_given)
                    ) AS c(queue, what, n) GROUP BY c.queue, c.what;
                UPDATE @.head h SET
                    state = p_state, slot = p_slot, attempt = h.attempt + 1,
                    version = greatest(h.version + 1, v_now), fence = greatest(h.fence + 1, v_now),
                    started_at = v_now, worker = p_worker,
                    visible_until = v_now + 1000 * CASE h.visibility_ms WHEN 0 THEN p_visibility_ms ELSE h.visibility_ms END,
                    run_until = v_now + 1000 * CASE h.timeout_ms WHEN 0 THEN p_timeout_ms ELSE h.timeout_ms END,
                    slot_at = v_now + 1000 * least(
                        CASE h.visibility_ms WHEN 0 THEN p_visibility_ms ELSE h.visibility_ms END,
                        CASE h.timeout_ms WHEN 0 THEN p_timeout_ms ELSE h.timeout_ms END)
                WHERE h.id = ANY (v_given);
                UPDATE @.key k SET version = greatest(k.version + w.n, w.least)
                    FROM (SELECT h.key, count(*) AS n, max(h.version) + count(*) - 1 AS least FROM @.head h
                        WHERE h.id = ANY (v_given) AND h.key IS NOT NULL GROUP BY h.key) AS w
                    WHERE k.key = w.key;
                v_granted := v_granted || v_given;
                v_wanted := v_wanted - cardinality(v_given);
            END IF;
            EXIT WHEN v_is_last;
        END LOOP;
    END LOOP;
    IF cardinality(v_granted) > 0 THEN
        INSERT INTO @.event (tx, first, at, kinds, jobs, types, queues, attempts, amounts)
            SELECT pg_current_xact_id(), @.events_before(), v_now, array_agg(p_event), array_agg(h.id ORDER BY w.place),
                array_agg(h.type ORDER BY w.place), array_agg(h.queue ORDER BY w.place),
                array_agg(h.attempt ORDER BY w.place), array_agg(0::int8)
            FROM unnest(v_granted) WITH ORDINALITY AS w(id, place) JOIN @.head h ON h.id = w.id;
    END IF;
END
$$;
