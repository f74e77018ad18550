//! The signal that a decision needs more than was loaded.

/// A decision needs more than the snapshot has; [`Draft::take_missing`](super::Draft::take_missing) says what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing;

/// Applies `one` to every item and keeps going where an item misses something.
///
/// So all that is missing is found in one pass. A decision that stopped at the first would need one load per
/// item, and the number of loads is limited.
///
/// # Errors
/// [`Missing`] when one of the items missed something.
pub fn each<T, U>(
    all: impl IntoIterator<Item = T>,
    mut one: impl FnMut(T) -> Result<U, Missing>,
) -> Result<Vec<U>, Missing> {
    let all = all.into_iter();
    let (mut done, mut missing) = (Vec::with_capacity(all.size_hint().0), Ok(()));
    for item in all {
        match one(item) {
            Ok(result) => done.push(result),
            Err(Missing) => missing = Err(Missing),
        }
    }
    missing.map(|()| done)
}

#[cfg(test)]
mod tests {
    use super::{Missing, each};

    #[test]
    fn all_are_asked_whoever_misses_something() {
        let mut asked = Vec::new();
        let answer = each([1, 2, 3], |number| {
            asked.push(number);
            if number == 2 { Err(Missing) } else { Ok(number) }
        });
        assert_eq!((answer, asked), (Err(Missing), vec![1, 2, 3]));
        assert_eq!(each([1, 2], |number| Ok(2 * number)), Ok(vec![2, 4]));
    }
}
