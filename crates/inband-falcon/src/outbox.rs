//! Sends packets of one length to one address together, with one system call and one pass through the kernel.

use std::net::SocketAddrV4;

use inband_ground::socket::{HostSocket, BATCH_MAX};

/// Maximum addresses with pending packets.
const OPEN_MAX: usize = 8;

/// Pending packets. Call [`Outbox::flush`] before going to sleep. Packets to one address keep their order.
#[derive(Debug, Default)]
pub struct Outbox {
    open: Vec<Batch>,
}

#[derive(Debug)]
struct Batch {
    to: SocketAddrV4,
    packet_len_bytes: usize,
    bytes: Vec<u8>,
}

impl Batch {
    fn flush(&mut self, socket: &HostSocket) {
        if !self.bytes.is_empty() {
            // Lost packets are resent by a timeout.
            socket.send_batch(&self.bytes, self.packet_len_bytes, self.to);
            self.bytes.clear();
        }
    }
}

impl Outbox {
    /// Sends a packet, at once or with others.
    pub fn send(&mut self, socket: &HostSocket, packet: &[u8], to: SocketAddrV4) {
        let batch = self.batch(socket, to);
        if batch.packet_len_bytes != packet.len() {
            batch.flush(socket);
            batch.packet_len_bytes = packet.len();
        }
        batch.bytes.extend_from_slice(packet);
        if batch.bytes.len() >= BATCH_MAX * packet.len() {
            batch.flush(socket);
        }
    }

    fn batch(&mut self, socket: &HostSocket, to: SocketAddrV4) -> &mut Batch {
        let known = self.open.iter().position(|batch| batch.to == to);
        let at = known.unwrap_or_else(|| {
            if self.open.len() == OPEN_MAX {
                self.flush(socket);
                self.open.clear();
            }
            self.open.push(Batch {
                to,
                packet_len_bytes: 0,
                bytes: Vec::new(),
            });
            self.open.len() - 1
        });
        &mut self.open[at]
    }

    /// Sends all pending packets.
    pub fn flush(&mut self, socket: &HostSocket) {
        for batch in &mut self.open {
            batch.flush(socket);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inband_ground::wire::PACKET_LEN_MAX_BYTES;

    #[test]
    fn packets_arrive_whole_and_in_order() {
        let here = "127.0.0.1:0".parse().expect("an address");
        let [from, one, other] = [(); 3].map(|()| HostSocket::bind(here).expect("a port"));
        let [to_one, to_other] = [&one, &other].map(|s| s.local_address().expect("it is bound"));
        let mut outbox = Outbox::default();
        let packet = |n: u8| vec![n; if n % 7 == 0 { 50 } else { 200 }];
        for n in 0..60 {
            outbox.send(&from, &packet(n), to_one);
        }
        outbox.send(&from, &packet(99), to_other);
        outbox.flush(&from);
        outbox.flush(&from);
        // More addresses than batches.
        for n in 0..=OPEN_MAX as u16 {
            let nobody = SocketAddrV4::new([127, 0, 0, 1].into(), n + 1);
            outbox.send(&from, &packet(98), nobody);
        }
        outbox.send(&from, &packet(98), to_other);
        outbox.flush(&from);
        let mut buffer = [0; PACKET_LEN_MAX_BYTES + 1];
        for n in 0..60 {
            let (len_bytes, _) = one
                .receive(&mut buffer)
                .expect("it works")
                .expect("it came");
            assert_eq!(buffer[..len_bytes], packet(n));
        }
        assert!(one.receive(&mut buffer).expect("it works").is_none());
        for n in [99, 98] {
            let (len_bytes, _) = other
                .receive(&mut buffer)
                .expect("it works")
                .expect("it came");
            assert_eq!(buffer[..len_bytes], packet(n));
        }
    }

    #[test]
    fn packets_to_two_addresses_by_turns_leave_together() {
        let here = "127.0.0.1:0".parse().expect("an address");
        let from = HostSocket::bind(here).expect("a port");
        let mut outbox = Outbox::default();
        for n in 0..6 {
            let to = SocketAddrV4::new([127, 0, 0, 1].into(), 1 + n % 2);
            outbox.send(&from, &[0; 50], to);
        }
        let waiting: Vec<usize> = outbox.open.iter().map(|b| b.bytes.len()).collect();
        assert_eq!(waiting, [150, 150]);
    }
}
