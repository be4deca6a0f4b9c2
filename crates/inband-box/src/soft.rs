//! The role in this process: over its own registers, or over those of the program in the kernel, with which it then
//! shares the work.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::Ordering::SeqCst;

use inband_ground::soft::{Arrival, Soft};
use inband_ground::wire::PACKET_LEN_MAX_BYTES;

use crate::registers::{word, Client, Registers};
use crate::role::{Handled, Mode, Put, Record, Refused, Role, Verdict, View};
use crate::wire::{self, Header, Type};
use crate::{c, owner_of, Zab, NODES};

/// Creates a node that has just started: idle, with an empty log.
///
/// # Panics
/// If `node` is not in [`NODES`], or the capacity is not a power of two.
pub fn soft(node: u8, capacity: usize) -> Soft<Zab> {
    over(node, Registers::zeroed(capacity))
}

/// Creates a node that has just started, whose role also gets the SETs of clients over UDP ([`handle_set`]).
///
/// # Panics
/// As [`soft`].
pub fn soft_with_clients(node: u8, capacity: usize) -> Soft<Zab> {
    over(node, Registers::with_clients(capacity))
}

/// Creates the role over these registers.
pub(crate) fn over(node: u8, registers: Registers) -> Soft<Zab> {
    let capacity = registers.records.count();
    assert!(NODES.contains(&node), "node {node} is not one of {NODES:?}");
    assert!(
        capacity.is_power_of_two(),
        "a ring of {capacity} records is not a power of two"
    );
    let switch = |registers: &Registers, counters| c::ib_box_soft {
        node: u32::from(node),
        reserved: 0,
        capacity: capacity as u64,
        registers: registers.node.as_ptr(),
        record: registers.records.as_ptr(),
        client: match &registers.clients {
            Some(clients) => clients.as_ptr(),
            None => std::ptr::null_mut(),
        },
        counters,
    };
    // SAFETY: there is one node, and as many records, and clients if any, as the struct says.
    unsafe { Soft::new(registers, switch) }
}

fn verdict_of(verdict: u32) -> Verdict {
    match verdict {
        c::IB_PASS => Verdict::Pass,
        c::IB_REPLY => Verdict::Reply,
        c::IB_BOX_TO_OTHERS => Verdict::ToOthers,
        _ => Verdict::Drop,
    }
}

/// Handles a datagram to a port for clients as the packet program does. [`Verdict::ToOthers`]: it was a SET, whose
/// record is in the log, and is in the buffer as the packet to send. [`Verdict::Pass`]: the datagram is for the process.
/// The client's request id is the datagram's.
pub fn handle_set(
    role: &Soft<Zab>,
    client: &Client,
    datagram: &[u8],
    buffer: &mut [u8; PACKET_LEN_MAX_BYTES],
    now_ns: u64,
) -> Handled {
    let arrival = inband_ground::c::ib_arrival::from(Arrival {
        from: client.address,
        now_ns,
        random: 0,
    });
    let client = c::ib_box_client::from(client);
    let mut len_bytes = datagram.len() as u32;
    // SAFETY: the datagram has as many bytes as given, and the buffer has room for every packet; the switch's pointers are
    // those of our registers.
    let result = unsafe {
        c::ib_box_set(
            role.switch(),
            &raw const client,
            datagram.as_ptr(),
            buffer.as_mut_ptr(),
            &raw mut len_bytes,
            &raw const arrival,
        )
    };
    Handled {
        verdict: verdict_of(result.verdict),
        reason: result.reason,
        len_bytes: len_bytes as usize,
    }
}

/// Returns the packet for a record of this process's own node.
fn submit(node: u8, record: &Record) -> Vec<u8> {
    let header = Header {
        node: node.into(),
        origin: record.origin.into(),
        origin_session: record.origin_session,
        origin_seq: record.origin_seq,
        ..Header::of(Type::Submit)
    };
    wire::emit(&header, &record.value)
}

impl Role for Soft<Zab> {
    fn node(&self) -> u8 {
        self.switch().node as u8
    }

    fn capacity(&self) -> u64 {
        self.switch().capacity
    }

