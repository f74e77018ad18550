-- Grants leases on ready jobs by a template: at most the sum of `p_limits`, from the queues in the order named, within a queue by
-- (priority descending, slot_at, id). In that order they go to `p_workers`, to each worker as many as its limit; with several workers
-- there is only one queue. Jobs that another transaction has locked are skipped. So are jobs whose keys another transaction has locked;
-- as it may have locked many, these do not count towards `p_looks`, the few jobs that may be examined in vain. Ready jobs that may not
-- be granted are returned too, unchanged, for the program to settle; so are, in their places, jobs under limits that are not closed
-- and, if nothing is granted and such jobs have taken all places, the jobs under limits that come next.
-- Rows by `part`: 0: the time (n); 1: a granted job as it was before, its body in `data`; 2: a note of a granted job (n: its kind);
-- 3: a job that was not granted (n: why); 4: how many entries of the ready jobs' index the call went over (n), if many. `whose` is the
-- place in `p_workers`, from 1, of the worker that the job is for.
-- `p_front_priority` and `p_front_at` say for each queue which jobs the caller does not want: those of that priority whose `slot_at` is
-- earlier; NULL where it wants all. The index keeps the entries of claimed jobs for as long as any transaction can see them as ready,
-- and each claim would go over them.
CREATE OR REPLACE FUNCTION @.lease(
    p_clock int8, p_ahead int8, p_floor int8,
    p_queues text[], p_workers text[], p_limits int4[], p_looks int4, p_visibility_ms int8, p_timeout_ms int8,
    p_state int2, p_slot int2, p_event int2, p_closed int8[], p_lane_looks int4, p_front_priority int4[], p_front_at int8[]
) RETURNS TABLE (part int2, n int8, whose int4, data bytea, @head_declared)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now int8;
    v_walked int8 := @walked;
    v_queue text;
    v_place int4;
    v_whose int4[];
    v_limit int4 := p_limits[1];
    v_granted uuid[] := '{}';
    v_types text[] := '{}';
    v_from text[] := '{}';
    v_attempts int8[] := '{}';
    v_round uuid[];
    v_keys bytea[];
    v_states int2[];           -- of the jobs that are granted, before the grant
    v_some_special boolean;    -- whether a job of the round expires, has no attempts left, or may have to wait for another job
    v_are_merged boolean;      -- whether the round includes jobs under limits
    v_priority int4;           -- with the next two: the place after which the next round begins
    v_slot_at int8;
    v_id uuid;
    v_above int4;              -- the first round also takes jobs of a higher priority than this; later rounds may take all behind it
    v_wanted int4;
    v_looks int4;
    v_size int4;               -- how many jobs the round is to lock
    v_beyond int4;             -- how many more than wanted, if most of the last round had locked keys
    v_passes int4;             -- how many more jobs may be skipped because their keys are locked
    v_locked int4;             -- how many jobs of the round are skipped for that reason
    v_free bytea[];
    v_all_free boolean;
    v_open uuid[];
    v_why int2[];
    v_to int4[];
    v_given uuid[];
    v_given_to int4[];
    v_limited uuid[];
    v_is_last boolean;
    v_last record;
    v_ids uuid[];
    v_some_types text[];
    v_some_attempts int8[];
