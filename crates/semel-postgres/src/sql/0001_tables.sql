-- Times are microseconds since 1970, UTC. What a state is only the program knows: a row says by `slot` and `slot_at` where it
-- is filed, and by flags what a claim has to know of it.

CREATE TABLE @.head (                 -- what decisions read of a job; a claim and an end write it anew
    id             uuid    PRIMARY KEY,
    key            bytea,
    hold           bytea,
    type           text    NOT NULL,
    queue          text    NOT NULL,
    priority       int2    NOT NULL,
    state          int2    NOT NULL,
    role           int2    NOT NULL,
    attempt        int8    NOT NULL,
    max_attempts   int8    NOT NULL,
    visibility_ms  int8    NOT NULL,
    timeout_ms     int8    NOT NULL,
    version        int8    NOT NULL,
    fence          int8    NOT NULL,
    created_at     int8    NOT NULL,
    available_at   int8    NOT NULL,
    expires_at     int8,
    started_at     int8,
    finished_at    int8,
    renewed_at     int8,
    burned_until   int8,
    worker         text,
    visible_until  int8,
    run_until      int8,
    follow_up      uuid,
    ending         int2,
    lane           int8,              -- the limit it is under: it is never granted here
    awaited        boolean NOT NULL,
    slot           int2    NOT NULL,  -- 0 ready, 1 timer, 2 held, 3 lease, 4 done, -1 kept for its key alone until slot_at
    slot_at        int8    NOT NULL,
    exhausted      boolean NOT NULL,  -- a claim must not grant it
    dead           boolean NOT NULL   -- in the dead letter list
) WITH (fillfactor = 85);

CREATE INDEX head_ready ON @.head (queue, priority DESC, slot_at, id) WHERE slot = 0 AND lane IS NULL;
-- Apart, so that a limit that lets nothing start hides nothing, however many jobs are under it.
CREATE INDEX head_limited ON @.head (queue, lane, priority DESC, slot_at, id) WHERE slot = 0 AND lane IS NOT NULL;
CREATE INDEX head_filed ON @.head (slot, slot_at, id) WHERE slot IN (1, 3, 4, -1);
CREATE INDEX head_expiry ON @.head (expires_at, id) WHERE expires_at IS NOT NULL AND slot IN (0, 1, 2);
CREATE INDEX head_dead ON @.head (id) WHERE dead;

CREATE TABLE @.body (                 -- what was asked for: written once
    id    uuid  PRIMARY KEY,
    body  bytea NOT NULL
);

CREATE TABLE @.note (                 -- what a job gathers: failures, result, duplicates, newer payload
    id    uuid  NOT NULL,
    kind  int2  NOT NULL,
    text  bytea NOT NULL,
    PRIMARY KEY (id, kind)
);

CREATE TABLE @.key (                  -- who holds a unique key; a row of its own, so that it can be locked when nobody does
    key      bytea  PRIMARY KEY,
    version  int8   NOT NULL,
    live     uuid[] NOT NULL,
    done     uuid[] NOT NULL          -- ended holders, but for those that a later one outlives
) WITH (fillfactor = 70);

CREATE TABLE @.absorbed (             -- ids of requests that became part of another job, until its body is gone
    id      uuid  PRIMARY KEY,
    job     uuid  NOT NULL,
    digest  bytea
);
CREATE INDEX absorbed_by ON @.absorbed (job);

CREATE TABLE @.queue (                -- settings, and rows whose names are no queue's: limits, what workers are told
    name      text    PRIMARY KEY,
    paused    boolean NOT NULL,
    settings  text,
    version   int8    NOT NULL
);

CREATE TABLE @.document (             -- small records of the core's: crons, workflows, their parts
    kind     int2   NOT NULL,
    name     text   COLLATE "C" NOT NULL,
    version  int8   NOT NULL,
    due      int8,
    text     bytea  NOT NULL,
    PRIMARY KEY (kind, name)
);
CREATE INDEX document_due ON @.document (due, kind, name) WHERE due IS NOT NULL;

CREATE TABLE @.total (                -- counters of queues, as of the last fold of `tally`
    queue  text NOT NULL,
    what   int2 NOT NULL,             -- a state's number; 100 ever created, 101 purged
    n      int8 NOT NULL,
    PRIMARY KEY (queue, what)
);

CREATE TABLE @.tally (                -- what commits add to the counters: rows of their own, so that no two commits wait
    queue  text NOT NULL,
    what   int2 NOT NULL,
    n      int8 NOT NULL
);
CREATE INDEX tally_of ON @.tally (queue);

CREATE TABLE @.event (                -- one record per commit, read in the order of transactions
    tx        xid8   NOT NULL,
    first     int4   NOT NULL,        -- events of the same transaction before these
    at        int8   NOT NULL,
    kinds     int2[] NOT NULL,
    jobs      uuid[] NOT NULL,
    types     text[] NOT NULL,
    queues    text[] NOT NULL,
    attempts  int8[] NOT NULL,
    amounts   int8[] NOT NULL,
    mark      uuid,                   -- which commit it was, for a server that lost the answer
    stale     int4[],                 -- and which of its groups were not applied
    PRIMARY KEY (tx, first)
);

CREATE TABLE @.void (                 -- commits whose answers were lost and that must not be applied any more
    mark  uuid        PRIMARY KEY,
    at    timestamptz NOT NULL
);

CREATE TABLE @.fact (                 -- one row
    is_only  boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    secret   bytea   NOT NULL,        -- drawn when the store was made; what tenants see of ids and keys hangs on it
    gone     int8    NOT NULL DEFAULT 0,   -- the highest version of a job that is gone
    dropped  int8    NOT NULL DEFAULT 0    -- the last transaction whose events are kept no longer
);

CREATE VIEW @.jobs AS                 -- for people with a database shell
SELECT h.id, h.type, h.queue,
       (ARRAY['scheduled', 'available', 'pending', 'active', 'retryable', 'completed', 'cancelled', 'discarded'])[h.state + 1]
           AS state,
       h.priority, h.attempt, h.max_attempts, encode(h.key, 'hex') AS unique_key,
       to_timestamp(h.created_at / 1e6) AS created_at, to_timestamp(h.finished_at / 1e6) AS finished_at, h.worker,
       b.body
FROM @.head h JOIN @.body b ON b.id = h.id;
