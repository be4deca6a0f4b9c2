//! Registers as the processes of a switch and a server access them while packets are handled: memory of this process,
//! or the mapped maps of XDP programs. Words are atomic; anything longer is protected by its sequence number, which
//! serves as a lock, as in the shells.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use inband_ground::registers::{field, registers, Shared};

use crate::c;
use crate::lines::{Chunk, CHUNK_LINES, LINE_LEN_BYTES};

/// Number of a timestamp's low bits that count the writes of an epoch; the epoch is above them.
pub const COUNT_BITS: u32 = c::IB_MEMORY_COUNT_BITS;
/// Maximum number of writes to a block of lines in one epoch.
pub const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
pub const EPOCH_MAX: u64 = c::IB_MEMORY_EPOCH_MAX as u64;
/// The bits of a session that are its index at the switch.
pub const SESSION_MASK: u64 = c::IB_MEMORY_SESSION_MASK as u64;

/// Attempts to take a lock before yielding the CPU to its holder.
const LOCK_SPINS: u32 = 1_000;

/// Takes a lock that a packet program or another thread may hold, never for long. Returns the odd sequence number.
fn lock(sequence: &AtomicU64) -> u64 {
    for tries in 1.. {
        let even = sequence.load(SeqCst);
        let free = even % 2 == 0;
        if free
            && sequence
                .compare_exchange(even, even + 1, SeqCst, SeqCst)
                .is_ok()
        {
            return even + 1;
        }
        if tries % LOCK_SPINS == 0 {
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
    unreachable!("it tries until it has it")
}

registers!(
    /// A switch's only struct.
    SwitchWords of c::ib_memory_switch
);
registers!(
    /// The last timestamp of each block of lines.
    Blocks of c::ib_memory_block
);
registers!(
    /// Clients' sessions.
    Sessions of c::ib_memory_session
);
registers!(
    /// Requests.
    Slots of c::ib_memory_slot
);

/// The sizes of a switch's registers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchSizes {
    /// Chunks of the memory.
    pub chunks: u64,
    /// Lines that share a write counter: a power of two, at least the lines of a chunk.
    pub block_lines: u64,
    /// Maximum number of concurrent sessions.
    pub sessions: usize,
    /// Maximum number of requests in flight, over all sessions.
    pub slots: usize,
}

impl SwitchSizes {
    /// Returns the number of blocks.
    ///
    /// # Panics
    /// If `block_lines` is not a power of two of at least a chunk's lines.
    pub fn blocks(&self) -> usize {
        (self.chunks.div_ceil(1 << self.block_shift())) as usize
    }

    /// Returns the binary logarithm of the number of chunks in a block.
    pub(crate) fn block_shift(&self) -> u32 {
        let chunk_lines = CHUNK_LINES as u64;
        assert!(
            self.block_lines.is_power_of_two() && self.block_lines >= chunk_lines,
            "{} lines of a block are not a power of two of at least {chunk_lines}",
            self.block_lines
        );
        (self.block_lines / chunk_lines).trailing_zeros()
    }
}

/// A client's session at a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Session {
    /// Its id; 0: free.
    pub session: u64,
    pub slot_first: u64,
    /// Its number of slots, a power of two.
    pub window: u64,
    /// Its highest request number so far.
    pub requests: u64,
}

pub struct SwitchRegisters {
    pub(crate) switch: SwitchWords,
    pub(crate) blocks: Blocks,
    pub(crate) sessions: Sessions,
    pub(crate) slots: Slots,
}

impl SwitchRegisters {
    /// Creates the registers of a switch that has just started, in memory of this process.
    pub fn zeroed(sizes: &SwitchSizes) -> SwitchRegisters {
        SwitchRegisters {
            switch: Shared::zeroed(1).into(),
            blocks: Shared::zeroed(sizes.blocks()).into(),
            sessions: Shared::zeroed(sizes.sessions).into(),
            slots: Shared::zeroed(sizes.slots).into(),
        }
    }

    /// Returns the epoch that the switch was granted; 0: none.
    pub fn epoch(&self) -> u64 {
        field!(self.switch, 0, c::ib_memory_switch, epoch).load(SeqCst)
    }

    /// Sets the epoch that a majority has granted.
    pub fn set_epoch(&self, epoch: u64) {
        assert!(epoch <= EPOCH_MAX, "epoch {epoch} is at most {EPOCH_MAX}");
        field!(self.switch, 0, c::ib_memory_switch, epoch).store(epoch, SeqCst);
    }

    /// Returns the highest epoch with which a server has refused the switch.
    pub fn deposed(&self) -> u64 {
        field!(self.switch, 0, c::ib_memory_switch, deposed).load(SeqCst)
    }

