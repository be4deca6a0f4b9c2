//! Blocking pops: the connection has no other request in progress, and makes one attempt after the other.

use std::time::Instant;

use bytes::BytesMut;
use inband_resp::reply::Reply;

use super::requests::over_limit;
use super::{Alone, Connection, Intake, Mode, Next, Waiting};
use crate::awaited_keys::AwaitedKey;
use crate::command::{Command, Route};
use crate::limit_hits::LimitHit;
use crate::limits::{AWAITED_KEYS_MAX, AWAITED_KEY_BYTES_MAX};
use crate::types::{self, Kind};
use crate::waiting_clients::Pop;

/// Approximate memory of a key in the lists of waiting clients, besides the key itself.
const AWAITED_KEY_OVERHEAD_BYTES: usize = 256;

impl Connection {
    /// A command that waits for elements of this kind; `None` if it must wait for earlier requests first.
    pub(super) fn take_pop(
        &mut self,
        command: &Command<'_>,
        kind: Kind,
        intake: &Intake<'_>,
    ) -> Option<Next> {
        if !self.replies.is_empty() {
            return None;
        }
        if let Some(refusal) = intake.refusal_of(command) {
            return Some(self.answered(refusal.clone()));
        }
        let refused = over_limit(command).or_else(|| too_much_awaited(command));
        if let Some(reply) = refused {
            intake.hits.count(LimitHit::Request);
            return Some(self.answered(reply));
        }
        let mut keys = Vec::new();
        command.each_awaited_key(&mut |key| keys.push(AwaitedKey::new(kind, key)));
        keys.sort_unstable();
        keys.dedup();
        let timeout = match types::timeout(command.timeout().unwrap_or_default()) {
            Ok(timeout) => timeout,
            Err(reply) => return Some(self.answered(reply)),
        };
        let (mut first, mut again) = (BytesMut::new(), BytesMut::new());
        command.encode(None, &mut first);
        command.encode_again(&mut again);
        self.number();
        self.mode = Mode::Alone;
        self.alone = Some((Alone::Pop(None), None));
        let pop = Pop {
            log: match command.route(intake.partitions) {
                Route::Partition(partition) => partition,
                Route::Several => intake.partitions,
            },
            // A time that cannot be represented is never reached.
            deadline: timeout.and_then(|timeout| intake.now.checked_add(timeout)),
            first: first.to_vec(),
            again: again.to_vec(),
            keys,
        };
        // The keys are also in the lists of waiting clients.
        let key_bytes: usize = pop.keys.iter().map(|key| key.key().len()).sum();
        let key_bytes = 3 * key_bytes + pop.keys.len() * AWAITED_KEY_OVERHEAD_BYTES;
        self.pop_bytes = pop.first.len() + pop.again.len() + key_bytes;
        Some(Next::Pop(pop))
    }

    /// The connection is registered under this number.
    pub fn waits_as(&mut self, number: u64) {
        if let Some((Alone::Pop(place), _)) = &mut self.alone {
            *place = Some(number);
        }
    }

    /// Returns the number under which its pop is registered.
    pub fn waiting_number(&self) -> Option<u64> {
        match self.alone {
            Some((Alone::Pop(number), _)) => number,
            _ => None,
        }
    }

    /// Queues an attempt of its pop in a lane.
    pub fn push_attempt(&mut self, lane: usize, command: &[u8], now: Instant) {
        let number = self.first_number;
        let lane = &mut self.lanes[lane];
        let memory_before_bytes = lane.encoded.memory_bytes();
        lane.encoded.extend_from_slice(command);
        lane.encoded.grown();
        self.lanes_memory_bytes += lane.encoded.memory_bytes() - memory_before_bytes;
        self.encoded_len_bytes += command.len();
        lane.waiting_writes += 1;
        lane.waiting.push_back(Waiting {
            number,
            len_bytes: command.len(),
            received: now,
            is_read: false,
            replies_with_value: true,
        });
    }

    /// Takes the reply to an attempt of its pop, if it has arrived.
    pub fn take_attempt(&mut self) -> Option<(u64, Reply)> {
        match &mut self.alone {
            Some((Alone::Pop(Some(number)), reply)) => Some((*number, reply.take()?)),
            _ => None,
        }
    }

    /// Returns whether the client has closed its side, so that an element could not be delivered to it.
    pub fn is_client_gone(&self) -> bool {
        self.is_input_over || self.is_read_closed
    }
}

fn too_much_awaited(command: &Command<'_>) -> Option<Reply> {
    let (mut keys, mut bytes) = (0, 0);
    command.each_key(&mut |key| {
        keys += 1;
        bytes += key.len();
    });
    if keys > AWAITED_KEYS_MAX {
        return Some(Reply::error(format!(
            "ERR {keys} keys are over the limit of {AWAITED_KEYS_MAX} keys that a client waits for"
        )));
    }
    (bytes > AWAITED_KEY_BYTES_MAX).then(|| {
        Reply::error(format!(
            "ERR keys of {bytes} bytes are over the limit of {AWAITED_KEY_BYTES_MAX} bytes that a client \
             waits for"
        ))
    })
}
