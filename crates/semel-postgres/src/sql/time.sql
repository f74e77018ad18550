-- The store's time: the database's clock, or the caller's in a test; plus what the caller knows the clock to have jumped
-- back; never before what the caller has seen, nor before the last commit.
CREATE OR REPLACE FUNCTION @.time(p_clock int8, p_ahead int8, p_floor int8) RETURNS int8
LANGUAGE sql VOLATILE AS $$
    SELECT greatest(
        coalesce(p_clock, (extract(epoch FROM clock_timestamp()) * 1000000)::int8) + p_ahead,
        p_floor,
        (SELECT at FROM @.event ORDER BY tx DESC, first DESC LIMIT 1))
$$;
