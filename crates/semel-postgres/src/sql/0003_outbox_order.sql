-- Entries are relayed in the order in which they were inserted: ids drawn within one millisecond are in no order. Existing entries are
-- numbered in the order in which they are stored; the table keeps relayed ones for a day at most. The index by id stays for servers one
-- version older.

-- Precise to the microsecond, like the ids that a server mints (RFC 9562, method 3), so that ids drawn in one session ascend.
CREATE OR REPLACE FUNCTION @.uuid_v7() RETURNS uuid
LANGUAGE sql VOLATILE AS $$
    SELECT encode(
        int8send(now.micros / 1000 * 65536 + 7 * 4096 + now.micros % 1000 * 4096 / 1000)
        || substring(uuid_send(gen_random_uuid()) FROM 9), 'hex')::uuid
    FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8 AS micros) AS now
$$;

ALTER TABLE @.outbox ADD COLUMN place bigint GENERATED ALWAYS AS IDENTITY;
CREATE INDEX outbox_first ON @.outbox (place) WHERE outcome IS NULL;
