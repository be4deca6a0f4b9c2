//! Combines messages to other hosts: those to one address leave together, as many as fit in a packet.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;

use inband_ground::socket::HostSocket;
use inband_ground::wire::VALUE_LEN_MAX_BYTES;

use crate::packets::{Codec, HostMessage};

/// Pending messages. Call [`Coalescer::flush`] before going to sleep.
#[derive(Debug, Default)]
pub struct Coalescer {
    /// Encoded messages, concatenated.
    to: BTreeMap<SocketAddrV4, Vec<u8>>,
}

impl Coalescer {
    pub fn is_empty(&self) -> bool {
        self.to.is_empty()
    }

    /// Adds a message for this address. `executor`: the executor that sends it, or that it is for. Returns a packet
    /// that has to leave now because this message does not fit into it.
    pub fn put(
        &mut self,
        codec: &mut Codec,
        to: SocketAddrV4,
        executor: u32,
        message: &HostMessage,
    ) -> Option<Vec<u8>> {
        let waiting = self.to.entry(to).or_default();
        let before = waiting.len();
        Codec::append(executor, message, waiting);
        if before == 0 || waiting.len() <= VALUE_LEN_MAX_BYTES {
            return None;
        }
        let last = waiting.split_off(before);
        let full = std::mem::replace(waiting, last);
        Some(codec.together(&full).to_vec())
    }

    /// Like [`Coalescer::put`], but sends that packet.
    pub fn send(
        &mut self,
        codec: &mut Codec,
        socket: &HostSocket,
        to: SocketAddrV4,
        executor: u32,
        message: &HostMessage,
    ) {
        if let Some(packet) = self.put(codec, to, executor, message) {
            // Lost packets are resent by a timeout.
            socket.send(&packet, to);
        }
    }

    /// Takes all pending messages, one packet per address.
    pub fn take(&mut self, codec: &mut Codec, mut each: impl FnMut(SocketAddrV4, &[u8])) {
        for (to, messages) in std::mem::take(&mut self.to) {
            each(to, codec.together(&messages));
        }
    }

    /// Sends all pending messages.
    pub fn flush(&mut self, codec: &mut Codec, socket: &HostSocket) {
        self.take(codec, |to, packet| {
            socket.send(packet, to);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Outcome, Payload, ToClient};
    use crate::packets::Incoming;
    use crate::task::{Attempt, TaskId};
    use inband_ground::auth::{Digest, Gate};
    use inband_ground::wire::PACKET_LEN_MAX_BYTES;

    fn result(task: u32, len_bytes: usize) -> HostMessage {
        let (user, job) = (1, 2);
        let id = TaskId { user, job, task };
        let output = Outcome::Output(Payload::Inline(vec![7; len_bytes]));
        HostMessage::ToClient(ToClient::Result(Attempt { id, attempt: 1 }, output))
    }

    #[test]
    fn messages_travel_together_in_order_and_packets_are_filled() {
        let mut codec = Codec::new(Gate::of::<crate::dataplane::Falcon>(None, 1), Digest::PLAIN);
        let mut coalescer = Coalescer::default();
        let [one, other] = ["10.0.0.1:1", "10.0.0.2:1"].map(|a| a.parse().expect("an address"));
        let mut packets: Vec<(SocketAddrV4, Vec<u8>)> = Vec::new();
        for task in 0..40 {
            let message = result(task, 100);
            let full = coalescer.put(&mut codec, one, task, &message);
            packets.extend(full.map(|packet| (one, packet)));
        }
        // Longer than the space left after the others.
        let long = coalescer.put(&mut codec, one, 40, &result(40, 1024));
        packets.push((one, long.expect("a packet that is full")));
        assert!(coalescer
            .put(&mut codec, other, 41, &result(41, 10))
            .is_none());
        coalescer.take(&mut codec, |to, packet| packets.push((to, packet.to_vec())));
        assert!(coalescer.is_empty());
        assert_eq!(packets.len(), 4 + 1 + 1, "12 of these fill a packet");
        let mut read = Vec::new();
        for (to, packet) in packets {
            assert!(packet.len() <= PACKET_LEN_MAX_BYTES);
            for incoming in codec.read(&packet) {
                let Incoming::Host(executor, message) = incoming else {
                    panic!("{incoming:?} is not what was sent");
                };
                let len_bytes = match executor {
                    40 => 1024,
                    41 => 10,
                    _ => 100,
                };
                assert_eq!(message, result(executor, len_bytes));
                assert_eq!(to == other, executor == 41);
                read.push(executor);
            }
        }
        assert_eq!(read, Vec::from_iter(0..42));
    }

    #[test]
    fn what_follows_a_message_and_is_none_is_not_read() {
        let mut codec = Codec::new(Gate::of::<crate::dataplane::Falcon>(None, 1), Digest::PLAIN);
        let mut messages = Vec::new();
        Codec::append(3, &result(1, 5), &mut messages);
        Codec::append(4, &result(2, 5), &mut messages);
        let cut = &messages[..messages.len() - 1];
        let packet = codec.together(cut).to_vec();
        assert_eq!(codec.read(&packet), [Incoming::Host(3, result(1, 5))]);
    }
}
