-- Returns the store's time, in microseconds.
CREATE OR REPLACE FUNCTION @.time(p_clock int8, p_ahead int8, p_floor int8) RETURNS int8
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT @now
$$;
