//! Every error of the server, in one table: code, status, whether retrying helps, and what to do next.

/// Error codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// The body is not JSON, or is JSON that a job cannot carry.
    InvalidPayload,
    /// The args do not match the schema of the job's template.
    SchemaMismatch,
    /// A value violates a rule.
    InvalidRequest,
    /// A retry policy violates a rule.
    InvalidRetryPolicy,
    /// The body has an unsupported media type.
    UnsupportedMediaType,
    /// The client asks for an unsupported version of the specification.
    UnsupportedVersion,
    /// The body, or one of its parts, is too large.
    TooLarge,
    /// The request has no valid token.
    Unauthorized,
    /// The token does not permit this.
    Forbidden,
    /// What the request names does not exist.
    NotFound,
    /// The path does not support the method.
    MethodNotAllowed,
    /// The job's state does not allow the operation.
    Conflict,
    /// What the request would create exists already.
    Duplicate,
    /// The key stands for different work.
    PayloadMismatch,
    /// More jobs hold the key than one commit may touch.
    TooManyHolders,
    /// As many jobs wait in the queue as its bound allows.
    QueueFull,
    /// The request took too long.
    Timeout,
    /// The request's body did not arrive in time.
    Slow,
    /// The caller has too many requests in progress.
    TooManyRequests,
    /// Contention in the store: too many requests for the same records.
    Contended,
    /// The store cannot be reached, or the server is shutting down.
    Unavailable,
    /// The server or its store does not support this.
    Unsupported,
    /// The log no longer has, or does not yet have, the position of the reader's cursor; or the job that a
    /// page's cursor names is gone.
    CursorGone,
    /// The server failed.
    Internal,
}

/// One entry of the catalogue.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Which error.
    pub code: Code,
    /// Its name on the wire.
    pub wire: &'static str,
    /// Its HTTP status.
    pub status: u16,
    /// Whether repeating the same request may succeed later without intervention.
    pub retryable: bool,
    /// Its category, for clients that sort errors.
    pub kind: &'static str,
    /// What to do next in general.
    pub hint: &'static str,
}

const fn entry(
    code: Code,
    wire: &'static str,
    status: u16,
    retryable: bool,
    kind: &'static str,
    hint: &'static str,
) -> Entry {
    Entry { code, wire, status, retryable, kind, hint }
}

/// The catalogue.
pub const CATALOGUE: [Entry; 24] = [
    entry(
        Code::InvalidPayload,
        "invalid_payload",
        400,
        false,
        "validation_error",
        "Send one JSON object in UTF-8.",
    ),
    entry(
        Code::SchemaMismatch,
        "invalid_payload",
        400,
        false,
        "validation_error",
        "Correct the values at details.pointers; semel templates show TYPE prints the schema that they are checked against.",
    ),
    entry(
        Code::InvalidRequest,
        "invalid_request",
        400,
        false,
        "validation_error",
        "Correct what details names (pointer, parameter or header) and send the request again.",
    ),
    entry(
        Code::InvalidRetryPolicy,
        "invalid_request",
        422,
        false,
        "validation_error",
        "Correct the retry policy at details.pointer and send the request again.",
    ),
    entry(
        Code::UnsupportedMediaType,
        "invalid_request",
        400,
        false,
        "validation_error",
        "Send Content-Type: application/openjobspec+json or application/json.",
    ),
    entry(
        Code::UnsupportedVersion,
        "unsupported",
        422,
        false,
        "unsupported",
        "Send OJS-Version: 1.0, or leave the header out.",
    ),
    entry(
        Code::TooLarge,
        "payload_too_large",
        413,
        false,
        "validation_error",
        "Send less at once: several batches, or a reference to data that is stored elsewhere.",
    ),
    entry(
        Code::Unauthorized,
        "unauthorized",
        401,
        false,
        "authentication_error",
        "Send Authorization: Bearer with one of the server's tokens.",
    ),
    entry(
        Code::Forbidden,
        "forbidden",
        403,
        false,
        "authorization_error",
        "Use a token with the role and queues that this needs (semel token list shows the tokens); if the server has no tokens, do as the message says.",
    ),
    entry(
        Code::NotFound,
        "not_found",
        404,
        false,
        "not_found",
        "Check the id, name or path. Jobs and workflows that have ended are deleted when their retention is over.",
    ),
    entry(
        Code::MethodNotAllowed,
        "method_not_allowed",
        405,
        false,
        "invalid_request",
        "Use one of the methods that the Allow header names.",
    ),
    entry(
        Code::Conflict,
        "conflict",
        409,
        false,
        "conflict",
        "Read the job's current state before trying anything else with it.",
    ),
    entry(
        Code::Duplicate,
        "duplicate",
        409,
        false,
        "duplicate",
        "The work is already known, so there is nothing to do. POST /ojs/v1/unique/explain says why.",
    ),
    entry(
        Code::PayloadMismatch,
        "payload_mismatch",
        422,
        false,
        "duplicate",
        "Use another key for other work, or send the same args as the first time.",
    ),
    entry(
        Code::TooManyHolders,
        "too_many_holders",
        409,
        false,
        "conflict",
        "Cancel some of the key's jobs or let them end, or use reject or ignore instead of replace or follow_up.",
    ),
    entry(
        Code::QueueFull,
        "QUEUE_FULL",
        429,
        true,
        "rate_limited",
        "Wait as long as Retry-After says, or have an operator raise the queue's max_depth or add workers.",
    ),
    entry(
        Code::Timeout,
        "timeout",
        504,
        true,
        "server_error",
        "It is not known whether the request was carried out; repeat it with the same job id to be sure.",
    ),
    entry(
        Code::Slow,
        "request_timeout",
        408,
        true,
        "client_error",
        "Nothing was done; send the whole request at once.",
    ),
    entry(
        Code::TooManyRequests,
        "rate_limited",
        429,
        true,
        "rate_limit_error",
        "Wait for answers before sending more, and try again after Retry-After.",
    ),
    entry(Code::Contended, "key_busy", 503, true, "server_error", "Try again after a short random delay."),
    entry(
        Code::Unavailable,
        "unavailable",
        503,
        true,
        "server_error",
        "Nothing was acknowledged; try again after a delay, with the same job id to be sure.",
    ),
    entry(
        Code::Unsupported,
        "unsupported",
        422,
        false,
        "unsupported",
        "GET /ojs/manifest says what this server supports.",
    ),
    entry(
        Code::CursorGone,
        "cursor_gone",
        410,
        false,
        "gone",
        "Continue from details.oldest, or start from the beginning without a cursor, and read the jobs to see what you missed.",
    ),
    entry(
        Code::Internal,
        "internal_error",
        500,
        false,
        "server_error",
        "Tell the operator the request_id; the server's log has the cause under it.",
    ),
];

impl Code {
    /// The error's entry in the catalogue.
    pub const fn entry(self) -> &'static Entry {
        // A test checks that the table is in the order of the codes.
        &CATALOGUE[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_codes() {
        for (at, entry) in CATALOGUE.iter().enumerate() {
            assert_eq!(entry.code as usize, at);
            assert_eq!(entry.code.entry().wire, entry.wire);
            assert!(!entry.hint.is_empty());
            let passes = matches!(entry.status, 408 | 429 | 503..);
            assert_eq!(entry.retryable, passes, "{}", entry.wire);
        }
    }
}
