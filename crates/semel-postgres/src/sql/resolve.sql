-- What became of a commit whose answer was lost: null when nothing was applied, and then nothing ever will be; else the groups
-- that were stale. Waits for the commit if it is still under way.
CREATE OR REPLACE FUNCTION @.resolve(p_mark uuid) RETURNS int4[]
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_stale int4[];
BEGIN
    PERFORM pg_advisory_xact_lock(@class, hashtext(p_mark::text));
    SELECT r.stale INTO v_stale
        FROM (SELECT e.mark, e.stale FROM @.event e ORDER BY e.tx DESC, e.first DESC LIMIT 100000) AS r
        WHERE r.mark = p_mark;
    IF v_stale IS NULL THEN
        -- Should the database still have the request somewhere, it will find this first.
        INSERT INTO @.void (mark, at) VALUES (p_mark, now()) ON CONFLICT DO NOTHING;
        DELETE FROM @.void WHERE at < now() - interval '1 day';
    ELSE
        -- A restart shows commits that no standby has yet: this answer waits for them, as that one would have.
        PERFORM pg_logical_emit_message(true, 'semel', '');
    END IF;
    RETURN v_stale;
END
$$;
