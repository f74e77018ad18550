//! Requests for workflows: how large, and what waits for what.

use semel_core::error::{Invalid, InvalidKind};
use semel_core::limits::WORKFLOW_STEPS_MAX;
use semel_ojs::workflow;

fn refused(text: &str) -> Invalid {
    match workflow::parse(text, true) {
        Ok(_) => panic!("not refused: {text}"),
        Err(refused) => refused,
    }
}

fn jobs(count: usize) -> String {
    vec![r#"{"type":"a.b","args":[]}"#; count].join(",")
}

/// A request of the largest body has as many steps as a million bytes hold: they are not all kept to be counted.
#[test]
fn a_step_too_many_is_refused_before_those_after_it_are_read() {
    let most = WORKFLOW_STEPS_MAX;
    for (form, member) in [("chain", "steps"), ("group", "jobs")] {
        let plan =
            workflow::parse(&format!(r#"{{"type":"{form}","{member}":[{}]}}"#, jobs(most)), true).unwrap();
        assert_eq!(plan.steps.len(), most);
        // What comes after the one too many would be refused for another reason.
        let text = format!(r#"{{"type":"{form}","{member}":[{},7]}}"#, jobs(most + 1));
        let refused = refused(&text);
        assert_eq!((refused.kind, refused.pointer), (InvalidKind::TooLarge, format!("/{member}/{most}")));
        assert!(refused.message.contains("1000") && refused.message.contains("several workflows"));
    }
    let nested = format!(
        r#"{{"type":"chain","steps":[{{"type":"group","jobs":[{}]}},{{"type":"group","jobs":[{}]}}]}}"#,
        jobs(most / 2),
        jobs(most / 2 + 1)
    );
    assert_eq!(refused(&nested).pointer, format!("/steps/1/jobs/{}", most / 2));
    let steps: Vec<String> =
        (0..=most).map(|at| format!(r#"{{"id":"s{at}","type":"a.b","args":[],"depends_on":[]}}"#)).collect();
    let graph = refused(&format!(r#"{{"steps":[{}]}}"#, steps.join(",")));
    assert_eq!((graph.kind, graph.pointer), (InvalidKind::TooLarge, format!("/steps/{most}")));
}

/// It would be taken for nothing.
#[test]
fn depends_on_inside_of_a_nested_workflow_is_refused() {
    let inner = r#"{"type":"a.b","args":[],"depends_on":["x"]}"#;
    let plain = r#"{"type":"a.b","args":[]}"#;
    for (text, pointer) in [
        (
            format!(r#"{{"type":"chain","steps":[{{"type":"group","jobs":[{plain},{inner}]}}]}}"#),
            "/steps/0/jobs/1/depends_on",
        ),
        (
            format!(
                r#"{{"type":"group","jobs":[{{"type":"chain","steps":[{{"type":"group","jobs":[{plain}],"depends_on":["x"]}}]}}]}}"#
            ),
            "/jobs/0/steps/0/depends_on",
        ),
        (
            format!(r#"{{"type":"batch","jobs":[{plain}],"callbacks":{{"on_success":{inner}}}}}"#),
            "/callbacks/on_success/depends_on",
        ),
    ] {
        let refused = refused(&text);
        assert_eq!((refused.kind, refused.pointer.as_str()), (InvalidKind::Request, pointer), "{text}");
        assert!(refused.message.contains("in one list"), "{refused}");
    }
    // Of nothing there is nothing to wait for.
    let empty = r#"{"type":"a.b","args":[],"depends_on":[]}"#;
    let text = format!(r#"{{"type":"chain","steps":[{{"type":"group","jobs":[{empty}]}}]}}"#);
    assert_eq!(workflow::parse(&text, true).unwrap().steps.len(), 1);
}

/// As it always did: steps of one list name each other.
#[test]
fn depends_on_in_one_list_says_what_waits_for_what() {
    let plan = workflow::parse(
        r#"{"steps":[{"id":"a","type":"a.b","args":[]},{"id":"b","type":"a.b","args":[],"depends_on":["a"]}]}"#,
        true,
    )
    .unwrap();
    assert_eq!((plan.steps[0].after.len(), plan.steps[1].after.as_slice()), (0, &[0][..]));
}
