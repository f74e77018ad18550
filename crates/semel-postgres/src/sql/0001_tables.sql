-- Times are microseconds since 1970, UTC. Only the program knows what a state means: a row's `slot` and `slot_at` say where it is
-- filed, and its flags say what a claim has to know of the job.

CREATE TABLE @.head (                 -- what decisions read of a job; rewritten when it is claimed and when it ends
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
    lane           int8,              -- the limit the job is under, if any: then no function here grants it
    awaited        boolean NOT NULL,
    slot           int2    NOT NULL,  -- 0 ready, 1 timer, 2 held, 3 lease, 4 done, -1 kept only for its key, until slot_at
    slot_at        int8    NOT NULL,
    exhausted      boolean NOT NULL,  -- it has no attempts left: a claim must not grant it
    dead           boolean NOT NULL   -- in the dead letter list
) WITH (fillfactor = 85);

CREATE INDEX head_ready ON @.head (queue, priority DESC, slot_at, id) WHERE slot = 0 AND lane IS NULL;
-- A separate index, so that the jobs of a full limit, however many, hide no other ready jobs from claims.
CREATE INDEX head_limited ON @.head (queue, lane, priority DESC, slot_at, id) WHERE slot = 0 AND lane IS NOT NULL;
CREATE INDEX head_filed ON @.head (slot, slot_at, id) WHERE slot IN (1, 3, 4, -1);
CREATE INDEX head_expiry ON @.head (expires_at, id) WHERE expires_at IS NOT NULL AND slot IN (0, 1, 2);
CREATE INDEX head_dead ON @.head (id) WHERE dead;

CREATE TABLE @.body (                 -- the job as it was requested; written once
    id    uuid  PRIMARY KEY,
    body  bytea NOT NULL
);

CREATE TABLE @.note (                 -- what is added to a job later: failures, result, duplicates, newer payload
    id    uuid  NOT NULL,
    kind  int2  NOT NULL,
    text  bytea NOT NULL,
    PRIMARY KEY (id, kind)
);

CREATE TABLE @.key (                  -- the holders of a unique key; a separate row, so that the key can be locked when it has none
    key      bytea  PRIMARY KEY,
    version  int8   NOT NULL,
    live     uuid[] NOT NULL,
    done     uuid[] NOT NULL          -- ended holders, except those that a later one outlives
) WITH (fillfactor = 70);

CREATE TABLE @.absorbed (             -- ids of requests that another job absorbed; kept until that job's body is deleted
    id      uuid  PRIMARY KEY,
    job     uuid  NOT NULL,
    digest  bytea
);
CREATE INDEX absorbed_by ON @.absorbed (job);

CREATE TABLE @.queue (                -- queues' settings; also limits and orders to workers, under names that no queue can have
    name      text    PRIMARY KEY,
    paused    boolean NOT NULL,
    settings  text,
    version   int8    NOT NULL
);

CREATE TABLE @.document (             -- small records of the core: crons, workflows and their parts
    kind     int2   NOT NULL,
    name     text   COLLATE "C" NOT NULL,
    version  int8   NOT NULL,
    due      int8,
    text     bytea  NOT NULL,
    PRIMARY KEY (kind, name)
);
CREATE INDEX document_due ON @.document (due, kind, name) WHERE due IS NOT NULL;

CREATE TABLE @.total (                -- queue counters, as of the last fold of `tally`
    queue  text NOT NULL,
    what   int2 NOT NULL,             -- a state's number; 100: jobs ever created, 101: jobs purged
    n      int8 NOT NULL,
    PRIMARY KEY (queue, what)
);

CREATE TABLE @.tally (                -- changes to the counters: each commit inserts rows of its own, so that no commit waits for another
    queue  text NOT NULL,
    what   int2 NOT NULL,
    n      int8 NOT NULL
);
CREATE INDEX tally_of ON @.tally (queue);

CREATE TABLE @.event (                -- the event log: one record per commit or claim, read in the order of transactions
    tx        xid8   NOT NULL,
    first     int4   NOT NULL,        -- events that the transaction recorded before these; a record without events counts as one
    at        int8   NOT NULL,
    kinds     int2[] NOT NULL,
    jobs      uuid[] NOT NULL,
    types     text[] NOT NULL,
    queues    text[] NOT NULL,
    attempts  int8[] NOT NULL,
    amounts   int8[] NOT NULL,
    mark      uuid,                   -- identifies the commit, for a server that lost its answer; NULL for a claim
    stale     int4[],                 -- the groups of that commit that were not applied
    PRIMARY KEY (tx, first)
);

CREATE TABLE @.void (                 -- marks of commits whose answers were lost and that must no longer be applied
    mark  uuid        PRIMARY KEY,
    at    timestamptz NOT NULL
);

CREATE TABLE @.fact (                 -- one row
    is_only  boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    secret   bytea   NOT NULL,        -- drawn at random when the store was made; the ids and keys that tenants see depend on it
    gone     int8    NOT NULL DEFAULT 0,   -- the highest version of any deleted job
    dropped  int8    NOT NULL DEFAULT 0    -- the last transaction whose events have been dropped
);

CREATE VIEW @.jobs AS                 -- for people with a database shell
SELECT h.id, h.type, h.queue,
       (ARRAY['scheduled', 'available', 'pending', 'active', 'retryable', 'completed', 'cancelled', 'discarded'])[h.state + 1]
           AS state,
       h.priority, h.attempt, h.max_attempts, encode(h.key, 'hex') AS unique_key,
       to_timestamp(h.created_at / 1e6) AS created_at, to_timestamp(h.finished_at / 1e6) AS finished_at, h.worker,
       b.body
FROM @.head h JOIN @.body b ON b.id = h.id;
