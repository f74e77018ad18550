//! Wrapper stores must forward every method to the inner store. A provided method of the trait compiles when
//! it is left out, and then the default runs instead of the inner store's own method.

use super::Finding;
use super::code::{first_word, is_word};
use super::tree::{File, Tree};

/// The place of the trait.
const TRAIT: Source = Source { path: "crates/semel-store/src/backend.rs", head: "pub trait Backend:" };
/// Wrapper stores, and the methods that each must implement: all of the trait's, or those of the only store
/// that is ever inside.
const WRAPPERS: &[(Source, Source)] = &[
    (Source { path: "crates/semel-store/src/layer.rs", head: "Backend for L " }, TRAIT),
    (
        Source { path: "crates/semel-testkit/src/sim/store.rs", head: "Backend for Connection " },
        Source { path: "crates/semel-store/src/memory.rs", head: "Backend for Memory " },
    ),
];
/// Stores without an inner store. For them a default is right unless they override it.
const STORES: &[&str] = &[
    "crates/semel-store/src/memory.rs",
    "crates/semel-sqlite/src/store.rs",
    "crates/semel-postgres/src/store.rs",
    "crates/semel-redis/src/store.rs",
];

/// A file, and the text with which the trait or its implementation begins there.
#[derive(Clone, Copy)]
struct Source {
    path: &'static str,
    head: &'static str,
}

impl Source {
    /// The item's methods, and where it is.
    fn methods(self, tree: &Tree) -> Result<(String, Vec<String>), Finding> {
        let gone = || {
            let what = format!("has no `{}` to check: correct the list in wrappers.rs", self.head.trim());
            Finding::error(self.path, what)
        };
        let file = tree.files.iter().find(|file| file.path == self.path).ok_or_else(gone)?;
        let tokens = file.code().tokens;
        let start = tokens.find(self.head).ok_or_else(gone)?;
        let methods = methods(&tokens[start..]);
        if methods.is_empty() { Err(gone()) } else { Ok((file.at(start), methods)) }
    }
}

/// The functions of the item that `tokens` begin with, without nested ones.
fn methods(tokens: &str) -> Vec<String> {
    let mut depth = 0_usize;
    let mut found = Vec::new();
    for (at, character) in tokens.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth <= 1 => break,
            '}' => depth -= 1,
            'f' if depth == 1 && !tokens[..at].ends_with(is_word) => {
                let name = tokens[at..].strip_prefix("fn ").map(first_word);
                found.extend(name.map(str::to_owned));
            }
            _ => {}
        }
    }
    found
}

/// Looks at every wrapper store, and for stores that are on neither list.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings: Vec<Finding> =
        WRAPPERS.iter().flat_map(|(wrapper, inside)| left_out(tree, *wrapper, *inside)).collect();
    for file in tree.rust().filter(|file| !is_known(file)) {
        let code = file.code_with_tests();
        findings.extend(code.words("Backend for").map(|start| {
            let what = "is another store: list it in wrappers.rs, as a wrapper if it has a store inside; a `Layer` forwards calls by itself";
            Finding::error(file.at(start), what)
        }));
    }
    findings
}

fn is_known(file: &File) -> bool {
    STORES.contains(&&*file.path) || WRAPPERS.iter().any(|(wrapper, _)| wrapper.path == file.path)
}

fn left_out(tree: &Tree, wrapper: Source, inside: Source) -> Vec<Finding> {
    let ((place, named), (_, methods)) = match (wrapper.methods(tree), inside.methods(tree)) {
        (Ok(named), Ok(methods)) => (named, methods),
        (named, methods) => return named.err().into_iter().chain(methods.err()).collect(),
    };
    let left_out = methods.iter().filter(|method| !named.contains(method));
    left_out
        .map(|method| {
            let what = format!(
                "leaves out `{method}`, so the trait's default applies; forward it to the inner store"
            );
            Finding::error(&*place, what)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::tree::Tree;

    const TRAIT: &str = "pub trait Backend: Send {\n    // fn no(&self);\n    fn load(&self);\n    fn moved(&self) -> bool {\n        fn inner() {}\n        false\n    }\n}\nfn after() {}\n";
    const LAYER: &str =
        "impl<L: Layer> Backend for L {\n    fn load(&self) {}\n    fn moved(&self) -> bool { true }\n}\n";
    const MEMORY: &str = "impl Backend for Memory {\n    fn load(&self) {}\n}\n";
    const SIM: &str = "impl Backend for Connection {\n    fn load(&self) {}\n}\n";

    fn found(texts: [&str; 4], more: &[(&str, &str)]) -> Vec<String> {
        let [backend, layer, memory, sim] = texts;
        let files = [
            ("crates/semel-store/src/backend.rs", backend),
            ("crates/semel-store/src/layer.rs", layer),
            ("crates/semel-store/src/memory.rs", memory),
            ("crates/semel-testkit/src/sim/store.rs", sim),
        ];
        check(&Tree::of(&[&files[..], more].concat())).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_layer_names_every_method_of_the_trait() {
        assert_eq!(found([TRAIT, LAYER, MEMORY, SIM], &[]), [""; 0]);
        let without = LAYER.replace("fn moved", "// fn moved");
        assert_eq!(
            found([TRAIT, &without, MEMORY, SIM], &[]),
            [
                "crates/semel-store/src/layer.rs:1: leaves out `moved`, so the trait's default applies; forward it to the inner store"
            ]
        );
    }

    #[test]
    fn a_wrapper_of_one_store_names_what_that_one_does_of_its_own() {
        let memory = MEMORY.replace("fn load", "fn moved(&self) -> bool { true }\n    fn load");
        let told = found([TRAIT, LAYER, &memory, SIM], &[]);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].starts_with("crates/semel-testkit/src/sim/store.rs:1: leaves out `moved`"),
            "{told:?}"
        );
    }

    #[test]
    fn a_store_that_nobody_has_thought_about_is_found() {
        let own = "struct A;\nimpl semel_store::Backend for A {}\nimpl MyBackend for A {}\n";
        let told = found([TRAIT, LAYER, MEMORY, SIM], &[("crates/semel/tests/it/a.rs", own)]);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("crates/semel/tests/it/a.rs:2: "), "{told:?}");
        let known = ("crates/semel-redis/src/store.rs", "impl Backend for Redis {}");
        assert_eq!(found([TRAIT, LAYER, MEMORY, SIM], &[known]), [""; 0]);
    }

    #[test]
    fn without_anything_to_look_at_the_check_fails() {
        assert_eq!(found([TRAIT, "", MEMORY, SIM], &[]).len(), 1);
        assert_eq!(found(["", LAYER, MEMORY, SIM], &[]).len(), 1);
        assert_eq!(found([TRAIT, LAYER, "", ""], &[]).len(), 2);
    }
}
