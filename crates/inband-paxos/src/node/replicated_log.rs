//! A node as the log of an application.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use crate::dataplane::wire::HEADER_LEN_BYTES;
use crate::dataplane::xdp::XdpHost;

use super::Node;
use crate::log::{Burst, ReadTicket, ReplicatedLog, SubmitError, Ticket};
use crate::timing::Micros;

/// A host that waits for no value of its own is not woken for each decided value while they arrive at least this
/// frequently; it polls instead.
const STREAM_GAP_US: Micros = 2_000;

/// The polling interval in that case.
const STREAM_LOOK: Duration = Duration::from_micros(500);

impl ReplicatedLog for Node {
    fn partitions(&self) -> usize {
        self.host.config().geometry.partitions
    }

    fn max_value_len_bytes(&self) -> usize {
        self.host.config().packet_len_max_bytes - HEADER_LEN_BYTES
    }

    fn submit_room(&self, partition: usize) -> usize {
        self.host.partition(partition).proposer().room()
    }

    fn submit(&mut self, partition: usize, value: &[u8]) -> Result<Ticket, SubmitError> {
        let (len_bytes, limit_bytes) = (value.len(), self.max_value_len_bytes());
        if len_bytes > limit_bytes {
            return Err(SubmitError::TooLong {
                len_bytes,
                limit_bytes,
            });
        }
        // Sent by the next poll, together with everything else submitted until then.
        self.host
            .submit(self.now(), partition, value, &mut self.out)
    }

    fn poll(&mut self, bursts: &mut [Burst]) {
        self.send_submitted();
        self.receive();
        self.take_decided();
        self.tick();
        self.sync_journal();
        self.host.take_bursts(bursts);
    }

    fn pause(&mut self, partition: usize, is_paused: bool) {
        // The resulting packets are sent by the next poll.
        self.host
            .pause(self.now(), partition, is_paused, &mut self.out);
    }

    fn applied(&mut self, partition: usize, instance: u64) {
        self.host.applied(partition, instance);
    }

    fn sends_checkpoint(&mut self) {
        let now = self.now();
        self.host.hold_logs(now);
    }

    fn reset(&mut self, partition: usize, applied: u64) {
        self.host.reset(partition, applied);
    }

    fn session_refused(&mut self, ticket: Ticket) {
        let now = self.now();
        self.host.session_refused(now, ticket, &mut self.out);
        self.flush();
    }

    fn answered(&mut self, ticket: Ticket) {
        self.host.answered(ticket);
    }

    fn confirm_read(&mut self, partition: usize) -> ReadTicket {
        // Queried by the next poll, together with all other reads until then.
        self.host.confirm_read(self.now(), partition)
    }

    fn wake_fds(&self) -> Vec<RawFd> {
        let mut fds = vec![self.socket.fd()];
        let ring = self.kernel.as_ref().and_then(XdpHost::decided_fd);
        fds.extend(ring.map(|fd| fd.as_raw_fd()));
        fds
    }

    fn poll_timeout(&self) -> Duration {
        if self.more_to_receive || !self.out.is_empty() {
            return Duration::ZERO;
        }
        let now = self.now();
        let mut due = self.host.due(now).min(self.neighbours_at);
        if let Some((journal, _)) = self.host.journal() {
            if journal.wants_sync(now) {
                return Duration::ZERO;
            }
            due = due.min(journal.due());
        }
        let timeout = Duration::from_micros(due.saturating_sub(now));
        let Some(kernel) = &self.kernel else {
            return timeout;
        };
        let idle = self.host.is_idle();
        if idle && self.decided_at != 0 && now < self.decided_at + STREAM_GAP_US {
            return timeout.min(STREAM_LOOK);
        }
        kernel.set_polling(false);
        if kernel.has_decided() {
            return Duration::ZERO; // it came before we said that we sleep
        }
        timeout
    }

    fn checkpoint_peers(&self) -> Vec<SocketAddr> {
        self.peers.clone()
    }
}
