//! A minimal reader of Rust: it knows what is a comment, what is a string, and what is compiled only for
//! tests.

/// A file's text with parts blanked by spaces. Lines and offsets are those of the original text.
#[derive(Debug)]
pub struct Code {
    /// The text without comments and strings.
    pub tokens: String,
    /// The text without comments.
    pub with_strings: String,
}

impl Code {
    /// The offsets of `word` as a whole word among the tokens.
    pub fn words<'a>(&'a self, word: &'a str) -> impl Iterator<Item = usize> + 'a {
        words(&self.tokens, word)
    }

    /// The offsets where `name` is reached through `module`: as `module::name`, or in a list as in `use
    /// module::{other, name}`.
    pub fn paths(&self, module: &str, name: &str) -> Vec<usize> {
        let head = format!("{module}::");
        let mut found = Vec::new();
        for (start, _) in self.tokens.match_indices(&head) {
            if self.tokens[..start].ends_with(is_word) {
                continue;
            }
            let rest = &self.tokens[start + head.len()..];
            let reached = if rest.starts_with('{') {
                list(rest).split(',').any(|item| first_word(item) == name || item.trim() == "*")
            } else {
                first_word(rest) == name || rest.starts_with('*')
            };
            if reached {
                found.push(start);
            }
        }
        found
    }
}

/// The offsets of `word` in `text` without a letter, digit or underscore beside it.
pub fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(word).map(|(start, _)| start).filter(move |start| {
        !text[..*start].ends_with(is_word) && !text[start + word.len()..].starts_with(is_word)
    })
}

/// Whether `character` may be part of a name.
pub fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// The name at the beginning of `text`, after spaces; empty when there is none.
pub fn first_word(text: &str) -> &str {
    let text = text.trim_start();
    text.split(|character| !is_word(character)).next().unwrap_or(text)
}

/// The items of the list at the beginning of `text`, without nested lists.
fn list(text: &str) -> String {
    let mut depth = 0;
    let mut items = String::new();
    for character in text.chars() {
        match character {
            '{' => depth += 1,
            '}' if depth <= 1 => break,
            '}' => depth -= 1,
            _ if depth == 1 => items.push(character),
            _ => {}
        }
    }
    items
}

/// Blanks comments, and in the tokens strings as well.
pub fn bare(text: &str) -> Code {
    let mut tokens = text.as_bytes().to_vec();
    let mut with_strings = tokens.clone();
    let mut at = 0;
    while at < tokens.len() {
        let (end, is_string) = piece(text, at);
        if end > at {
            blank(&mut tokens[at..end]);
            if !is_string {
                blank(&mut with_strings[at..end]);
            }
        }
        at = end.max(at + 1);
    }
    Code { tokens: lossy(&tokens), with_strings: lossy(&with_strings) }
}

/// Blanks code that is compiled for tests only.
pub fn without_tests(code: Code) -> Code {
    let mut tokens = code.tokens.as_bytes().to_vec();
    let mut with_strings = code.with_strings.into_bytes();
    for (start, end) in test_items(&code.tokens) {
        blank(&mut tokens[start..end]);
        blank(&mut with_strings[start..end]);
    }
    Code { tokens: lossy(&tokens), with_strings: lossy(&with_strings) }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn blank(bytes: &mut [u8]) {
    for byte in bytes.iter_mut().filter(|byte| **byte != b'\n') {
        *byte = b' ';
    }
}

/// The end of the comment, string or character that begins at `at`, and whether it is a string; `at` when
/// none begins there.
fn piece(text: &str, at: usize) -> (usize, bool) {
    let bytes = text.as_bytes();
    let rest = &bytes[at..];
    let follows_word = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
    match rest[0] {
        b'/' if rest.starts_with(b"//") => (at + line_end(rest), false),
        b'/' if rest.starts_with(b"/*") => (at + block_end(rest), false),
        b'"' => (at + string_end(rest), true),
        b'\'' => (at + character_end(&text[at..]), true),
        b'r' | b'b' | b'c' if !follows_word => {
            let marks = rest.iter().take_while(|byte| matches!(byte, b'r' | b'b' | b'c')).count();
            let hashes = rest[marks..].iter().take_while(|byte| **byte == b'#').count();
            let is_raw = rest[..marks].contains(&b'r') && rest.get(marks + hashes) == Some(&b'"');
            if marks <= 2 && is_raw {
                (at + raw_end(rest, marks + hashes, hashes), true)
            } else {
                (at, false)
            }
        }
        _ => (at, false),
    }
}

fn line_end(rest: &[u8]) -> usize {
    rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len())
}

