//! A certificate's expiry, from its DER: reads no more of X.509 than leads to it (RFC 5280, 4.1).

use semel_core::time::Timestamp;

/// Tag of the version, which version 1 certificates leave out.
const VERSION: u8 = 0xa0;
/// Tags of the two kinds of time: with a two-digit year, and with a four-digit one.
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// When a certificate expires; `None` if it cannot be parsed.
pub(crate) fn ends(certificate: &[u8]) -> Option<Timestamp> {
    let (_, certificate, _) = element(certificate)?;
    let (_, mut members, _) = element(certificate)?;
    if members.first() == Some(&VERSION) {
        (_, _, members) = element(members)?;
    }
    // Serial number, signature algorithm, issuer.
    for _ in 0..3 {
        (_, _, members) = element(members)?;
    }
    let (_, validity, _) = element(members)?;
    let (_, _, from_its_begin) = element(validity)?;
    let (kind, text, _) = element(from_its_begin)?;
    time(kind, str::from_utf8(text).ok()?)
}

/// The first element: its tag, its contents, and what follows it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (kind, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    // Short form: the length itself; long form: the number of bytes that hold it.
    let (length, rest) = if first & 0x80 == 0 {
        (usize::from(*first), rest)
    } else {
        let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
        let add = |length: usize, byte: &u8| length.checked_mul(256)?.checked_add(usize::from(*byte));
        (bytes.iter().try_fold(0, add)?, rest)
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*kind, content, rest))
}

fn time(kind: u8, text: &str) -> Option<Timestamp> {
    let digits = text.strip_suffix('Z').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    let (year, rest) = match (kind, digits.len()) {
        (UTC_TIME, 12) => {
            let (year, rest) = digits.split_at(2);
            (format!("{}{year}", if year < "50" { "20" } else { "19" }), rest)
        }
        (GENERALIZED_TIME, 14) => {
            let (year, rest) = digits.split_at(4);
            (year.to_owned(), rest)
        }
        _ => return None,
    };
    let two = |at: usize| &rest[at..at + 2];
    let text = format!("{year}-{}-{}T{}:{}:{}Z", two(0), two(2), two(4), two(6), two(8));
    Timestamp::parse(&text, "").ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    pub(crate) fn certificate(year: i32) -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["semel.example".to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, 2, 28);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn the_end_of_a_certificate_is_read() {
        // From 2050 on the year has four digits.
        for year in [2_024, 2_049, 2_050, 4_096] {
            let told = ends(&certificate(year)).map(|ends| ends.to_string());
            assert!(told.is_some_and(|told| told.starts_with(&format!("{year}-02-28T00:00:00"))), "{year}");
        }
    }

    #[test]
    fn what_is_cut_off_or_none_says_nothing_and_breaks_nothing() {
        let whole = certificate(2_031);
        assert!((0..100).all(|length| ends(&whole[..length]).is_none()));
        for odd in [&[0x30, 0x80][..], &[0x30, 0xff], &[0x30, 0x88, 255, 255, 255, 255, 255, 255, 255, 255]] {
            assert_eq!(ends(odd), None);
        }
        assert_eq!(time(UTC_TIME, "2402280000Z"), None, "without seconds");
        assert_eq!(time(UTC_TIME, "240228000000+0100"), None);
        assert_eq!(time(GENERALIZED_TIME, "20241328000000Z"), None);
    }
}
