//! The text of the schema. The files of `sql/` contain placeholders, so that lists are written once: `@.` is
//! the schema; `@head_…` are lists of a head's columns; `@….short` are those of a head whose numbers are one
//! list; `@slot_…`, `@why_…` and `@what_…` are numbers that the functions know; `@h.granted_to(…)` is what a
//! grant to that worker writes to a head `h`; `@h.is_special` is whether that head may have to be refused.

use semel_core::lease::Unclaimable;
use semel_core::limits::{BATCH_JOBS_MAX, HOLDERS_PER_KEY_MAX};
use semel_core::slot::Slot;
use semel_store::bounds::CROWD_MIN;

use crate::people::{CREATED, KEPT, PURGED};
use crate::rows::{COLUMNS, WORDS};

/// The settings that every function is planned under. Plans are cached for as long as a connection lives, and
/// the first may be made while tables are empty: it must not scan whole tables. Names are looked up in
/// PostgreSQL's own catalogue first: otherwise an `unnest(uuid[])` in some schema of the caller's path would
/// be preferred to the built-in one, which takes any array. (`unnest` of several arrays is syntax, not a
/// name.)
const PLANNING: &str = "LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off \
     SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan SET jit = off";

/// The store's time: the database's clock, or the caller's in a test, plus what the caller knows the clock to
/// have jumped back. Never before what the caller has seen, nor before the last commit, and after the
/// versions of all jobs that are gone: a new job with such an id must not have its version. It is an
/// expression, because each transaction would plan a function anew.
const NOW: &str = "greatest(coalesce(p_clock, (extract(epoch FROM clock_timestamp()) * 1000000)::int8) + p_ahead, p_floor, \
     (SELECT at FROM @.event ORDER BY tx DESC, first DESC LIMIT 1), (SELECT gone + 1 FROM @.fact))";
/// The number of events this transaction has recorded so far, at least one for each record, so that no two
/// have one place. Read from the last record: a caller's transaction may have thousands, and each call asks.
const EVENTS_BEFORE: &str = "coalesce((SELECT before.first + greatest(cardinality(before.kinds), 1) FROM @.event AS before \
     WHERE before.tx = pg_current_xact_id() ORDER BY before.first DESC LIMIT 1), 0)";

/// How far this transaction has gone through an index so far, in entries, as the database counts for its
/// statistics; 0 where it does not (`track_counts`). Entries that a later scan skips, because an earlier one
/// found that nobody can see their rows, are counted by the pages that they fill.
const WALKED: &str = "coalesce(pg_catalog.pg_stat_get_xact_tuples_returned('@index'::regclass) \
     + 5 * pg_catalog.pg_stat_get_xact_blocks_fetched('@index'::regclass), 0)";
/// How many entries a claim or a duty may go over beyond those it wants before it begins later: about as many
/// as take a millisecond (`front.rs`, `due.rs`).
pub const WALK_MAX: i64 = 5_000;

/// A number above all priorities of the type `int2`.
pub const ABOVE_ALL: &str = "32768";

/// Ready jobs whose keys are locked by others that one claim skips, at most: as many as one batch may have.
const CLAIM_PASSES_MAX: usize = BATCH_JOBS_MAX;

/// Numbers that the functions use: where heads are filed, why a ready job is not granted, what is counted
/// besides states. The steps of the schema contain the numbers themselves, because they are never rewritten.
const NUMBERS: &[(&str, i64)] = &[
    ("@slot_ready", Slot::Ready as i64),
    ("@slot_done", Slot::Done as i64),
    ("@slot_kept", KEPT as i64),
    ("@why_expired", Unclaimable::Expired as i64),
    ("@why_exhausted", Unclaimable::Exhausted as i64),
    ("@why_overlaps", Unclaimable::Overlaps as i64),
    ("@why_limited", Unclaimable::Limited as i64),
    ("@what_created", CREATED as i64),
    ("@what_purged", PURGED as i64),
];
/// Names of relations that hold written keys, with `n` the number of ended holders: `@….is_crowded` says
/// whether these are to be thinned out.
const CROWDS: &[&str] = &["written", "w"];

