//! SPDX licence expressions, as crates write them.

/// Whether `expression` can be satisfied with licences of `allowed` alone.
///
/// # Errors
/// When it is not a licence expression.
pub fn is_satisfied(expression: &str, allowed: &[String]) -> Result<bool, String> {
    let mut reader = Reader { words: words(expression), at: 0, allowed };
    let satisfied = reader.either()?;
    match reader.peek() {
        None => Ok(satisfied),
        Some(word) => Err(format!("`{word}` is not expected in the licence `{expression}`")),
    }
}

/// Splits an expression into words. The older `MIT/Apache-2.0` means OR.
fn words(expression: &str) -> Vec<String> {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    spaced.split_whitespace().map(str::to_owned).collect()
}

struct Reader<'a> {
    words: Vec<String>,
    at: usize,
    allowed: &'a [String],
}

impl Reader<'_> {
    fn peek(&self) -> Option<&str> {
        self.words.get(self.at).map(String::as_str)
    }

    fn skip(&mut self, word: &str) -> bool {
        let is_next = self.peek() == Some(word);
        self.at += usize::from(is_next);
        is_next
    }

    fn name(&mut self) -> Result<String, String> {
        match self.peek() {
            Some(word) if !matches!(word, "OR" | "AND" | "WITH" | "(" | ")") => {
                let word = word.to_owned();
                self.at += 1;
                Ok(word)
            }
            other => Err(format!("a licence is expected before `{}`", other.unwrap_or("the end"))),
        }
    }

    fn either(&mut self) -> Result<bool, String> {
        let mut satisfied = self.both()?;
        while self.skip("OR") {
            satisfied |= self.both()?;
        }
        Ok(satisfied)
    }

    fn both(&mut self) -> Result<bool, String> {
        let mut satisfied = self.one()?;
        while self.skip("AND") {
            satisfied &= self.one()?;
        }
        Ok(satisfied)
    }

    fn one(&mut self) -> Result<bool, String> {
        if self.skip("(") {
            let satisfied = self.either()?;
            return if self.skip(")") { Ok(satisfied) } else { Err("a `)` is missing".to_owned()) };
        }
        let mut licence = self.name()?;
        if self.skip("WITH") {
            licence = format!("{licence} WITH {}", self.name()?);
        }
        Ok(self.allowed.contains(&licence))
    }
}

#[cfg(test)]
mod tests {
    use super::is_satisfied;

    fn judged(expression: &str) -> Result<bool, String> {
        let allowed = ["MIT", "Apache-2.0", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"];
        is_satisfied(expression, &allowed.map(str::to_owned))
    }

    #[test]
    fn one_of_several_is_enough_and_all_of_several_are_needed() {
        for fine in [
            "MIT",
            "MIT OR GPL-3.0",
            "GPL-3.0/MIT",
            "MIT OR Apache-2.0 OR LGPL-2.1-or-later",
            "(MIT OR GPL-3.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception",
            "GPL-3.0 AND ISC OR MIT",
        ] {
            assert_eq!(judged(fine), Ok(true), "{fine}");
        }
        for not in
            ["GPL-3.0", "MIT AND GPL-3.0", "MIT WITH LLVM-exception", "(MIT OR ISC) AND (GPL-3.0 OR ISC)"]
        {
            assert_eq!(judged(not), Ok(false), "{not}");
        }
    }

    #[test]
    fn what_is_no_expression_is_an_error() {
        for wrong in ["", "MIT OR", "(MIT", "MIT Apache-2.0", "AND MIT", "MIT)"] {
            judged(wrong).unwrap_err();
        }
    }
}
