//! When a failed job is tried again, and when it is not (OJS retry).

use std::time::Duration;

use crate::error::Invalid;
use crate::limits::ATTEMPTS_MAX;

/// How the wait grows from attempt to attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Backoff {
    /// `initial * coefficient^(n-1)`.
    #[default]
    Exponential,
    /// `initial * n`.
    Linear,
    /// `initial`.
    Constant,
    /// `initial * n^coefficient`.
    Polynomial,
}

impl Backoff {
    /// Every strategy.
    pub const ALL: [Self; 4] = [Self::Exponential, Self::Linear, Self::Constant, Self::Polynomial];

    /// The strategy's name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exponential => "exponential",
            Self::Linear => "linear",
            Self::Constant => "constant",
            Self::Polynomial => "polynomial",
        }
    }

    /// The strategy of that name; `none` is another name for `constant`.
    pub fn from_name(name: &str) -> Option<Self> {
        if name == "none" {
            return Some(Self::Constant);
        }
        Self::ALL.into_iter().find(|backoff| backoff.name() == name)
    }
}

/// What happens to a job whose attempts are used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnExhaustion {
    /// It is discarded.
    #[default]
    Discard,
    /// It is discarded and listed as a dead letter.
    DeadLetter,
}

/// A checked retry policy. The default is OJS's (retry 8).
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    /// Runs allowed, the first included; 0 and 1 both mean one.
    pub max_attempts: u32,
    /// The wait before the first retry.
    pub initial_interval: Duration,
    /// How fast the wait grows: a factor or an exponent, at least 1.
    pub coefficient: f64,
    /// The longest wait.
    pub max_interval: Duration,
    /// Whether the wait is multiplied by a random factor of 0.5 to 1.5.
    pub jitter: bool,
    /// How the wait grows.
    pub backoff: Backoff,
    /// Error types that are never tried again; `Auth.*` stands for all that begin with `Auth.`.
    pub non_retryable_errors: Vec<String>,
    /// What happens when the attempts are used up.
    pub on_exhaustion: OnExhaustion,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 3,
            initial_interval: Duration::from_secs(1),
            coefficient: 2.0,
            max_interval: Duration::from_secs(300),
            jitter: true,
            backoff: Backoff::default(),
            non_retryable_errors: Vec::new(),
            on_exhaustion: OnExhaustion::default(),
        }
    }
}

/// A retry policy as requested: what is absent takes the default (OJS retry 8).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RetrySpec {
    /// Runs allowed, the first included.
    pub max_attempts: Option<i64>,
    /// The wait before the first retry.
    pub initial_interval: Option<Duration>,
    /// How fast the wait grows.
    pub coefficient: Option<f64>,
    /// The longest wait.
    pub max_interval: Option<Duration>,
    /// Whether the wait is randomised.
    pub jitter: Option<bool>,
    /// Name of the strategy by which the wait grows.
    pub backoff: Option<String>,
    /// Error types that are never tried again.
    pub non_retryable_errors: Option<Vec<String>>,
    /// Name of what happens when the attempts are used up.
    pub on_exhaustion: Option<String>,
}

impl RetryPolicy {
    /// Checks a policy and fills in the defaults. `pointer` is where it stands in the request.
    ///
    /// # Errors
    /// [`InvalidKind::RetryPolicy`](crate::error::InvalidKind) with the pointer of the first wrong member.
    pub fn build(spec: &RetrySpec, pointer: &str) -> Result<Self, Invalid> {
        let refuse =
            |member: &str, message: String| Err(Invalid::retry(format!("{pointer}/{member}"), message));
        let default = Self::default();
        let max_attempts = match spec.max_attempts {
            None => default.max_attempts,
            Some(asked) => match u32::try_from(asked) {
                Ok(asked) if asked <= ATTEMPTS_MAX => asked,
                _ => return refuse("max_attempts", format!("must be from 0 to {ATTEMPTS_MAX}")),
            },
        };
        let coefficient = spec.coefficient.unwrap_or(default.coefficient);
        if !(1.0..=1_000.0).contains(&coefficient) {
            return refuse("backoff_coefficient", "must be from 1.0 to 1000.0".to_owned());
        }
        let backoff = match &spec.backoff {
            None => default.backoff,
            Some(name) => match Backoff::from_name(name) {
                Some(backoff) => backoff,
                None => {
                    return refuse(
                        "backoff_strategy",
                        "must be exponential, linear, constant, polynomial or none".to_owned(),
                    );
                }
            },
        };
        let on_exhaustion = match spec.on_exhaustion.as_deref() {
            None => default.on_exhaustion,
            Some("discard") => OnExhaustion::Discard,
            Some("dead_letter") => OnExhaustion::DeadLetter,
            Some(_) => {
                return refuse("on_exhaustion", "must be discard or dead_letter".to_owned());
            }
        };
        Ok(Self {
            max_attempts,
            initial_interval: spec.initial_interval.unwrap_or(default.initial_interval),
            coefficient,
            max_interval: spec.max_interval.unwrap_or(default.max_interval),
            jitter: spec.jitter.unwrap_or(default.jitter),
            backoff,
            non_retryable_errors: spec.non_retryable_errors.clone().unwrap_or_default(),
            on_exhaustion,
        })
    }

