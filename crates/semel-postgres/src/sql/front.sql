-- Finds where the ready jobs of a queue and a priority begin that are under no limit, from `p_from` on, and counts the index entries
-- gone over to find it, and the microseconds that this took. A job whose claim is not committed yet still counts as ready.
CREATE OR REPLACE FUNCTION @.front(
    p_clock int8, p_ahead int8, p_floor int8, p_queue text, p_priority int4, p_from int8,
    OUT now_at int8, OUT slot_at int8, OUT walked int8, OUT took int8
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_began timestamptz := clock_timestamp();
    v_walked int8 := @walked;
BEGIN
    SELECT @now INTO now_at;
    SELECT h.slot_at INTO slot_at FROM @.head h
        WHERE h.slot = @slot_ready AND h.lane IS NULL AND h.queue = p_queue AND h.priority = p_priority AND h.slot_at >= p_from
        ORDER BY h.slot_at LIMIT 1;
    walked := @walked - v_walked;
    took := extract(epoch FROM clock_timestamp() - v_began) * 1000000;
END
$$;
