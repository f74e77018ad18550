//! Query parameters, and those that several endpoints have in common.

/// A query parameter, and the JSON Schema of its values.
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    pub(crate) schema: &'static str,
    pub(crate) says: &'static str,
}

const fn parameter(name: &'static str, schema: &'static str, says: &'static str) -> Parameter {
    Parameter { name, schema, says }
}

pub(super) const STATES: Parameter =
    parameter("state", r#"{"type":"string"}"#, "States, separated by commas.");
pub(super) const QUEUE: Parameter = parameter("queue", r#"{"type":"string"}"#, "This queue only.");
pub(super) const TYPE: Parameter = parameter("type", r#"{"type":"string"}"#, "This type only.");
pub(super) const JOBS: &[Parameter] = &[
    STATES,
    QUEUE,
    TYPE,
    parameter(
        "where",
        r#"{"type":"string","maxLength":1024}"#,
        "Those that have this value there, as in /args/0/user_id=7: a JSON pointer below args or meta, and a value. Some 1,700 jobs are looked at for a page.",
    ),
    parameter("limit", r#"{"type":"integer","minimum":1,"maximum":200,"default":50}"#, "Jobs on a page."),
    parameter("cursor", r#"{"type":"string"}"#, "`pagination.next_cursor` of the page before."),
];
pub(super) const DEAD_LETTERS: &[Parameter] = &[
    STATES,
    QUEUE,
    TYPE,
    parameter("limit", r#"{"type":"integer","minimum":1,"maximum":100,"default":50}"#, "Jobs on a page."),
    parameter(
        "offset",
        r#"{"type":"integer","minimum":0,"maximum":10000,"default":0}"#,
        "Jobs to pass over.",
    ),
];
const TEXT: &str = r#"{"type":"string"}"#;
pub(super) const AFTER: Parameter =
    parameter("after", TEXT, "What came after this cursor or event's id; `end`: what happens from now on.");
pub(super) const CURSOR: Parameter = parameter("cursor", TEXT, "The same.");
pub(super) const TYPES: Parameter = parameter("types", TEXT, "Kinds of events, separated by commas.");
pub(super) const QUEUES: Parameter = parameter("queues", TEXT, "Queues, separated by commas.");
pub(super) const JOB_TYPES: Parameter = parameter("job_types", TEXT, "Types of jobs, separated by commas.");
pub(super) const JOB_IDS: Parameter = parameter("jobs", TEXT, "Jobs, separated by commas.");
pub(super) const EVENTS: &[Parameter] = &[
    AFTER,
    CURSOR,
    TYPES,
    QUEUES,
    JOB_TYPES,
    JOB_IDS,
    parameter("limit", r#"{"type":"integer","minimum":1,"maximum":1000,"default":50}"#, "Events on a page."),
    parameter(
        "wait_ms",
        r#"{"type":"integer","minimum":0,"maximum":25000,"default":0}"#,
        "How long to wait for something to tell.",
    ),
];
pub(super) const KEY_EVENTS: &[Parameter] = &[
    parameter("cursor", TEXT, "Where an answer of this endpoint ended."),
    parameter(
        "since",
        r#"{"type":"string","format":"date-time"}"#,
        "From when on, without a cursor; without either, all that is kept.",
    ),
    parameter("limit", r#"{"type":"integer","minimum":1,"maximum":1000,"default":50}"#, "Events on a page."),
];
pub(super) const FILTERS: &[Parameter] = &[AFTER, CURSOR, TYPES, QUEUES, JOB_TYPES, JOB_IDS];
pub(super) const STREAM: &[Parameter] = &[
    AFTER,
    CURSOR,
    TYPES,
    QUEUES,
    JOB_TYPES,
    JOB_IDS,
    parameter("channel", TEXT, "`job:ID`, `queue:NAME` or `all`."),
];
pub(super) const WEBHOOKS: &[Parameter] = &[
    parameter(
        "limit",
        r#"{"type":"integer","minimum":1,"maximum":100,"default":50}"#,
        "Subscriptions on a page.",
    ),
    parameter("cursor", TEXT, "`pagination.next_cursor` of the page before."),
];
pub(super) const QUEUE_LIST: &[Parameter] = &[
    parameter(
        "limit",
        r#"{"type":"integer","minimum":1,"maximum":10000,"default":10000}"#,
        "Queues on a page.",
    ),
    parameter("cursor", TEXT, "`pagination.next_cursor` of the page before."),
];
pub(super) const UNIQUE_JOBS: &[Parameter] = &[
    parameter(
        "sort",
        r#"{"type":"string","enum":["newest","duplicates"],"default":"newest"}"#,
        "`duplicates`: one page of those that absorbed most since this server started, by its bounded counters.",
    ),
    STATES,
    QUEUE,
    TYPE,
    parameter("page", r#"{"type":"integer","minimum":1,"default":1}"#, "Which page."),
    parameter("per_page", r#"{"type":"integer","minimum":1,"maximum":200,"default":50}"#, "Keys on a page."),
    parameter("cursor", TEXT, "`pagination.next_cursor` of an answer that has one; pages count from there."),
];
pub(super) const PAGE: Parameter =
    parameter("page", r#"{"type":"integer","minimum":1,"maximum":10000,"default":1}"#, "Which page.");
pub(super) const PER_PAGE: Parameter =
    parameter("per_page", r#"{"type":"integer","minimum":1,"maximum":100,"default":25}"#, "Items on a page.");
pub(super) const LIMIT: Parameter = parameter(
    "limit",
    r#"{"type":"integer","minimum":1,"maximum":100,"default":25}"#,
    "The same as per_page.",
);
pub(super) const OFFSET: Parameter = parameter(
    "offset",
    r#"{"type":"integer","minimum":0,"maximum":1000000,"default":0}"#,
    "Items to pass over, instead of a page.",
);
pub(super) const REASON: &[Parameter] =
    &[parameter("reason", r#"{"type":"string"}"#, "Why, for the audit log.")];

pub(super) const AUDIT: &[Parameter] = &[parameter(
    "limit",
    r#"{"type":"integer","minimum":1,"maximum":1000,"default":100}"#,
    "At most so many.",
)];
pub(super) const HISTORY: &[Parameter] = &[
    parameter(
        "step",
        r#"{"type":"string","enum":["minute","hour"],"default":"minute"}"#,
        "How long a slot is.",
    ),
    TYPE,
    QUEUE,
];

pub(super) const CRONS: &[Parameter] = &[
    parameter("enabled", r#"{"type":"boolean"}"#, "Those that tick, or those that do not."),
    parameter("limit", r#"{"type":"integer","minimum":1,"maximum":1000,"default":200}"#, "Crons on a page."),
    parameter("cursor", r#"{"type":"string"}"#, "`pagination.next_cursor` of the page before."),
];
pub(super) const WORKFLOWS: &[Parameter] = &[
    parameter(
        "state",
        r#"{"type":"string","enum":["running","completed","failed","cancelled"]}"#,
        "In this state.",
    ),
    parameter(
        "limit",
        r#"{"type":"integer","minimum":1,"maximum":200,"default":50}"#,
        "Workflows on a page.",
    ),
    parameter("cursor", r#"{"type":"string"}"#, "`pagination.next_cursor` of the page before."),
];
pub(super) const TASKS: &[Parameter] = &[
    parameter("limit", r#"{"type":"integer","minimum":1,"maximum":200,"default":50}"#, "Tasks on a page."),
    parameter("cursor", r#"{"type":"string"}"#, "`pagination.next_cursor` of the page before."),
];
