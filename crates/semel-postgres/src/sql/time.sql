-- The store's time.
CREATE OR REPLACE FUNCTION @.time(p_clock int8, p_ahead int8, p_floor int8) RETURNS int8
LANGUAGE sql VOLATILE AS $$
    SELECT @now
$$;
