//! Which addresses a delivery may never go to.

// The types of addresses, and nothing that could speak to one.
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why nothing is delivered to an address, unless the operator allows it: it is not one of the public internet, so a
/// subscription could make the server speak to its own network. `None` for a public address.
pub fn forbidden(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => forbidden_v4(address),
        IpAddr::V6(address) => forbidden_v6(address),
    }
}

fn forbidden_v4(address: Ipv4Addr) -> Option<&'static str> {
    let [a, b, c, _] = address.octets();
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

fn forbidden_v6(address: Ipv6Addr) -> Option<&'static str> {
    let segments = address.segments();
    // Forms that carry an IPv4 address go where that one goes.
    let inner = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_public_internet_is_delivered_to() {
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "127.255.255.254",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "169.254.169.254",
            "192.0.0.1",
            "192.0.2.1",
            "198.18.0.1",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:8.8.8.8",
            "::7f00:1",
            "fc00::1",
            "fd12:3456::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "2001:db8::1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::",
            "2002:808:808::",
            "2001::1",
            "100::1",
            "4000::1",
        ] {
            assert!(forbidden(text.parse().unwrap()).is_some(), "{text}");
        }
        for text in [
            "8.8.8.8",
            "1.1.1.1",
            "172.15.0.1",
            "172.32.0.1",
            "100.63.0.1",
            "100.128.0.1",
            "192.0.1.1",
            "93.184.216.34",
            "2606:4700::1111",
            "2a00:1450::1",
            "64:ff9b::808:808",
        ] {
            assert_eq!(forbidden(text.parse().unwrap()), None, "{text}");
        }
    }
}
