-- Jobs that programs in any language insert in their own transactions; each entry is an enqueue request of Open Job Spec. Every
-- entry is relayed once, and its outcome is written to its row.

CREATE FUNCTION @.uuid_v7() RETURNS uuid
LANGUAGE sql VOLATILE AS $$
    SELECT encode(
        set_bit(set_bit(overlay(
            uuid_send(gen_random_uuid()) PLACING
            substring(int8send(floor(extract(epoch FROM clock_timestamp()) * 1000)::int8) FROM 3) FROM 1 FOR 6
        ), 52, 1), 53, 1), 'hex')::uuid
$$;

CREATE TABLE @.outbox (
    id          uuid        PRIMARY KEY DEFAULT @.uuid_v7(),   -- the id of the job
    envelope    json        NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    outcome     text,                 -- NULL until the entry is relayed
    job         uuid,                 -- the job that answers the entry: its own, or the one it is a duplicate of
    reason      text,                 -- why the entry was refused
    relayed_at  timestamptz
);
CREATE INDEX outbox_waiting ON @.outbox (id) WHERE outcome IS NULL;
CREATE INDEX outbox_relayed ON @.outbox (relayed_at) WHERE outcome IS NOT NULL;
