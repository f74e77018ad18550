-- The store's time: the database's clock, or the caller's in a test; plus what the caller knows the clock to have jumped
-- back; never before what the caller has seen, nor before the last commit, and after the versions of all jobs that are gone: a
-- new one with the id of such must not have its version.
CREATE OR REPLACE FUNCTION @.time(p_clock int8, p_ahead int8, p_floor int8) RETURNS int8
LANGUAGE sql VOLATILE AS $$
    SELECT greatest(
        coalesce(p_clock, (extract(epoch FROM clock_timestamp()) * 1000000)::int8) + p_ahead,
        p_floor,
        (SELECT at FROM @.event ORDER BY tx DESC, first DESC LIMIT 1),
        (SELECT gone + 1 FROM @.fact))
$$;
