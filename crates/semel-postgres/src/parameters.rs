//! Tests that each function gets the parameters it takes: the names and types of what is sent, in order, are
//! compared with the function's text. The database compares only types, so two swapped lists of one type
//! would be stored as each other.

use semel_core::draft::Reads;
use semel_core::ident::{JobId, QueueName};
use semel_core::lease::Grant;
use semel_store::backend::Claim;

use crate::batch::Columns;
use crate::brief::Brief;
use crate::claim::Together;
use crate::front::Fronts;
use crate::load::push_reads;
use crate::migrate::functions;
use crate::values::{Id, Params};

/// The parameters a function takes, from its text: names, and types as PostgreSQL's catalogue names them.
fn taken_by(function: &str) -> Vec<(String, String)> {
    let begin = format!("FUNCTION @.{function}(");
    let text = functions().find_map(|text| text.split_once(&begin)).unwrap().1;
    let bare: Vec<&str> = text.lines().map(|line| line.split("--").next().unwrap()).collect();
    let bare = bare.join(" ");
    let (parameters, _) = bare.split_once(')').unwrap();
    let parameters = parameters.split(',').map(str::trim).filter(|parameter| !parameter.starts_with("OUT "));
    parameters
        .map(|parameter| {
            let (name, kind) = parameter.split_once(' ').unwrap();
            let (kind, list) = kind.strip_suffix("[]").map_or((kind, ""), |kind| (kind, "_"));
            let kind = if kind == "boolean" { "bool" } else { kind };
            (name.to_owned(), format!("{list}{kind}"))
        })
        .collect()
}

/// The parameters that every function gets.
fn begun<'a>() -> Params<'a> {
    let mut params = Params::sparse();
    params.time(None, 0, 0);
    params
}

/// All parameters sent to a function.
fn given(params: &Params<'_>) -> Vec<(String, String)> {
    params.named_types().into_iter().map(|(name, kind)| (name.to_owned(), kind)).collect()
}

fn mark() -> Id {
    Id(JobId::from_bytes([1; 16]))
}

#[test]
fn a_commit_says_what_its_function_takes() {
    let taken = taken_by("commit");
    assert_eq!(taken.len(), 74, "the text is not understood: {taken:?}");
    let mut params = begun();
    Columns::of(&[]).push(mark(), false, &mut params);
    assert_eq!(given(&params), taken);
}

#[test]
fn so_does_one_in_short() {
    let mut params = begun();
    Brief::default().push(mark(), &mut params);
    assert_eq!(given(&params), taken_by("brief"));
}

#[test]
fn so_does_a_claim_whichever_function_serves_it() {
    let grant = Grant::new("w".into(), None);
    let claims = [Claim { queues: vec![QueueName::default()], limit: 1, grant, closed: Vec::new() }];
    let mut params = begun();
    Together::of(&claims)[0].push(&Fronts::default(), &mut params);
    assert_eq!(given(&params), taken_by("take"));
    assert_eq!(given(&params), taken_by("lease"));
}

#[test]
fn so_does_a_load() {
    let reads = Reads::default();
    let mut params = begun();
    push_reads(&reads, &mut params);
    assert_eq!(given(&params), taken_by("look"));
}
