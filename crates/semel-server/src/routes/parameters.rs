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
        "Only jobs with this value at this place, as in /args/0/user_id=7: a JSON pointer into args or meta, and the value. About 1,700 jobs are examined for each page.",
    ),
    parameter("limit", r#"{"type":"integer","minimum":1,"maximum":200,"default":50}"#, "Jobs per page."),
    parameter("cursor", r#"{"type":"string"}"#, "`pagination.next_cursor` of the previous page."),
];
pub(super) const DEAD_LETTERS: &[Parameter] = &[
    STATES,
    QUEUE,
    TYPE,
    parameter("limit", r#"{"type":"integer","minimum":1,"maximum":100,"default":50}"#, "Jobs per page."),
    parameter("offset", r#"{"type":"integer","minimum":0,"maximum":10000,"default":0}"#, "Jobs to skip."),
];
const TEXT: &str = r#"{"type":"string"}"#;
pub(super) const AFTER: Parameter =
    parameter("after", TEXT, "Only events after this cursor or event id; `end` for those from now on.");
pub(super) const CURSOR: Parameter = parameter("cursor", TEXT, "The same as `after`.");
pub(super) const TYPES: Parameter = parameter("types", TEXT, "Event types, separated by commas.");
pub(super) const QUEUES: Parameter = parameter("queues", TEXT, "Queues, separated by commas.");
pub(super) const JOB_TYPES: Parameter = parameter("job_types", TEXT, "Job types, separated by commas.");
pub(super) const JOB_IDS: Parameter = parameter("jobs", TEXT, "Job ids, separated by commas.");
pub(super) const EVENTS: &[Parameter] = &[
    AFTER,
    CURSOR,
    TYPES,
    QUEUES,
    JOB_TYPES,
    JOB_IDS,
    parameter("limit", r#"{"type":"integer","minimum":1,"maximum":1000,"default":50}"#, "Events per page."),
    parameter(
        "wait_ms",
        r#"{"type":"integer","minimum":0,"maximum":25000,"default":0}"#,
        "How long to wait for an event.",
    ),
];
pub(super) const KEY_EVENTS: &[Parameter] = &[
    parameter("cursor", TEXT, "`cursor` of an earlier answer of this endpoint."),
    parameter(
        "since",
        r#"{"type":"string","format":"date-time"}"#,
        "The time to start from if there is no cursor; without either, all that is kept.",
    ),
    parameter("limit", r#"{"type":"integer","minimum":1,"maximum":1000,"default":50}"#, "Events per page."),
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
        "Subscriptions per page.",
    ),
    parameter("cursor", TEXT, "`pagination.next_cursor` of the previous page."),
];
pub(super) const QUEUE_LIST: &[Parameter] = &[
    parameter(
        "limit",
        r#"{"type":"integer","minimum":1,"maximum":10000,"default":10000}"#,
        "Queues per page.",
    ),
    parameter("cursor", TEXT, "`pagination.next_cursor` of the previous page."),
];
pub(super) const UNIQUE_JOBS: &[Parameter] = &[
    parameter(
        "sort",
        r#"{"type":"string","enum":["newest","duplicates"],"default":"newest"}"#,
        "`duplicates`: one page of the keys with the most duplicates since this server started, by its bounded counters.",
    ),
    STATES,
    QUEUE,
    TYPE,
    parameter("page", r#"{"type":"integer","minimum":1,"default":1}"#, "The page's number."),
    parameter("per_page", r#"{"type":"integer","minimum":1,"maximum":200,"default":50}"#, "Keys per page."),
    parameter(
        "cursor",
        TEXT,
        "`pagination.next_cursor` of an answer that has one; page numbers count from there.",
    ),
];
pub(super) const PAGE: Parameter =
    parameter("page", r#"{"type":"integer","minimum":1,"maximum":10000,"default":1}"#, "The page's number.");
pub(super) const PER_PAGE: Parameter =
    parameter("per_page", r#"{"type":"integer","minimum":1,"maximum":100,"default":25}"#, "Items per page.");
pub(super) const LIMIT: Parameter = parameter(
    "limit",
    r#"{"type":"integer","minimum":1,"maximum":100,"default":25}"#,
    "The same as per_page.",
);
pub(super) const OFFSET: Parameter = parameter(
    "offset",
    r#"{"type":"integer","minimum":0,"maximum":1000000,"default":0}"#,
    "Items to skip, instead of `page`.",
);
pub(super) const REASON: &[Parameter] =
    &[parameter("reason", r#"{"type":"string"}"#, "The reason, for the audit log.")];

pub(super) const AUDIT: &[Parameter] = &[parameter(
    "limit",
    r#"{"type":"integer","minimum":1,"maximum":1000,"default":100}"#,
    "The most entries to return.",
)];
pub(super) const HISTORY: &[Parameter] = &[
    parameter(
        "step",
        r#"{"type":"string","enum":["minute","hour"],"default":"minute"}"#,
        "The length of a slot.",
    ),
    TYPE,
    QUEUE,
];

pub(super) const CRONS: &[Parameter] = &[
    parameter(
        "enabled",
        r#"{"type":"boolean"}"#,
        "`true`: only crons that are enabled; `false`: only those that are not.",
    ),
    parameter("limit", r#"{"type":"integer","minimum":1,"maximum":1000,"default":200}"#, "Crons per page."),
    parameter("cursor", r#"{"type":"string"}"#, "`pagination.next_cursor` of the previous page."),
];
pub(super) const WORKFLOWS: &[Parameter] = &[
    parameter(
        "state",
        r#"{"type":"string","enum":["running","completed","failed","cancelled"]}"#,
        "Only workflows in this state.",
    ),
    parameter("limit", r#"{"type":"integer","minimum":1,"maximum":200,"default":50}"#, "Workflows per page."),
    parameter("cursor", r#"{"type":"string"}"#, "`pagination.next_cursor` of the previous page."),
];
pub(super) const TASKS: &[Parameter] = &[
    parameter("limit", r#"{"type":"integer","minimum":1,"maximum":200,"default":50}"#, "Tasks per page."),
    parameter("cursor", r#"{"type":"string"}"#, "`pagination.next_cursor` of the previous page."),
];
