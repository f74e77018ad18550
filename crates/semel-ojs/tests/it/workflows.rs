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

/// Each name is looked at once, and those behind the first that comes again are not: what follows it here would be refused
/// for another reason.
#[test]
fn a_step_that_is_named_twice_is_refused_where_it_comes_again() {
    let graph = |depends_on: &str| {
        format!(
            r#"{{"steps":[{{"id":"a","type":"a.b","args":[]}},{{"id":"b","type":"a.b","args":[]}},
            {{"id":"c","type":"a.b","args":[],"depends_on":[{depends_on}]}}]}}"#
        )
    };
    let many = vec![r#""a""#; 100_000].join(",");
    for (depends_on, place) in [
        (r#""a","a""#, 1),
        (r#""a","b","\u0061""#, 2),
        (r#""a","a",7"#, 1),
        (r#""b","b","nobody""#, 1),
        (&*many, 1),
    ] {
        let refused = refused(&graph(depends_on));
        assert_eq!(
            (refused.kind, refused.pointer),
            (InvalidKind::Request, format!("/steps/2/depends_on/{place}"))
        );
        assert!(refused.message.contains("is named twice; name each step once"), "{}", refused.message);
    }
    assert_eq!(refused(&graph(r#""a",7"#)).pointer, "/steps/2/depends_on/1");
    assert_eq!(refused(&graph(r#""a","nobody""#)).pointer, "/steps/2/depends_on/1");
    // Several steps may name one.
    let plan = workflow::parse(&graph(r#""b","a""#), true).unwrap();
    assert_eq!((&*plan.steps[2].after, &*plan.steps[2].results), (&[1, 0][..], &[1, 0][..]));
    let plan = workflow::parse(
        r#"{"steps":[{"id":"a","type":"a.b","args":[]},{"id":"b","type":"a.b","args":[],"depends_on":["a"]},
        {"id":"c","type":"a.b","args":[],"depends_on":["a","b"]}]}"#,
        true,
    )
    .unwrap();
    assert_eq!((&*plan.steps[1].after, &*plan.steps[2].after), (&[0][..], &[0, 1][..]));
}

/// Whoever made it, and however.
#[test]
fn a_plan_in_which_a_step_is_named_twice_is_refused() {
    let text = format!(r#"{{"type":"chain","steps":[{}]}}"#, jobs(2));
    let plan = workflow::parse(&text, true).unwrap();
    plan.check().unwrap();
    let mut waits = plan.clone();
    waits.steps[1].after.push(0);
    let mut is_given = plan;
    is_given.steps[1].results.push(0);
    for plan in [waits, is_given] {
        let refused = plan.check().unwrap_err();
        assert_eq!((refused.kind, refused.pointer.as_str()), (InvalidKind::Request, "/steps/1"));
        assert!(refused.message.contains("twice"), "{refused}");
    }
}