fn block_end(rest: &[u8]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

fn string_end(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

fn raw_end(rest: &[u8], quote: usize, hashes: usize) -> usize {
    let close = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
    let body = quote + 1;
    let found = rest[body..].windows(close.len()).position(|window| window == close);
    found.map_or(rest.len(), |position| body + position + close.len())
}

/// The length of a character literal; 0 when the quote begins a lifetime.
fn character_end(rest: &str) -> usize {
    let mut characters = rest.char_indices().skip(1);
    match characters.next() {
        Some((_, '\\')) => {
            let escaped = characters.next().map_or(rest.len(), |(index, escaped)| index + escaped.len_utf8());
            rest[escaped..].find('\'').map_or(rest.len(), |position| escaped + position + 1)
        }
        Some(_) => match characters.next() {
            Some((index, '\'')) => index + 1,
            _ => 0,
        },
        None => 0,
    }
}

/// The ranges of items under `#[cfg(test)]`, or the whole file when that applies to it.
fn test_items(tokens: &str) -> Vec<(usize, usize)> {
    let mut items = Vec::new();
    for mark in ["#[cfg(test)]", "#[cfg(all(test,", "#![cfg(test)]"] {
        for (start, _) in tokens.match_indices(mark) {
            let whole = mark.starts_with("#!");
            items.push((start, if whole { tokens.len() } else { start + item_end(&tokens[start..]) }));
        }
    }
    items
}

/// The end of the item whose attributes begin here: after its body, or after its semicolon.
pub fn item_end(tokens: &str) -> usize {
    let mut depth = 0usize;
    let mut is_in_body = false;
    for (index, character) in tokens.char_indices() {
        match character {
            '(' | '[' => depth += 1,
            '{' => {
                is_in_body |= depth == 0;
                depth += 1;
            }
            ')' | ']' => depth = depth.saturating_sub(1),
            '}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 && is_in_body {
                    return index + 1;
                }
            }
            ';' if depth == 0 => return index + 1,
            _ => {}
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::{bare, without_tests, words};

    fn tokens(text: &str) -> String {
        without_tests(bare(text)).tokens.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_and_strings_are_not_code() {
        assert_eq!(tokens("a // b\nc /* d /* e */ f */ g"), "a c g");
        assert_eq!(tokens(r#"let a = "b \" c"; d"#), "let a = ; d");
        assert_eq!(tokens(r###"let a = r#"b " c"#; let d = br"\"; e"###), "let a = ; let d = ; e");
        assert_eq!(tokens("fn a<'b>(c: &'b str) { '\"'; '\\''; d }"), "fn a<'b>(c: &'b str) { ; ; d }");
        assert_eq!(tokens("over(\"é\") 'é' x"), "over( ) x");
    }

    #[test]
    fn strings_are_kept_where_they_count() {
        let code = bare("let a = \"b\"; // c");
        assert_eq!(code.with_strings.trim_end(), "let a = \"b\";");
    }

    #[test]
    fn offsets_stay_those_of_the_text() {
        let text = "// é\n\"ü\" here";
        assert_eq!(bare(text).tokens.find("here"), text.find("here"));
        assert_eq!(bare(text).tokens.len(), text.len());
    }

    #[test]
    fn items_for_tests_are_not_code_and_what_follows_them_is() {
        assert_eq!(tokens("a\n#[cfg(test)]\nmod tests { fn b() { c } }\nd"), "a d");
        assert_eq!(tokens("#[cfg(test)]\nuse a::{b, c};\nd"), "; d");
        assert_eq!(tokens("#[cfg(test)]\nfn a(b: [u8; 3]) -> u8 { c }\nd"), "d");
        assert_eq!(tokens("#[cfg(test)]\nmod a;\nb"), "b");
        assert_eq!(tokens("#![cfg(test)]\nmod a;\nb"), "");
        assert_eq!(tokens("#[cfg(not(test))]\nfn a() {}"), "#[cfg(not(test))] fn a() {}");
    }

    #[test]
    fn a_word_is_whole() {
        assert_eq!(words("rand random strand rand_x (rand)", "rand").count(), 2);
    }

    #[test]
    fn a_path_is_found_however_it_is_written() {
        let found = |text: &str| bare(text).paths("std", "fs").len();
        assert_eq!(found("use std::fs::File;"), 1);
        assert_eq!(found("use std::{io, fs};"), 1);
        assert_eq!(found("use std::{\n    fs::{self, File},\n    io,\n};"), 1);
        assert_eq!(found("use std::*;"), 1);
        assert_eq!(found("std::fs::read(a)"), 1);
        assert_eq!(found("use std::{io::{fs}}; use std::fsx; use mystd::fs;"), 0);
    }
}
