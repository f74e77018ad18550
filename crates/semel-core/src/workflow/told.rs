//! What people are told about a running step: which job stands for it, and its state in one word.

use super::record::{Step, StepStatus, Workflow};
use crate::draft::Map;
use crate::ident::JobId;
use crate::state::State;

/// Whether another job may go on in the place of one in this state: a job that was replaced is cancelled.
pub const fn may_have_successor(state: State) -> bool {
    matches!(state, State::Cancelled)
}

/// The job that replaced another, if people may be told; otherwise the replaced job keeps standing for its
/// steps.
pub fn shown_successor(replaced_by: Option<JobId>, is_hidden: bool) -> Option<JobId> {
    replaced_by.filter(|_| !is_hidden)
}

impl Workflow {
    /// The jobs of its running steps.
    pub fn running_jobs(&self) -> Vec<JobId> {
        self.steps.iter().filter(|step| step.status == StepStatus::Running).filter_map(Step::job).collect()
    }

    /// Makes each running step name the job that replaced its own. A step that has ended keeps the job it
    /// ended with.
    pub fn name_successors(&mut self, successors: &Map<JobId, JobId>) {
        for step in self.steps.iter_mut().filter(|step| step.status == StepStatus::Running) {
            if let Some(next) = step.job().and_then(|job| successors.get(&job)) {
                step.job = Some(next.to_string());
            }
        }
    }
}

impl Step {
    /// The state of a running step, in the specification's words, given the state of its job; `None` for a
    /// step that is not running: its own status says it.
    pub fn state_word(&self, job: State) -> Option<&'static str> {
        if self.status != StepStatus::Running {
            return None;
        }
        Some(match job {
            State::Active => "active",
            // A job that has ended was read just after its workflow, which its end settles.
            State::Scheduled
            | State::Available
            | State::Pending
            | State::Retryable
            | State::Completed
            | State::Cancelled
            | State::Discarded => "pending",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    const STATUSES: [(&str, StepStatus); 6] = [
        ("w", StepStatus::Waiting),
        ("r", StepStatus::Running),
        ("c", StepStatus::Completed),
        ("f", StepStatus::Failed),
        ("x", StepStatus::Cancelled),
        ("s", StepStatus::Skipped),
    ];

    fn id(number: u64) -> JobId {
        JobId::mint(Timestamp::from_millis(1_767_225_600_000), number, 7)
    }

    /// A workflow with one step in each status, each with its own job, plus one that runs without a job.
    fn workflow() -> Workflow {
        let step = |(number, (code, _)): (u64, (&str, StepStatus))| {
            format!(r#"{{"id":"{code}","type":"a.b","s":"{code}","job":"{}"}}"#, id(number))
        };
        let mut steps: Vec<String> = (0..).zip(STATUSES).map(step).collect();
        steps.push(r#"{"id":"bare","type":"a.b","s":"r"}"#.to_owned());
        let steps = steps.join(",");
        let text = format!(r#"{{"form":"group","status":"running","created_at":0,"steps":[{steps}]}}"#);
        Workflow::decode(text.as_bytes()).unwrap()
    }

    #[test]
    fn only_a_step_that_goes_on_is_told_by_its_jobs_state() {
        for step in workflow().steps {
            for state in State::ALL {
                let word = if state == State::Active { "active" } else { "pending" };
                let expected = (step.status == StepStatus::Running).then_some(word);
                assert_eq!(step.state_word(state), expected, "{:?} {state}", step.status);
            }
        }
    }

    #[test]
    fn a_step_that_goes_on_names_who_took_its_jobs_place() {
        let before = workflow();
        let statuses: Vec<StepStatus> = before.steps.iter().map(|step| step.status).take(6).collect();
        assert_eq!(statuses, STATUSES.map(|(_, status)| status));
        assert_eq!(before.running_jobs(), [id(1)]);
        let successors: Map<JobId, JobId> = (0..6).map(|number| (id(number), id(number + 10))).collect();
        let mut after = before.clone();
        after.name_successors(&successors);
        for (at, (before, after)) in (0..).zip(before.steps.iter().zip(&after.steps)) {
            let expected = if at == 1 { Some(id(11)) } else { before.job() };
            assert_eq!(after.job(), expected, "{at}");
        }
        let mut same = before.clone();
        same.name_successors(&Map::default());
        assert_eq!(same, before);
    }

    #[test]
    fn whoever_took_a_cancelled_jobs_place_stands_for_it_where_it_may_be_shown() {
        for state in State::ALL {
            assert_eq!(may_have_successor(state), state == State::Cancelled, "{state}");
        }
        let rows = [
            (None, false, None),
            (None, true, None),
            (Some(id(1)), false, Some(id(1))),
            (Some(id(1)), true, None),
        ];
        for (replaced_by, is_hidden, expected) in rows {
            assert_eq!(shown_successor(replaced_by, is_hidden), expected, "{replaced_by:?} {is_hidden}");
        }
    }
}
