//! Real packets between network namespaces: one per host, each with a veth to a common bridge.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use inband_ground::xdp::PassThrough;

/// The port of the programs under test.
pub const PORT: u16 = 7707;
/// Time limit for a packet.
pub const TIMEOUT: Duration = Duration::from_secs(5);
pub const NODES: usize = 7;

/// A network of namespaces, removed on drop.
pub struct Net {
    prefix: String,
    _pass: Vec<PassThrough>,
}

/// Runs a command, which must succeed.
pub fn run(command: &str) {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    assert!(
        output.status.success(),
        "{command}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The address of a host, with the port of its programs.
pub fn address(node: usize) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, node as u8), PORT)
}

impl Net {
    /// Hosts 1..=NODES, each with one interface `eth0`.
    pub fn new() -> Net {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("ibt{}-{serial}", std::process::id());
        let mut net = Net {
            prefix,
            _pass: Vec::new(),
        };
        let p = &net.prefix;
        run(&format!("ip netns add {p}-sw && ip -n {p}-sw link add br0 type bridge && ip -n {p}-sw link set br0 up"));
        for node in 1..=NODES {
            run(&format!(
                "ip netns add {p}-{node} && \
                 ip -n {p}-{node} link add eth0 type veth peer name p{node} netns {p}-sw && \
                 ip -n {p}-{node} addr add {}/24 dev eth0 && ip -n {p}-{node} link set eth0 up && \
                 ip -n {p}-{node} link set lo up && \
                 ip -n {p}-sw link set p{node} master br0 up",
                address(node).ip()
            ));
        }
        let switch = format!("{p}-sw");
        net._pass = in_namespace(&switch, || {
            (1..=NODES)
                .map(|n| PassThrough::attach(&format!("p{n}")).unwrap())
                .collect()
        });
        net
    }

    /// From now on the hosts' links lose frames sent by XDP, like a driver without XDP transmission: a veth drops such
    /// frames if its peer has neither a program nor receive offload.
    pub fn lose_what_xdp_sends(&mut self) {
        self._pass.clear();
        let p = &self.prefix;
        for node in 1..=NODES {
            run(&format!("ip netns exec {p}-sw ethtool -K p{node} gro off"));
        }
    }

    /// Sets the switch's end of a host's cable up or down.
    pub fn cable(&self, node: usize, state: &str) {
        let p = &self.prefix;
        run(&format!("ip -n {p}-sw link set p{node} {state}"));
    }

    /// Runs `f` on a host.
    pub fn on<T: Send>(&self, node: usize, f: impl FnOnce() -> T + Send) -> T {
        in_namespace(&format!("{}-{node}", self.prefix), f)
    }

    /// A UDP socket on a host.
    pub fn socket(&self, node: usize, port: u16) -> UdpSocket {
        self.on(node, || {
            let socket = UdpSocket::bind((*address(node).ip(), port)).unwrap();
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            socket
        })
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self._pass.clear();
        for name in (1..=NODES).map(|n| n.to_string()).chain(["sw".into()]) {
            run(&format!("ip netns del {}-{name}", self.prefix));
        }
    }
}

/// Runs `f` in a namespace.
pub fn in_namespace<T: Send>(name: &str, f: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let inside = scope.spawn(|| {
            let namespace = File::open(format!("/run/netns/{name}")).unwrap();
            nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            f()
        });
        inside
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