BEGIN
    IF cardinality(p_workers) > 1 THEN
        v_whose := ARRAY(SELECT w.place::int4 FROM unnest(p_limits) WITH ORDINALITY AS w(n, place), generate_series(1, w.n)
            ORDER BY w.place);
        v_limit := cardinality(v_whose);
    END IF;
    -- Jobs under limits that are returned take up places as granted ones do, also when the next queue is looked at.
    v_wanted := v_limit;
    SELECT @now INTO v_now;
    RETURN QUERY SELECT 0::int2, v_now, NULL::int4, NULL::bytea, @head_nulls;
    FOR v_place IN 1 .. cardinality(p_queues) LOOP
        v_queue := p_queues[v_place];
        EXIT WHEN v_wanted <= 0;
        CONTINUE WHEN EXISTS (SELECT 1 FROM @.queue q WHERE q.name = v_queue AND q.paused);
        v_looks := v_wanted + p_looks;
        v_passes := @passes_max;
        v_beyond := 0;
        v_priority := coalesce(p_front_priority[v_place], @above_all);
        v_above := v_priority;
        v_slot_at := p_front_at[v_place];
        v_id := '00000000-0000-0000-0000-000000000000';
        v_limited := '{}';
        IF EXISTS (SELECT 1 FROM @.head h WHERE h.slot = @slot_ready AND h.lane IS NOT NULL AND h.queue = v_queue) THEN
            -- The first jobs of each limit, by an index search from limit to limit. Not locked, because nothing is written to them here.
            v_limited := ARRAY(
                WITH RECURSIVE lanes AS (
                    SELECT (SELECT h.lane FROM @.head h WHERE h.slot = @slot_ready AND h.lane IS NOT NULL AND h.queue = v_queue
                        ORDER BY h.lane LIMIT 1) AS lane
                    UNION ALL
                    SELECT (SELECT h.lane FROM @.head h
                        WHERE h.slot = @slot_ready AND h.lane IS NOT NULL AND h.queue = v_queue AND h.lane > l.lane
                        ORDER BY h.lane LIMIT 1)
                    FROM lanes l WHERE l.lane IS NOT NULL
                )
                SELECT f.id FROM lanes l CROSS JOIN LATERAL (
                    SELECT h.id, h.priority, h.slot_at FROM @.head h
                    WHERE h.slot = @slot_ready AND h.lane IS NOT NULL AND h.queue = v_queue AND h.lane = l.lane
                    ORDER BY h.priority DESC, h.slot_at, h.id LIMIT least(v_wanted, p_lane_looks)
                ) AS f
                WHERE l.lane IS NOT NULL AND l.lane <> ALL (p_closed)
                ORDER BY f.priority DESC, f.slot_at, f.id LIMIT v_looks);
        END IF;
        LOOP
            EXIT WHEN v_wanted <= 0 OR v_looks <= 0 OR v_passes <= 0;
            v_size := least(v_wanted, v_looks) + v_beyond;
            -- Two queries, because one cannot begin in the middle of an index in which one column descends and the others ascend.
            SELECT coalesce(array_agg(h.id), '{}'), coalesce(array_agg(h.key) FILTER (WHERE h.key IS NOT NULL), '{}'),
                coalesce(array_agg(h.state), '{}'), coalesce(bool_or(@h.is_special), false),
                (array_agg(h.priority))[count(*)::int4], (array_agg(h.slot_at))[count(*)::int4]
            INTO v_round, v_keys, v_states, v_some_special, v_priority, v_slot_at FROM (
                WITH higher AS MATERIALIZED (
                    SELECT h.id, h.key, h.state, h.priority, h.slot_at, h.expires_at, h.exhausted, h.role FROM @.head h
                    WHERE h.slot = @slot_ready AND h.lane IS NULL AND h.queue = v_queue AND h.priority > v_above
                    ORDER BY h.priority DESC, h.slot_at, h.id LIMIT v_size FOR UPDATE SKIP LOCKED
                ), same AS MATERIALIZED (
                    SELECT h.id, h.key, h.state, h.priority, h.slot_at, h.expires_at, h.exhausted, h.role FROM @.head h
                    WHERE h.slot = @slot_ready AND h.lane IS NULL AND h.queue = v_queue
                        AND h.priority = v_priority AND (h.slot_at, h.id) > (v_slot_at, v_id)
                    ORDER BY h.slot_at, h.id LIMIT v_size - (SELECT count(*) FROM higher) FOR UPDATE SKIP LOCKED
                ), lower AS MATERIALIZED (
                    SELECT h.id, h.key, h.state, h.priority, h.slot_at, h.expires_at, h.exhausted, h.role FROM @.head h
                    WHERE h.slot = @slot_ready AND h.lane IS NULL AND h.queue = v_queue AND h.priority < v_priority
                    ORDER BY h.priority DESC, h.slot_at, h.id LIMIT v_size - (SELECT count(*) FROM higher) - (SELECT count(*) FROM same)
                    FOR UPDATE SKIP LOCKED
                )
                SELECT * FROM higher UNION ALL SELECT * FROM same UNION ALL SELECT * FROM lower
            ) AS h;
            v_above := @above_all;
            v_is_last := cardinality(v_round) < v_size;
            v_id := v_round[cardinality(v_round)];
            -- Commits lock keys before heads: with heads locked, waiting for a key could deadlock.
            v_all_free := true;
            v_locked := 0;
            IF cardinality(v_keys) > 0 THEN
                v_free := ARRAY(SELECT k.key FROM @.key k WHERE k.key = ANY (v_keys) FOR UPDATE SKIP LOCKED);
                v_all_free := cardinality(v_free) = (SELECT count(DISTINCT w.key) FROM unnest(v_keys) AS w(key));
                IF NOT v_all_free THEN
                    v_locked := cardinality(v_keys) - (SELECT count(*) FROM unnest(v_keys) AS w(key) WHERE w.key = ANY (v_free));
                END IF;
            END IF;
            -- If most jobs are skipped for locked keys, the next round takes more at once, to get past all such jobs.
            v_passes := v_passes - v_locked;
            v_beyond := CASE WHEN 2 * v_locked > cardinality(v_round) THEN least(2 * (v_beyond + v_locked), 1024) ELSE 0 END;
            v_are_merged := cardinality(v_limited) > 0;
            IF v_are_merged THEN
                -- Both kinds in one order. Jobs under limits that come after the last job of this round are left for the next one.
                SELECT h.priority, h.slot_at, h.id INTO v_last FROM @.head h WHERE h.id = v_round[cardinality(v_round)];
                v_round := ARRAY(SELECT h.id FROM @.head h
                    WHERE h.id = ANY (v_round || v_limited)
                        AND (v_is_last OR (-h.priority, h.slot_at, h.id) <= (-v_last.priority, v_last.slot_at, v_last.id))
                    ORDER BY h.priority DESC, h.slot_at, h.id);
                v_limited := ARRAY(SELECT l.id FROM unnest(v_limited) WITH ORDINALITY AS l(id, place)
                    WHERE l.id <> ALL (v_round) ORDER BY l.place);
            END IF;
            EXIT WHEN cardinality(v_round) = 0;
            v_looks := v_looks - cardinality(v_round) + v_locked;
            IF v_all_free AND NOT v_some_special AND NOT v_are_merged AND cardinality(v_round) <= v_wanted THEN
                -- The usual case: nothing can keep any of these jobs from being granted.
                v_given := v_round;
                v_given_to := coalesce(v_whose[v_limit - v_wanted + 1 : v_limit - v_wanted + cardinality(v_round)],
                    array_fill(1, ARRAY[cardinality(v_round)]));
            ELSE
                -- Ends when as many as wanted are granted or under limits. Each job goes to the worker whose turn it is at its place.
                SELECT coalesce(array_agg(c.id ORDER BY c.place), '{}'), coalesce(array_agg(c.why ORDER BY c.place), '{}'),
                    coalesce(array_agg(coalesce(v_whose[least(v_limit - v_wanted + c.before + 1, v_limit)], 1) ORDER BY c.place), '{}')
                INTO v_open, v_why, v_to FROM (
                  SELECT c.id, c.why, c.place, c.before,
                    count(*) FILTER (WHERE c.why IS NULL OR c.before >= v_wanted AND c.why <> @why_limited) OVER (ORDER BY c.place) AS stops
                  FROM (
                    SELECT c.id, c.why, c.place,
                        (count(*) FILTER (WHERE c.why IS NULL OR c.why = @why_limited) OVER (ORDER BY c.place)
                            - CASE WHEN c.why IS NULL OR c.why = @why_limited THEN 1 ELSE 0 END)::int4 AS before
                    FROM (
                        SELECT h.id, r.place,
                            CASE
                                WHEN h.lane IS NOT NULL THEN @why_limited
                                WHEN h.expires_at <= v_now THEN @why_expired
                                WHEN h.exhausted THEN @why_exhausted
                                WHEN h.role <> 0 AND (
                                    EXISTS (SELECT 1 FROM @.key k, unnest(k.live) AS u(id) JOIN @.head o ON o.id = u.id
                                        WHERE k.key = h.key AND o.id <> h.id AND o.visible_until IS NOT NULL)
                                    OR EXISTS (SELECT 1 FROM unnest(v_round) WITH ORDINALITY AS e(id, place) JOIN @.head o ON o.id = e.id
                                        WHERE e.place < r.place AND o.lane IS NULL AND o.key = h.key AND NOT o.exhausted
                                            AND (o.expires_at IS NULL OR o.expires_at > v_now))
                                ) THEN @why_overlaps
                            END::int2 AS why
                        FROM unnest(v_round) WITH ORDINALITY AS r(id, place) JOIN @.head h ON h.id = r.id
                        WHERE v_all_free OR h.lane IS NOT NULL OR h.key IS NULL OR h.key = ANY (v_free)
                    ) AS c
                  ) AS c
                ) AS c WHERE c.before < v_wanted
                    OR c.stops = 0 AND cardinality(v_granted) = 0 AND c.place <= v_looks + cardinality(v_round) - v_locked;
                v_given := v_open;
                v_given_to := v_to;
                IF array_remove(v_why, NULL) <> '{}' THEN
                    RETURN QUERY SELECT 3::int2, o.why::int8, o.whose, NULL::bytea, o.id, @head_nulls_rest
                        FROM unnest(v_open, v_why, v_to) WITH ORDINALITY AS o(id, why, whose, place)
                        WHERE o.why IS NOT NULL ORDER BY o.place;
                    v_wanted := v_wanted - cardinality(array_positions(v_why, @why_limited::int2));
                    v_given := ARRAY(SELECT o.id FROM unnest(v_open, v_why) WITH ORDINALITY AS o(id, why, place)
                        WHERE o.why IS NULL ORDER BY o.place);
                    v_given_to := ARRAY(SELECT o.whose FROM unnest(v_to, v_why) WITH ORDINALITY AS o(whose, why, place)
                        WHERE o.why IS NULL ORDER BY o.place);
                END IF;
                v_states := ARRAY(SELECT h.state FROM @.head h WHERE h.id = ANY (v_given));
            END IF;
            IF cardinality(v_given) > 0 THEN
                RETURN QUERY SELECT 1::int2, o.place, o.whose, b.body, @h.head
                    FROM unnest(v_given, v_given_to) WITH ORDINALITY AS o(id, whose, place)
                    JOIN @.head h ON h.id = o.id JOIN @.body b ON b.id = o.id ORDER BY o.place;
                RETURN QUERY SELECT 2::int2, x.kind::int8, NULL::int4, x.text, x.id, @head_nulls_rest
                    FROM unnest(v_given) AS o(id) JOIN @.note x ON x.id = o.id;
                INSERT INTO @.tally (queue, what, n)
                    SELECT v_queue, s.state, -count(*) FROM unnest(v_states) AS s(state) GROUP BY s.state
                    UNION ALL SELECT v_queue, p_state, cardinality(v_states);
                -- Each write of a holder moves its key's version.
                WITH w AS (
                    UPDATE @.head h SET
                        @h.granted_to(p_workers[v_given_to[o.place]])
                    FROM generate_series(1, cardinality(v_given)) AS o(place) WHERE h.id = v_given[o.place]
                    RETURNING o.place, h.id, h.key, h.type, h.attempt, h.version
                ), moved AS (
                    UPDATE @.key k SET version = greatest(k.version + m.n, m.least)
                    FROM (SELECT w.key, count(*) AS n, max(w.version) + count(*) - 1 AS least FROM w
                        WHERE w.key IS NOT NULL GROUP BY w.key) AS m
                    WHERE k.key = m.key
                )
                SELECT array_agg(w.id), array_agg(w.type), array_agg(w.attempt)
                INTO v_ids, v_some_types, v_some_attempts FROM (SELECT * FROM w ORDER BY w.place) AS w;
                v_granted := v_granted || v_ids;
                v_types := v_types || v_some_types;
                v_attempts := v_attempts || v_some_attempts;
                v_from := v_from || array_fill(v_queue, ARRAY[cardinality(v_ids)]);
                v_wanted := v_wanted - cardinality(v_given);
            END IF;
            EXIT WHEN v_is_last;
        END LOOP;
    END LOOP;
    IF cardinality(v_granted) > 0 THEN
        INSERT INTO @.event (tx, first, at, kinds, jobs, types, queues, attempts, amounts)
            VALUES (pg_current_xact_id(), @events_before, v_now, array_fill(p_event, ARRAY[cardinality(v_granted)]), v_granted,
                v_types, v_from, v_attempts, array_fill(0::int8, ARRAY[cardinality(v_granted)]));
    END IF;
    v_walked := @walked - v_walked;
    IF v_walked > @walk_max + v_limit THEN
        RETURN QUERY SELECT 4::int2, v_walked, NULL::int4, NULL::bytea, @head_nulls;
    END IF;
END
$$;