/// What a grant writes to a head `h`. It is inserted where a line has [`GRANTED_TO`], a worker, and `)`.
const GRANTED: &str = include_str!("sql/granted.sql");
const GRANTED_TO: &str = "@h.granted_to(";
/// Whether a head `h` without a limit has anything for which it may have to be refused. If not, `take` and
/// `lease` grant it without further checks, so each reason that `lease` knows needs its column here.
const IS_SPECIAL: &str = "h.expires_at IS NOT NULL OR h.exhausted OR h.role <> 0";

/// A schema's name, validated because it becomes part of statements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema(String);

impl Schema {
    /// The longest name, in bytes: PostgreSQL's limit.
    const BYTES_MAX: usize = 63;

    /// Validates a name: lower-case letters, digits and underscores, beginning with a letter, at most 63
    /// bytes.
    pub fn parse(name: &str) -> Option<Self> {
        let begins_well = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
        let is_plain = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        let is_ours = !name.starts_with("pg_") && name != "public";
        (begins_well && is_plain && is_ours && name.len() <= Self::BYTES_MAX).then(|| Self(name.to_owned()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The class of this schema's advisory locks, derived from its name.
    pub fn class(&self) -> i32 {
        // FNV-1a, frozen: servers of different versions must agree.
        let hash = self
            .0
            .bytes()
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        i32::from_ne_bytes(hash.to_ne_bytes())
    }

    /// Renders a text of `sql/` for this schema.
    pub fn render(&self, text: &str) -> String {
        let list = |item: &dyn Fn(&str, &str) -> String| {
            let items: Vec<String> = COLUMNS.iter().map(|(name, kind)| item(name, kind)).collect();
            items.join(", ")
        };
        let nulls = |columns: &[(&str, &str)]| {
            let items: Vec<String> = columns.iter().map(|(_, kind)| format!("NULL::{kind}")).collect();
            items.join(", ")
        };
        let assigned: Vec<String> = COLUMNS
            .iter()
            .filter(|(name, _)| !matches!(*name, "id" | "type" | "queue"))
            .map(|(name, kind)| format!("{name} = {}", written(name, kind)))
            .collect();
        let short = |alias: &str| {
            let rest: Vec<String> = WORDS.iter().map(|name| format!("{alias}.{name}")).collect();
            let number = |(name, kind): &(&str, &str)| match *kind {
                "boolean" => format!("{alias}.{name}::int4::int8"),
                "int8" => format!("{alias}.{name}"),
                _ => format!("{alias}.{name}::int8"),
            };
            let numbers: Vec<String> =
                COLUMNS.iter().filter(|(_, kind)| is_number(kind)).map(number).collect();
            format!("{}, ARRAY[{}]", rest.join(", "), numbers.join(", "))
        };
        let kind = |word: &str| COLUMNS.iter().find(|(name, _)| *name == word).map_or("", |(_, kind)| *kind);
        let words: Vec<(&str, &str)> = WORDS.iter().map(|word| (*word, kind(word))).collect();
        let declared: Vec<String> = words.iter().map(|(name, kind)| format!("{name} {kind}")).collect();
        let text = NUMBERS
            .iter()
            .fold(granting(text), |text, (mark, number)| text.replace(mark, &number.to_string()));
        let text = CROWDS.iter().fold(text, |text, from| {
            // True whenever the number has doubled.
            let is_crowded = format!("{from}.n >= {CROWD_MIN} AND {from}.n & ({from}.n - 1) = 0");
            text.replace(&format!("@{from}.is_crowded"), &is_crowded)
        });
        let text = text
            .replace("@short_declared", &format!("{}, numbers int8[]", declared.join(", ")))
            .replace("@short_nulls_rest", &format!("{}, NULL::int8[]", nulls(&words[1..])))
            .replace("@short_nulls", &format!("{}, NULL::int8[]", nulls(&words)))
            .replace("@was.head", &list(&|name, _| format!("was.{name}")))
            .replace("@w_short", &short("w"))
            .replace("@l.short", &short("l"))
            .replace("@h.short", &short("h"))
            .replace("@h.is_special", IS_SPECIAL);
        let mut text =
            text.replace("@head_assigned_at", &assigned.join(", ")).replace("@head_at", &list(&written));
        // Longest first, because some names begin with another one.
        let mut columns = COLUMNS.to_vec();
        columns.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        for (name, kind) in columns {
            text = text.replace(&format!("@w.{name}"), &written(name, kind));
        }
        text.replace("@now", NOW)
            .replace("@walked", &walked("@.head_ready"))
            .replace("@walk_max", &WALK_MAX.to_string())
            .replace("@above_all", ABOVE_ALL)
            .replace("@events_before", EVENTS_BEFORE)
            .replace("@head_declared", &list(&|name, kind| format!("{name} {kind}")))
            .replace("@head_columns", &list(&|name, _| name.to_owned()))
            .replace("@head_nulls_rest", &nulls(&COLUMNS[1..]))
            .replace("@head_nulls", &nulls(COLUMNS))
            .replace("@h.head", &list(&|name, _| format!("h.{name}")))
            .replace("@holders_max", &HOLDERS_PER_KEY_MAX.to_string())
            .replace("@passes_max", &CLAIM_PASSES_MAX.to_string())
            .replace("@never", &i64::MAX.to_string())
            .replace("@class", &self.class().to_string())
            .replace("LANGUAGE plpgsql", PLANNING)
            .replace("@.", &format!("\"{}\".", self.0))
    }
}

/// Inserts what a grant writes, with the indentation of the line that asks for it.
fn granting(text: &str) -> String {
    let line_of = |line: &str| {
        let asked = line.split_once(GRANTED_TO);
        let asked = asked.and_then(|(before, rest)| Some((before, rest.strip_suffix(')')?)));
        let Some((before, worker)) = asked else { return line.to_owned() };
        let lines: Vec<String> = GRANTED
            .lines()
            .filter(|line| !line.starts_with("--"))
            .map(|line| format!("{before}{}", line.replace("@worker", worker)))
            .collect();
        lines.join("\n")
    };
    let lines: Vec<String> = text.split('\n').map(line_of).collect();
    lines.join("\n")
}

/// The expression for a column of the head at place `w.i` among those to be written.
fn written(name: &str, kind: &str) -> String {
    let mut numbers = COLUMNS.iter().filter(|(_, kind)| is_number(kind));
    match numbers.clone().position(|(number, _)| *number == name) {
        Some(place) => {
            let value = format!("h_numbers[(w.i - 1) * {} + {}]", numbers.by_ref().count(), place + 1);
            if kind == "boolean" { format!("{value} <> 0") } else { format!("{value}::{kind}") }
        }
        None => format!("h_{name}[w.i]"),
    }
}

/// The expression for [`WALKED`] of this index.
pub fn walked(index: &str) -> String {
    WALKED.replace("@index", index)
}

/// Whether columns of this type go into a head's list of numbers.
pub fn is_number(kind: &str) -> bool {
    matches!(kind, "int2" | "int8" | "boolean")
}

#[cfg(test)]
mod tests {
    use super::{GRANTED, GRANTED_TO, IS_SPECIAL, NUMBERS, Schema};
    use crate::migrate::functions;

    #[test]
    fn a_schema_is_named_by_plain_words_only() {
        for name in ["semel", "semel_2", "a"] {
            assert!(Schema::parse(name).is_some(), "{name}");
        }
        for name in ["", "1a", "_a", "Semel", "a-b", "a\"b", "a b", "public", "pg_x", &"a".repeat(64)] {
            assert!(Schema::parse(name).is_none(), "{name}");
        }
    }

    #[test]
    fn no_mark_is_left_in_a_text() {
        let schema = Schema::parse("some_where").unwrap();
        for text in crate::migrate::texts() {
            let rendered = schema.render(text);
            assert!(!rendered.contains('@'), "{}", rendered.lines().find(|line| line.contains('@')).unwrap());
            assert!(rendered.contains("\"some_where\"."));
        }
    }

    /// Returns what follows each comparison with this column.
    fn compared<'a>(text: &'a str, column: &'a str) -> impl Iterator<Item = &'a str> {
        text.match_indices(column).filter_map(move |(at, _)| {
            let rest = &text[at + column.len()..];
            [" = ", " <> ", " IN ("].iter().find_map(|sign| rest.strip_prefix(sign))
        })
    }

    #[test]
    fn functions_know_by_name_what_has_one() {
        let mut looked_at = 0;
        for text in functions().chain([GRANTED]) {
            for column in ["slot", "why"] {
                for value in compared(text, column) {
                    looked_at += 1;
                    let is_bare = value.starts_with(|first: char| first.is_ascii_digit() || first == '-');
                    assert!(!is_bare, "`{column}` is compared with {}", value.lines().next().unwrap());
                }
            }
            for bare in ["100::int2", "101::int2", ".n >= "] {
                assert!(!text.contains(bare), "{bare}");
            }
        }
        assert!(looked_at > 20, "{looked_at}");
        for (mark, _) in NUMBERS {
            assert!(functions().any(|text| text.contains(mark)), "{mark} stands nowhere");
        }
    }

    /// Tests that check whether anybody waits for another's lock rely on how long that would take.
    #[test]
    fn a_commit_waits_for_a_lock_for_250_ms_wherever_it_does() {
        let texts = functions().chain([crate::commit::BEGIN_PART]);
        let waits: Vec<&str> =
            texts.flat_map(|text| text.lines().filter(|line| line.contains("lock_timeout"))).collect();
        assert_eq!(waits.len(), 3, "{waits:?}");
        assert!(waits.iter().all(|line| line.contains("'250ms'")), "{waits:?}");
        assert_eq!(crate::inside::ROW_MAX, "250ms");
    }

    #[test]
    fn what_a_grant_is_stands_in_one_place() {
        let mut grants = 0;
        for text in functions() {
            let is_granting =
                ["lease", "take"].iter().any(|name| text.contains(&format!("FUNCTION @.{name}(")));
            grants += usize::from(is_granting);
            for mark in [GRANTED_TO, "@h.is_special"] {
                let name = text.split("FUNCTION @.").nth(1).and_then(|rest| rest.split('(').next());
                assert_eq!(text.matches(mark).count(), usize::from(is_granting), "{mark} in {name:?}");
            }
            for own in ["h.visibility_ms", "h.timeout_ms", "h.attempt +", "h.fence +", "h.exhausted OR"] {
                assert!(!text.contains(own), "{own}");
            }
        }
        assert_eq!(grants, 2);
    }

    /// In the order of the core (`semel_core::lease`): a job is refused for one reason, which callers are
    /// told.
    #[test]
    fn each_reason_to_refuse_a_job_makes_it_special() {
        let lease = functions().find(|text| text.contains("FUNCTION @.lease(")).unwrap();
        let (_, reasons) = lease.split_once("CASE\n").unwrap();
        let (reasons, _) = reasons.split_once("END::int2 AS why").unwrap();
        let word = |rest: &'static str| rest.split([' ', '\n']).next();
        let asked: Vec<&str> = reasons.split("WHEN h.").skip(1).filter_map(word).collect();
        let special = IS_SPECIAL.split(" OR ").filter_map(|part| word(part.strip_prefix("h.")?));
        // `take` and `lease` never grant a job under a limit without checks.
        assert_eq!(asked, ["lane"].into_iter().chain(special).collect::<Vec<_>>());
        let told: Vec<&str> = reasons.split("THEN @why_").skip(1).filter_map(word).collect();
        assert_eq!(told, ["limited", "expired", "exhausted", "overlaps"]);
    }

    #[test]
    fn the_class_of_a_schemas_locks_is_frozen() {
        assert_eq!(Schema::parse("semel").unwrap().class(), -1_962_887_951);
    }
}
