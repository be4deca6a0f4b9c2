//! A gate between a keyed and a keyless segment (`dataplane/ground/gate.h`): a program on each of its two interfaces.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;

use super::attach::{find_link, Attachment};
use super::error::{Doing, XdpError};
use super::lost::{self, Lost};
use super::netlink::{LinkInfo, Netlink};
use super::probe::check_kernel;
use super::programs::{counters_of, load_object, Loaded, Settings};
use super::rig::{run, TestRun};
use super::XdpMode;
use crate::auth::{raw, Keys};
use crate::{c, objects, System};

/// Which segment an interface leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Packets that enter here have a tag of a key, which is checked and replaced by a checksum.
    Keyed,
    /// Packets that enter here have a checksum as tag, which is checked and replaced by a tag of the active key.
    Keyless,
    /// As `Keyless`, but the checksum is not checked: the switch there changes packets and cannot make it again.
    Unchecked,
}

impl Side {
    fn raw(self) -> c::ib_gate_side {
        match self {
            Side::Keyed => c::IB_GATE_KEYED,
            Side::Keyless => c::IB_GATE_KEYLESS,
            Side::Unchecked => c::IB_GATE_UNCHECKED,
        }
    }
}

/// What a gate counts: the ground's reasons.
#[derive(Debug, Clone, Copy)]
pub enum Gate {}

impl System for Gate {
    fn check(keys: Option<&Keys>, packet: &[u8], partitions: usize) -> u32 {
        let len_bytes = packet.len() as u32;
        // SAFETY: the function reads at most the packet's bytes, and the keys if there are any.
        unsafe { c::ib_gate_keys_check(raw(keys), packet.as_ptr(), len_bytes, partitions as u32) }
    }

    fn own_reason_name(_reason: u32) -> Option<&'static str> {
        None
    }
}

/// Passes a packet (UDP payload) that enters on this side, as the program does. Returns the number of the reason that
/// is counted; the packet is changed if that is `IB_R_tag_removed` or `IB_R_tag_made`.
pub fn pass(side: Side, keys: &Keys, packet: &mut [u8]) -> u32 {
    let len_bytes = packet.len() as u32;
    // SAFETY: the function reads and writes at most the packet's bytes, and reads the keys.
    unsafe { c::ib_gate_pass(raw(Some(keys)), side.raw(), packet.as_mut_ptr(), len_bytes) }
}

/// The loaded program of one side.
pub struct Program {
    loaded: Loaded,
    settings: Settings,
}

impl Program {
    /// Loads the program. It sends what passes out of the interface with the index `other_side`, which must exist.
    pub fn load(side: Side, keys: &Keys, other_side: u32) -> Result<Program, XdpError> {
        let settings = c::ib_settings {
            node: 0,
            partitions: c::IB_PARTITIONS_MAX,
            address: 0,
            loop_ifindex: 0,
            generic: 0,
            port: 0,
            authenticated: u16::from(side == Side::Keyed),
        };
        let own = c::ib_gate_settings {
            side: u64::from(side.raw()),
        };
        let settings = Settings::new(settings, &own);
        let loaded = load_object("gate", objects::GATE, Some(&settings), &[], &[])?;
        loaded.set_keys(keys)?;
        loaded.set_bytes("ib_other_side_map", 0, &other_side.to_ne_bytes())?;
        Ok(Program { loaded, settings })
    }

    /// Runs the program on a frame, without an interface.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<TestRun, XdpError> {
        run(&self.loaded.program, frame, repeat)
    }

    /// Counters by name, summed over the CPUs, without those that are zero.
    pub fn counters(&self) -> Result<BTreeMap<&'static str, u64>, XdpError> {
        counters_of::<Gate>(&self.loaded.map("ib_counters_map")?)
    }

    /// Replaces the keys.
    pub fn set_keys(&self, keys: &Keys) -> Result<(), XdpError> {
        self.loaded.set_keys(keys)
    }

    /// Returns the program and its maps.
    pub fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// Loads another program with the same settings, which shares this program's maps of the same names.
    pub fn load_beside(&self, name: &'static str, object: &[u8]) -> Result<Loaded, XdpError> {
        load_object(name, object, Some(&self.settings), &[], &[&self.loaded])
    }
}

