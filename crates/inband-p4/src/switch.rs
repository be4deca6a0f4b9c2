//! The registers of an acceptor in a switch (`dataplane/paxos/p4/acceptor.p4`), through bmv2's control interface.
//!
//! The interface shows no word of 2^63 or more, which values and digests are. They are read with LEARN instead, which a
//! sealed acceptor answers to its host.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use inband_bmv2::Client;
use inband_control::acceptor::AcceptorError;
use inband_control::registers::AcceptorRegisters;
use inband_ground::auth::Gate;
use inband_ground::{c, System};
use inband_paxos::dataplane::registers::{AcceptorView, SlotView};
use inband_paxos::dataplane::soft::Geometry;
use inband_paxos::dataplane::wire::{self, flag, Header, Type, PACKET_LEN_MAX_BYTES};
use inband_paxos::dataplane::Paxos;

/// Longest value of a slot: IB_P4_VALUE_LEN_MAX_BYTES of `dataplane/paxos/p4/paxos.p4`.
pub const VALUE_LEN_MAX_BYTES: usize = 127;
/// Registers of 64 bits that a slot's value has. The last has the bytes behind the last whole word.
const VALUE_WORDS: usize = 16;
const STRIPE_LEN_BYTES: usize = 32;
/// The whole words behind the stripes begin here.
const WORDS_AT: usize = 12;
/// Limit for a call of the control interface, and for an answer of the data plane.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// A packet to or from the switch may be lost.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// The switch's own settings.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Its node id.
    pub node: u8,
    /// Where it receives packets.
    pub address: SocketAddrV4,
    /// Its port to this host.
    pub host_port: u16,
    /// Its port to the other hosts.
    pub uplink: u16,
    pub geometry: Geometry,
    pub packet_len_max_bytes: usize,
}

/// Why the switch cannot be an acceptor, or a call failed.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    #[error(transparent)]
    Control(#[from] inband_bmv2::Error),
    /// An earlier call has failed.
    #[error("{0}; its registers count as lost")]
    Lost(String),
    #[error("{option} {port}: the switch has no such port; it has {there}")]
    NoPort {
        option: &'static str,
        port: u16,
        there: String,
    },
    #[error(
        "--uplink and --host-port are both {0}; the switch has one port to the other hosts, and another to this one"
    )]
    SamePort(u16),
    #[error(
        "{address} does not answer this host's packets; is --host-port the switch's port to it, and does `ip neigh` show a \
         hardware address for it?"
    )]
    NoAnswer { address: SocketAddrV4 },
    #[error(
        "register array {array} of the switch has {found} words and the configuration needs {needed}; compile the program \
         with `scripts/p4 compile paxos acceptor FILE PARTITIONS={partitions} RING_SLOTS={ring_slots}`"
    )]
    Sizes {
        array: &'static str,
        found: usize,
        needed: usize,
        partitions: usize,
        ring_slots: usize,
    },
    #[error("cannot open a UDP socket at {address}: {source}; does this host have the address of its control_plane?")]
    Socket {
        address: Ipv4Addr,
        source: io::Error,
    },
}

impl From<SwitchError> for AcceptorError {
    fn from(error: SwitchError) -> AcceptorError {
        AcceptorError::Unreachable(error.to_string())
    }
}

/// A connected switch. If the connection fails, the registers count as lost: the switch may have been restarted, and
/// a later connection could not tell.
pub struct Switch {
    client: Mutex<Client>,
    /// Why the connection failed, once it has.
    lost: OnceLock<String>,
    /// To and from the data plane.
    packets: Mutex<Packets>,
    settings: Settings,
}

