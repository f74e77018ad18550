//! Every bound on what comes from outside, with its unit last in the name.

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
/// The largest integer that every JSON reader holds exactly: 2^53 - 1.
pub const INTEGER_MAX: i64 = 9_007_199_254_740_991;
/// Most attempts a retry policy may ask for.
pub const ATTEMPTS_MAX: u32 = 10_000;
/// Most holders of one key that `replace` and `follow_up` may meet; beyond it the answer is `too_many_holders`.
pub const HOLDERS_PER_KEY_MAX: usize = 1_000;
/// Failures kept in a job's history; the oldest go first.
pub const FAILURES_KEPT_MAX: usize = 50;
/// And in bytes together: each attempt that fails writes all of them anew, and every list of jobs tells them.
pub const FAILURES_BYTES_MAX: usize = 256 * 1024;
/// Longest code or type of a failure that is kept, in bytes.
pub const FAILURE_NAME_BYTES_MAX: usize = 255;
/// Longest trace that is kept of a duplicate, in bytes; one of W3C's first version has 55.
pub const TRACEPARENT_BYTES_MAX: usize = 64;
/// Longest message of a failure that is kept, in bytes; a longer one is cut.
pub const FAILURE_MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Largest details of a failure that are kept, in bytes; of larger ones it is kept how large they were.
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
/// How long after its job's end a request under its caller's own id is answered as the first time, at least, whatever an operator
/// does to the job, in seconds; less where the job is kept for less.
pub const REQUEST_KEPT_S: u64 = 24 * 3600;
/// How long completed and cancelled jobs are kept, in seconds.
pub const RETENTION_DEFAULT_S: u64 = 24 * 3600;
/// How long discarded jobs are kept, in seconds.
pub const RETENTION_DISCARDED_S: u64 = 180 * 24 * 3600;
/// Duplicates kept in a holder's record; the oldest go first (SEMANTICS 4).
pub const DUPLICATES_RECENT_MAX: usize = 10;
/// Request ids of a follow-up's callers that are remembered (SEMANTICS 4).
pub const ABSORBED_IDS_MAX: usize = 16;
/// Jobs that are remembered as those that a job [comes after](crate::lineage::Lineage), of each kind.
pub const LINEAGE_MAX: usize = 16;
/// Longest unique period: 100 years, in days.
pub const PERIOD_DAYS_MAX: i64 = 36_525;
/// Most jobs that a limit may let run at once, unless it lets any number.
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
/// Longest name of a document, in bytes: a cron's name, or an id and a number, behind its tenant's.
pub const DOCUMENT_NAME_BYTES_MAX: usize = 384;
/// Longest name of a cron, in bytes (OJS cron 2.2).
pub const CRON_NAME_BYTES_MAX: usize = 255;
/// Longest cron expression, in bytes.
pub const CRON_EXPRESSION_BYTES_MAX: usize = 255;
/// Ticks a cron's history keeps; the oldest go first.
pub const CRON_HISTORY_MAX: usize = 50;
/// Jobs of one cron that are known to go on. Where each waits for the end of the one before no more are admitted; of more that
/// may run beside each other the oldest are forgotten, and of its dead letters those for which these leave no room.
pub const CRON_JOBS_LIVE_MAX: usize = 1_000;
/// Dead letters of one cron that are known: each of its ticks looks at them all. Of more the oldest are forgotten.
pub const CRON_DEAD_LETTERS_MAX: usize = 100;
/// Most steps of one workflow, callbacks included: each step's end writes the states of all.
pub const WORKFLOW_STEPS_MAX: usize = 1_000;
/// What the steps of one workflow wait for, in bytes: each names the steps that it waits for in every answer.
pub const WORKFLOW_WAITS_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The context of a task and what its template adds to it, over all steps together, in bytes: each step is given all of it.
pub const TASK_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Deepest nesting of workflows in a request.
pub const WORKFLOW_DEPTH_MAX: usize = 8;
/// Longest name of a workflow or of a step, in bytes.
pub const WORKFLOW_NAME_BYTES_MAX: usize = 255;
/// The options that a workflow says for its steps, over all steps together, in bytes: each step is given them.
pub const WORKFLOW_OPTIONS_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The results of earlier steps that a step is given, in bytes together; beyond it they are left out and named.
pub const PARENT_RESULTS_BYTES_MAX: usize = 1024 * 1024;
/// Most that may wait for the end of one job: steps of workflows, and held-back jobs.
pub const WAITERS_PER_JOB_MAX: usize = 1_000;
/// Longest schema of a template, in bytes.
pub const SCHEMA_BYTES_MAX: usize = 64 * 1024;
/// Places told of one job that does not fit its template's schema.
pub const SCHEMA_FLAWS_MAX: usize = 10;
/// Work that one job may cost to be held against its template's schema, in steps of a few nanoseconds: a value looked at, a
/// character at one place of a pattern.
pub const SCHEMA_STEPS_MAX: u64 = 10_000_000;
/// The same of all jobs of one request together, a few seconds at worst: the [most jobs](BATCH_JOBS_MAX) that there may be have
/// 100,000 steps each, ten times what a job with a few ids, dates and addresses takes. A pattern with a bound on its repetitions, as
/// `^[^<>]{1,255}$`, counts as if they were written out: a text of 80 bytes takes most of it.
pub const SCHEMA_REQUEST_STEPS_MAX: u64 = 1_000_000_000;
