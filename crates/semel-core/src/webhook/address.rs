//! Which addresses a delivery may never go to.

/// Why nothing is delivered to an IPv4 address, unless the operator allows it: it is not one of the public internet, so a
/// subscription could make the server speak to its own network. `None` for a public address.
pub const fn forbidden_v4([a, b, c, _]: [u8; 4]) -> Option<&'static str> {
    match (a, b, c) {
        (0, ..) => Some("unspecified"),
        (127, ..) => Some("loopback"),
        (10, ..) | (192, 168, _) => Some("private"),
        (172, 16..=31, _) => Some("private"),
        (100, 64..=127, _) => Some("shared by a carrier"),
        // Cloud providers answer with credentials here.
        (169, 254, _) => Some("link-local"),
        (192, 0, 0) => Some("reserved"),
        (192, 0, 2) | (198, 51, 100) | (203, 0, 113) => Some("for documentation"),
        (192, 88, 99) => Some("reserved"),
        (198, 18..=19, _) => Some("for benchmarks"),
        (224..=239, ..) => Some("multicast"),
        (240..=255, ..) => Some("reserved"),
        _ => None,
    }
}

/// The same for an IPv6 address, by its eight groups.
pub fn forbidden_v6(segments: [u16; 8]) -> Option<&'static str> {
    // Forms that carry an IPv4 address go where that one goes.
    let inner = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        [a, b, c, d]
    };
    match segments {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some("unspecified"),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some("loopback"),
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0, 0, 0, 0, 0, 0, high, low] => {
            forbidden_v4(inner(high, low)).or(Some("an IPv4 address in disguise"))
        }
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => forbidden_v4(inner(high, low)),
        [0x64, 0xff9b, 1, ..] => Some("private"),
        [0x2002, high, low, ..] => forbidden_v4(inner(high, low)).or(Some("a tunnel")),
        [0x2001, 0, ..] => Some("a tunnel"),
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0x0fff, ..] => Some("for documentation"),
        [0x100, 0, 0, 0, ..] => Some("reserved"),
        [first, ..] if first & 0xfe00 == 0xfc00 => Some("private"),
        [first, ..] if first & 0xffc0 == 0xfe80 => Some("link-local"),
        [first, ..] if first & 0xffc0 == 0xfec0 => Some("private"),
        [first, ..] if first & 0xff00 == 0xff00 => Some("multicast"),
        // What is not handed out is not the internet.
        [first, ..] if first & 0xe000 != 0x2000 => Some("reserved"),
        _ => None,
    }
}