/// Why an interface cannot be a side of a gate.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    #[error(transparent)]
    Xdp(XdpError),
    /// Its message is without what another host would do: a gate has only XDP.
    #[error("{}", .0.in_short())]
    Privilege(XdpError),
    /// As [`GateError::Privilege`].
    #[error("{}; run a kernel that docs/deploy.md lists", .0.in_short())]
    Load(XdpError),
    #[error("{0} belongs to a bridge or a bond, which would go on forwarding without the gate; take it out: ip link set {0} nomaster")]
    HasMaster(String),
    #[error("{interface} has the address {address}, and the kernel might forward packets to it without the gate; remove it: ip address flush dev {interface}")]
    HasAddress { interface: String, address: IpAddr },
    #[error("{interface} has {upper} on top of it (a macvlan, a VLAN or the like), which would send without the gate; remove it: ip link del {upper}")]
    HasUpper { interface: String, upper: String },
    /// Longer frames than the other interface can send are lost.
    #[error("the MTU of {keyed} is {keyed_mtu_bytes} and that of {keyless} {keyless_mtu_bytes}, and frames that are too long for the other side are lost; give both the same: ip link set {keyed} mtu N; ip link set {keyless} mtu N")]
    MtuDiffers {
        keyed: String,
        keyed_mtu_bytes: u32,
        keyless: String,
        keyless_mtu_bytes: u32,
    },
    #[error("the interface {0} is gone or another one, and nothing passes any more; start the gate again")]
    Replaced(String),
    /// Packets may have bypassed the gate since it started.
    #[error("{why}. The gate has taken {keyed} and {keyless} down, so that nothing passes: then bring both up (ip link set {keyed} up; ip link set {keyless} up), and start the gate again")]
    OtherWay {
        why: Box<GateError>,
        keyed: String,
        keyless: String,
    },
    #[error("{0} is a tun or tap interface, which may hand over several packets as one; use a network card or a veth")]
    IsTap(String),
    #[error("{0} and {1} are the same interface; a gate has two")]
    SameInterface(String, String),
    #[error("{interface}: cannot receive frames for other hosts (promiscuous mode): {source}")]
    Promiscuous {
        interface: String,
        source: io::Error,
    },
}

impl From<XdpError> for GateError {
    fn from(error: XdpError) -> GateError {
        match error {
            XdpError::Privilege { .. } => GateError::Privilege(error),
            XdpError::Load { .. } => GateError::Load(error),
            other => GateError::Xdp(other),
        }
    }
}

impl GateError {
    /// Returns whether the kernel may forward from or to the interface.
    fn is_other_way(&self) -> bool {
        matches!(
            self,
            GateError::HasMaster(_) | GateError::HasUpper { .. } | GateError::HasAddress { .. }
        )
    }
}

/// One side, attached.
pub struct Port {
    // Dropped before the program's maps.
    _attachment: Attachment,
    program: Program,
    /// Ends the promiscuous mode when it is closed.
    _promiscuous: OwnedFd,
    interface: String,
    index: u32,
    lost: Option<Lost>,
}

/// Returns a device of this namespace that uses the interface, such as a macvlan.
fn upper_of(of_interface: &Path) -> Option<String> {
    let entries = fs::read_dir(of_interface).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names
        .filter_map(|name| Some(name.strip_prefix("upper_")?.to_owned()))
        .min()
}

/// Checks that a frame of one interface also fits the other.
fn check_mtus(keyed: (&str, &LinkInfo), keyless: (&str, &LinkInfo)) -> Result<(), GateError> {
    let ((keyed, keyed_link), (keyless, keyless_link)) = (keyed, keyless);
    if keyed_link.mtu_bytes == keyless_link.mtu_bytes {
        return Ok(());
    }
    Err(GateError::MtuDiffers {
        keyed: keyed.into(),
        keyed_mtu_bytes: keyed_link.mtu_bytes,
        keyless: keyless.into(),
        keyless_mtu_bytes: keyless_link.mtu_bytes,
    })
}

/// Returns the error if the interfaces of a running gate have different MTUs. It goes on with what fits: whoever changes
/// both changes one first. `None` also if one of them is gone, which [`check`] reports.
pub fn mtu_differs(ports: &[Port; 2]) -> Option<GateError> {
    let netlink = Netlink::open().ok()?;
    let [keyed, keyless] = ports.each_ref().map(Port::interface);
    let keyed_link = find_link(&netlink, keyed).ok()?;
    let keyless_link = find_link(&netlink, keyless).ok()?;
    check_mtus((keyed, &keyed_link), (keyless, &keyless_link)).err()
}

/// An interface that nothing but a gate forwards from or to.
fn check_alone(interface: &str) -> Result<LinkInfo, GateError> {
    let netlink = Netlink::open().doing("opening a netlink socket")?;
    let link = find_link(&netlink, interface)?;
    let of_interface = Path::new("/sys/class/net").join(interface);
    if of_interface.join("master").exists() {
        return Err(GateError::HasMaster(interface.into()));
    }
    if let Some(upper) = upper_of(&of_interface) {
        return Err(GateError::HasUpper {
            interface: interface.into(),
            upper,
        });
    }
    if of_interface.join("tun_flags").exists() {
        return Err(GateError::IsTap(interface.into()));
    }
    let addresses = nix::ifaddrs::getifaddrs()
        .map_err(io::Error::from)
        .doing("reading the interfaces' addresses")?;
    let own = addresses.filter(|entry| entry.interface_name == interface);
    let mut own = own.filter_map(|entry| {
        let address = entry.address?;
        match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
            (Some(v4), _) => Some(IpAddr::V4(v4.ip())),
            // Every interface that is up has one of the link, to which nothing is forwarded.
            (_, Some(v6)) if !v6.ip().is_unicast_link_local() => Some(IpAddr::V6(v6.ip())),
            _ => None,
        }
    });
    match own.next() {
        Some(address) => Err(GateError::HasAddress {
            interface: interface.into(),
            address,
        }),
        None => Ok(link),
    }
}

