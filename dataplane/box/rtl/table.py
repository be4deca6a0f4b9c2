# SPDX-License-Identifier: Apache-2.0
"""
The hash table, with values apart: keys come as frames of 64-bit words, and values leave as frames of `width` bits, in the same
order. What is found is what gets.h finds in the table of table.h: the same hash, the same bucket, the same limits, and the same
sequence words, so that a value that changes meanwhile is never answered.

Differences in layout: a bucket has the first four entries of its chain, which are compared at once (the paper's section 6).
Keys and values are in memories of their own, each in one piece. The host writes all of it, and decides what goes where.

Three lookups are under way at a time: the key of one is hashed, the value of another copied, and a third one sent.
"""

from dataclasses import dataclass

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from ground.rtl.c_headers import constants
from ground.rtl.frame import REASON_BITS
from ground.rtl.stream import Axis, Event, Host

from .wire import REASONS

C = constants("box/table.h", "box/text.h")
WAYS = 4  # entries of a bucket
KEY_WORDS = C["IB_BOX_KEY_ROOM_BYTES"] // 8
LINE_BYTES = 64  # a value begins at one
REPLY_ROOM_BYTES = 2048  # of the copy of a value
# Spaces of the host's port.
HEADER, BUCKETS, KEYS, VALUES = range(4)
PIECE_WORDS = 32  # behind an index of KEYS and VALUES
HIT, MISS, OTHER, BUSY, LONG = (REASONS[f"gets_{name}"] for name in ("hit", "miss", "other", "busy", "long"))

# An entry. `lengths` and `flags` are as in table.h; without a key it is free.
Entry = data.StructLayout(
    {
        "hash": 64,
        "value_len_bytes": 32,
        "key_len_bytes": 32,
        "flags": 32,
        "marks": 32,
        "key_at": 32,  # in words
        "value_at": 32,  # in lines
    }
)
# What a result has besides its value (TUSER).
Result = data.StructLayout({"reason": REASON_BITS, "flags": 32})


@dataclass
class Sizes:
    buckets_log2: int = 6
    keys_bytes: int = 1 << 16
    values_bytes: int = 1 << 19
    # False: a faulty one, which the tests must catch.
    checks_sequence: bool = True


def sip_round(m, v0, v1, v2, v3):
    def named(value):
        signal = Signal(64)
        m.d.comb += signal.eq(value)
        return signal

    v0, v2 = named(v0 + v1), named(v2 + v3)
    v1, v3 = named(v1.rotate_left(13) ^ v0), named(v3.rotate_left(16) ^ v2)
    v2, v0 = named(v2 + v1), named(v0.rotate_left(32) + v3)
    return v0, v1.rotate_left(17) ^ v2, v2.rotate_left(32), v3.rotate_left(21) ^ v0


def digits(number):
    """The length of a number's text."""
    return 1 + sum(number > 10**n - 1 for n in range(1, C["IB_BOX_GET_DIGITS_MAX"]))


