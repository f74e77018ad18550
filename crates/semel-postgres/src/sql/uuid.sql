-- Draws an id for an entry inserted without one: precise to the microsecond, like the ids that a server mints (RFC 9562, method 3),
-- so that ids drawn in one session ascend.
CREATE OR REPLACE FUNCTION @.uuid_v7() RETURNS uuid
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT encode(
        int8send(now.micros / 1000 * 65536 + 7 * 4096 + now.micros % 1000 * 4096 / 1000)
        || substring(uuid_send(gen_random_uuid()) FROM 9), 'hex')::uuid
    FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8 AS micros) AS now
$$;
