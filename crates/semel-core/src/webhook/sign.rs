//! Signatures of webhook deliveries.

use sha2::{Digest, Sha256};

use crate::hex;

/// Block size of SHA-256 in bytes, to which HMAC pads the secret.
const BLOCK: usize = 64;

/// The value of a delivery's signature header: `sha256=` followed by the HMAC-SHA256 of `timestamp.body` in
/// hexadecimal.
pub fn signature(secret: &str, timestamp: i64, body: &[u8]) -> String {
    let code = hmac(secret.as_bytes(), &[timestamp.to_string().as_bytes(), b".", body]);
    format!("sha256={}", hex::text(&code))
}

/// HMAC-SHA256 (RFC 2104) of the concatenated parts.
fn hmac(secret: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut key = [0; BLOCK];
    if secret.len() > BLOCK {
        let digest: [u8; 32] = Sha256::digest(secret).into();
        key[..32].copy_from_slice(&digest);
    } else {
        key[..secret.len()].copy_from_slice(secret);
    }
    let mut inner = Sha256::new();
    inner.update(key.map(|byte| byte ^ 0x36));
    parts.iter().for_each(|part| inner.update(part));
    let mut outer = Sha256::new();
    outer.update(key.map(|byte| byte ^ 0x5c));
    outer.update(inner.finalize());
    outer.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4231, cases 1, 2 and 6.
    #[test]
    fn the_code_is_that_of_the_rfc() {
        assert_eq!(
            hex::text(&hmac(&[0x0b; 20], &[b"Hi There"])),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
        );
        assert_eq!(
            hex::text(&hmac(b"Jefe", &[b"what do ya want ", b"for nothing?"])),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(
            hex::text(&hmac(&[0xaa; 131], &[b"Test Using Larger Than Block-Size Key - Hash Key First"])),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
        assert_ne!(signature("s", 1, b"x"), signature("s", 11, b""), "the parts cannot run together");
    }

    /// A receiver computes the same code from `timestamp.body`.
    #[test]
    fn what_is_signed_is_the_time_a_dot_and_the_body() {
        let whole = hex::text(&hmac(b"s3cret", &[b"1700000000.{}"]));
        assert_eq!(signature("s3cret", 1_700_000_000, b"{}"), format!("sha256={whole}"));
    }
}