struct Packets {
    socket: UdpSocket,
    gate: Gate,
    asked: u64,
    /// Tells this process's questions from an earlier one's.
    asker: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Switch {
    /// Connects, and empties the switch: whatever it held belongs to an earlier process.
    pub fn start(
        control: SocketAddr,
        host: Ipv4Addr,
        settings: Settings,
        process: u64,
    ) -> Result<Switch, SwitchError> {
        let client = Client::connect(control, ANSWER_TIMEOUT)?;
        let open = || {
            let socket = UdpSocket::bind((host, 0))?;
            socket.connect(settings.address)?;
            socket.set_read_timeout(Some(ASK_AGAIN))?;
            Ok(socket)
        };
        let socket = open().map_err(|source| SwitchError::Socket {
            address: host,
            source,
        })?;
        let switch = Switch {
            client: Mutex::new(client),
            lost: OnceLock::new(),
            packets: Mutex::new(Packets {
                socket,
                gate: Gate::of::<Paxos>(None, settings.geometry.partitions),
                asked: 0,
                asker: process,
            }),
            settings,
        };
        switch.check_ports()?;
        switch.check_sizes()?;
        switch.configure()?;
        for partition in 0..settings.geometry.partitions {
            // Epoch 0, which no packet has, keeps it silent even if an earlier process's last write is still under way.
            switch.write("voting", partition, 0)?;
            switch.write("epoch", partition, 0)?;
            // No packet that has read the registers before may vote in the emptied slots.
            switch.wait_for_packets(partition)?;
        }
        switch.with(Client::reset)?;
        switch.configure()?;
        Ok(switch)
    }

    fn check_ports(&self) -> Result<(), SwitchError> {
        let Settings {
            host_port, uplink, ..
        } = self.settings;
        let ports = self.client().ports()?;
        for (option, port) in [("--uplink", uplink), ("--host-port", host_port)] {
            if ports.iter().all(|there| there.number != port) {
                let names = ports
                    .iter()
                    .map(|port| format!("{} ({})", port.number, port.interface));
                let there = names.collect::<Vec<_>>().join(", ");
                return Err(SwitchError::NoPort {
                    option,
                    port,
                    there,
                });
            }
        }
        match uplink == host_port {
            true => Err(SwitchError::SamePort(uplink)),
            false => Ok(()),
        }
    }

    fn check_sizes(&self) -> Result<(), SwitchError> {
        let Geometry {
            partitions,
            ring_slots,
        } = self.settings.geometry;
        let slots = partitions * ring_slots;
        for (array, needed) in [("promise", partitions), ("slot_instance", slots)] {
            let found = self.client().registers(array)?.len();
            if found != needed {
                return Err(SwitchError::Sizes {
                    array,
                    found,
                    needed,
                    partitions,
                    ring_slots,
                });
            }
        }
        Ok(())
    }

    fn configure(&self) -> Result<(), SwitchError> {
        let Settings {
            node,
            address,
            host_port,
            ..
        } = self.settings;
        let (ip, port) = (address.ip().octets(), address.port().to_be_bytes());
        let host_port = host_port.to_be_bytes();
        let data: [&[u8]; 4] = [&[0, node], &ip, &port, &host_port];
        self.with(|client| client.set_default("settings", "configure", &data))
    }

    fn client(&self) -> MutexGuard<'_, Client> {
        lock(&self.client)
    }

    /// Calls the control interface.
    pub fn with<T>(
        &self,
        call: impl FnOnce(&mut Client) -> Result<T, inband_bmv2::Error>,
    ) -> Result<T, SwitchError> {
        let mut client = self.client();
        if let Some(why) = self.lost() {
            return Err(SwitchError::Lost(why.to_owned()));
        }
        Ok(call(&mut client).inspect_err(|error| {
            if error.is_lasting() {
                self.lost.get_or_init(|| error.to_string());
            }
        })?)
    }

