//! Bytes as lower-case hexadecimal digits.

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// The two digits of a byte.
pub const fn digits(byte: u8) -> [u8; 2] {
    [DIGITS[(byte >> 4) as usize], DIGITS[(byte & 0xf) as usize]]
}

/// The value of a lower-case digit. Upper case is refused, because text that is compared must have one form.
pub const fn value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

/// Encodes bytes as digits.
pub fn text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        text.extend(digits(*byte).map(char::from));
    }
    text
}

/// Decodes a [text] of exactly `N` bytes; `None` for any other.
pub fn parse<const N: usize>(text: &str) -> Option<[u8; N]> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    if pairs.len() != N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = value(*high)? << 4 | value(*low)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_lead_to_their_text_and_back() {
        assert_eq!(text(&[]), "");
        assert_eq!(text(&[0x00, 0x09, 0x0a, 0xff]), "00090aff");
        for byte in 0..=u8::MAX {
            let shown = text(&[byte, !byte]);
            assert_eq!(shown, format!("{byte:02x}{:02x}", !byte));
            assert_eq!(parse::<2>(&shown), Some([byte, !byte]));
        }
    }

    #[test]
    fn only_so_many_lower_case_digits_are_bytes() {
        for wrong in ["", "0", "00", "000", "00000", "000000", "0A00", "+f00", "0g00", " 000", "00-0", "é00"]
        {
            assert_eq!(parse::<2>(wrong), None, "{wrong}");
        }
        assert_eq!(parse::<0>(""), Some([]));
    }
}
