//! What people are told of a step that goes on: which job stands for it, and in which word where that is.

use super::record::{Step, StepStatus, Workflow};
use crate::draft::Map;
use crate::ident::JobId;
use crate::state::State;

/// Whether another job may go on in the place of one in this state: whoever's place was taken is cancelled.
pub const fn may_have_successor(state: State) -> bool {
    matches!(state, State::Cancelled)
}

/// The job that took the place of another, as far as people may be told: where they may not, the other still stands for its steps.
pub fn shown_successor(replaced_by: Option<JobId>, is_hidden: bool) -> Option<JobId> {
    replaced_by.filter(|_| !is_hidden)
}

impl Workflow {
    /// The jobs of its steps that go on.
    pub fn running_jobs(&self) -> Vec<JobId> {
        self.steps.iter().filter(|step| step.status == StepStatus::Running).filter_map(Step::job).collect()
    }

    /// Has each step that goes on name the job that took the place of its own. What has ended keeps the job by which it did.
    pub fn name_successors(&mut self, successors: &Map<JobId, JobId>) {
        for step in self.steps.iter_mut().filter(|step| step.status == StepStatus::Running) {
            if let Some(next) = step.job().and_then(|job| successors.get(&job)) {
                step.job = Some(next.to_string());
            }
        }
    }
}

impl Step {
    /// Where it is, in the specification's words, while the job that stands for it is in that state; none for a step that does not
    /// go on, whose own status says it.
    pub fn state_word(&self, job: State) -> Option<&'static str> {
        if self.status != StepStatus::Running {
            return None;
        }
        Some(match job {
            State::Active => "active",
            // One that has ended was read a moment after its workflow, which its end settles.
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

    /// A workflow with a step in each status, each with a job of its own; and one that runs without a job.
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
