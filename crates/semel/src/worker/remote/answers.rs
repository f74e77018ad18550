//! Reads a server's answers, and tells them from those of something in between: proxies have pages that say
//! 200 too.

use std::collections::{HashMap, HashSet};

use http::StatusCode;
use semel_core::ident::JobId;
use semel_core::settings::Directive;
use semel_core::state::State;
use semel_ojs::refusal;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::worker::link::{Beaten, Held};

/// Sorts these jobs by the answer to their heartbeat; `None` if it is not from a job server, which then has
/// extended nothing.
pub(super) fn beaten(jobs: Vec<Held>, answer: &Value) -> Option<Beaten> {
    if !["state", "jobs_extended", "acknowledged"].iter().any(|member| answer.get(member).is_some()) {
        return None;
    }
    let lost: HashMap<JobId, &Value> = answer["jobs_lost"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|job| Some((id_of(&job["job_id"])?, &job["reason"])))
        .collect();
    let named = |member: &str| -> Option<HashSet<JobId>> {
        answer[member].as_array().map(|ids| ids.iter().filter_map(id_of).collect())
    };
    // A server that does not list the leases it extended has extended all that are not lost.
    // A server that does not list the jobs held by an open transaction may mean all that are left.
    let (extended, busy) = (named("jobs_extended"), named("jobs_held"));
    let directive = answer["state"].as_str().and_then(Directive::from_name);
    let mut beaten = Beaten { directive, ..Beaten::default() };
    for held in jobs {
        let such = match lost.get(&held.id) {
            Some(reason) if **reason == refusal::COMPLETED => &mut beaten.completed,
            Some(reason) if **reason == refusal::CANCELLED => &mut beaten.cancelled,
            Some(_) => &mut beaten.lost,
            None if extended.as_ref().is_none_or(|ids| ids.contains(&held.id)) => &mut beaten.extended,
            None if busy.as_ref().is_none_or(|ids| ids.contains(&held.id)) => &mut beaten.busy,
            None => &mut beaten.unheard,
        };
        such.push(held);
    }
    Some(beaten)
}

/// What an answer to the report of a run's end means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// The report counts.
    Counted,
    /// The run no longer belongs to this worker.
    Late,
    /// The report itself is unacceptable, no matter when it is sent or by whom.
    Unfit,
    /// The report was not processed: something on the way answered, or a server that is too busy. This may
    /// pass.
    Elsewhere,
}

pub(super) fn heard(status: StatusCode, body: &[u8]) -> Heard {
    match status.as_u16() {
        204 => Heard::Counted,
        // A proxy's maintenance page may say 200.
        200..=299 if is_acceptance(body) => Heard::Counted,
        // Only if a job server says so, not a proxy that found no server.
        404 | 409 if is_refusal(body) => Heard::Late,
        400 | 413 | 415 | 422 => Heard::Unfit,
        _ => Heard::Elsewhere,
    }
}

/// Whether an answer is an error in the format of Open Job Spec.
pub(super) fn is_refusal(body: &[u8]) -> bool {
    serde_json::from_slice::<Value>(body).is_ok_and(|answer| answer["error"]["code"].is_string())
}

/// Whether the answer to a failure says that the job is now discarded, whatever else it contains.
pub(super) fn is_discarded(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Now {
        state: String,
    }
    serde_json::from_slice::<Now>(body).is_ok_and(|now| now.state == State::Discarded.name())
}

/// Whether an answer accepts the end of a run, as Open Job Spec servers do. It may contain numbers that no
/// [`Value`] holds.
fn is_acceptance(body: &[u8]) -> bool {
    const ANY: [&str; 5] = ["acknowledged", "job", "id", "job_id", "state"];
    serde_json::from_slice::<HashMap<String, IgnoredAny>>(body)
        .is_ok_and(|answer| ANY.iter().any(|member| answer.contains_key(*member)))
}

fn id_of(value: &Value) -> Option<JobId> {
    JobId::parse(value.as_str()?, "").ok()
}

