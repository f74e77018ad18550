//! What may be told of the places of sensitive values.

/// The place that may be told: of one inside of a sensitive value, that value's, for the names in it may be as secret as it is.
pub fn tellable<'p>(pointer: &'p str, sensitive: &'p [String]) -> &'p str {
    let is_around =
        |hidden: &&String| pointer.strip_prefix(hidden.as_str()).is_some_and(|rest| rest.starts_with('/'));
    sensitive.iter().filter(is_around).min_by_key(|hidden| hidden.len()).map_or(pointer, |hidden| hidden)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_lies_inside_the_outermost_sensitive_value_is_told() {
        let sensitive = ["/args/0/card/cvc", "/args/0/card"].map(str::to_owned);
        for (place, told) in [
            ("/args/0/card/cvc/x", "/args/0/card"),
            ("/args/0/card/number", "/args/0/card"),
            ("/args/0/card", "/args/0/card"),
            ("/args/0/cards/1", "/args/0/cards/1"),
            ("/args/0", "/args/0"),
        ] {
            assert_eq!(tellable(place, &sensitive), told);
        }
    }
}
