//! Requests for workflows: how large they may be, and which step waits for which.

use std::time::Duration;

use semel_core::body::Body;
use semel_core::enqueue::{Start, When};
use semel_core::error::{Invalid, InvalidKind};
use semel_core::limits::{WORKFLOW_OPTIONS_BYTES_MAX, WORKFLOW_STEPS_MAX};
use semel_core::workflow::{Form, When as CallbackWhen};
use semel_ojs::{Terms, workflow};

fn refused(text: &str) -> Invalid {
    match workflow::parse(text, Terms::trusted()) {
        Ok(_) => panic!("not refused: {text}"),
        Err(refused) => refused,
    }
}

fn jobs(count: usize) -> String {
    vec![r#"{"type":"a.b","args":[]}"#; count].join(",")
}

/// The largest body holds as many steps as fit into a million bytes; they must not all be kept just to be
/// counted.
#[test]
fn a_step_too_many_is_refused_before_those_after_it_are_read() {
    let most = WORKFLOW_STEPS_MAX;
    for (form, member) in [("chain", "steps"), ("group", "jobs")] {
        let plan =
            workflow::parse(&format!(r#"{{"type":"{form}","{member}":[{}]}}"#, jobs(most)), Terms::trusted())
                .unwrap();
        assert_eq!(plan.steps.len(), most);
        // The item after the one too many would be refused for another reason.
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

/// Every answer about a workflow names all of them twice, and a list of workflows many times over.
#[test]
fn what_the_steps_wait_for_is_bounded() {
    let group = |name: &str, more: &str| {
        let step = |at: usize| format!(r#"{{"id":"{name}{at}{more}","type":"a.b","args":[]}}"#);
        let jobs: Vec<String> = (0..WORKFLOW_STEPS_MAX / 2).map(step).collect();
        format!(r#"{{"type":"group","jobs":[{}]}}"#, jobs.join(","))
    };
    let two =
        |more: &str| format!(r#"{{"type":"chain","steps":[{},{}]}}"#, group("a", more), group("b", more));
    for short in ["", "xxx"] {
        assert_eq!(workflow::parse(&two(short), Terms::trusted()).unwrap().steps.len(), WORKFLOW_STEPS_MAX);
    }
    // Counted with their length in the answer.
    for long in [&*"x".repeat(250), &*r"\u0001".repeat(3)] {
        let refused = refused(&two(long));
        assert_eq!((refused.kind, refused.pointer.as_str()), (InvalidKind::TooLarge, ""));
        assert!(refused.message.contains("a single step between two groups"), "{refused}");
    }
    let plain = r#"{"type":"a.b","args":[]}"#;
    let long = "x".repeat(250);
    let between = format!(r#"{{"type":"chain","steps":[{},{plain},{plain}]}}"#, group("a", &long));
    assert_eq!(workflow::parse(&between, Terms::trusted()).unwrap().steps.len(), WORKFLOW_STEPS_MAX / 2 + 2);
}

/// Otherwise it would be silently ignored.
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
    // An empty list waits for nothing.
    let empty = r#"{"type":"a.b","args":[],"depends_on":[]}"#;
    let text = format!(r#"{{"type":"chain","steps":[{{"type":"group","jobs":[{empty}]}}]}}"#);
    assert_eq!(workflow::parse(&text, Terms::trusted()).unwrap().steps.len(), 1);
}

/// Its shape is given either by its type or by its steps.
#[test]
fn the_type_of_a_workflow_is_what_it_is() {
    let step =
        |more: &str| format!(r#"{{"id":"s{more_id}","type":"a.b","args":[]{more}}}"#, more_id = more.len());
    let (plain, empty, waits) = (step(""), step(r#","depends_on":[]"#), step(r#","depends_on":["s0"]"#));
    for (text, pointer) in [
        (format!(r#"{{"type":"chain","steps":[{plain},{waits}]}}"#), "/steps/1/depends_on"),
        (format!(r#"{{"type":"group","jobs":[{plain},{waits}]}}"#), "/jobs/1/depends_on"),
        (format!(r#"{{"type":"bogus","steps":[{plain},{waits}]}}"#), "/type"),
        (
            format!(r#"{{"type":"chain","steps":[{plain}],"callbacks":{{"on_failure":{plain}}}}}"#),
            "/callbacks",
        ),
        (format!(r#"{{"steps":[{plain},{waits}],"callbacks":{{"on_failure":{plain}}}}}"#), "/callbacks"),
        (
            format!(
                r#"{{"type":"chain","steps":[{{"type":"group","jobs":[{plain}],"callbacks":{{"on_failure":{plain}}}}}]}}"#
            ),
            "/steps/0/callbacks",
        ),
        (format!(r#"{{"type":"chain","steps":[{plain}],"jobs":[{empty}]}}"#), "/jobs"),
    ] {
        let refused = refused(&text);
        assert_eq!((refused.kind, refused.pointer.as_str()), (InvalidKind::Request, pointer), "{text}");
    }
    let form = |text: &str| workflow::parse(text, Terms::trusted()).unwrap().form;
    assert_eq!(
        form(&format!(r#"{{"type":"chain","steps":[{empty},{plain}],"callbacks":{{}}}}"#)),
        Form::Chain
    );
    assert_eq!(form(&format!(r#"{{"type":"dag","steps":[{plain},{empty}]}}"#)), Form::Graph);
    let batch =
        format!(r#"{{"type":"batch","jobs":[{empty}],"steps":null,"callbacks":{{"on_failure":{plain}}}}}"#);
    assert_eq!(
        (form(&batch), workflow::parse(&batch, Terms::trusted()).unwrap().steps.len()),
        (Form::Batch, 2)
    );
}

/// Steps of one list name each other, also without a type.
#[test]
fn depends_on_in_one_list_says_what_waits_for_what() {
    let plan = workflow::parse(
        r#"{"steps":[{"id":"a","type":"a.b","args":[]},{"id":"b","type":"a.b","args":[],"depends_on":["a"]}]}"#,
        Terms::trusted(),
    )
    .unwrap();
    assert_eq!((plan.steps[0].after.len(), plan.steps[1].after.as_slice()), (0, &[0][..]));
}

/// The names are read only up to the first repetition: what follows it here would be refused for another
/// reason.
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
    // Several steps may wait for the same one.
    let plan = workflow::parse(&graph(r#""b","a""#), Terms::trusted()).unwrap();
    assert_eq!((&*plan.steps[2].after, &*plan.steps[2].results), (&[1, 0][..], &[1, 0][..]));
    let plan = workflow::parse(
        r#"{"steps":[{"id":"a","type":"a.b","args":[]},{"id":"b","type":"a.b","args":[],"depends_on":["a"]},
        {"id":"c","type":"a.b","args":[],"depends_on":["a","b"]}]}"#,
        Terms::trusted(),
    )
    .unwrap();
    assert_eq!((&*plan.steps[1].after, &*plan.steps[2].after), (&[0][..], &[0, 1][..]));
}

/// However the plan was made.
#[test]
fn a_plan_in_which_a_step_is_named_twice_is_refused() {
    let text = format!(r#"{{"type":"chain","steps":[{}]}}"#, jobs(2));
    let plan = workflow::parse(&text, Terms::trusted()).unwrap();
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

/// OJS: they are defaults for all steps, and what a step says itself takes precedence, in either spelling.
#[test]
fn the_options_of_a_workflow_are_its_steps_defaults() {
    let options = r#""options":{"queue":"q","priority":7,"timeout_ms":9000,"retry":{"max_attempts":4},"tags":["t"],
        "unique":{"key":"k"},"delay_until":"+PT5S","visibility_timeout":"PT8S","x_own":1}"#;
    let plain = r#"{"type":"a.b","args":[]}"#;
    let own = r#"{"type":"a.b","args":[],"priority":1,"options":{"queue":"own","timeout":3,"max_attempts":2,"tags":null,
        "unique_key":"mine","pending":true,"visibility_timeout_ms":6000}}"#;
    for text in [
        format!(r#"{{"type":"chain",{options},"steps":[{plain},{own}]}}"#),
        format!(r#"{{"type":"group",{options},"jobs":[{plain},{own}]}}"#),
        format!(r#"{{"type":"batch",{options},"jobs":[{plain}],"callbacks":{{"on_complete":{own}}}}}"#),
        format!(r#"{{{options},"steps":[{{"id":"a","type":"a.b","args":[],"depends_on":[]}},{own}]}}"#),
        format!(r#"{{"type":"chain","steps":[{{"type":"group",{options},"jobs":[{plain},{own}]}}]}}"#),
    ] {
        let plan = workflow::parse(&text, Terms::trusted()).unwrap();
        let (given, own) = (&plan.steps[0].offer, &plan.steps[1].offer);
        assert_eq!((given.queue.as_str(), given.priority, given.timeout_ms), ("q", 7, 9_000), "{text}");
        assert_eq!((given.visibility_ms, given.max_attempts), (8_000, 4), "{text}");
        assert_eq!(given.start, Start::Later(When::In(Duration::from_secs(5))), "{text}");
        let body = Body::decode(&given.body).unwrap();
        assert_eq!((body.tags, &*body.extra), (vec!["t".to_owned()], r#"{"options":{"x_own":1}}"#), "{text}");
        assert_eq!(body.unique.unwrap().key_text(), Some("k"), "{text}");

        assert_eq!((own.queue.as_str(), own.priority, own.timeout_ms), ("own", 1, 3_000), "{text}");
        assert_eq!(
            (own.visibility_ms, own.max_attempts, own.start),
            (6_000, 2, Start::OnActivation),
            "{text}"
        );
        let body = Body::decode(&own.body).unwrap();
        assert_eq!(
            (body.tags, body.unique.unwrap().key_text()),
            (vec!["t".to_owned()], Some("mine")),
            "{text}"
        );
    }
    // Of nested workflows the nearest counts.
    let nested = format!(
        r#"{{"type":"chain",{options},"steps":[{{"type":"group","options":{{"queue":"inner"}},"jobs":[{plain}]}},{plain}]}}"#
    );
    let plan = workflow::parse(&nested, Terms::trusted()).unwrap();
    let queues: Vec<_> =
        plan.steps.iter().map(|step| (step.offer.queue.as_str(), step.offer.priority)).collect();
    assert_eq!(queues, [("inner", 7), ("q", 7)]);
}

/// The pointer is that of the option, even where it was applied to a step.
#[test]
fn the_options_of_a_workflow_are_refused_with_their_place() {
    let many: Vec<String> = (0..65).map(|at| format!(r#""x{at}":1"#)).collect();
    for (options, step, pointer) in [
        ("7".to_owned(), "", "/options"),
        (r#"{"queue":"a","queue":"b"}"#.to_owned(), "", "/options/queue"),
        (format!("{{{}}}", many.join(",")), "", "/options"),
        (r#"{"queue":"A"}"#.to_owned(), "", "/options/queue"),
        (r#"{"retry":{"max_attempts":-1}}"#.to_owned(), "", "/options/retry/max_attempts"),
        (r#"{"queue":"q"}"#.to_owned(), r#","queue":"A""#, "/steps/0/queue"),
        (r#"{"queue":"q"}"#.to_owned(), r#","options":{"priority":"x"}"#, "/steps/0/options/priority"),
        (r#"{"queue":"q"}"#.to_owned(), r#","options":7"#, "/steps/0/options"),
    ] {
        let text =
            format!(r#"{{"type":"chain","options":{options},"steps":[{{"type":"a.b","args":[]{step}}}]}}"#);
        assert_eq!(refused(&text).pointer, pointer, "{text}");
    }
    let inner = r#"{"type":"group","options":{"queue":"A"},"jobs":[{"type":"a.b","args":[]}]}"#;
    let text = format!(r#"{{"type":"chain","options":{{"priority":1}},"steps":[{inner}]}}"#);
    assert_eq!(refused(&text).pointer, "/steps/0/options/queue");
}

/// Each step gets a copy: otherwise a short request could demand any amount of room.
#[test]
fn the_options_of_a_workflow_are_bounded_over_all_steps() {
    let most = WORKFLOW_OPTIONS_BYTES_MAX / WORKFLOW_STEPS_MAX;
    let request = |bytes: usize| {
        let long = "x".repeat(bytes - r#"{"x":""}"#.len());
        format!(r#"{{"type":"group","options":{{"x":"{long}"}},"jobs":[{}]}}"#, jobs(WORKFLOW_STEPS_MAX))
    };
    assert_eq!(workflow::parse(&request(most), Terms::trusted()).unwrap().steps.len(), WORKFLOW_STEPS_MAX);
    let refused = refused(&request(most + 1));
    assert_eq!((refused.kind, refused.pointer.as_str()), (InvalidKind::TooLarge, "/options"));
    assert!(refused.message.contains("send less"), "{refused}");
}

/// It would apply to no step, while readers of the request would expect it to apply to all.
#[test]
fn what_is_said_of_jobs_is_refused_beside_the_steps_of_a_workflow() {
    let job = r#"{"type":"a.b","args":[]}"#;
    let callbacks = format!(r#""callbacks":{{"on_complete":{job}}}"#);
    for (said, member) in [
        (r#""queue":"mail""#, "queue"),
        (r#""unique":{"key":"k"}"#, "unique"),
        (r#""priority":7"#, "priority"),
        (r#""retry":{"max_attempts":1}"#, "retry"),
        (r#""max_attempts":1"#, "max_attempts"),
        (r#""delay_until":"+PT1H""#, "delay_until"),
        (r#""unique_key":"k""#, "unique_key"),
        (r#""args":[1]"#, "args"),
        (r#""meta":{"m":1}"#, "meta"),
    ] {
        for kind in ["chain", "group", "batch"] {
            let callbacks = if kind == "batch" { format!("{callbacks},") } else { String::new() };
            let whole = format!(r#"{{"type":"{kind}",{callbacks}{said},"jobs":[{job}]}}"#);
            let of_whole = refused(&whole);
            assert_eq!(of_whole.pointer, format!("/{member}"), "{whole}");
            assert!(of_whole.message.contains("; send it in"), "{of_whole}");
            let outer = format!(r#"{{"type":"chain","steps":[{job},{whole}]}}"#);
            assert_eq!(refused(&outer).pointer, format!("/steps/1/{member}"), "{outer}");
        }
    }
    // Members of the workflow itself, and unknown ones, are not attributes of a job.
    let own = format!(
        r#"{{"type":"chain","name":"n","queue":null,"x_team":"billing","metadata":{{}},"steps":[{job}]}}"#
    );
    assert_eq!(workflow::parse(&own, Terms::trusted()).unwrap().steps.len(), 1);
}

/// A misspelt one would apply to no step either, and without the policy the same work runs twice.
#[test]
fn what_is_misspelt_beside_the_steps_of_a_workflow_is_refused() {
    let job = r#"{"type":"a.b","args":[]}"#;
    for (said, member, message) in [
        (r#""optoins":{"queue":"q"}"#, "optoins", "did you mean options?"),
        (r#""calbacks":{}"#, "calbacks", "did you mean callbacks?"),
        (r#""unqiue":{"key":"k"}"#, "unqiue", "is nearly unique, which"),
        (r#""uniqueKey":"k""#, "uniqueKey", "is nearly unique_key, which"),
        (r#""maxAttempts":1"#, "maxAttempts", "is nearly max_attempts, which"),
    ] {
        for (kind, steps) in [("chain", "steps"), ("group", "jobs")] {
            let whole = format!(r#"{{"type":"{kind}",{said},"{steps}":[{job}]}}"#);
            let outer = format!(r#"{{"type":"chain","steps":[{job},{whole}]}}"#);
            let graph =
                format!(r#"{{{said},"steps":[{{"id":"a","type":"a.b","args":[],"depends_on":[]}}]}}"#);
            for (text, base) in [(whole, ""), (outer, "/steps/1"), (graph, "")] {
                let refused = refused(&text);
                assert_eq!(refused.pointer, format!("{base}/{member}"), "{text}");
                assert!(refused.message.contains(message), "{refused}");
            }
        }
    }
}

#[test]
fn a_callback_that_nothing_calls_is_refused() {
    let job = r#"{"type":"a.b","args":[]}"#;
    let text =
        format!(r#"{{"type":"batch","jobs":[{job}],"callbacks":{{"on_complete":{job},"on_error":{job}}}}}"#);
    let refused = refused(&text);
    assert_eq!(refused.pointer, "/callbacks/on_error");
    assert!(refused.message.contains("on_failure"), "{refused}");
}

/// SDKs send callbacks like this; an alarm that came after a success would be wrong.
#[test]
fn steps_that_are_named_as_callbacks_are_callbacks() {
    let parse = |callback: &str| {
        let text = format!(
            r#"{{"steps":[{{"id":"a","type":"a.b","args":[]}},{{"id":"{callback}","type":"a.b","args":[],"depends_on":["a"]}}]}}"#
        );
        let plan = workflow::parse(&text, Terms::trusted()).unwrap();
        (plan.form, plan.steps[1].when, plan.steps[1].is_callback)
    };
    for (member, step, when) in [
        ("on_complete", "on-complete", CallbackWhen::Always),
        ("on_success", "on-success", CallbackWhen::Success),
        ("on_failure", "on-failure", CallbackWhen::Failure),
    ] {
        assert_eq!(parse(member), (Form::Batch, when, true), "{member}");
        assert_eq!(parse(step), (Form::Batch, when, true), "{step}");
    }
    assert_eq!(parse("on_error"), (Form::Chain, CallbackWhen::Success, false));
    // A name is only a label here: the step still takes its turn.
    for name in ["on_complete", "on_success", "on-failure"] {
        let text = format!(
            r#"{{"steps":[{{"name":"a","type":"a.b","args":[]}},{{"name":"{name}","type":"a.b","args":[],"depends_on":["a"]}}]}}"#
        );
        let plan = workflow::parse(&text, Terms::trusted()).unwrap();
        let step = &plan.steps[1];
        assert_eq!(
            (&*step.id, plan.form, step.when, step.is_callback),
            (name, Form::Chain, CallbackWhen::Success, false)
        );
    }
}

/// A name need not become the id, so a workflow that fits without names is accepted.
#[test]
fn names_that_make_the_waits_too_long_are_no_ids() {
    let group = |n: usize, name: &dyn Fn(usize) -> String| {
        let jobs = (0..n).map(|at| format!(r#"{{{}"type":"a.b","args":[]}}"#, name(at)));
        format!(r#"{{"type":"group","jobs":[{}]}}"#, jobs.collect::<Vec<_>>().join(","))
    };
    let of = |n: usize, said: &dyn Fn(usize) -> String| {
        let text =
            format!(r#"{{"type":"chain","steps":[{},{}]}}"#, group(n, said), group(n, &|_| String::new()));
        workflow::parse(&text, Terms::trusted()).map(|plan| plan.steps[0].id.clone())
    };
    let name = |at: usize| format!(r#""name":"a-name-of-{at:04}","#);
    assert_eq!(of(400, &name).unwrap(), "a-name-of-0000");
    assert_eq!(of(500, &name).unwrap(), "step-0");
    assert_eq!(of(500, &|at| format!(r#""id":"a-name-of-{at:04}","#)).unwrap_err().pointer, "");
}

/// Open Job Spec requires a name for each step, and has no ids.
#[test]
fn a_step_without_an_id_is_called_by_its_name_where_it_has_it_alone() {
    let ids = |text: &str| -> Vec<String> {
        workflow::parse(text, Terms::trusted()).unwrap().steps.into_iter().map(|step| step.id).collect()
    };
    let step = |said: &str| format!(r#"{{{said}"type":"a.b","args":[]}}"#);
    let of = |form: &str, steps: &[&str]| {
        let steps: Vec<String> = steps.iter().map(|said| step(said)).collect();
        format!(r#"{{{form}"steps":[{}]}}"#, steps.join(","))
    };
    let chain = r#""type":"chain","#;
    assert_eq!(
        ids(&of(chain, &[r#""name":"fetch","#, r#""name":"store","id":"s","#, ""])),
        ["fetch", "s", "step-2"]
    );
    // A name does not become the id if another step is called that, two steps share it, or it cannot be an
    // id.
    for (name, other) in [
        (r#""name":"x","#, r#""name":"x","#),
        (r#""name":"step-1","#, ""),
        (r#""name":"","#, ""),
        (r#""name":7,"#, ""),
        (&*format!(r#""name":"{}","#, "n".repeat(256)), ""),
    ] {
        assert_eq!(ids(&of(chain, &[name, other])), ["step-0", "step-1"], "{name} {other}");
    }
    assert_eq!(ids(&of(chain, &[r#""name":"x","#, r#""id":"x","#])), ["step-0", "x"]);
    let nested = format!(
        r#"{{"type":"chain","steps":[{},{{"type":"group","name":"both","jobs":[{},{}]}}]}}"#,
        step(r#""name":"a","#),
        step(r#""name":"a","#),
        step(r#""name":"b","#)
    );
    assert_eq!(ids(&nested), ["step-0", "step-1", "b"]);
    // Other steps can wait for it by its name, and still by its number.
    let graph = of(
        "",
        &[
            r#""name":"fetch","#,
            r#""depends_on":["fetch"],"#,
            r#""name":"c","depends_on":["step-0","step-1"],"#,
        ],
    );
    let plan = workflow::parse(&graph, Terms::trusted()).unwrap();
    let waits: Vec<&[u32]> = plan.steps.iter().map(|step| &*step.after).collect();
    assert_eq!(waits, [&[][..], &[0], &[0, 1]]);
    assert_eq!(plan.steps[2].id, "c");
    // A name that looks like another step's number is a name: waiting for it means the step that has it as
    // its id in the answer.
    let named = |names: [&str; 3], waits: [&str; 3]| {
        let steps = names
            .iter()
            .zip(waits)
            .map(|(name, waits)| step(&format!(r#""name":"{name}","depends_on":[{waits}],"#)));
        let text = format!(r#"{{"steps":[{}]}}"#, steps.collect::<Vec<_>>().join(","));
        let steps = workflow::parse(&text, Terms::trusted()).unwrap().steps;
        steps.into_iter().map(|step| (step.id, step.after)).collect::<Vec<_>>()
    };
    let said = |id: &str, after: &[u32]| (id.to_owned(), after.to_vec());
    assert_eq!(
        named(["step-1", "other", "last"], ["", "", r#""step-1""#]),
        [said("step-1", &[]), said("other", &[]), said("last", &[0])]
    );
    assert_eq!(
        named(["step-1", "step-2", "step-3"], ["", r#""step-1""#, r#""step-1","step-2""#]),
        [said("step-1", &[]), said("step-2", &[0]), said("step-3", &[0, 1])]
    );
    // A step that keeps its number as id takes precedence over another's name.
    assert_eq!(
        named(["x", "x", "step-1"], ["", "", r#""step-1""#]),
        [said("step-0", &[]), said("step-1", &[]), said("step-2", &[1])]
    );
}
