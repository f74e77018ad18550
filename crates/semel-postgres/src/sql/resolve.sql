-- Tells what became of a commit whose answer was lost. `stale` is NULL if it was not applied, and then it never will be; otherwise it
-- lists the groups that were stale. Waits for the commit if it is still running. Looks for it among the newest `p_looks` records: if it
-- is not there, and all of these may be newer than it, `is_known` is false. The commit was begun after `p_since`.
CREATE OR REPLACE FUNCTION @.resolve(p_mark uuid, p_since int8, p_looks int4, OUT is_known boolean, OUT stale int4[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_stale int4[];
    v_oldest int8;
BEGIN
    PERFORM pg_advisory_xact_lock(@class, hashtext(p_mark::text));
    SELECT r.stale INTO v_stale
        FROM (SELECT e.mark, e.stale FROM @.event e ORDER BY e.tx DESC, e.first DESC LIMIT p_looks) AS r
        WHERE r.mark = p_mark;
    is_known := true;
    stale := v_stale;
    IF v_stale IS NULL THEN
        v_oldest := (SELECT e.at FROM @.event e ORDER BY e.tx DESC, e.first DESC OFFSET p_looks - 1 LIMIT 1);
        is_known := v_oldest IS NULL OR v_oldest < p_since;
        -- If the server has yet to execute the commit's statement, that statement will find this mark and give up.
        INSERT INTO @.void (mark, at) VALUES (p_mark, now()) ON CONFLICT DO NOTHING;
        DELETE FROM @.void WHERE at < now() - interval '1 day';
    ELSE
        -- After a restart, commits are visible that no standby has yet: this answer waits for the standbys, as the lost one would have.
        PERFORM pg_logical_emit_message(true, 'semel', '');
    END IF;
END
$$;