    /// The wait after the failure of attempt `attempt` (1 is the first). `chance` in `[0, 1)` decides the jitter.
    /// The cap holds before and after the jitter (OJS retry 3.5).
    pub fn wait_after(&self, attempt: u32, chance: f64) -> Duration {
        // Zero times an infinite growth would not be a number.
        if self.initial_interval.is_zero() {
            return Duration::ZERO;
        }
        let attempt = f64::from(attempt.max(1));
        let initial = self.initial_interval.as_secs_f64();
        let grown = match self.backoff {
            Backoff::Exponential => initial * self.coefficient.powf(attempt - 1.0),
            Backoff::Linear => initial * attempt,
            Backoff::Constant => initial,
            Backoff::Polynomial => initial * attempt.powf(self.coefficient),
        };
        let cap = self.max_interval.as_secs_f64();
        let capped = grown.min(cap);
        let jittered = if self.jitter { (capped * (0.5 + chance)).min(cap) } else { capped };
        Duration::try_from_secs_f64(jittered.max(0.0)).unwrap_or(self.max_interval)
    }

    /// As [`wait_after`](Self::wait_after), for a caller that may put the next attempt off but not bring it
    /// forward: the wait is no shorter than `least` and no shorter than the policy's, so the attempts span at least
    /// the time that the policy gives them.
    pub fn wait_at_least(&self, attempt: u32, chance: f64, least: Duration) -> Duration {
        self.wait_after(attempt, chance).max(least)
    }

    /// Whether an error of this type or code is never tried again.
    pub fn forbids(&self, error_type: &str) -> bool {
        self.non_retryable_errors.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => error_type.starts_with(prefix),
            None => error_type == pattern,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(policy: &RetryPolicy, attempt: u32) -> f64 {
        policy.wait_after(attempt, 0.5).as_secs_f64()
    }

    #[test]
    fn each_strategy_grows_as_documented_and_stops_at_the_cap() {
        let policy =
            RetryPolicy { jitter: false, max_interval: Duration::from_secs(30), ..RetryPolicy::default() };
        let of = |backoff| RetryPolicy { backoff, ..policy.clone() };
        assert_eq!([1, 2, 3, 9].map(|n| seconds(&of(Backoff::Exponential), n)), [1.0, 2.0, 4.0, 30.0]);
        assert_eq!([1, 2, 3, 99].map(|n| seconds(&of(Backoff::Linear), n)), [1.0, 2.0, 3.0, 30.0]);
        assert_eq!([1, 2, 3, 99].map(|n| seconds(&of(Backoff::Constant), n)), [1.0; 4]);
        assert_eq!([1, 2, 3, 99].map(|n| seconds(&of(Backoff::Polynomial), n)), [1.0, 4.0, 9.0, 30.0]);
        // However many attempts: a wait of nothing stays nothing.
        let at_once = RetryPolicy { initial_interval: Duration::ZERO, ..policy.clone() };
        assert_eq!([1, 1_024, 1_025, 5_000].map(|n| seconds(&at_once, n)), [0.0; 4]);
    }

    #[test]
    fn jitter_stays_within_half_and_one_and_a_half_and_under_the_cap() {
        let policy = RetryPolicy::default();
        assert_eq!(policy.wait_after(2, 0.0), Duration::from_secs(1));
        assert_eq!(policy.wait_after(2, 0.999_999).as_secs(), 2);
        assert_eq!(policy.wait_after(4_000, 0.9), policy.max_interval);
        // Jitter applies to the capped wait.
        assert_eq!(policy.wait_after(4_000, 0.0), Duration::from_secs(150));
    }

    #[test]
    fn an_attempt_is_put_off_and_never_brought_forward() {
        let policy = RetryPolicy { jitter: false, ..RetryPolicy::default() };
        let wait = |attempt, least| policy.wait_at_least(attempt, 0.5, Duration::from_secs(least)).as_secs();
        assert_eq!([wait(3, 0), wait(3, 3), wait(3, 5)], [4, 4, 5]);
        assert_eq!(wait(99, 3_600), 3_600, "past the policy's longest");
    }

    #[test]
    fn a_wrong_policy_is_refused_at_its_member_which_is_named_once() {
        let cases = [
            (RetrySpec { max_attempts: Some(-1), ..RetrySpec::default() }, "max_attempts"),
            (RetrySpec { coefficient: Some(0.5), ..RetrySpec::default() }, "backoff_coefficient"),
            (RetrySpec { coefficient: Some(f64::NAN), ..RetrySpec::default() }, "backoff_coefficient"),
            (RetrySpec { backoff: Some("fast".to_owned()), ..RetrySpec::default() }, "backoff_strategy"),
            (RetrySpec { on_exhaustion: Some("drop".to_owned()), ..RetrySpec::default() }, "on_exhaustion"),
        ];
        for (spec, member) in cases {
            let refused = RetryPolicy::build(&spec, "/retry").unwrap_err();
            assert_eq!(refused.pointer, format!("/retry/{member}"));
            assert!(!refused.message.contains(member), "{refused}");
        }
        assert_eq!(RetryPolicy::build(&RetrySpec::default(), "").unwrap(), RetryPolicy::default());
        let attempts = |most: u32| RetrySpec { max_attempts: Some(most.into()), ..RetrySpec::default() };
        let growth = |growth| RetrySpec { coefficient: Some(growth), ..RetrySpec::default() };
        for (most, beyond) in [
            (attempts(ATTEMPTS_MAX), attempts(ATTEMPTS_MAX + 1)),
            (growth(1_000.0), growth(1_000.1)),
            (growth(1.0), growth(0.999)),
        ] {
            assert!(RetryPolicy::build(&most, "").is_ok() && RetryPolicy::build(&beyond, "").is_err());
        }
    }

    #[test]
    fn a_pattern_with_a_star_is_a_prefix() {
        let policy = RetryPolicy {
            non_retryable_errors: vec!["FatalError".to_owned(), "Auth.*".to_owned()],
            ..RetryPolicy::default()
        };
        assert!(policy.forbids("FatalError") && policy.forbids("Auth.Expired"));
        assert!(!policy.forbids("FatalErrors") && !policy.forbids("Authx"));
    }
}
