//! Chooses where a host's packet roles run: as requested, or the best backend that works.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::thread;
use std::time::{Duration, Instant};

pub use inband_ground::xdp::KERNEL_MIN_NATIVE;
use inband_ground::xdp::{self, Proof, XdpError, XdpMode};

use crate::config::Dataplane;

/// How long `auto` waits for an interface that does not exist yet, or that another program still uses.
const INTERFACE_TIMEOUT: Duration = Duration::from_secs(3);
const INTERFACE_POLL: Duration = Duration::from_millis(50);

/// The chosen backend, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Never [`Dataplane::Auto`].
    pub dataplane: Dataplane,
    /// One line: what was tried, and what prevents a better choice.
    pub why: String,
}

/// The interface to which roles would be attached.
#[derive(Debug, Clone)]
pub struct Place<'a> {
    pub interface: &'a str,
    /// This host's address and port on it.
    pub address: SocketAddrV4,
    /// Its peers, as far as known.
    pub peers: Vec<Ipv4Addr>,
}

impl Choice {
    /// User space, for this reason.
    pub fn udp(why: impl Into<String>) -> Choice {
        Choice {
            dataplane: Dataplane::Udp,
            why: why.into(),
        }
    }
}

/// Returns the address for trying a role: no packet has this port, so the role on trial receives nothing. It must not
/// answer, because its state is discarded after the trial.
fn trial_address(address: SocketAddrV4) -> SocketAddrV4 {
    SocketAddrV4::new(*address.ip(), 0)
}

/// Resolves `auto`, or tries whether the requested backend works. `load` loads and attaches the roles' programs at the
/// given address, where no packet reaches them, and detaches them again.
pub fn resolve(
    asked: Dataplane,
    place: Option<&Place<'_>>,
    mut load: impl FnMut(XdpMode, SocketAddrV4) -> Result<(), XdpError>,
) -> Result<Choice, XdpError> {
    let Some(place) = place else {
        // The configuration has been checked: explicitly requested XDP has an interface.
        return Ok(match asked {
            Dataplane::Auto => Choice::udp("no host.interface is configured"),
            other => Choice {
                dataplane: other,
                why: "as configured".into(),
            },
        });
    };
    choose(asked, place.interface, |mode| {
        load(mode, trial_address(place.address))?;
        xdp::sends(place.interface, mode, *place.address.ip(), &place.peers)
    })
}

/// `works` tries a mode.
fn choose(
    asked: Dataplane,
    interface: &str,
    mut works: impl FnMut(XdpMode) -> Result<Proof, XdpError>,
) -> Result<Choice, XdpError> {
    let proven = |dataplane, mode, proof| {
        let why = match proof {
            Proof::Sent => format!("{} XDP works on {interface}", name(mode)),
            Proof::NobodyAnswers => format!(
                "{} XDP attaches to {interface}; whether it sends could not be tried, for no \
                 neighbour answered ARP",
                name(mode)
            ),
        };
        Choice { dataplane, why }
    };
    let modes = [
        (XdpMode::Native, Dataplane::Xdp),
        (XdpMode::Generic, Dataplane::XdpGeneric),
    ];
    match asked {
        Dataplane::Udp => return Ok(Choice::udp("as configured")),
        Dataplane::Auto => {}
        _ => {
            let (mode, _) = modes[usize::from(asked == Dataplane::XdpGeneric)];
            let choice = proven(asked, mode, works(mode)?);
            let why = format!("as configured; {}", choice.why);
            return Ok(Choice { why, ..choice });
        }
    }
    let mut refused: Vec<String> = Vec::new();
    let until = Instant::now() + INTERFACE_TIMEOUT;
    for (mode, dataplane) in modes {
        match once_there(until, || works(mode)) {
            Ok(proof) => {
                let choice = proven(dataplane, mode, proof);
                refused.insert(0, choice.why);
                let why = refused.join("; ");
                return Ok(Choice { dataplane, why });
            }
            // They may exist at the next start, whereas `udp` would stay in use until then.
            Err(error @ (XdpError::NoInterface { .. } | XdpError::NoAddress { .. })) => {
                return Err(error)
            }
            Err(error) => refused.push(format!("not {} XDP: {}", name(mode), error.in_short())),
        }
    }
    Ok(Choice::udp(refused.join("; ")))
}

