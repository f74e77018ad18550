//! What a decision says that needs more than was loaded.

/// A decision needs more than the snapshot has; [`Draft::take_missing`](super::Draft::take_missing) says what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing;

/// Does something with each of many, and goes on where one misses something: that finds what all of them miss, in one go. A
/// decision that stopped at the first would be loaded for once for each, and may be only so often.
///
/// # Errors
/// [`Missing`] when one of them missed something.
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