class Hasher(wiring.Component):
    """
    SipHash-2-4 of a key, whose words it also stores: one round a cycle.
    """

    def __init__(self):
        super().__init__(
            {
                "input": In(Axis(64)),
                "hash_key": In(128),
                "start": In(1),  # there is room for another key
                "begins": Out(1),  # hashing starts, with the current hash key
                "write_enable": Out(1),
                "write_word": Out(range(KEY_WORDS)),
                "write_data": Out(64),
                "done": Out(1),
                "hash": Out(64),
                "key_len_bytes": Out(9),
                "is_too_long": Out(1),
            }
        )

    def elaborate(self, _):
        m = Module()
        i = self.input
        state = [Signal(64, name=f"v{n}") for n in range(4)]
        word, takes_last, is_first = Signal(64), Signal(), Signal(init=1)
        length, words, too_long = Signal(9), Signal(range(KEY_WORDS + 1)), Signal()
        rounds = Signal(3)
        k0, k1 = self.hash_key[:64], self.hash_key[64:]
        names = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
        begin = [k0 ^ names[0], k1 ^ names[1], k0 ^ names[2], k1 ^ names[3]]
        first = [Mux(is_first, start, now) for start, now in zip(begin, state, strict=True)]
        came = Signal(64)
        m.d.comb += came.eq(i.tdata & Cat(i.tkeep[n].replicate(8) for n in range(8)))
        kept = sum(i.tkeep[n] for n in range(8))
        m.d.comb += [
            self.write_word.eq(words),
            self.write_data.eq(came),
            self.hash.eq(state[0] ^ state[1] ^ state[2] ^ state[3]),
            self.key_len_bytes.eq(length),
            self.is_too_long.eq(too_long),
        ]

        # One round, of the state or of what a word is first added to.
        into, absorbs, word_now = [Signal(64, name=f"into{n}") for n in range(4)], Signal(), Signal(64)
        m.d.comb += [one.eq(now) for one, now in zip(into, state, strict=True)]
        with m.If(absorbs):
            m.d.comb += [one.eq(now) for one, now in zip(into, first, strict=True)]
            m.d.comb += into[3].eq(first[3] ^ word_now)
            m.d.sync += word.eq(word_now)
        after = [Signal(64, name=f"after{n}") for n in range(4)]
        m.d.comb += [one.eq(new) for one, new in zip(after, sip_round(m, *into), strict=True)]

        def rounded(second=0, last=0):
            """The state after a round, with what is added behind a word's second one."""
            added = (after[0] ^ second, after[1], after[2] ^ last, after[3])
            return [now.eq(new) for now, new in zip(state, added, strict=True)]

        def absorb(value):
            m.d.comb += [absorbs.eq(1), word_now.eq(value)]
            m.d.sync += rounded()

        with m.FSM():
            with m.State("TAKE"):
                m.d.comb += [i.tready.eq(self.start | ~is_first), self.begins.eq(i.tvalid & i.tready & is_first)]
                with m.If(i.tvalid & i.tready):
                    now_bytes = Signal(9)
                    m.d.comb += now_bytes.eq(Mux(is_first, 0, length) + kept)
                    is_over = (~is_first & too_long) | (now_bytes > C["IB_BOX_KEY_LEN_MAX_BYTES"])
                    m.d.comb += self.write_enable.eq(~is_over)
                    m.d.sync += [is_first.eq(0), length.eq(now_bytes), too_long.eq(is_over)]
                    m.d.sync += [words.eq(words + ~is_over), takes_last.eq(i.tlast & i.tkeep[7])]
                    # The last word is the length's, too, unless it is full.
                    ends = i.tlast & ~i.tkeep[7]
                    absorb(came | Mux(ends, Cat(Const(0, 56), now_bytes[:8]), 0))
                    with m.If(is_over):
                        # Until its end, without counting.
                        m.d.sync += length.eq(length)
                        m.next = "TAKE"
                        with m.If(i.tlast):
                            m.next = "DONE"
                    with m.Elif(ends):
                        m.next = "LAST"
                    with m.Else():
                        m.next = "SECOND"
            with m.State("SECOND"):
                m.d.sync += rounded(word)
                m.next = "TAKE"
                with m.If(takes_last):
                    m.next = "LENGTH"
            with m.State("LENGTH"):
                absorb(Cat(Const(0, 56), length[:8]))
                m.next = "LAST"
            with m.State("LAST"):
                m.d.sync += [*rounded(word, 0xFF), rounds.eq(0)]
                m.next = "FINISH"
            with m.State("FINISH"):
                m.d.sync += [*rounded(), rounds.eq(rounds + 1)]
                with m.If(rounds == 3):
                    m.next = "DONE"
            with m.State("DONE"):
                m.d.comb += self.done.eq(1)
                m.d.sync += [is_first.eq(1), words.eq(0), too_long.eq(0)]
                m.next = "TAKE"
        return m


class Sender(wiring.Component):
    """Sends results: values from the buffer."""

    def __init__(self, width):
        self.width, self.rows = width, REPLY_ROOM_BYTES * 8 // width
        super().__init__(
            {
                "valid": In(1),
                "result": In(Result),
                "value_len_bytes": In(12),
                "done": Out(1),
                "read_enable": Out(1),
                "read_row": Out(range(self.rows)),
                "read_data": In(width),
                "output": Out(Axis(width, user_bits=Result.size)),
            }
        )

    def elaborate(self, _):
        m = Module()
        o, width_bytes = self.output, self.width // 8
        n, is_fetched, is_last = Signal(range(self.rows + 1)), Signal(), Signal()
        count, in_last = Signal(range(self.rows + 1)), Signal(range(width_bytes))
        moves, fetches = Signal(), Signal()
        m.d.comb += [
            # One word, without bytes, if there is no value.
            count.eq(Mux(self.value_len_bytes == 0, 1, (self.value_len_bytes + width_bytes - 1) >> (width_bytes - 1).bit_length())),
            in_last.eq(self.value_len_bytes),
            moves.eq(~is_fetched | o.tready),
            fetches.eq(self.valid & moves & (n != count)),
            self.read_enable.eq(fetches),
            self.read_row.eq(n),
            o.tvalid.eq(is_fetched),
            o.tdata.eq(self.read_data),
            o.tlast.eq(is_last),
            o.tuser.eq(self.result),
            o.tkeep.eq(~0),
            self.done.eq(is_fetched & o.tready & is_last),
        ]
        with m.If(is_last):
            whole = (in_last == 0) & (self.value_len_bytes != 0)
            m.d.comb += o.tkeep.eq(Cat(whole | (in_last > k) for k in range(width_bytes)))
        with m.If(moves):
            m.d.sync += is_fetched.eq(fetches)
        with m.If(fetches):
            m.d.sync += [n.eq(n + 1), is_last.eq(n + 1 == count)]
        with m.If(self.done):
            m.d.sync += [n.eq(0), is_last.eq(0), is_fetched.eq(0)]
        return m


