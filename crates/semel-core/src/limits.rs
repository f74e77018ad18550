//! Every bound on what comes from outside; a bound's unit is in its name.

/// Longest job type, in bytes (OJS core 5.1).
pub const JOB_TYPE_BYTES_MAX: usize = 255;
/// Longest queue name, in bytes (OJS core 5.1).
pub const QUEUE_NAME_BYTES_MAX: usize = 128;
/// Longest caller's own unique key, in bytes (SEMANTICS 2).
pub const KEY_TEXT_BYTES_MAX: usize = 512;
/// Deepest nesting of args and meta, in levels; the outermost container is level 1 (SEMANTICS 2).
pub const JSON_DEPTH_MAX: usize = 64;
/// Largest args of one job, in bytes as sent.
pub const ARGS_BYTES_MAX: usize = 1024 * 1024;
/// Largest meta of one job, in bytes as sent (OJS payload limits).
pub const META_BYTES_MAX: usize = 64 * 1024;
/// Most jobs in one batch.
pub const BATCH_JOBS_MAX: usize = 10_000;
/// Most members that `args_keys`, `meta_keys` or `meta_except` may name.
pub const POLICY_NAMES_MAX: usize = 64;
/// Most tags of one job.
pub const TAGS_MAX: usize = 64;
/// Lowest priority (OJS core 5.2); higher runs first.
pub const PRIORITY_MIN: i64 = -100;
/// Highest priority.
pub const PRIORITY_MAX: i64 = 100;
/// The priority of a job that names none (OJS core 5.2).
pub const PRIORITY_DEFAULT: i8 = 0;
/// The largest integer that every JSON reader holds exactly: 2^53 - 1.
pub const INTEGER_MAX: i64 = 9_007_199_254_740_991;
/// Most attempts a retry policy may ask for.
pub const ATTEMPTS_MAX: u32 = 10_000;
/// Most holders of one key that `replace` and `follow_up` may meet; beyond it the answer is `too_many_holders`.
pub const HOLDERS_PER_KEY_MAX: usize = 1_000;
/// Failures kept in a job's history; the oldest go first.
pub const FAILURES_KEPT_MAX: usize = 50;
/// Failures kept in a job's history, in bytes together: each failed attempt writes them all anew, and every list of
/// jobs shows them.
pub const FAILURES_BYTES_MAX: usize = 256 * 1024;
/// Longest code or type of a failure that is kept, in bytes.
pub const FAILURE_NAME_BYTES_MAX: usize = 255;
/// Longest `traceparent` kept of a duplicate, in bytes; one of W3C's first version has 55.
pub const TRACEPARENT_BYTES_MAX: usize = 64;
/// Longest message of a failure that is kept, in bytes; a longer one is cut.
pub const FAILURE_MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Largest details of a failure that are kept, in bytes; of larger ones only the size is kept.
pub const FAILURE_DETAILS_BYTES_MAX: usize = 64 * 1024;
/// Most jobs one claim may take.
pub const CLAIM_JOBS_MAX: u32 = 1_000;
/// Most queues one claim may name.
pub const CLAIM_QUEUES_MAX: usize = 100;
/// How long a lease lasts when neither the job nor the worker says, in milliseconds (SEMANTICS 3).
pub const VISIBILITY_DEFAULT_MS: u32 = 120_000;
/// How long one attempt may run when the job does not say, in milliseconds (SEMANTICS 3).
pub const EXECUTION_DEFAULT_MS: u32 = 1_800_000;
/// Longest lease or execution timeout, in milliseconds: 30 days.
pub const TIMEOUT_MS_MAX: u64 = 30 * 24 * 3600 * 1000;
/// How long after its job's end a request under the caller's own id is answered as the first time, at least, in
/// seconds, whatever an operator does to the job; less where the job is kept for less.
pub const REQUEST_KEPT_S: u64 = 24 * 3600;
/// How long completed and cancelled jobs are kept, in seconds.
pub const RETENTION_DEFAULT_S: u64 = 24 * 3600;
/// How long discarded jobs are kept, in seconds.
pub const RETENTION_DISCARDED_S: u64 = 180 * 24 * 3600;
/// Duplicates kept in a holder's record; the oldest go first (SEMANTICS 4).
pub const DUPLICATES_RECENT_MAX: usize = 10;
/// Ids of absorbed requests that a follow-up remembers (SEMANTICS 4).
pub const ABSORBED_IDS_MAX: usize = 16;
/// Jobs remembered as those that a job [replaced or follows](crate::lineage::Lineage), of each kind.
pub const LINEAGE_MAX: usize = 16;
/// Longest unique period: 100 years, in days.
pub const PERIOD_DAYS_MAX: i64 = 36_525;
/// Most jobs that a limit may let run at once, if it bounds them.
pub const CONCURRENCY_MAX: u32 = 1_000;
/// Most starts that a rate may allow in its period.
pub const RATE_COUNT_MAX: u32 = 1_000_000;
/// Longest period of a rate, in seconds: a day.
pub const RATE_PERIOD_S_MAX: u64 = 24 * 3600;
/// Longest key of a limit, in bytes.
pub const LIMIT_KEY_BYTES_MAX: usize = 255;
/// Longest name of a tenant, in bytes.
pub const TENANT_BYTES_MAX: usize = 64;
/// Longest worker id, in bytes.
pub const WORKER_ID_BYTES_MAX: usize = 255;
/// Longest name of a document, in bytes: a cron's name, or an id and a number, after its tenant's.
pub const DOCUMENT_NAME_BYTES_MAX: usize = 384;
/// Longest name of a cron, in bytes (OJS cron 2.2).
pub const CRON_NAME_BYTES_MAX: usize = 255;
/// Longest cron expression, in bytes.
pub const CRON_EXPRESSION_BYTES_MAX: usize = 255;
/// Ticks a cron's history keeps; the oldest go first.
pub const CRON_HISTORY_MAX: usize = 50;
/// Unended jobs of one cron that are tracked. Where each waits for the end of the one before, no more are admitted;
/// where more may run side by side, the oldest are forgotten, and so are dead letters for which these leave no room.
pub const CRON_JOBS_LIVE_MAX: usize = 1_000;
/// Dead letters of one cron that are tracked: each of its ticks looks at them all. Beyond it the oldest are forgotten.
pub const CRON_DEAD_LETTERS_MAX: usize = 100;
/// Most steps of one workflow, callbacks included: each step's end writes the states of all.
pub const WORKFLOW_STEPS_MAX: usize = 1_000;
/// Size of what the steps of one workflow wait for, in bytes: every answer names, for each step, the steps it waits for.
pub const WORKFLOW_WAITS_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Size of a task's context with what its template adds to it, over all steps together, in bytes: each step is
/// given all of it.
pub const TASK_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Deepest nesting of workflows in a request.
pub const WORKFLOW_DEPTH_MAX: usize = 8;
/// Longest name of a workflow or of a step, in bytes.
pub const WORKFLOW_NAME_BYTES_MAX: usize = 255;
/// Size of the options that a workflow sets for its steps, over all steps together, in bytes: each step is given them.
pub const WORKFLOW_OPTIONS_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Size of the results of earlier steps that a step is given, in bytes together; beyond it they are left out and named.
pub const PARENT_RESULTS_BYTES_MAX: usize = 1024 * 1024;
/// Most waiters for the end of one job: steps of workflows, and held-back jobs.
pub const WAITERS_PER_JOB_MAX: usize = 1_000;
/// Longest schema of a template, in bytes.
pub const SCHEMA_BYTES_MAX: usize = 64 * 1024;
/// Most places reported of one job that does not fit its template's schema.
pub const SCHEMA_FLAWS_MAX: usize = 10;
/// Most work that checking one job against its template's schema may cost, in steps of a few nanoseconds: a value
/// looked at, or a character at one place of a pattern.
pub const SCHEMA_STEPS_MAX: u64 = 10_000_000;
/// The same for all jobs of one request together, a few seconds at worst: in a request with the
/// [most jobs](BATCH_JOBS_MAX) each has 100,000 steps, ten times what a job with a few ids, dates and addresses
/// takes. A bounded repetition in a pattern, such as `^[^<>]{1,255}$`, counts as if it were written out: a text of
/// 80 bytes takes most of those steps.
pub const SCHEMA_REQUEST_STEPS_MAX: u64 = 1_000_000_000;
