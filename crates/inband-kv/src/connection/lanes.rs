//! The lanes of a connection: which commands wait for which log.

use bytes::Buf;
use std::collections::VecDeque;
use std::time::Instant;

use inband_resp::reply::Reply;

use super::{Connection, Waiting};
use crate::limits::OUTPUT_SOFT_BYTES_MAX;

impl Connection {
    /// Enters the ready list of a lane; `false` if the connection is already in it or has nothing to pack there.
    pub fn enter_ready_list(&mut self, lane: usize) -> bool {
        let is_ready = self.is_ready_to_pack(lane) && !self.lanes[lane].is_in_ready_list;
        self.lanes[lane].is_in_ready_list |= is_ready;
        is_ready
    }

    /// Leaves the ready list of a lane.
    pub fn leave_ready_list(&mut self, lane: usize) {
        self.lanes[lane].is_in_ready_list = false;
    }

    /// Returns whether a lane has commands that may be packed now.
    pub fn is_ready_to_pack(&self, lane: usize) -> bool {
        let lane = &self.lanes[lane];
        let Some(front) = lane.waiting.front() else {
            return false;
        };
        // All other requests may be waiting for the oldest one.
        let is_oldest = front.number == self.first_number;
        let has_room = match is_oldest {
            true => self.output.len() < OUTPUT_SOFT_BYTES_MAX,
            false => self.has_reply_room(),
        };
        lane.unanswered == 0 && has_room
    }

    /// Returns whether none of the commands that wait in a lane needs the log.
    pub fn has_only_reads(&self, lane: usize) -> bool {
        self.lanes[lane].waiting_writes == 0
    }

    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Returns the number of waiting commands in all lanes.
    pub fn waiting_commands(&self) -> usize {
        self.lanes.iter().map(|lane| lane.waiting.len()).sum()
    }

    /// Returns the number of waiting commands in a lane.
    pub fn waiting_len(&self, lane: usize) -> usize {
        self.lanes[lane].waiting.len()
    }

    /// Length of the encoded commands that wait in a lane.
    pub fn waiting_len_bytes(&self, lane: usize) -> usize {
        self.lanes[lane].encoded.len()
    }

    /// Length of all encoded commands that wait.
    pub fn encoded_len_bytes(&self) -> usize {
        self.encoded_len_bytes
    }

    /// Returns the next command of a lane: its encoding and when it was read.
    pub fn front_command(&self, lane: usize) -> Option<(&[u8], Instant)> {
        let lane = &self.lanes[lane];
        let front = lane.waiting.front()?;
        Some((&lane.encoded[..front.len_bytes], front.received))
    }

    /// Removes the next command of a lane, which is now in a value. Returns whether its reply can be as long as a
    /// stored value.
    pub fn pop_command(&mut self, lane: usize) -> bool {
        let lane = &mut self.lanes[lane];
        let front = lane.waiting.pop_front();
        if let Some(front) = &front {
            let memory_before_bytes = lane.encoded.memory_bytes();
            lane.encoded.advance(front.len_bytes);
            lane.encoded.shrunk();
            self.lanes_memory_bytes -= memory_before_bytes - lane.encoded.memory_bytes();
            lane.waiting_writes -= usize::from(!front.is_read);
            self.encoded_len_bytes -= front.len_bytes;
            self.in_flight_len_bytes += front.len_bytes;
            lane.unanswered_len_bytes += front.len_bytes;
            lane.in_flight.push_back(front.number);
            lane.unanswered += 1;
        }
        front.is_some_and(|front| front.replies_with_value)
    }

    /// Requeue the commands of a lane that were being read and are not answered yet, ahead of all others. `is_read`: to
    /// be read later; otherwise to go through the log.
    pub fn put_back<'c>(
        &mut self,
        lane_number: usize,
        commands: impl ExactSizeIterator<Item = &'c [u8]>,
        received: Instant,
        is_read: bool,
    ) {
        let lane = &mut self.lanes[lane_number];
        self.lanes_memory_bytes -= lane.encoded.memory_bytes();
        let later = std::mem::take(&mut lane.encoded);
        let count = commands.len();
        let numbers: Vec<u64> = lane.in_flight.drain(..count).collect();
        let mut waiting = VecDeque::new();
        for (number, command) in numbers.into_iter().zip(commands) {
            lane.encoded.extend_from_slice(command);
            self.encoded_len_bytes += command.len();
            waiting.push_back(Waiting {
                number,
                len_bytes: command.len(),
                received,
                is_read,
                replies_with_value: true,
            });
        }
        lane.encoded.extend_from_slice(&later);
        lane.encoded.grown();
        self.lanes_memory_bytes += lane.encoded.memory_bytes();
        waiting.append(&mut lane.waiting);
        lane.waiting = waiting;
        lane.waiting_writes += if is_read { 0 } else { count };
        self.note_answered(lane_number, count);
    }

    /// `count` commands of a lane are no longer undecided or being read.
    pub(super) fn note_answered(&mut self, lane: usize, count: usize) {
        let lane = &mut self.lanes[lane];
        lane.unanswered -= count;
        if lane.unanswered == 0 {
            self.in_flight_len_bytes -= std::mem::take(&mut lane.unanswered_len_bytes);
        }
    }

    /// Answers the oldest request in the undecided value of a lane.
    pub fn answer_next(&mut self, lane: usize, reply: Reply) {
        if let Some(number) = self.take_in_flight(lane) {
            self.answer_taken(lane, number, reply);
        }
    }

    /// Takes the oldest request from the undecided value of a lane; answer it with
    /// [`answer_taken`](Self::answer_taken).
    pub fn take_in_flight(&mut self, lane: usize) -> Option<u64> {
        self.lanes[lane].in_flight.pop_front()
    }

    pub fn answer_taken(&mut self, lane: usize, number: u64, reply: Reply) {
        self.note_answered(lane, 1);
        match &mut self.alone {
            Some((_, place)) => *place = Some(reply),
            None => self.answer(number, reply),
        }
    }
}