    fn view(&self) -> View {
        self.registers().view()
    }

    fn committed(&self) -> u64 {
        word!(self.registers(), committed).load(SeqCst)
    }

    fn advances(&self) -> u64 {
        word!(self.registers(), advances).load(SeqCst)
    }

    fn raise_epoch(&self, epoch: u64) -> View {
        let r = self.registers();
        let _held = r.hold();
        let before = r.view_held();
        if epoch >= before.epoch {
            word!(r, epoch).store(epoch, SeqCst);
            word!(r, mode).store(c::IB_BOX_IDLE.into(), SeqCst);
            word!(r, leader).store(0, SeqCst);
            word!(r, matched).store(before.committed, SeqCst);
        }
        r.view_held()
    }

    fn lead(&self, epoch: u64) -> bool {
        let r = self.registers();
        let _held = r.hold();
        let view = r.view_held();
        if view.mode != Mode::Idle || view.epoch != epoch || owner_of(epoch) != self.node() {
            return false;
        }
        for node in NODES {
            for at in (0..size_of::<c::ib_box_peer>()).step_by(8) {
                r.peer_word(node, at).store(0, SeqCst);
            }
        }
        if !view.acks_by_process {
            let matched = offset_of!(c::ib_box_peer, matched);
            r.peer_word(self.node(), matched).store(view.last, SeqCst);
        }
        word!(r, leader).store(self.node().into(), SeqCst);
        word!(r, recovering).store(0, SeqCst);
        word!(r, established_at).store(view.last + 1, SeqCst);
        word!(r, mode).store(c::IB_BOX_LEADING.into(), SeqCst);
        true
    }

    fn follow(&self, epoch: u64, recovering: bool, now_ns: u64) -> bool {
        let r = self.registers();
        let _held = r.hold();
        let view = r.view_held();
        if epoch < view.epoch || owner_of(epoch) == self.node() {
            return false;
        }
        word!(r, recovering).store(recovering.into(), SeqCst);
        if epoch == view.epoch && view.mode == Mode::Following {
            return true;
        }
        word!(r, epoch).store(epoch, SeqCst);
        word!(r, leader).store(owner_of(epoch).into(), SeqCst);
        word!(r, matched).store(view.committed, SeqCst);
        word!(r, heard_ns).store(now_ns, SeqCst);
        word!(r, process_heard_ns).store(now_ns, SeqCst);
        word!(r, mode).store(c::IB_BOX_FOLLOWING.into(), SeqCst);
        true
    }

    fn set_recovering(&self, recovering: bool) {
        let r = self.registers();
        let _held = r.hold();
        word!(r, recovering).store(recovering.into(), SeqCst);
    }

    fn append(&self, record: &Record) -> Result<u64, Refused> {
        let packet = submit(self.node(), record);
        loop {
            let mut buffer = [0; PACKET_LEN_MAX_BYTES];
            buffer[..packet.len()].copy_from_slice(&packet);
            let handled = self.handle_packet(&mut buffer, packet.len(), 0);
            match (handled.verdict, handled.reason) {
                (Verdict::ToOthers, _) => {
                    let (header, _) =
                        wire::parse(&buffer[..handled.len_bytes]).expect("it is ours");
                    return Ok(header.zxid);
                }
                (Verdict::Reply, c::IB_R_box_submit_busy) => return Err(Refused::Busy),
                (Verdict::Reply, _) => return Err(Refused::NotLeading),
                (_, c::IB_R_contended) => std::thread::yield_now(),
                // Not a member, or an origin that is not this node.
                (_, reason) => {
                    panic!("a record of ours is refused for reason {reason}: {record:?}")
                }
            }
        }
    }

    fn propose(&self, zxid: u64) -> Option<Vec<u8>> {
        let view = self.view();
        let record = self.read(zxid)?;
        Some(wire::propose(
            &record,
            self.node(),
            view.epoch,
            view.committed,
        ))
    }