#[cfg(test)]
mod tests {
    use semel_core::time::Timestamp;
    use serde_json::json;

    use super::*;

    /// A job that nobody can have taken (busy) is distinguished from one about which the answer says nothing
    /// (unheard).
    #[test]
    fn an_answer_to_a_heartbeat_says_what_is_known_of_each_job() {
        let ids: Vec<JobId> = (1..=6).map(|number| JobId::mint(Timestamp::EPOCH, number, 1)).collect();
        let jobs = || ids.iter().map(|id| Held { id: *id, fence: 1, has_own_lease: false }).collect();
        let ids_of = |jobs: &[Held]| jobs.iter().map(|held| held.id).collect::<Vec<_>>();
        let mut answer = json!({
            "state": "quiet",
            "jobs_extended": [ids[0].to_string()],
            "jobs_held": [ids[1].to_string()],
            "jobs_lost": [
                { "job_id": ids[2].to_string(), "reason": "lease_lost" },
                { "job_id": ids[3].to_string(), "reason": "completed" },
                { "job_id": ids[4].to_string(), "reason": "cancelled" },
            ],
        });
        let heard = beaten(jobs(), &answer).unwrap();
        assert_eq!(heard.directive, Some(Directive::Quiet));
        let Beaten { extended, busy, lost, completed, cancelled, unheard, .. } = &heard;
        let told = [extended, busy, lost, completed, cancelled, unheard];
        assert_eq!(told.map(|jobs| ids_of(jobs)), [0, 1, 2, 3, 4, 5].map(|place| vec![ids[place]]));
        // If a server says less, the jobs it does not mention are busy, or extended.
        answer.as_object_mut().unwrap().remove("jobs_held");
        assert_eq!(ids_of(&beaten(jobs(), &answer).unwrap().busy), [ids[1], ids[5]]);
        answer.as_object_mut().unwrap().remove("jobs_extended");
        let heard = beaten(jobs(), &answer).unwrap();
        assert_eq!(ids_of(&heard.extended), [ids[0], ids[1], ids[5]]);
        assert!(heard.busy.is_empty() && heard.unheard.is_empty());
        // A proxy's page says 200, and so does a server that answers nothing.
        for answer in [json!({ "status": "maintenance" }), Value::Null] {
            assert!(beaten(jobs(), &answer).is_none(), "{answer}");
        }
    }

    /// Something on the way can neither refuse finished work for good nor accept it.
    #[test]
    fn an_answer_to_the_end_of_a_run_says_whether_it_was_heard() {
        const REFUSAL: &str = r#"{"error":{"code":"conflict","message":"no"}}"#;
        for (status, body, means) in [
            (200, r#"{"acknowledged":true}"#, Heard::Counted),
            (204, "", Heard::Counted),
            (200, "<html>back soon</html>", Heard::Elsewhere),
            (200, "", Heard::Elsewhere),
            (404, REFUSAL, Heard::Late),
            (409, REFUSAL, Heard::Late),
            (404, "<html>404 page not found</html>", Heard::Elsewhere),
            (409, r#"{"message":"no route"}"#, Heard::Elsewhere),
            (400, REFUSAL, Heard::Unfit),
            (413, "", Heard::Unfit),
            (415, REFUSAL, Heard::Unfit),
            (422, REFUSAL, Heard::Unfit),
            (401, REFUSAL, Heard::Elsewhere),
            (403, REFUSAL, Heard::Elsewhere),
            (503, REFUSAL, Heard::Elsewhere),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(heard(status, body.as_bytes()), means, "{status} {body}");
        }
    }

    #[test]
    fn an_answer_to_a_failure_says_whether_it_was_the_last() {
        for (body, is_last) in [
            (r#"{"state":"discarded","job":{"meta":{"n":1e400}}}"#, true),
            (r#"{"state":"retryable"}"#, false),
            (r#"{"acknowledged":true}"#, false),
            ("", false),
        ] {
            assert_eq!(is_discarded(body.as_bytes()), is_last, "{body}");
        }
    }
}
