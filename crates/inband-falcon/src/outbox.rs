//! Packets of one length to one address leave together: one system call, and one way through the kernel.

use std::net::SocketAddrV4;

use inband_dataplane::socket::{HostSocket, BATCH_MAX};

/// Packets that are about to leave. [`Outbox::flush`] is to be called before anybody sleeps.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    packet_len_bytes: usize,
    to: Option<SocketAddrV4>,
}

impl Outbox {
    /// Send this, at once or with others.
    pub fn send(&mut self, socket: &HostSocket, packet: &[u8], to: SocketAddrV4) {
        if self.to != Some(to) || self.packet_len_bytes != packet.len() {
            self.flush(socket);
            (self.to, self.packet_len_bytes) = (Some(to), packet.len());
        }
        self.bytes.extend_from_slice(packet);
        if self.bytes.len() >= BATCH_MAX * packet.len() {
            self.flush(socket);
        }
    }

    /// Nothing waits any more.
    pub fn flush(&mut self, socket: &HostSocket) {
        if let Some(to) = self.to.take() {
            // What is lost is sent again by whoever misses it.
            socket.send_batch(&self.bytes, self.packet_len_bytes, to);
            self.bytes.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inband_dataplane::wire::PACKET_LEN_MAX_BYTES;

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
        let mut buffer = [0; PACKET_LEN_MAX_BYTES + 1];
        for n in 0..60 {
            let (len_bytes, _) = one
                .receive(&mut buffer)
                .expect("it works")
                .expect("it came");
            assert_eq!(buffer[..len_bytes], packet(n));
        }
        assert!(one.receive(&mut buffer).expect("it works").is_none());
        let (len_bytes, _) = other
            .receive(&mut buffer)
            .expect("it works")
            .expect("it came");
        assert_eq!(buffer[..len_bytes], packet(99));
    }
}
