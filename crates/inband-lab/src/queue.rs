//! Waiting frames: a held link keeps them in order, a slow link delays them.
//!
//! No sockets, clock or random source: the caller passes the time and seeds the jitter.

use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use crate::faults::{LinkFaults, LOSS_SCALE_PPM};

/// Most bytes that may wait in one lab; more are dropped and counted.
pub const WAITING_MAX_BYTES: usize = 64 << 20;

/// A frame on its way from one switch port to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub from_port: usize,
    pub to_port: usize,
    /// The whole frame, including the Ethernet header.
    pub bytes: Box<[u8]>,
}

#[derive(Debug)]
struct Slow {
    due: Instant,
    /// Breaks ties, so that equal delays preserve the order.
    arrival: u64,
    frame: Frame,
}

impl PartialEq for Slow {
    fn eq(&self, other: &Self) -> bool {
        (self.due, self.arrival) == (other.due, other.arrival)
    }
}
impl Eq for Slow {}
impl PartialOrd for Slow {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Slow {
    /// Reversed: the heap's maximum is the frame due first.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.due, other.arrival).cmp(&(self.due, self.arrival))
    }
}

/// The waiting frames of all links of one switch.
#[derive(Debug)]
pub struct WaitingFrames {
    links: Vec<LinkFaults>,
    slow: BinaryHeap<Slow>,
    held: VecDeque<Frame>,
    arrivals: u64,
    waiting_bytes: usize,
    max_bytes: usize,
    random: u64,
}

impl WaitingFrames {
    /// For a switch with `ports` ports, with all links perfect.
    pub fn new(ports: usize, max_bytes: usize, seed: u64) -> Self {
        Self {
            links: vec![LinkFaults::default(); ports],
            slow: BinaryHeap::new(),
            held: VecDeque::new(),
            arrivals: 0,
            waiting_bytes: 0,
            max_bytes,
            // xorshift requires a non-zero seed.
            random: seed | 1,
        }
    }

    /// The link of a port has changed. Frames that are no longer held are due at once, in order.
    pub fn set_link(&mut self, now: Instant, port: usize, faults: LinkFaults) {
        self.links[port] = faults;
        if faults.held {
            return;
        }
        for frame in std::mem::take(&mut self.held) {
            if self.is_held(&frame) {
                self.held.push_back(frame);
            } else {
                self.push_slow(now, frame);
            }
        }
    }

    /// Queues a frame, twice if one of its links duplicates it. Returns false if too many are waiting; the frame is
    /// then dropped.
    #[must_use]
    pub fn offer(&mut self, now: Instant, frame: Frame) -> bool {
        if self.is_duplicated(frame.from_port) || self.is_duplicated(frame.to_port) {
            // If there is no room for the duplicate, the frame is simply not duplicated.
            let _ = self.push(now, frame.clone());
        }
        self.push(now, frame)
    }

    fn push(&mut self, now: Instant, frame: Frame) -> bool {
        if self.waiting_bytes + frame.bytes.len() > self.max_bytes {
            return false;
        }
        self.waiting_bytes += frame.bytes.len();
        if self.is_held(&frame) {
            self.held.push_back(frame);
        } else {
            let due = now + self.delay(frame.from_port) + self.delay(frame.to_port);
            self.push_slow(due, frame);
        }
        true
    }

    /// Returns the next frame that is due. A frame in flight when its link was held is held.
    pub fn next_due(&mut self, now: Instant) -> Option<Frame> {
        while self.slow.peek().is_some_and(|slow| slow.due <= now) {
            let frame = self.slow.pop()?.frame;
            if self.is_held(&frame) {
                self.held.push_back(frame);
            } else {
                self.waiting_bytes -= frame.bytes.len();
                return Some(frame);
            }
        }
        None
    }

    /// Returns when to call [`next_due`](Self::next_due) again if nothing else happens.
    pub fn next_due_at(&self) -> Option<Instant> {
        self.slow.peek().map(|slow| slow.due)
    }

    /// Returns whether any waiting frame comes from or goes to this port.
    pub fn involves(&self, port: usize) -> bool {
        let at = |frame: &Frame| frame.from_port == port || frame.to_port == port;
        self.held.iter().any(at) || self.slow.iter().any(|slow| at(&slow.frame))
    }

    fn is_held(&self, frame: &Frame) -> bool {
        self.links[frame.from_port].held || self.links[frame.to_port].held
    }

    fn push_slow(&mut self, due: Instant, frame: Frame) {
        self.arrivals += 1;
        self.slow.push(Slow {
            due,
            arrival: self.arrivals,
            frame,
        });
    }

    fn delay(&mut self, port: usize) -> Duration {
        let LinkFaults {
            delay_us,
            jitter_us,
            ..
        } = self.links[port];
        if jitter_us == 0 {
            return Duration::from_micros(u64::from(delay_us));
        }
        let spread_us = self.next_random() % (2 * u64::from(jitter_us) + 1);
        let total_us = (u64::from(delay_us) + spread_us).saturating_sub(u64::from(jitter_us));
        Duration::from_micros(total_us)
    }

