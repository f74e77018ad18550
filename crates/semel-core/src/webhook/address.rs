//! Addresses that webhook deliveries may not go to.

/// Why an IPv4 address is refused as a delivery target unless the operator allows it, or `None` for a public
/// address.
///
/// A delivery to an address outside the public internet would let a subscription make the server
/// talk to its own network.
pub const fn forbidden_v4([a, b, c, _]: [u8; 4]) -> Option<&'static str> {
    match (a, b, c) {
        (0, ..) => Some("unspecified"),
        (127, ..) => Some("loopback"),
        (10, ..) | (192, 168, _) => Some("private"),
        (172, 16..=31, _) => Some("private"),
        (100, 64..=127, _) => Some("in a carrier's shared network"),
        // Cloud providers serve credentials at this address.
        (169, 254, _) => Some("link-local"),
        (192, 0, 0) => Some("reserved"),
        (192, 0, 2) | (198, 51, 100) | (203, 0, 113) => Some("reserved for documentation"),
        (192, 88, 99) => Some("reserved"),
        (198, 18..=19, _) => Some("reserved for benchmarks"),
        (224..=239, ..) => Some("multicast"),
        (240..=255, ..) => Some("reserved"),
        _ => None,
    }
}

/// The IPv6 counterpart of [`forbidden_v4`], on the address's eight groups.
pub fn forbidden_v6(segments: [u16; 8]) -> Option<&'static str> {
    // An IPv6 form that embeds an IPv4 address leads to that IPv4 address.
    let inner = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        [a, b, c, d]
    };
    match segments {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some("unspecified"),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some("loopback"),
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0, 0, 0, 0, 0, 0, high, low] => {
            forbidden_v4(inner(high, low)).or(Some("an IPv4 address in IPv6 form"))
        }
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => forbidden_v4(inner(high, low)),
        [0x64, 0xff9b, 1, ..] => Some("private"),
        [0x2002, high, low, ..] => forbidden_v4(inner(high, low)).or(Some("a tunnel address")),
        [0x2001, 0, ..] => Some("a tunnel address"),
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0x0fff, ..] => Some("reserved for documentation"),
        [0x100, 0, 0, 0, ..] => Some("reserved"),
        [first, ..] if first & 0xfe00 == 0xfc00 => Some("private"),
        [first, ..] if first & 0xffc0 == 0xfe80 => Some("link-local"),
        [first, ..] if first & 0xffc0 == 0xfec0 => Some("private"),
        [first, ..] if first & 0xff00 == 0xff00 => Some("multicast"),
        // Address space that is not allocated is not the public internet.
        [first, ..] if first & 0xe000 != 0x2000 => Some("reserved"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn v4(text: &str) -> Option<&'static str> {
        forbidden_v4(text.parse::<Ipv4Addr>().unwrap().octets())
    }

    fn v6(text: &str) -> Option<&'static str> {
        forbidden_v6(text.parse::<Ipv6Addr>().unwrap().segments())
    }

    /// First and last address of each range.
    const PRIVATE: [(&str, &str, &str); 12] = [
        ("0.0.0.0", "0.255.255.255", "unspecified"),
        ("10.0.0.0", "10.255.255.255", "private"),
        ("100.64.0.0", "100.127.255.255", "in a carrier's shared network"),
        ("127.0.0.0", "127.255.255.255", "loopback"),
        ("169.254.0.0", "169.254.255.255", "link-local"),
        ("172.16.0.0", "172.31.255.255", "private"),
        ("192.0.0.0", "192.0.0.255", "reserved"),
        ("192.0.2.0", "192.0.2.255", "reserved for documentation"),
        ("192.168.0.0", "192.168.255.255", "private"),
        ("198.18.0.0", "198.19.255.255", "reserved for benchmarks"),
        ("224.0.0.0", "239.255.255.255", "multicast"),
        ("240.0.0.0", "255.255.255.255", "reserved"),
    ];

    #[test]
    fn a_range_is_forbidden_from_its_first_address_to_its_last() {
        for (first, last, why) in PRIVATE {
            assert_eq!((v4(first), v4(last)), (Some(why), Some(why)), "{first}");
        }
        // The neighbours of these ranges are public.
        for text in [
            "1.0.0.0",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "8.8.8.8",
        ] {
            assert_eq!(v4(text), None, "{text}");
        }
    }

    /// Every IPv6 form of an IPv4 address: mapped, compatible, translated (NAT64), tunnelled (6to4).
    #[test]
    fn no_dress_makes_an_address_public() {
        for (first, last, _) in PRIVATE {
            for text in [first, last] {
                let [a, b, c, d] = text.parse::<Ipv4Addr>().unwrap().octets();
                let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
                for dressed in [
                    [0, 0, 0, 0, 0, 0xffff, high, low],
                    [0, 0, 0, 0, 0, 0, high, low],
                    [0x64, 0xff9b, 0, 0, 0, 0, high, low],
                    [0x2002, high, low, 0, 0, 0, 0, 1],
                ] {
                    assert!(forbidden_v6(dressed).is_some(), "{text} as {dressed:x?}");
                }
            }
        }
        // A public IPv4 address must be written as itself. The exception is NAT64, which hosts without IPv4
        // need.
        assert_eq!(v6("64:ff9b::8.8.8.8"), None);
        for text in ["::ffff:8.8.8.8", "::8.8.8.8", "2002:808:808::1", "2001:0:808:808::1", "64:ff9b:1::1"] {
            assert!(v6(text).is_some(), "{text}");
        }
    }

    #[test]
    fn only_what_is_handed_out_is_public() {
        for (text, why) in [
            ("::", "unspecified"),
            ("::1", "loopback"),
            ("fc00::1", "private"),
            ("fdff:ffff::1", "private"),
            ("fe80::1", "link-local"),
            ("febf::1", "link-local"),
            ("fec0::1", "private"),
            ("ff02::1", "multicast"),
            ("100::1", "reserved"),
            ("2001:db8::1", "reserved for documentation"),
            ("3fff:fff::1", "reserved for documentation"),
            ("4000::1", "reserved"),
        ] {
            assert_eq!(v6(text), Some(why), "{text}");
        }
        for text in ["2606:4700::1111", "2a00:1450::1", "3ffe::1", "2001:4860:4860::8888"] {
            assert_eq!(v6(text), None, "{text}");
        }
    }
}