    /// Why its registers count as lost, if they do.
    pub fn lost(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    /// Packets by the reason for which they were counted, without those that are zero.
    pub fn counters(&self) -> Result<BTreeMap<String, u64>, SwitchError> {
        let mut counters = BTreeMap::new();
        for number in 0..c::IB_REASONS_MAX {
            let Some(name) = Paxos::reason_name(number) else {
                continue;
            };
            let packets = self.with(|client| client.packets("reasons", number as usize))?;
            if packets > 0 {
                counters.insert(name.to_owned(), packets);
            }
        }
        Ok(counters)
    }

    /// Reads the registers of a partition.
    fn registers(&self, partition: usize) -> Result<AcceptorView, SwitchError> {
        Ok(AcceptorView {
            promise: self.read("promise", partition)?,
            floor: self.read("floor", partition)?,
            highest: self.read("highest", partition)?,
            epoch: self.read("epoch", partition)?,
            voting: self.read("voting", partition)? != 0,
        })
    }

    fn read(&self, array: &str, index: usize) -> Result<u64, SwitchError> {
        self.with(|client| client.register(array, index))
    }

    fn write(&self, array: &str, index: usize, word: u64) -> Result<(), SwitchError> {
        self.with(|client| client.write_register(array, index, word))
    }

    /// Of a sealed acceptor, in which no packet raises it.
    fn raise(&self, array: &str, index: usize, word: u64) -> Result<(), SwitchError> {
        if self.read(array, index)? < word {
            self.write(array, index, word)?;
        }
        Ok(())
    }

    /// Returns once all packets have left that entered before. The switch handles one after the other, so the answer to
    /// a packet comes after them.
    fn wait_for_packets(&self, partition: usize) -> Result<(), SwitchError> {
        let mut packets = lock(&self.packets);
        packets.asked += 1;
        let mut header = Header::new(Type::Position, self.settings.node.into(), 0);
        header.partition = partition as u16;
        (header.client_id, header.client_seq) = (packets.asker, packets.asked);
        packets.ask(&self.settings, &header, |answer, _| {
            let is_answer = answer.kind == Type::Position && answer.has(flag::ANSWER);
            let question = (answer.client_id, answer.client_seq);
            (is_answer && question == (header.client_id, header.client_seq)).then_some(())
        })
    }

    /// Reads the vote of an instance of a sealed acceptor.
    fn learn(&self, slot: &mut SlotView, partition: usize, epoch: u64) -> Result<(), SwitchError> {
        let mut header = Header::new(Type::Learn, self.settings.node.into(), epoch as u32);
        header.partition = partition as u16;
        header.instance = slot.instance;
        let vote = |answer: &Header, value: &[u8]| {
            let is_vote = answer.kind == Type::Phase2B
                && answer.has(flag::REPEAT)
                && (answer.epoch, answer.partition) == (header.epoch, header.partition)
                && (answer.instance, answer.round) == (slot.instance, slot.vround);
            is_vote.then(|| SlotView {
                digest: answer.digest,
                client_id: answer.client_id,
                client_seq: answer.client_seq,
                client_low: answer.client_low,
                flags: answer.flags & flag::VALUE_MASK,
                value: value.to_vec(),
                ..slot.clone()
            })
        };
        *slot = lock(&self.packets).ask(&self.settings, &header, vote)?;
        Ok(())
    }
}

impl Packets {
    /// Sends a packet to the switch until there is an answer that `accept` accepts.
    fn ask<T>(
        &mut self,
        settings: &Settings,
        header: &Header,
        accept: impl Fn(&Header, &[u8]) -> Option<T>,
    ) -> Result<T, SwitchError> {
        let mut packet = Vec::new();
        wire::emit_padded_to(settings.packet_len_max_bytes, header, &[], &mut packet);
        self.gate.sign(&mut packet);
        let mut buffer = [0; PACKET_LEN_MAX_BYTES];
        let until = Instant::now() + ANSWER_TIMEOUT;
        let mut asked_at = None;
        while Instant::now() < until {
            if asked_at.is_none_or(|at: Instant| at.elapsed() >= ASK_AGAIN) {
                asked_at = Some(Instant::now());
                // If it fails, it is tried again like a packet that is lost.
                let _ = self.socket.send(&packet);
            }
            let Ok(len) = self.socket.recv(&mut buffer) else {
                continue;
            };
            let packet = Some(&buffer[..len]).filter(|packet| self.gate.admits(packet));
            let parsed = packet.and_then(|packet| wire::parse(packet).ok());
            if let Some(result) = parsed.and_then(|(answer, value)| accept(&answer, value)) {
                return Ok(result);
            }
        }
        let address = settings.address;
        Err(SwitchError::NoAnswer { address })
    }
}

/// A value's words in value0 to value15: whole stripes, the whole words behind them, the rest.
fn words_of(value: &[u8]) -> [u64; VALUE_WORDS] {
    let mut words = [0; VALUE_WORDS];
    let striped = value.len() / STRIPE_LEN_BYTES * STRIPE_LEN_BYTES / 8;
    let chunks = value.chunks_exact(8);
    let mut rest = chunks.remainder();
    for (i, chunk) in chunks.enumerate() {
        let at = if i < striped {
            i
        } else {
            WORDS_AT + i - striped
        };
        words[at] = chunk
            .iter()
            .fold(0, |word, byte| word << 8 | u64::from(*byte));
    }
    for (len, shift) in [(4, 32), (2, 16), (1, 8)] {
        if rest.len() >= len {
            let bytes = rest[..len].iter();
            let bytes = bytes.fold(0, |word, byte| word << 8 | u64::from(*byte));
            words[VALUE_WORDS - 1] |= bytes << shift;
            rest = &rest[len..];
        }
    }
    words
}

impl AcceptorRegisters for Switch {
    fn view(&self, partition: usize) -> AcceptorView {
        self.registers(partition).unwrap_or_default()
    }

