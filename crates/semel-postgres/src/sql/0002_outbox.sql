-- Jobs that programs of any language insert in transactions of their own: an enqueue request of Open Job Spec each. Every entry is
-- relayed once, and what became of it is written beside it.

-- To the microsecond, as ids minted by a server (RFC 9562, method 3): ids of one session ascend.
CREATE FUNCTION @.uuid_v7() RETURNS uuid
LANGUAGE sql VOLATILE AS $$
    SELECT encode(
        int8send(now.micros / 1000 * 65536 + 7 * 4096 + now.micros % 1000 * 4096 / 1000)
        || substring(uuid_send(gen_random_uuid()) FROM 9), 'hex')::uuid
    FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8 AS micros) AS now
$$;

CREATE TABLE @.outbox (
    id          uuid        PRIMARY KEY DEFAULT @.uuid_v7(),   -- the job's
    place       bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,   -- whoever was first is offered first
    envelope    json        NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    outcome     text,                 -- null while it waits
    job         uuid,                 -- the job that answers it: its own, or the one it is a duplicate of
    reason      text,                 -- why it could not be offered
    relayed_at  timestamptz
);
CREATE INDEX outbox_waiting ON @.outbox (place) WHERE outcome IS NULL;
CREATE INDEX outbox_relayed ON @.outbox (relayed_at) WHERE outcome IS NOT NULL;