    fn is_duplicated(&mut self, port: usize) -> bool {
        let ppm = u64::from(self.links[port].duplicated_ppm);
        ppm > 0 && self.next_random() % u64::from(LOSS_SCALE_PPM) < ppm
    }

    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(from_port: usize, to_port: usize, tag: u8) -> Frame {
        Frame {
            from_port,
            to_port,
            bytes: Box::new([tag; 10]),
        }
    }

    fn held() -> LinkFaults {
        LinkFaults {
            held: true,
            ..LinkFaults::default()
        }
    }

    fn drain(queue: &mut WaitingFrames, now: Instant) -> Vec<u8> {
        std::iter::from_fn(|| queue.next_due(now))
            .map(|f| f.bytes[0])
            .collect()
    }

    #[test]
    fn held_frames_keep_their_order() {
        let now = Instant::now();
        let mut queue = WaitingFrames::new(3, 1000, 1);
        queue.set_link(now, 1, held());
        for tag in 0..20 {
            let (from, to) = if tag % 2 == 0 { (0, 1) } else { (1, 2) };
            assert!(queue.offer(now, frame(from, to, tag)));
        }
        assert!(drain(&mut queue, now).is_empty());
        assert!(queue.involves(1) && queue.next_due_at().is_none());
        queue.set_link(now, 1, LinkFaults::default());
        assert_eq!(drain(&mut queue, now), (0..20).collect::<Vec<_>>());
        assert!(!queue.involves(1));
    }

    #[test]
    fn a_frame_between_two_held_hosts_waits_for_both() {
        let now = Instant::now();
        let mut queue = WaitingFrames::new(3, 1000, 1);
        queue.set_link(now, 0, held());
        queue.set_link(now, 1, held());
        assert!(queue.offer(now, frame(0, 1, 7)));
        assert!(queue.offer(now, frame(0, 2, 8)));
        queue.set_link(now, 0, LinkFaults::default());
        assert_eq!(drain(&mut queue, now), [8]);
        queue.set_link(now, 1, LinkFaults::default());
        assert_eq!(drain(&mut queue, now), [7]);
    }

    #[test]
    fn delays_of_both_links_add_up_and_keep_order_without_jitter() {
        let now = Instant::now();
        let mut queue = WaitingFrames::new(2, 1000, 1);
        queue.set_link(now, 0, LinkFaults::delay(300, 0));
        queue.set_link(now, 1, LinkFaults::delay(200, 0));
        for tag in 0..5 {
            assert!(queue.offer(now, frame(0, 1, tag)));
        }
        assert_eq!(queue.next_due_at(), Some(now + Duration::from_micros(500)));
        assert!(drain(&mut queue, now + Duration::from_micros(499)).is_empty());
        assert_eq!(
            drain(&mut queue, now + Duration::from_micros(500)),
            [0, 1, 2, 3, 4]
        );
    }

    #[test]
    fn jitter_reorders_within_its_bounds() {
        let now = Instant::now();
        let mut queue = WaitingFrames::new(2, 10_000, 42);
        queue.set_link(now, 0, LinkFaults::delay(100, 50));
        for tag in 0..100 {
            assert!(queue.offer(now, frame(0, 1, tag)));
        }
        assert!(drain(&mut queue, now + Duration::from_micros(49)).is_empty());
        let tags = drain(&mut queue, now + Duration::from_micros(150));
        assert_eq!(tags.len(), 100);
        assert!(
            !tags.is_sorted(),
            "a hundred frames with jitter stay in order by luck only"
        );
    }

    #[test]
    fn some_frames_come_twice() {
        let now = Instant::now();
        let mut queue = WaitingFrames::new(2, 10_000, 42);
        let half = LinkFaults {
            duplicated_ppm: LOSS_SCALE_PPM / 2,
            ..LinkFaults::default()
        };
        queue.set_link(now, 1, half);
        for tag in 0..100 {
            assert!(queue.offer(now, frame(0, 1, tag)));
        }
        let tags = drain(&mut queue, now);
        assert!((120..180).contains(&tags.len()), "{}", tags.len());
        assert!((0..100).all(|tag| tags.contains(&tag)));
        assert_eq!(queue.waiting_bytes, 0);
    }

    #[test]
    fn a_frame_under_way_is_held_too() {
        let now = Instant::now();
        let mut queue = WaitingFrames::new(2, 1000, 1);
        queue.set_link(now, 0, LinkFaults::delay(100, 0));
        assert!(queue.offer(now, frame(0, 1, 1)));
        queue.set_link(now, 1, held());
        let later = now + Duration::from_millis(1);
        assert!(drain(&mut queue, later).is_empty());
        queue.set_link(later, 1, LinkFaults::default());
        assert_eq!(drain(&mut queue, later), [1]);
    }

    #[test]
    fn what_does_not_fit_is_dropped() {
        let now = Instant::now();
        let mut queue = WaitingFrames::new(2, 25, 1);
        queue.set_link(now, 1, held());
        let taken: Vec<bool> = (0..4)
            .map(|tag| queue.offer(now, frame(0, 1, tag)))
            .collect();
        assert_eq!(taken, [true, true, false, false]);
        queue.set_link(now, 1, LinkFaults::default());
        assert_eq!(drain(&mut queue, now), [0, 1]);
        assert!(queue.offer(now, frame(0, 1, 9)));
        assert_eq!(drain(&mut queue, now), [9], "room was given back");
    }
}