    /// Records that this epoch exists: below it the switch is not active.
    pub fn raise_deposed(&self, epoch: u64) {
        field!(self.switch, 0, c::ib_memory_switch, deposed).fetch_max(epoch, SeqCst);
    }

    /// Returns how many sessions there may be.
    pub fn sessions(&self) -> usize {
        self.sessions.count()
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> usize {
        self.slots.count()
    }

    /// Returns the session with this index.
    pub fn session(&self, index: usize) -> Session {
        let word = |at: usize| self.sessions.word(index, at).load(SeqCst);
        Session {
            session: word(std::mem::offset_of!(c::ib_memory_session, session)),
            slot_first: word(std::mem::offset_of!(c::ib_memory_session, slot_first)),
            window: word(std::mem::offset_of!(c::ib_memory_session, window)),
            requests: word(std::mem::offset_of!(c::ib_memory_session, requests)),
        }
    }

    /// Opens a session at a free index. Its slots are clear.
    ///
    /// # Panics
    /// If the index is not free, the session's low bits are not the index, or the slots do not exist.
    pub fn open_session(&self, index: usize, session: u64, slot_first: u64, window: u64) {
        assert_eq!(session & SESSION_MASK, index as u64, "of its index");
        assert!(
            window.is_power_of_two() && slot_first + window <= self.slots() as u64,
            "slots {slot_first} and {window} more are not of {}, or not a power of two",
            self.slots()
        );
        assert_eq!(self.session(index).session, 0, "the place is free");
        field!(self.sessions, index, c::ib_memory_session, slot_first).store(slot_first, SeqCst);
        field!(self.sessions, index, c::ib_memory_session, window).store(window, SeqCst);
        field!(self.sessions, index, c::ib_memory_session, requests).store(0, SeqCst);
        field!(self.sessions, index, c::ib_memory_session, session).store(session, SeqCst);
    }

    /// Frees the session with this index and clears its slots.
    pub fn close_session(&self, index: usize) {
        let Session {
            slot_first, window, ..
        } = self.session(index);
        // Before its slots are cleared: packets look up the session while they hold the slot.
        field!(self.sessions, index, c::ib_memory_session, session).store(0, SeqCst);
        for slot in slot_first..slot_first + window {
            self.clear_slot(slot as usize);
        }
    }

    /// Frees all sessions and clears all slots.
    pub fn clear(&self) {
        for index in 0..self.sessions() {
            field!(self.sessions, index, c::ib_memory_session, session).store(0, SeqCst);
        }
        for index in 0..self.slots() {
            self.clear_slot(index);
        }
    }

    /// Clears the slot's owner and request. Timestamps and lines stay: a request overwrites them before it reads them.
    fn clear_slot(&self, index: usize) {
        let sequence = field!(self.slots, index, c::ib_memory_slot, sequence);
        // Free and not held: a packet that takes it from now on finds its session closed. The sequence is read first,
        // because a request that holds a slot stores its session there only once it has its timestamp.
        let is_taken = sequence.load(SeqCst) % 2 == 1;
        if !is_taken && field!(self.slots, index, c::ib_memory_slot, session).load(SeqCst) == 0 {
            return;
        }
        let odd = lock(sequence);
        let header = std::mem::offset_of!(c::ib_memory_slot, incoming);
        for at in (8..header).step_by(8) {
            self.slots.word(index, at).store(0, Relaxed);
        }
        sequence.store(odd + 1, SeqCst);
    }

    /// Returns the words of a slot, for tests.
    pub fn slot_words(&self, index: usize) -> Vec<u64> {
        self.slots.words(index)
    }

    /// Returns the last timestamp that was found near the end of its epoch; 0: none.
    pub fn nearly_used_up(&self) -> u64 {
        field!(self.switch, 0, c::ib_memory_switch, nearly_used_up).load(SeqCst)
    }

    /// Returns roughly the highest write count of any block in the current epoch; 0 while it is below seven eighths of
    /// [`COUNT_MAX`], the limit.
    pub fn counts_max(&self) -> u64 {
        let last = self.nearly_used_up();
        match last >> COUNT_BITS == self.epoch() {
            true => last & COUNT_MAX,
            false => 0,
        }
    }

    /// Returns the last timestamp given to a write of this block.
    pub fn block(&self, block: usize) -> u64 {
        field!(self.blocks, block, c::ib_memory_block, timestamp).load(SeqCst)
    }

    /// Sets a block's last timestamp. For tests; the block must not be written meanwhile.
    pub fn restore_block(&self, block: usize, timestamp: u64) {
        field!(self.blocks, block, c::ib_memory_block, timestamp).store(timestamp, SeqCst);
    }

    /// Returns the registers' size in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.switch.memory_bytes()
            + self.blocks.memory_bytes()
            + self.sessions.memory_bytes()
            + self.slots.memory_bytes()
    }
}

