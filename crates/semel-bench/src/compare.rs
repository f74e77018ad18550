//! Compares two runs by their shares of the limits that each measured for itself: so runs of different days
//! can be compared, and with care those of different machines.

use serde::{Deserialize, Serialize};

use crate::report::{BenchError, Report};

/// Two-sided 95 % points of Student's t-distribution for 1, 2, … degrees of freedom. The last one is used
/// beyond; it is then slightly too wide.
const STUDENT: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
/// Fewest rounds of each side that a comparison needs.
pub const ROUNDS_MIN: usize = 3;

/// A case's result in each round, as a share of the limit measured before it.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Shares {
    /// The case.
    pub name: String,
    /// The share in each round.
    pub shares: Vec<f64>,
}

/// The rounds that later ones are compared with.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Baseline {
    /// The engine's name.
    pub engine: String,
    /// What an acknowledged write survives.
    pub durability: String,
    /// Callers in flight.
    pub callers: usize,
    /// Bytes of each job's args.
    pub args_bytes: usize,
    /// The cases.
    pub cases: Vec<Shares>,
}

impl Baseline {
    /// The baseline of these rounds, which are all of one engine.
    ///
    /// # Errors
    /// When there are no rounds.
    pub fn of(rounds: &[Report]) -> Result<Self, BenchError> {
        let Some(first) = rounds.first() else {
            return Err(BenchError::Invalid("there is no round to compare".to_owned()));
        };
        let mut cases: Vec<Shares> = Vec::new();
        for report in rounds {
            let mut limit = None;
            for figure in &report.figures {
                if figure.name.starts_with("limit:") {
                    limit = Some(figure.per_second);
                    continue;
                }
                if figure.offered_per_second.is_some() {
                    // In an open loop as many jobs are done as were offered.
                    continue;
                }
                let beside = figure.share_of_limit.or(limit.map(|limit| figure.per_second / limit));
                let Some(share) = beside.filter(|share| share.is_finite() && *share > 0.0) else { continue };
                match cases.iter_mut().find(|case| case.name == figure.name) {
                    Some(case) => case.shares.push(share),
                    None => cases.push(Shares { name: figure.name.clone(), shares: vec![share] }),
                }
            }
        }
        let (engine, durability) = (first.engine.clone(), first.durability.clone());
        Ok(Self { engine, durability, callers: first.callers, args_bytes: first.args_bytes, cases })
    }

    /// Compares each case that both have; `self` is the earlier one.
    ///
    /// # Errors
    /// When the engines, durabilities or loads differ, or no common case has enough rounds.
    pub fn compare(&self, now: &Self) -> Result<Vec<Change>, BenchError> {
        let what = |of: &Self| {
            let Self { engine, durability, callers, args_bytes, .. } = of;
            format!("{engine} ({durability}), {callers} callers, {args_bytes} bytes of args")
        };
        if what(self) != what(now) {
            let (before, now) = (what(self), what(now));
            return Err(BenchError::Invalid(format!(
                "the baseline is of {before}, this run of {now}; compare like with like"
            )));
        }
        let of = |case: &Shares| {
            let before = self.cases.iter().find(|before| before.name == case.name)?;
            Change::of(&case.name, &before.shares, &case.shares)
        };
        let changes: Vec<Change> = now.cases.iter().filter_map(of).collect();
        if changes.is_empty() {
            return Err(BenchError::Invalid(format!(
                "the two have no case in common that each measured {ROUNDS_MIN} times; give both --rounds {ROUNDS_MIN} or more, and the same cases"
            )));
        }
        Ok(changes)
    }
}

/// How a case has changed.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Change {
    /// The case.
    pub name: String,
    /// Now ÷ before, from the geometric means of the shares.
    pub ratio: f64,
    /// The lower end of the 95 % confidence interval.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Change {
    fn of(name: &str, before: &[f64], now: &[f64]) -> Option<Self> {
        let ((before, its), (now, ours)) = (logs(before)?, logs(now)?);
        let (its_part, our_part) = (its.spread / its.count, ours.spread / ours.count);
        let error = (its_part + our_part).sqrt();
        // Welch: the degrees of freedom of two samples with different variances.
        let freedom = (its_part + our_part).powi(2)
            / (its_part.powi(2) / (its.count - 1.0) + our_part.powi(2) / (ours.count - 1.0));
        let reach = if error > 0.0 { student(freedom) * error } else { 0.0 };
        let mean = now - before;
        Some(Self {
            name: name.to_owned(),
            ratio: mean.exp(),
            low: (mean - reach).exp(),
            high: (mean + reach).exp(),
        })
    }

    /// Whether it has become slower by more than this fraction, with 95 % confidence.
    pub fn is_slower(&self, by: f64) -> bool {
        self.high < 1.0 - by
    }
}