    fn is_lost(&self) -> bool {
        self.lost().is_some()
    }

    fn seal(&self, partition: usize, epoch: u64) -> Result<(), AcceptorError> {
        self.write("voting", partition, 0)?;
        self.raise("epoch", partition, epoch)?;
        Ok(self.wait_for_packets(partition)?)
    }

    fn adopt(
        &self,
        partition: usize,
        promise: u64,
        floor: u64,
        highest: u64,
    ) -> Result<(), AcceptorError> {
        self.raise("promise", partition, promise)?;
        self.raise("floor", partition, floor)?;
        Ok(self.raise("highest", partition, highest)?)
    }

    fn adopted(&self, partition: usize, highest: u64) -> Result<(), AcceptorError> {
        Ok(self.write("highest", partition, highest)?)
    }

    fn open(&self, partition: usize) -> Result<(), AcceptorError> {
        Ok(self.write("voting", partition, 1)?)
    }

    fn slot(&self, index: usize) -> Result<Option<SlotView>, AcceptorError> {
        let partition = index / self.settings.geometry.ring_slots;
        let mut slot = SlotView {
            instance: self.read("slot_instance", index)?,
            promise: self.read("slot_promise", index)?,
            vround: self.read("slot_vround", index)?,
            ..SlotView::default()
        };
        let AcceptorView { floor, epoch, .. } = self.view(partition);
        // Below the floor it is of no use to anybody, and LEARN refuses it.
        if slot.vround != 0 && slot.instance >= floor {
            self.learn(&mut slot, partition, epoch)?;
        }
        Ok(Some(slot))
    }

    fn replace(&self, index: usize, slot: &SlotView) -> Result<bool, AcceptorError> {
        let len = slot.value.len();
        if len > VALUE_LEN_MAX_BYTES {
            return Err(AcceptorError::TooLong {
                instance: slot.instance,
                len,
                max: VALUE_LEN_MAX_BYTES,
            });
        }
        let last = (len as u64) << 48
            | u64::from(slot.flags) << 32
            | u64::from(wire::checksum(&slot.value));
        let words = [
            ("slot_instance", slot.instance),
            ("slot_promise", slot.promise),
            ("slot_vround", slot.vround),
            ("slot_digest", slot.digest),
            ("slot_client_id", slot.client_id),
            ("slot_client_seq", slot.client_seq),
            ("slot_client_low", slot.client_low),
            ("slot_last", last),
        ];
        for (array, word) in words {
            self.write(array, index, word)?;
        }
        if len > 0 {
            for (i, word) in words_of(&slot.value).into_iter().enumerate() {
                self.write(&format!("value{i}"), index, word)?;
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_words_that_the_program_reads() {
        let value: Vec<u8> = (0x80..0x80 + 47).collect();
        let words = words_of(&value);
        assert_eq!(words[0], 0x8081_8283_8485_8687);
        assert_eq!(words[3], 0x9899_9a9b_9c9d_9e9f);
        assert_eq!(words[4], 0);
        assert_eq!(words[12], 0xa0a1_a2a3_a4a5_a6a7);
        assert_eq!(words[15], 0xa8a9_aaab_acad_ae00);
        let longest = words_of(&[0xff; VALUE_LEN_MAX_BYTES]);
        assert_eq!(longest[..15], [u64::MAX; 15]);
        assert_eq!(longest[15], u64::MAX - 0xff);
    }
}