class Table(wiring.Component):
    """
    The host only writes, one word a cycle, at any time: HEADER and BUCKETS by table.h's rules for sequence words. A bucket's words
    are its sequence, whether its chain has more than its entries, and, from word 4 on, its entries. Words of KEYS and VALUES are
    numbered by index * PIECE_WORDS + word.
    """

    def __init__(self, sizes, width):
        assert width in (64, 128, 512), "words of 64, 128 or 512 bits"
        self.sizes, self.width = sizes, width
        super().__init__(
            {
                "input": In(Axis(64)),
                "output": Out(Axis(width, user_bits=Result.size)),
                "host": In(Host()),
                "event": Out(Event),
            }
        )

    def elaborate(self, _):
        m = Module()
        sizes, width, host = self.sizes, self.width, self.host
        lanes = width // 64
        buckets = 1 << sizes.buckets_log2

        def memory(name, bits, depth):
            m.submodules[name] = made = Memory(shape=bits, depth=depth, init=[])
            return made.read_port(), made.write_port(granularity=64) if bits > 64 else made.write_port()

        sequences, write_sequence = memory("sequences", 128, buckets)
        entries, write_entry = memory("entries", WAYS * Entry.size, buckets)
        keys, write_key = memory("keys", 64, sizes.keys_bytes // 8)
        values, write_value = memory("values", width, sizes.values_bytes * 8 // width)
        asked, write_asked = memory("asked", 64, 2 * KEY_WORDS)
        copies, write_copy = memory("copies", width, 2 * REPLY_ROOM_BYTES * 8 // width)

        # The host's writes.
        hash_key = Signal(128)
        # `replaced` is odd, as it counts after reset, until the host has written a table; the host writes it.
        is_replaced, turns = Signal(init=1), Signal()
        writes = [Signal(name=f"writes_{name}") for name in ("header", "buckets", "keys", "values")]
        word_at = Signal(25)
        m.d.comb += [
            host.ack.eq(host.valid),
            word_at.eq(Cat(host.word[: (PIECE_WORDS - 1).bit_length()], host.index)),
            *(one.eq(host.valid & host.write & (host.space == space)) for space, one in enumerate(writes)),
            write_sequence.addr.eq(host.index),
            write_sequence.data.eq(host.write_data.replicate(2)),
            write_sequence.en.eq(Mux(writes[BUCKETS] & (host.word < 2), Const(1) << host.word[:1], 0)),
            write_entry.addr.eq(host.index),
            write_entry.data.eq(host.write_data.replicate(WAYS * 4)),
            write_entry.en.eq(Mux(writes[BUCKETS] & (host.word >= 4), Const(1) << (host.word - 4)[:4], 0)),
            write_key.addr.eq(word_at),
            write_key.data.eq(host.write_data),
            write_key.en.eq(writes[KEYS]),
            write_value.addr.eq(word_at >> (lanes - 1).bit_length()),
            write_value.data.eq(host.write_data.replicate(lanes)),
            write_value.en.eq(Mux(writes[VALUES], Const(1) << (word_at[: (lanes - 1).bit_length()] if lanes > 1 else 0), 0)),
        ]
        m.d.comb += turns.eq(writes[HEADER] & (host.word == C["IB_BOX_T_REPLACED"]))
        with m.If(turns):
            m.d.sync += is_replaced.eq(host.write_data[0])
        with m.If(writes[HEADER]), m.Switch(host.word):
            for word in range(2):
                with m.Case(C["IB_BOX_T_HASH_KEY"] + word):
                    m.d.sync += hash_key.word_select(word, 64).eq(host.write_data)

        # The keys that are hashed, each in one of two slots.
        m.submodules.hasher = hasher = Hasher()
        wiring.connect(m, wiring.flipped(self.input), hasher.input)
        Key = data.StructLayout({"hash": 64, "len_bytes": 9, "is_too_long": 1})
        hashed, is_hashed = Array(Signal(Key.size, name=f"hashed{n}") for n in range(2)), Signal(2)
        hash_slot, look_slot, looked = Signal(), Signal(), Signal()
        # `replaced` was odd when the key's hash began, or has been written since: it may be the hash of another table.
        is_outdated = Signal(2)
        m.d.comb += [
            hasher.hash_key.eq(hash_key),
            hasher.start.eq(~is_hashed.bit_select(hash_slot, 1)),
            write_asked.addr.eq(Cat(hasher.write_word, hash_slot)),
            write_asked.data.eq(hasher.write_data),
            write_asked.en.eq(hasher.write_enable),
        ]
        with m.If(turns):
            m.d.sync += is_outdated.eq(~0)
        with m.If(hasher.begins):
            m.d.sync += is_outdated.bit_select(hash_slot, 1).eq(is_replaced | turns)
        with m.If(looked):
            m.d.sync += [is_hashed.bit_select(look_slot, 1).eq(0), look_slot.eq(~look_slot)]
        with m.If(hasher.done):
            m.d.sync += [
                hashed[hash_slot].eq(Cat(hasher.hash, hasher.key_len_bytes, hasher.is_too_long)),
                is_hashed.bit_select(hash_slot, 1).eq(1),
                hash_slot.eq(~hash_slot),
            ]

        # The results, each in one of two slots.
        m.submodules.sender = sender = Sender(width)
        Found = data.StructLayout({"result": Result, "value_len_bytes": 12})
        found, is_found = Array(Signal(Found.size, name=f"found{n}") for n in range(2)), Signal(2)
        found_slot, send_slot, sending = Signal(), Signal(), Signal(Found)
        m.d.comb += [
            sending.as_value().eq(found[send_slot]),
            sender.valid.eq(is_found.bit_select(send_slot, 1)),
            sender.result.eq(sending.result),
            sender.value_len_bytes.eq(sending.value_len_bytes),
            sender.read_data.eq(copies.data),
            copies.en.eq(sender.read_enable),
            copies.addr.eq(Cat(sender.read_row, send_slot)),
        ]
        wiring.connect(m, sender.output, wiring.flipped(self.output))
        with m.If(sender.done):
            m.d.sync += [is_found.bit_select(send_slot, 1).eq(0), send_slot.eq(~send_slot)]

        # A lookup.
        key, bucket, tries = Signal(Key), Signal(sizes.buckets_log2), Signal(range(C["IB_BOX_GET_TRIES_MAX"] + 1))
        m.d.comb += [key.as_value().eq(hashed[look_slot]), bucket.eq(key.hash[64 - sizes.buckets_log2 :])]
        row = data.ArrayLayout(Entry, WAYS)(entries.data)
        before, more, outdated = Signal(64), Signal(), is_outdated.bit_select(look_slot, 1)
        has_hash, entry = Signal(WAYS), Signal(Entry)
        reason = Signal(REASON_BITS)
        at, had, had_any = Signal(range(REPLY_ROOM_BYTES // 8)), Signal(range(REPLY_ROOM_BYTES // 8)), Signal()
        key_words, value_rows, differs = Signal(range(KEY_WORDS + 1)), Signal(range(REPLY_ROOM_BYTES // 8)), Signal()
        rows_per_line = LINE_BYTES * 8 // width
        m.d.comb += [
            sequences.en.eq(0),
            sequences.addr.eq(bucket),
            entries.en.eq(0),
            entries.addr.eq(bucket),
            keys.addr.eq(entry.key_at + at),
            asked.addr.eq(Cat(at[: (KEY_WORDS - 1).bit_length()], look_slot)),
            values.addr.eq(entry.value_at * rows_per_line + at),
            key_words.eq((key.len_bytes + 7) >> 3),
            value_rows.eq((entry.value_len_bytes[:12] + width // 8 - 1) >> (width // 8 - 1).bit_length()),
            write_copy.addr.eq(Cat(had[: len(sender.read_row)], found_slot)),
            write_copy.data.eq(values.data),
        ]
        text_bytes = 8 + 6 + 4 + 7  # memcached's header, "VALUE ", two spaces and a line's end, the end of line and reply
        fits = Signal()
        total = Signal(16)
        value_bytes = entry.value_len_bytes[:11]
        m.d.comb += total.eq(text_bytes + key.len_bytes + digits(entry.flags) + digits(value_bytes) + value_bytes)
        m.d.comb += fits.eq((entry.value_len_bytes[11:] == 0) & (total <= C["IB_BOX_GET_REPLY_MAX_BYTES"]))

        def answer(number):
            m.d.sync += reason.eq(number)
            m.next = "ANSWER"

        def again():
            m.d.sync += [tries.eq(tries + 1), reason.eq(BUSY)]
            m.next = "READ"
            with m.If(tries == C["IB_BOX_GET_TRIES_MAX"] - 1):
                m.next = "ANSWER"

        with m.FSM():
            with m.State("WAIT"):
                m.d.sync += tries.eq(0)
                with m.If(is_hashed.bit_select(look_slot, 1) & ~is_found.bit_select(found_slot, 1)):
                    m.next = "READ"
                    with m.If(key.is_too_long):
                        answer(OTHER)
            with m.State("READ"):
                m.d.comb += [sequences.en.eq(1), entries.en.eq(1)]
                m.next = "COMPARE"
            with m.State("COMPARE"):
                m.d.sync += Cat(before, more).eq(Cat(sequences.data[:64], sequences.data[64:].any()))
                m.d.sync += has_hash.eq(Cat((row[n].key_len_bytes != 0) & (row[n].hash == key.hash) for n in range(WAYS)))
                m.next = "CHOOSE"
            with m.State("CHOOSE"):
                for n in reversed(range(WAYS)):
                    with m.If(has_hash[n]):
                        m.d.sync += entry.eq(row[n])
                m.d.sync += [at.eq(0), had_any.eq(0), differs.eq(0)]
                m.next = "JUDGE"
                with m.If(outdated):
                    answer(BUSY)
                with m.Elif(before[0]):
                    again()
                with m.Elif(~has_hash.any() & more):
                    answer(BUSY)
                with m.Elif(~has_hash.any()):
                    m.d.sync += reason.eq(MISS)
                    m.next = "LOOK AGAIN"
            with m.State("JUDGE"):
                m.d.sync += reason.eq(HIT)
                m.next = "COPY"
                # Another key with the same hash, or a torn look.
                with m.If(entry.key_len_bytes != key.len_bytes):
                    answer(BUSY)
                with m.Elif(~fits):
                    answer(LONG)
            with m.State("COPY"):
                # The words at `at` are read, and those at `had` are there.
                in_key = had < key_words
                is_last = had + 1 == key_words
                tail = key.len_bytes[:3]
                mask = Mux(is_last & (tail != 0), (Const(1, 65) << (tail << 3))[:64] - 1, ~Const(0, 64))[:64]
                m.d.comb += [keys.en.eq(1), asked.en.eq(1), values.en.eq(1)]
                m.d.comb += write_copy.en.eq((had_any & (had < value_rows)).replicate(len(write_copy.en)))
                m.d.sync += [at.eq(at + 1), had.eq(at), had_any.eq(1)]
                with m.If(had_any & in_key & (((keys.data ^ asked.data) & mask) != 0)):
                    m.d.sync += differs.eq(1)
                with m.If((at >= key_words) & (at >= value_rows)):
                    m.next = "LOOK AGAIN"
            with m.State("LOOK AGAIN"):
                m.d.comb += sequences.en.eq(1)
                m.next = "CHECK"
            with m.State("CHECK"):
                m.next = "ANSWER"
                checks = Const(int(sizes.checks_sequence), 1)
                with m.If(checks & outdated):
                    answer(BUSY)
                with m.Elif(checks & (sequences.data[:64] != before)):
                    again()
                with m.Elif(differs):
                    answer(BUSY)
            with m.State("ANSWER"):
                is_hit = reason == HIT
                m.d.comb += [looked.eq(1), self.event.valid.eq(1), self.event.reason.eq(reason)]
                of_hit = Mux(is_hit, Cat(entry.flags, entry.value_len_bytes[:12]), 0)
                m.d.sync += [
                    found[found_slot].eq(Cat(reason, of_hit)),
                    is_found.bit_select(found_slot, 1).eq(1),
                    found_slot.eq(~found_slot),
                ]
                m.next = "WAIT"
        return m