/// Retries while the interface or its address is missing (perhaps because of DHCP), or another program is attached
/// (perhaps by an exiting process): `auto` does not choose a worse backend because of a temporary condition.
fn once_there(
    until: Instant,
    mut works: impl FnMut() -> Result<Proof, XdpError>,
) -> Result<Proof, XdpError> {
    loop {
        match works() {
            Err(
                XdpError::Busy { .. } | XdpError::NoInterface { .. } | XdpError::NoAddress { .. },
            ) if Instant::now() < until => thread::sleep(INTERFACE_POLL),
            result => return result,
        }
    }
}

fn name(mode: XdpMode) -> &'static str {
    match mode {
        XdpMode::Native => "native",
        XdpMode::Generic => "generic",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> XdpError {
        XdpError::Load {
            program: "quorum",
            kernel: "6.1.0".into(),
            reason: "R2 unbounded memory access".into(),
            log: Some("/state/refused-quorum.log".into()),
        }
    }

    #[test]
    fn auto_takes_the_best_that_works_and_says_in_one_line_why_not_a_better_one() {
        type Works = fn(XdpMode) -> Result<Proof, XdpError>;
        let cases: [(Works, Dataplane, &str); 4] = [
            (
                |_| Ok(Proof::Sent),
                Dataplane::Xdp,
                "native XDP works on eth0",
            ),
            (
                |_| Ok(Proof::NobodyAnswers),
                Dataplane::Xdp,
                "could not be tried",
            ),
            (
                |mode| match mode {
                    XdpMode::Native => Err(refused()),
                    XdpMode::Generic => Ok(Proof::Sent),
                },
                Dataplane::XdpGeneric,
                "generic XDP works on eth0; not native XDP: kernel 6.1.0 refuses the XDP program \
                 quorum: R2 unbounded memory access (log: /state/refused-quorum.log)",
            ),
            (
                |_| Err(refused()),
                Dataplane::Udp,
                "not generic XDP: kernel",
            ),
        ];
        for (works, dataplane, why) in cases {
            let choice = choose(Dataplane::Auto, "eth0", works).unwrap();
            assert_eq!(choice.dataplane, dataplane);
            assert!(choice.why.contains(why), "{}", choice.why);
            assert_eq!(choice.why.lines().count(), 1);
        }
    }

    #[test]
    fn auto_waits_for_a_program_that_is_going_away() {
        let mut tries = 0;
        let choice = choose(Dataplane::Auto, "eth0", |_| {
            tries += 1;
            match tries {
                1 | 2 => Err(XdpError::Busy {
                    interface: "eth0".into(),
                }),
                _ => Ok(Proof::Sent),
            }
        });
        assert_eq!(choice.unwrap().dataplane, Dataplane::Xdp);
    }

    #[test]
    fn auto_does_not_settle_for_less_because_an_address_is_late() {
        let no_address = || XdpError::NoAddress {
            interface: "eth0".into(),
            address: Ipv4Addr::LOCALHOST,
            there: "none".into(),
        };
        let mut tries = 0;
        let choice = choose(Dataplane::Auto, "eth0", |_| {
            tries += 1;
            match tries {
                1 => Err(no_address()),
                _ => Ok(Proof::Sent),
            }
        });
        assert_eq!(choice.unwrap().dataplane, Dataplane::Xdp);
        let error = choose(Dataplane::Auto, "eth0", |_| Err(no_address())).unwrap_err();
        assert!(!error.is_lasting(), "systemd tries again");
    }

    #[test]
    fn what_is_asked_for_and_does_not_work_is_an_error() {
        for asked in [Dataplane::Xdp, Dataplane::XdpGeneric] {
            let error = choose(asked, "eth0", |_| Err(refused())).unwrap_err();
            assert!(error.is_lasting(), "{error}");
            let choice = choose(asked, "eth0", |_| Ok(Proof::Sent)).unwrap();
            assert_eq!(choice.dataplane, asked);
        }
        let choice = choose(Dataplane::Udp, "eth0", |_| panic!("nothing is to be tried"));
        assert_eq!(choice.unwrap().dataplane, Dataplane::Udp);
    }
}