/// Has the interface receive frames for all hosts until the result is dropped.
fn promiscuous(index: u32) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // Protocol 0: it receives nothing.
    // SAFETY: plain system call.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just made and nobody else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all zero is a valid value of this plain C struct.
    let mut request: libc::packet_mreq = unsafe { std::mem::zeroed() };
    request.mr_ifindex = index as i32;
    request.mr_type = libc::PACKET_MR_PROMISC as u16;
    // SAFETY: the request lives through the call, and its size is given.
    let done = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            (&raw const request).cast(),
            size_of_val(&request) as libc::socklen_t,
        )
    };
    match done {
        0 => Ok(socket),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Port {
    fn attach(
        side: Side,
        keys: &Keys,
        to: &LinkInfo,
        at: &LinkInfo,
        name: &str,
    ) -> Result<Port, GateError> {
        let program = Program::load(side, keys, to.index)?;
        let promiscuous = promiscuous(at.index).map_err(|source| GateError::Promiscuous {
            interface: name.into(),
            source,
        })?;
        let loaded = &program.loaded.program;
        let attachment = Attachment::xdp(loaded, at.index, name, XdpMode::Native)?;
        Ok(Port {
            _attachment: attachment,
            program,
            _promiscuous: promiscuous,
            interface: name.to_owned(),
            index: at.index,
            lost: Lost::count_or_warn(&[to.index]),
        })
    }

    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Counters by name, including frames that the kernel or the driver of the other side dropped instead of sending.
    pub fn counters(&self) -> Result<BTreeMap<&'static str, u64>, XdpError> {
        let mut counters = self.program.counters()?;
        lost::add(&self.lost, &mut counters)?;
        Ok(counters)
    }

    /// See [`Program::set_keys`].
    pub fn set_keys(&self, keys: &Keys) -> Result<(), XdpError> {
        self.program.set_keys(keys)
    }

    /// Checks that the interface is still there, and still the gate's alone. If another one of this name has taken its
    /// place, nothing passes there.
    fn check(&self) -> Result<(), GateError> {
        match check_alone(&self.interface) {
            Ok(link) if link.index == self.index => Ok(()),
            Ok(_) | Err(GateError::Xdp(XdpError::NoInterface { .. })) => {
                Err(GateError::Replaced(self.interface.clone()))
            }
            Err(error) => Err(error),
        }
    }
}

/// Checks that both interfaces are still there, and that nothing but the gate forwards between them. Otherwise they are
/// taken down before the programs go: the kernel would forward what the gate has dropped until then.
pub fn check(ports: &[Port; 2]) -> Result<(), GateError> {
    let mut checked = ports.each_ref().map(Port::check);
    checked.sort_by_key(|result| !matches!(result, Err(error) if error.is_other_way()));
    let ([Err(error), _] | [Ok(()), Err(error)]) = checked else {
        return Ok(());
    };
    if !error.is_other_way() {
        return Err(error);
    }
    let netlink = Netlink::open().doing("opening a netlink socket")?;
    let [keyed, keyless] = ports;
    for port in ports {
        match netlink.set_down(port.index) {
            Err(gone) if gone.raw_os_error() == Some(libc::ENODEV) => {}
            taken => taken.doing(format!("{error}; taking {} down", port.interface))?,
        }
    }
    Err(GateError::OtherWay {
        why: Box::new(error),
        keyed: keyed.interface.clone(),
        keyless: keyless.interface.clone(),
    })
}

/// Attaches a gate between two interfaces, natively: in generic mode the kernel may hand over several packets as one, of
/// which only the first would be checked. `keyless_side` is `Keyless` or `Unchecked`.
pub fn attach(
    keyed: &str,
    keyless: &str,
    keyless_side: Side,
    keys: &Keys,
) -> Result<[Port; 2], GateError> {
    check_kernel(XdpMode::Native)?;
    let (keyed_link, keyless_link) = (check_alone(keyed)?, check_alone(keyless)?);
    if keyed_link.index == keyless_link.index {
        return Err(GateError::SameInterface(keyed.into(), keyless.into()));
    }
    check_mtus((keyed, &keyed_link), (keyless, &keyless_link))?;
    Ok([
        Port::attach(Side::Keyed, keys, &keyless_link, &keyed_link, keyed)?,
        Port::attach(keyless_side, keys, &keyed_link, &keyless_link, keyless)?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_those_of_a_gate() {
        let privilege = XdpError::Privilege {
            what: "loading BPF programs",
        };
        let load = XdpError::Load {
            program: "gate",
            kernel: "6.0".into(),
            reason: "too complex".into(),
            log: None,
        };
        for (error, what, remedy) in [
            (privilege, "loading BPF programs needs root", "CAP_BPF"),
            (load, "too complex", "docs/deploy.md"),
        ] {
            let text = GateError::from(error).to_string();
            assert!(text.contains(what) && text.contains(remedy), "{text}");
            assert!(!text.contains("dataplane"), "{text}");
        }
    }
}