struct Spread {
    count: f64,
    spread: f64,
}

/// Mean and variance of the logarithms, in which ratios are symmetric around 1.
fn logs(shares: &[f64]) -> Option<(f64, Spread)> {
    if shares.len() < ROUNDS_MIN {
        return None;
    }
    let count = shares.len() as f64;
    let mean = shares.iter().map(|share| share.ln()).sum::<f64>() / count;
    let spread = shares.iter().map(|share| (share.ln() - mean).powi(2)).sum::<f64>() / (count - 1.0);
    Some((mean, Spread { count, spread }))
}

fn student(freedom: f64) -> f64 {
    // Rounded down: too wide an interval rather than too narrow.
    let at = if freedom.is_finite() { freedom.max(1.0) as usize } else { usize::MAX };
    STUDENT.get(at - 1).copied().unwrap_or(STUDENT[STUDENT.len() - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn baseline(shares: &[f64]) -> Baseline {
        let cases = vec![Shares { name: "unique".to_owned(), shares: shares.to_vec() }];
        let (engine, durability) = ("sqlite".to_owned(), "fsync".to_owned());
        Baseline { engine, durability, callers: 64, args_bytes: 200, cases }
    }

    fn change(before: &[f64], now: &[f64]) -> Change {
        baseline(before).compare(&baseline(now)).unwrap().remove(0)
    }

    #[test]
    fn what_is_surely_slower_is_told_from_noise() {
        let before = [0.40, 0.42, 0.38, 0.41];
        let half = change(&before, &[0.20, 0.21, 0.19, 0.20]);
        assert!((half.ratio - 0.497).abs() < 0.01 && half.is_slower(0.25), "{half:?}");
        // A third slower, but the spread is too wide to be sure.
        let noisy = change(&before, &[0.15, 0.45, 0.25, 0.30]);
        assert!(noisy.ratio < 0.75 && !noisy.is_slower(0.25), "{noisy:?}");
        let same = change(&before, &before);
        assert!((same.ratio - 1.0).abs() < 1e-9 && same.low < 1.0 && same.high > 1.0 && !same.is_slower(0.0));
        let faster = change(&before, &[0.80, 0.81, 0.79]);
        assert!(faster.low > 1.5 && !faster.is_slower(0.0), "{faster:?}");
    }

    /// Worked out by hand with Welch's formula: variances 0.04 and 0.01, three rounds each.
    #[test]
    fn the_interval_is_students() {
        let before = [-0.2_f64, 0.0, 0.2].map(f64::exp);
        let now = [-0.1_f64, 0.0, 0.1].map(f64::exp);
        let change = change(&before, &now);
        // 2.94 degrees of freedom, taken as 2: 4.303 × √(0.05 ÷ 3).
        assert!((change.high.ln() - 0.5555).abs() < 1e-3, "{change:?}");
        assert!((change.low.ln() + 0.5555).abs() < 1e-3, "{change:?}");
    }

    #[test]
    fn only_like_is_compared_with_like() {
        let one = baseline(&[0.4, 0.4, 0.4]);
        let other = Baseline { durability: "none".to_owned(), ..one.clone() };
        let more = Baseline { callers: 512, ..one.clone() };
        for unlike in [other, more] {
            assert!(one.compare(&unlike).unwrap_err().to_string().contains("like with like"));
        }
        let few = baseline(&[0.4, 0.4]);
        assert!(one.compare(&few).unwrap_err().to_string().contains("--rounds 3"));
    }

    #[test]
    fn a_case_without_a_limit_of_its_own_goes_by_the_last_one_before_it() {
        let figure = |name: &str, per_second, share| crate::Figure {
            name: name.to_owned(),
            jobs: 1,
            seconds: 1.0,
            per_second,
            offered_per_second: None,
            p50_ms: 0.0,
            p99_ms: 0.0,
            share_of_limit: share,
        };
        let report = Report {
            engine: "e".to_owned(),
            durability: "d".to_owned(),
            cores: 2,
            callers: 1,
            args_bytes: 1,
            figures: vec![
                figure("limit: rows", 100.0, None),
                figure("unique", 40.0, Some(0.5)),
                figure("cycle", 20.0, None),
                figure("open loop", 20.0, None).offered(20.0),
                figure("limit: http", 10.0, None),
                figure("over HTTP", 5.0, None),
            ],
        };
        let baseline = Baseline::of(&[report]).unwrap();
        let shares: Vec<f64> = baseline.cases.iter().flat_map(|case| case.shares.clone()).collect();
        assert_eq!(shares, [0.5, 0.2, 0.5]);
    }
}
