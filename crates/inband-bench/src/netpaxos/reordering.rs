//! A serializer that delays some copies, to measure the cost of reordering.

use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use inband_ground::auth::Gate;
use inband_ground::socket::{wait_readable, HostSocket};
use inband_ground::soft::Arrival;
use inband_ground::wire::PACKET_LEN_MAX_BYTES;
use inband_netpaxos::c::IB_NETPAXOS_TO_GROUP;
use inband_netpaxos::role::{soft, Kind};
use inband_netpaxos::wire::node;
use rand::Rng;

const PPM: u32 = 1_000_000;
/// Maximum time to hold a copy while waiting for the next request.
const HELD: Duration = Duration::from_micros(500);

/// Serializes packets received on the socket until `ends` is set. On average this many copies in a million swap
/// places with the copy of the next request to the same minion.
pub fn serve(
    socket: &HostSocket,
    gate: &mut Gate,
    minions: &[SocketAddrV4],
    reordered_ppm: u32,
    ends: &AtomicBool,
) -> Result<()> {
    let serializer = soft(node::serializer(1), Kind::Serializer);
    let mut buffer = Box::new([0; PACKET_LEN_MAX_BYTES + 1]);
    let mut held: Vec<Option<Vec<u8>>> = vec![None; minions.len()];
    let arrival = Arrival {
        from: socket.local_address()?,
        now_ns: 0,
        random: 0,
    };
    let mut random = rand::rng();
    while !ends.load(Ordering::Acquire) {
        socket.flush();
        wait_readable([socket.fd()], socket.sleep_time(HELD));
        let mut is_idle = true;
        while let Some((len_bytes, _)) = socket.receive(&mut buffer)? {
            is_idle = false;
            if len_bytes > PACKET_LEN_MAX_BYTES || !gate.admits(&buffer[..len_bytes]) {
                continue;
            }
            let packet = buffer.first_chunk_mut().expect("it is shorter by one");
            let (result, len_bytes) = serializer.handle(packet, len_bytes, arrival);
            if result.verdict != IB_NETPAXOS_TO_GROUP {
                continue;
            }
            let packet = &mut packet[..len_bytes];
            gate.sign(packet);
            for (minion, late) in minions.iter().zip(&mut held) {
                let before = late.take();
                if before.is_none() && random.random_range(0..PPM) < reordered_ppm {
                    *late = Some(packet.to_vec());
                    continue;
                }
                socket.queue(packet, *minion);
                if let Some(before) = before {
                    socket.queue(&before, *minion);
                }
            }
        }
        if is_idle {
            for (minion, late) in minions.iter().zip(&mut held) {
                if let Some(late) = late.take() {
                    socket.queue(&late, *minion);
                }
            }
        }
    }
    Ok(())
}
