//! Networks of IP addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use inband_host::serde_as_text;

/// All addresses with this prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix_bits: u8,
}

impl Network {
    pub const LOOPBACK: Network = Network {
        address: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)),
        prefix_bits: 8,
    };

    /// Returns its address and mask, if it is a network of IPv4.
    pub fn ipv4(&self) -> Option<(Ipv4Addr, Ipv4Addr)> {
        let IpAddr::V4(address) = self.address else {
            return None;
        };
        let mask = u32::MAX << (32 - u32::from(self.prefix_bits));
        let network = address.to_bits() & mask;
        Some((Ipv4Addr::from_bits(network), Ipv4Addr::from_bits(mask)))
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        let (bits, ours, theirs) = match (self.address, address.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                (32, u128::from(ours.to_bits()), u128::from(theirs.to_bits()))
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => (128, ours.to_bits(), theirs.to_bits()),
            _ => return false,
        };
        let rest = bits - u32::from(self.prefix_bits);
        (ours ^ theirs).checked_shr(rest).unwrap_or(0) == 0
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        let wrong = || format!("{text:?} is not a network; give ADDRESS/BITS, such as 10.1.2.0/24");
        let (address, bits) = text.split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let prefix_bits: u8 = bits.parse().map_err(|_| wrong())?;
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        match (1..=bits_max).contains(&prefix_bits) {
            true => Ok(Network {
                address,
                prefix_bits,
            }),
            false => Err(format!(
                "{text}: {prefix_bits} bits; give 1 to {bits_max}, since a network must not include everybody"
            )),
        }
    }
}

serde_as_text!(Network);

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_inside_or_outside() {
        let cases = [
            ("10.1.2.0/24", "10.1.2.255", "10.1.3.0"),
            ("10.1.2.3/32", "10.1.2.3", "10.1.2.2"),
            ("128.0.0.0/1", "255.0.0.1", "127.0.0.1"),
            ("fd00::/8", "fdff::1", "fe00::1"),
            ("10.0.0.0/8", "::ffff:10.0.0.1", "::1"),
        ];
        for (network, inside, outside) in cases {
            let network: Network = network.parse().unwrap();
            assert!(network.contains(inside.parse().unwrap()), "{network}");
            assert!(!network.contains(outside.parse().unwrap()), "{network}");
        }
        let of = |text: &str| text.parse::<Network>().unwrap().ipv4();
        let expected = [[10, 1, 2, 0], [255, 255, 255, 0]].map(Ipv4Addr::from);
        assert_eq!(of("10.1.2.3/24"), Some(expected.into()));
        assert_eq!(of("fd00::/8"), None);
        assert!(Network::LOOPBACK.contains("127.9.9.9".parse().unwrap()));
        for wrong in ["10.0.0.0", "10.0.0.0/33", "0.0.0.0/0", "x/8", "10.0.0.0/x"] {
            let error = wrong.parse::<Network>().unwrap_err();
            assert!(error.contains(wrong), "{error}");
        }
    }
}
