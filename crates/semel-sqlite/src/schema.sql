-- Format 3. Every commit is one record of the journal, which lies beside this file: what was written, as it was written. A
-- duty carries what is in the journal over to these rows, many jobs at a time and each as it is by then; so a job that
-- ends soon is one row written once. What decisions need of live jobs is in the engine's memory.

CREATE TABLE name (               -- types and queues, numbered
    id    INTEGER PRIMARY KEY,
    text  TEXT NOT NULL UNIQUE
) STRICT;

CREATE TABLE journal (            -- in a backup: the commits that were not in the rows when it was made
    cursor  INTEGER PRIMARY KEY,
    at      INTEGER NOT NULL,
    payload BLOB NOT NULL
) STRICT;

CREATE TABLE event (              -- one record per commit
    cursor  INTEGER PRIMARY KEY,
    at      INTEGER NOT NULL,
    count   INTEGER NOT NULL,
    data    BLOB NOT NULL
) STRICT;

CREATE TABLE queue (              -- settings and counters
    name       TEXT PRIMARY KEY,
    paused     INTEGER NOT NULL,
    version    INTEGER NOT NULL,
    created    INTEGER NOT NULL,
    purged     INTEGER NOT NULL,
    completed  INTEGER NOT NULL,
    cancelled  INTEGER NOT NULL,
    discarded  INTEGER NOT NULL,
    settings   TEXT                -- also of rows that are no queue's: limits, what workers are told
) STRICT, WITHOUT ROWID;

CREATE TABLE job (                -- times in microseconds since 1970, UTC
    seq            INTEGER PRIMARY KEY,
    id             BLOB NOT NULL,
    key            BLOB,
    type           INTEGER NOT NULL,
    queue          INTEGER NOT NULL,
    priority       INTEGER NOT NULL,
    max_attempts   INTEGER NOT NULL,
    created_at     INTEGER NOT NULL,
    state          INTEGER NOT NULL,
    attempt        INTEGER NOT NULL,
    finished_at    INTEGER,
    worker         TEXT,                -- who runs it
    filed          INTEGER,             -- of an ended job: 1, or 2 for a dead letter
    rest           BLOB NOT NULL,       -- what only the engine reads, packed: a column each costs every write of a row
    body           BLOB NOT NULL        -- what was asked for; last, so that looking at a head does not read it
) STRICT;

-- What is read when the file is opened.
CREATE INDEX live ON job (seq) WHERE filed IS NULL;
CREATE INDEX dead_letter ON job (seq) WHERE filed = 2;

CREATE TABLE note (               -- what a job gathers: failures, result, duplicates, newer payload
    seq   INTEGER NOT NULL,
    kind  INTEGER NOT NULL,
    text  BLOB NOT NULL,
    PRIMARY KEY (seq, kind)
) STRICT, WITHOUT ROWID;

CREATE TABLE memory (             -- ended jobs by key: read by policies that look at end states
    key          BLOB NOT NULL,
    seq          INTEGER NOT NULL,
    id           BLOB NOT NULL,
    hold         BLOB NOT NULL,
    type         INTEGER NOT NULL,
    queue        INTEGER NOT NULL,
    state        INTEGER NOT NULL,
    version      INTEGER NOT NULL,
    fence        INTEGER NOT NULL,
    created_at   INTEGER NOT NULL,
    finished_at  INTEGER NOT NULL,
    renewed_at   INTEGER,
    ending       INTEGER,
    forget_at    INTEGER,         -- set when the body is gone: the head stays until then
    PRIMARY KEY (key, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE foreign_id (         -- ids that callers chose
    id   BLOB PRIMARY KEY,
    seq  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE absorbed (           -- ids of requests that became part of another job, until its body is gone
    id      BLOB PRIMARY KEY,
    seq     INTEGER NOT NULL,
    job     BLOB NOT NULL,
    digest  BLOB
) STRICT, WITHOUT ROWID;
CREATE INDEX absorbed_by ON absorbed (seq);

CREATE TABLE document (           -- small records of the core's: crons, workflows, their parts
    kind     INTEGER NOT NULL,
    name     TEXT NOT NULL,
    version  INTEGER NOT NULL,
    due      INTEGER,
    text     BLOB NOT NULL,
    UNIQUE (kind, name)
) STRICT;
CREATE INDEX document_due ON document (due) WHERE due IS NOT NULL;

CREATE TABLE fact (
    name   TEXT PRIMARY KEY,
    value  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE VIEW jobs AS               -- for people with a database shell; behind the journal by half a minute at most
SELECT lower(hex(j.id)) AS id, t.text AS type, q.text AS queue,
       CASE j.state WHEN 0 THEN 'scheduled' WHEN 1 THEN 'available' WHEN 2 THEN 'pending' WHEN 3 THEN 'active'
            WHEN 4 THEN 'retryable' WHEN 5 THEN 'completed' WHEN 6 THEN 'cancelled' ELSE 'discarded' END AS state,
       j.priority, j.attempt, j.max_attempts, lower(hex(j.key)) AS unique_key,
       datetime(j.created_at / 1000000, 'unixepoch') AS created_at,
       datetime(j.finished_at / 1000000, 'unixepoch') AS finished_at, j.worker,
       CAST(j.body AS TEXT) AS body
FROM job j
JOIN name t ON t.id = j.type
JOIN name q ON q.id = j.queue;
