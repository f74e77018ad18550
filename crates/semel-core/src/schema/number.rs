//! Exact decimal numbers, compared by their digits, so that a bound holds even where a double would round.

use std::cmp::Ordering;

/// A number in normal form: equal numbers have equal fields, however they were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decimal {
    is_negative: bool,
    /// Significant digits, without leading or trailing zeros; empty for zero.
    digits: String,
    /// Number of digits before the decimal point; negative when zeros follow the point.
    whole: i64,
}

impl Decimal {
    /// Parses a literal that already follows JSON's grammar.
    pub(super) fn of(literal: &str) -> Self {
        let (is_negative, unsigned) = match literal.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, literal),
        };
        let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
        let (before, after) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        // An exponent out of range is clamped: beyond that, all magnitudes count as equal.
        let is_small = exponent.starts_with('-');
        let beyond = if is_small { i64::MIN / 4 } else { i64::MAX / 4 };
        let exponent: i64 =
            exponent.parse().map_or(beyond, |number: i64| number.clamp(i64::MIN / 4, i64::MAX / 4));
        let all = [before, after].concat();
        let significant = all.trim_start_matches('0');
        let zeros = all.len() - significant.len();
        let digits = significant.trim_end_matches('0');
        if digits.is_empty() {
            return Self { is_negative: false, digits: String::new(), whole: 0 };
        }
        let length = |count: usize| i64::try_from(count).unwrap_or(i64::MAX / 4);
        let whole = exponent + length(before.len()) - length(zeros);
        Self { is_negative, digits: digits.to_owned(), whole }
    }

    /// Whether the number has no fractional part.
    pub(super) fn is_integer(&self) -> bool {
        self.digits.is_empty() || i64::try_from(self.digits.len()).is_ok_and(|length| length <= self.whole)
    }

    fn sign(&self) -> i8 {
        match (self.digits.is_empty(), self.is_negative) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => 1,
        }
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        // At equal exponents, digits without trailing zeros compare like strings.
        let size = self.whole.cmp(&other.whole).then_with(|| self.digits.cmp(&other.digits));
        let size = if self.is_negative { size.reverse() } else { size };
        self.sign().cmp(&other.sign()).then(if self.digits.is_empty() { Ordering::Equal } else { size })
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_ordered_by_what_they_are_worth() {
        let rising = [
            "-1e99999999999999999999",
            "-1e400",
            "-10",
            "-9.5",
            "-1",
            "-0.5",
            "-1e-400",
            "0",
            "1e-99999999999999999999",
            "1e-400",
            "0.05",
            "0.5",
            "0.51",
            "1",
            "1.5",
            "9",
            "10",
            "9007199254740993",
            "9007199254740994",
            "1e400",
            "1e99999999999999999999",
        ];
        for (at, one) in rising.iter().enumerate() {
            for (other_at, other) in rising.iter().enumerate() {
                assert_eq!(Decimal::of(one).cmp(&Decimal::of(other)), at.cmp(&other_at), "{one} {other}");
            }
        }
        for (one, other) in [
            ("1", "1.0"),
            ("1", "10e-1"),
            ("0", "-0.00"),
            ("100", "1E+2"),
            ("0.001", "1e-3"),
            ("12.50", "125e-1"),
        ] {
            assert_eq!(Decimal::of(one), Decimal::of(other), "{one} {other}");
        }
    }

    #[test]
    fn an_integer_is_one_however_it_is_written() {
        for literal in ["0", "-0.0", "10", "1.0", "1e2", "1.5e1", "120e-1"] {
            assert!(Decimal::of(literal).is_integer(), "{literal}");
        }
        for literal in ["0.1", "1.5", "1e-1", "15e-1", "1e-400"] {
            assert!(!Decimal::of(literal).is_integer(), "{literal}");
        }
    }
}
