//! The UDP socket of a host. It receives every packet that no role in the kernel takes.
//!
//! Packets are received and sent in batches. A driver handles everything that [`HostSocket::receive`] returns, queues
//! the resulting packets, and flushes once before it sleeps.

mod inbox;
mod send_queue;

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddrV4, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use crate::wire::PACKET_LEN_MAX_BYTES;
use inbox::Inbox;
use send_queue::{How, SendQueue};

/// Requested receive and send buffer size: a full window of the default ring.
const SOCKET_BUFFER_BYTES: libc::c_int = 8 << 20;

/// Maximum packets of one size and destination to pass to the kernel as one message. The network stack processes them
/// as one batch, and the resulting packets of a leader and its acceptors still fit in a veth's ring of 256 frames.
pub const BATCH_MAX: usize = 16;

/// Packets that a loop handles before it looks at signals and deadlines again: a flood must not keep it from them.
pub const PACKETS_PER_TURN: usize = 64;

/// Non-blocking. Not thread-safe: one thread owns it.
pub struct HostSocket {
    socket: UdpSocket,
    how: How,
    inbox: RefCell<Inbox>,
    queue: RefCell<SendQueue>,
}

fn set_option(
    fd: RawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: `value` lives through the call and its length is given.
    let result = unsafe {
        libc::setsockopt(
            fd,
            level,
            name,
            std::ptr::from_ref(&value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

impl HostSocket {
    /// Binds the host's address.
    pub fn bind(address: SocketAddrV4) -> io::Result<HostSocket> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        let fd = socket.as_raw_fd();
        // Packet programs rewrite our packets, and a checksum left for the interface to compute does not survive a
        // redirect. UDP over IPv4 may omit it, and the digest protects the value.
        set_option(fd, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1)?;
        Inbox::join_packets(fd);
        for (forced, plain) in [
            (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
            (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
        ] {
            let set_option = |name, value| set_option(fd, libc::SOL_SOCKET, name, value);
            if set_option(forced, SOCKET_BUFFER_BYTES).is_err() {
                // Without the privilege the kernel's limit applies: a smaller buffer is slower but correct.
                set_option(plain, SOCKET_BUFFER_BYTES)?;
            }
        }
        Ok(HostSocket {
            socket,
            how: How::without_checksum(fd),
            inbox: RefCell::new(Inbox::new()),
            queue: RefCell::default(),
        })
    }

    /// Returns the next packet, if there is one. A packet that is too long is truncated and fails to parse. Packets are
    /// read from the kernel in batches, so a caller that stops before `None` must sleep only for
    /// [`HostSocket::sleep_time`]: the descriptor does not signal packets that have been read already.
    pub fn receive(
        &self,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES + 1],
    ) -> io::Result<Option<(usize, SocketAddrV4)>> {
        let mut inbox = self.inbox.borrow_mut();
        if inbox.is_empty() && !inbox.fill(self.fd())? {
            return Ok(None);
        }
        Ok(inbox.next().map(|(packet, from)| {
            let len_bytes = packet.len().min(buffer.len());
            buffer[..len_bytes].copy_from_slice(&packet[..len_bytes]);
            (len_bytes, from)
        }))
    }

    /// Passes packets that have arrived to `handle`, with their lengths, up to [`PACKETS_PER_TURN`]. Returns how many.
    pub fn receive_some(
        &self,
        buffer: &mut [u8; PACKET_LEN_MAX_BYTES + 1],
        mut handle: impl FnMut(&mut [u8; PACKET_LEN_MAX_BYTES + 1], usize, SocketAddrV4),
    ) -> io::Result<usize> {
        for handled in 0..PACKETS_PER_TURN {
            let Some((len_bytes, from)) = self.receive(buffer)? else {
                return Ok(handled);
            };
            handle(buffer, len_bytes, from);
        }
        Ok(PACKETS_PER_TURN)
    }

    /// Returns how long the owner may sleep: `limit`, or zero if [`HostSocket::receive`] has another packet.
    pub fn sleep_time(&self, limit: Duration) -> Duration {
        match self.inbox.borrow().is_empty() {
            true => limit,
            false => Duration::ZERO,
        }
    }

    /// From now on the kernel gets each packet by itself, instead of several as one message that it splits (`UDP_SEGMENT`). A
    /// virtual link may carry such a message whole, and a program in generic XDP mode behind it drops it.
    pub fn join_no_packets(&self) {
        self.how.join_no_packets();
    }

    /// Queues a packet for the next [`HostSocket::flush`]. Packets to one address stay in order.
    pub fn queue(&self, packet: &[u8], to: SocketAddrV4) {
        let mut queue = self.queue.borrow_mut();
        queue.push(packet, to);
        if queue.is_full() {
            queue.flush(&self.how);
        }
    }

    /// Sends the queued packets. Packets are lost if a buffer is full or a host is unreachable, as on a network.
    pub fn flush(&self) {
        let mut queue = self.queue.borrow_mut();
        if !queue.is_empty() {
            queue.flush(&self.how);
        }
    }

    /// Sends the queued packets and then this one. Returns false if any of them was lost.
    pub fn send(&self, packet: &[u8], to: SocketAddrV4) -> bool {
        let mut queue = self.queue.borrow_mut();
        let lost = queue.lost();
        if queue.is_empty() {
            // Nothing to coalesce.
            queue.send_now(&self.how, &self.socket, packet, to);
        } else {
            queue.push(packet, to);
            queue.flush(&self.how);
        }
        queue.lost() == lost
    }

    /// Sends packets of `packet_len_bytes` each, which are contiguous in `packets`. Returns how many of these and of
    /// the queued packets were lost.
    pub fn send_batch(&self, packets: &[u8], packet_len_bytes: usize, to: SocketAddrV4) -> usize {
        assert!(packet_len_bytes > 0 && packets.len() % packet_len_bytes == 0);
        let lost = self.lost();
        for packet in packets.chunks(packet_len_bytes) {
            self.queue(packet, to);
        }
        self.flush();
        (self.lost() - lost) as usize
    }

    /// Packets that the kernel refused, since the start.
    pub fn lost(&self) -> u64 {
        self.queue.borrow().lost()
    }

    /// Messages that were too long to be packets, or could not be split, since the start.
    pub fn dropped(&self) -> u64 {
        self.inbox.borrow().dropped()
    }

    /// Returns the local address, for sockets bound to port 0.
    pub fn local_address(&self) -> io::Result<SocketAddrV4> {
        match self.socket.local_addr()? {
            std::net::SocketAddr::V4(address) => Ok(address),
            std::net::SocketAddr::V6(_) => unreachable!("it was bound to IPv4"),
        }
    }

    /// For `poll(2)`; see [`HostSocket::receive`].
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Sleeps until one of the descriptors is readable or the timeout has passed; may return early on a signal. Returns
/// which of them are readable. A negative descriptor never is.
pub fn wait_readable(fds: impl IntoIterator<Item = RawFd>, timeout: Duration) -> Vec<bool> {
    let polled = fds.into_iter().map(|fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    });
    let mut polled: Vec<libc::pollfd> = polled.collect();
    let timeout = libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: the array has the length that is given and lives through the call, as the time-out does. Of a descriptor
    // that is closed, or another's by now, the kernel only says whether it has something to read.
    let ready = unsafe {
        libc::ppoll(
            polled.as_mut_ptr(),
            polled.len() as libc::nfds_t,
            &raw const timeout,
            std::ptr::null(),
        )
    };
    let any = ready > 0;
    polled.iter().map(|fd| any && fd.revents != 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const LIMIT: Duration = Duration::from_secs(20);

    fn bound() -> (HostSocket, SocketAddrV4) {
        let socket = HostSocket::bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let address = socket.local_address().expect("it is bound");
        (socket, address)
    }

    /// Receives `count` packets, and checks that there are no more.
    fn received(socket: &HostSocket, count: usize) -> Vec<(Vec<u8>, SocketAddrV4)> {
        let mut buffer = [0; PACKET_LEN_MAX_BYTES + 1];
        let mut packets = Vec::new();
        let deadline = Instant::now() + LIMIT;
        while packets.len() < count && Instant::now() < deadline {
            let Some((len_bytes, from)) = socket.receive(&mut buffer).expect("it works") else {
                wait_readable([socket.fd()], LIMIT);
                continue;
            };
            packets.push((buffer[..len_bytes].to_vec(), from));
        }
        assert_eq!(packets.len(), count);
        assert!(socket.receive(&mut buffer).expect("it works").is_none());
        packets
    }

    /// Packet `n`. The length varies, so that some packets are joined and some are not.
    fn packet(n: usize) -> Vec<u8> {
        let mut packet = vec![0; [64, 64, 64, 100, 1400][n / 3 % 5]];
        packet[..8].copy_from_slice(&n.to_be_bytes());
        packet
    }

    #[test]
    fn a_batch_arrives_whole_in_order_and_with_its_senders() {
        let (to, address) = bound();
        let senders = [bound(), bound()];
        // More messages than one system call returns.
        const EACH: usize = 120;
        for n in 0..EACH {
            for (sender, _) in &senders {
                sender.queue(&packet(n), address);
            }
        }
        for (sender, _) in &senders {
            sender.flush();
            assert_eq!(sender.lost(), 0);
        }
        let packets = received(&to, 2 * EACH);
        for (_, from) in &senders {
            let theirs = packets.iter().filter(|(_, sender)| sender == from);
            assert!(theirs
                .map(|(bytes, _)| bytes.clone())
                .eq((0..EACH).map(packet)));
        }
        assert_eq!(to.dropped(), 0);
    }

    #[test]
    fn a_turn_ends_although_more_packets_wait() {
        let (to, address) = bound();
        let (from, _) = bound();
        let sent = PACKETS_PER_TURN + 10;
        (0..sent).for_each(|n| assert!(from.send(&packet(n), address)));
        let mut buffer = [0; PACKET_LEN_MAX_BYTES + 1];
        let mut turns = vec![];
        while turns.iter().sum::<usize>() < sent {
            assert!(wait_readable([to.fd()], to.sleep_time(LIMIT))[0] || !turns.is_empty());
            turns.push(
                to.receive_some(&mut buffer, |_, _, _| ())
                    .expect("it works"),
            );
        }
        assert_eq!(turns, [PACKETS_PER_TURN, 10]);
    }

    #[test]
    fn each_address_gets_its_own_in_order() {
        let (from, _) = bound();
        let receivers = [bound(), bound(), bound()];
        for n in 0..90 {
            from.queue(&packet(n), receivers[n % 3].1);
        }
        // A packet sent immediately must not overtake queued ones.
        assert!(from.send(&packet(90), receivers[0].1));
        for (at, (receiver, _)) in receivers.iter().enumerate() {
            let count = if at == 0 { 31 } else { 30 };
            let packets = received(receiver, count);
            let expected = (0..=90).filter(|n| n % 3 == at).map(packet);
            assert!(packets.into_iter().map(|p| p.0).eq(expected), "{at}");
        }
    }

    /// The kernel stops at the first message that it refuses; the ones behind it must still be sent.
    #[test]
    fn a_packet_that_cannot_be_sent_is_lost_alone() {
        let (from, _) = bound();
        let receivers = [bound(), bound()];
        // Sending to it needs broadcast permission. Mix it with the valid addresses in every order.
        let forbidden = SocketAddrV4::new([255; 4].into(), 9);
        for n in 0..10 {
            from.queue(&packet(n), receivers[0].1);
            from.queue(&packet(n), forbidden);
            from.queue(&packet(n), receivers[1].1);
        }
        from.queue(&vec![0; 1 << 16], receivers[0].1);
        from.queue(&packet(10), receivers[0].1);
        from.queue(&packet(10), receivers[1].1);
        from.flush();
        assert_eq!(from.lost(), 11);
        for (receiver, _) in &receivers {
            let packets = received(receiver, 11).into_iter().map(|p| p.0);
            assert!(packets.eq((0..11).map(packet)));
        }
        assert!(!from.send(&packet(0), forbidden));
        assert_eq!(from.lost(), 12);
    }

    #[test]
    fn where_the_kernel_does_not_cut_packets_leave_one_by_one() {
        let (from, _) = bound();
        let (to, address) = bound();
        // Sending to this address fails with the same error as when segmentation is refused.
        let nowhere = SocketAddrV4::new([127, 0, 0, 1].into(), 0);
        for n in 0..3 {
            from.queue(&packet(n), nowhere);
            from.queue(&packet(n), address);
        }
        from.flush();
        from.queue(&packet(3), address);
        from.queue(&packet(4), address);
        from.flush();
        assert_eq!(from.lost(), 3);
        let packets = received(&to, 5).into_iter().map(|p| p.0);
        assert!(packets.eq((0..5).map(packet)));
    }

    #[test]
    fn a_full_queue_is_sent_and_an_oversize_packet_is_cut_off() {
        let (from, _) = bound();
        let (to, address) = bound();
        let long = vec![7; 40_000];
        let mut buffer = [0; PACKET_LEN_MAX_BYTES + 1];
        for _ in 0..1000 {
            from.queue(&long, address);
            if let Some((len_bytes, _)) = to.receive(&mut buffer).expect("it works") {
                assert_eq!(len_bytes, PACKET_LEN_MAX_BYTES + 1);
                return;
            }
        }
        panic!("nothing leaves");
    }

    #[test]
    fn nobody_sleeps_while_packets_that_were_received_wait() {
        let (from, _) = bound();
        let (to, address) = bound();
        let limit = Duration::from_secs(1);
        assert_eq!(to.sleep_time(limit), limit);
        from.queue(&packet(0), address);
        from.queue(&packet(1), address);
        from.flush();
        wait_readable([to.fd()], LIMIT);
        let mut buffer = [0; PACKET_LEN_MAX_BYTES + 1];
        assert!(to.receive(&mut buffer).expect("it works").is_some());
        assert_eq!(to.sleep_time(limit), Duration::ZERO);
        received(&to, 1);
        assert_eq!(to.sleep_time(limit), limit);
    }
}