    fn put(&self, epoch: u64, record: &Record, committed: u64) -> Put {
        let packet = wire::propose(record, self.node(), epoch, committed);
        // SAFETY: the packet has as many bytes as given; the switch's pointers are those of our registers.
        let reason = unsafe { c::ib_box_put(self.switch(), packet.as_ptr(), packet.len() as u32) };
        match reason {
            c::IB_R_box_appended | c::IB_R_box_kept => Put::Taken,
            c::IB_R_box_had_already => Put::Had,
            c::IB_R_box_gap => Put::Gap,
            c::IB_R_box_not_applied => Put::Full,
            _ => Put::Refused,
        }
    }

    fn read(&self, zxid: u64) -> Option<Record> {
        let r = self.registers();
        let record = r.record(zxid)?;
        // A record that was truncated, or is covered by an installed table, may still be in its slot.
        let first = word!(r, first).load(SeqCst);
        let in_log = first..=word!(r, last).load(SeqCst);
        in_log.contains(&zxid).then_some(record)
    }

    fn set_applied(&self, zxid: u64) {
        word!(self.registers(), applied).fetch_max(zxid, SeqCst);
    }

    fn set_time_ms(&self, time_ms: u64) {
        word!(self.registers(), time_ms).fetch_max(time_ms, SeqCst);
    }

    fn set_quorum(&self, members: u64, quorum: usize) {
        let r = self.registers();
        {
            let _held = r.hold();
            word!(r, members).store(members, SeqCst);
            word!(r, quorum).store(quorum as u64, SeqCst);
        }
        self.ack_own(0);
    }

    fn set_guests(&self, guests: u64) {
        let r = self.registers();
        let _held = r.hold();
        word!(r, guests).store(guests, SeqCst);
    }

    fn set_window(&self, window: u64) {
        let r = self.registers();
        let _held = r.hold();
        word!(r, window).store(window, SeqCst);
    }

    fn set_acks_by_process(&self, yes: bool) {
        let r = self.registers();
        let _held = r.hold();
        word!(r, acks_by_process).store(yes.into(), SeqCst);
    }

    fn ack_own(&self, zxid: u64) -> bool {
        // SAFETY: the switch's pointers are those of our registers.
        unsafe { c::ib_box_ack_own(self.switch(), zxid) != 0 }
    }

    fn set_joined(&self, node: u8, matched: u64, recovering: bool) {
        assert!(NODES.contains(&node), "node {node} is not one of {NODES:?}");
        let r = self.registers();
        {
            let _held = r.hold();
            let peer = |at| r.peer_word(node, at);
            if recovering {
                peer(offset_of!(c::ib_box_peer, recovered)).store(matched, SeqCst);
            } else {
                peer(offset_of!(c::ib_box_peer, matched)).fetch_max(matched, SeqCst);
            }
        }
        self.ack_own(0);
    }

    fn install(&self, zxid: u64, epoch: u64, time_ms: u64) -> bool {
        let r = self.registers();
        let _held = r.hold();
        let view = r.view_held();
        if view.mode == Mode::Leading || zxid <= view.committed {
            return false;
        }
        let same = |record: &Record| zxid <= view.last && record.epoch == epoch;
        if !r.record(zxid).as_ref().is_some_and(same) {
            // From here on at the latest, ours is a different log, so nothing of it was committed.
            word!(r, first).store(zxid + 1, SeqCst);
            word!(r, last).store(zxid, SeqCst);
            word!(r, last_epoch).store(epoch, SeqCst);
            word!(r, last_time_ms).store(time_ms, SeqCst);
        }
        word!(r, matched).fetch_max(zxid, SeqCst);
        word!(r, committed).store(zxid, SeqCst);
        word!(r, applied).fetch_max(zxid, SeqCst);
        true
    }

    fn handle_packet(
        &self,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES],
        len_bytes: usize,
        now_ns: u64,
    ) -> Handled {
        let arrival = Arrival {
            from: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0),
            now_ns,
            random: 0,
        };
        let (result, len_bytes) = self.handle(buffer, len_bytes, arrival);
        Handled {
            verdict: verdict_of(result.verdict),
            reason: result.reason,
            len_bytes,
        }
    }

    fn counters_by_name(&self) -> BTreeMap<&'static str, u64> {
        self.counters()
    }
}
