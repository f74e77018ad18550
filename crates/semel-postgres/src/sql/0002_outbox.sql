-- Jobs that programs of any language insert in transactions of their own: an enqueue request of Open Job Spec each. Every entry is
-- relayed once, and what became of it is written beside it.

CREATE FUNCTION @.uuid_v7() RETURNS uuid
LANGUAGE sql VOLATILE AS $$
    SELECT encode(
        set_bit(set_bit(overlay(
            uuid_send(gen_random_uuid()) PLACING
            substring(int8send(floor(extract(epoch FROM clock_timestamp()) * 1000)::int8) FROM 3) FROM 1 FOR 6
        ), 52, 1), 53, 1), 'hex')::uuid
$$;

CREATE TABLE @.outbox (
    id          uuid        PRIMARY KEY DEFAULT @.uuid_v7(),   -- the job's
    envelope    json        NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    outcome     text,                 -- null while it waits
    job         uuid,                 -- the job that answers it: its own, or the one it is a duplicate of
    reason      text,                 -- why it could not be offered
    relayed_at  timestamptz
);
CREATE INDEX outbox_waiting ON @.outbox (id) WHERE outcome IS NULL;
CREATE INDEX outbox_relayed ON @.outbox (relayed_at) WHERE outcome IS NOT NULL;