registers!(
    /// A server's only struct.
    ServerWords of c::ib_memory_server
);
registers!(
    Chunks of c::ib_memory_chunk
);

pub struct ServerRegisters {
    pub(crate) server: ServerWords,
    pub(crate) chunks: Chunks,
}

impl ServerRegisters {
    /// Creates the registers of a server that has just started, in memory of this process.
    pub fn zeroed(chunks: usize) -> ServerRegisters {
        ServerRegisters {
            server: Shared::zeroed(1).into(),
            chunks: Shared::zeroed(chunks).into(),
        }
    }

    /// Returns the epoch below which the server refuses packets.
    pub fn epoch(&self) -> u64 {
        field!(self.server, 0, c::ib_memory_server, epoch).load(SeqCst)
    }

    /// Makes the server refuse packets of epochs below this one. Writes of such epochs that have already begun are
    /// finished once their chunk's lock has been taken once after this call.
    pub fn raise_epoch(&self, epoch: u64) {
        field!(self.server, 0, c::ib_memory_server, epoch).fetch_max(epoch, SeqCst);
    }

    /// Returns the highest epoch granted to a switch.
    pub fn switch_epoch(&self) -> u64 {
        field!(self.server, 0, c::ib_memory_server, switch_epoch).load(SeqCst)
    }

    /// Records that a switch was granted this epoch.
    pub fn raise_switch_epoch(&self, epoch: u64) {
        field!(self.server, 0, c::ib_memory_server, switch_epoch).fetch_max(epoch, SeqCst);
    }

    /// Returns whether the server answers.
    pub fn serving(&self) -> bool {
        field!(self.server, 0, c::ib_memory_server, serving).load(SeqCst) != 0
    }

    /// Makes the server answer, or stop answering.
    pub fn set_serving(&self, serving: bool) {
        field!(self.server, 0, c::ib_memory_server, serving).store(u64::from(serving), SeqCst);
    }

    /// Returns the number of chunks.
    pub fn chunks(&self) -> usize {
        self.chunks.count()
    }

    fn timestamp_word(&self, chunk: usize, line: usize) -> &AtomicU64 {
        let at = std::mem::offset_of!(c::ib_memory_chunk, timestamp);
        self.chunks.word(chunk, at + line * 8)
    }

    fn line_words(&self, chunk: usize, line: usize) -> impl Iterator<Item = &AtomicU64> {
        let at = std::mem::offset_of!(c::ib_memory_chunk, line) + line * LINE_LEN_BYTES;
        (at..at + LINE_LEN_BYTES)
            .step_by(8)
            .map(move |at| self.chunks.word(chunk, at))
    }

    /// Runs `act` while holding the chunk's lock.
    fn with_chunk<R>(&self, chunk: usize, act: impl FnOnce() -> R) -> R {
        let sequence = field!(self.chunks, chunk, c::ib_memory_chunk, sequence);
        let odd = lock(sequence);
        let result = act();
        sequence.store(odd + 1, SeqCst);
        result
    }

    /// Returns a consistent copy of a chunk's timestamps and lines.
    pub fn chunk(&self, chunk: usize) -> ([u64; CHUNK_LINES], Chunk) {
        let mut timestamps = [0; CHUNK_LINES];
        let mut lines = [[0; LINE_LEN_BYTES]; CHUNK_LINES];
        self.with_chunk(chunk, || {
            for n in 0..CHUNK_LINES {
                timestamps[n] = u64::from_be(self.timestamp_word(chunk, n).load(SeqCst));
                for (word, bytes) in self.line_words(chunk, n).zip(lines[n].chunks_exact_mut(8)) {
                    bytes.copy_from_slice(&word.load(SeqCst).to_ne_bytes());
                }
            }
        });
        (timestamps, lines)
    }

    /// Overwrites a chunk's timestamps and lines unconditionally, at a server that answers nobody.
    pub fn store_chunk(&self, chunk: usize, timestamps: &[u64; CHUNK_LINES], lines: &Chunk) {
        self.with_chunk(chunk, || {
            for n in 0..CHUNK_LINES {
                self.timestamp_word(chunk, n)
                    .store(timestamps[n].to_be(), SeqCst);
                for (word, bytes) in self.line_words(chunk, n).zip(lines[n].chunks_exact(8)) {
                    let bytes = bytes.try_into().expect("eight");
                    word.store(u64::from_ne_bytes(bytes), SeqCst);
                }
            }
        });
    }

    /// Returns the registers' size in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.server.memory_bytes() + self.chunks.memory_bytes()
    }
}
