# SPDX-License-Identifier: Apache-2.0
"""
The bench of the table (cocotb). A frame of its scripts is a key; what leaves is, for a hit, the flags (4 bytes) and the value.

Before the script, the block has no table. After it, one with another hash key replaces the table while lookups are under way. Then the
host changes values while others are looked up, as fast as it can: a value, its length and its flags follow from each other, so a
result of two of them is noticed.
"""

import cocotb

from ground.rtl.bench import Bench, run
from ground.rtl.c_headers import constants
from ground.rtl.frame import REASON_BITS

from .table import BUCKETS, HEADER, KEYS, LINE_BYTES, PIECE_WORDS, VALUES, WAYS
from .wire import REASONS

C = constants("box/table.h", "box/text.h")
MASK = 2**64 - 1
CHANGED_KEYS = 3
CHANGES = 400
PLACE_LINES = 24  # of a value that changes
HASHED_CYCLES = 200  # more than a short key takes
HASH_KEY = C["IB_BOX_T_HASH_KEY"]


def rotate(word, bits):
    return (word << bits | word >> (64 - bits)) & MASK


def sip_hash(k0, k1, key):
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def rounds(count):
        for _ in range(count):
            v[0], v[2] = (v[0] + v[1]) & MASK, (v[2] + v[3]) & MASK
            v[1], v[3] = rotate(v[1], 13) ^ v[0], rotate(v[3], 16) ^ v[2]
            v[0] = rotate(v[0], 32)
            v[2], v[0] = (v[2] + v[1]) & MASK, (v[0] + v[3]) & MASK
            v[1], v[3] = rotate(v[1], 17) ^ v[2], rotate(v[3], 21) ^ v[0]
            v[2] = rotate(v[2], 32)

    whole = len(key) // 8 * 8
    words = [int.from_bytes(key[at : at + 8], "little") for at in range(0, whole, 8)]
    for word in [*words, int.from_bytes(key[whole:], "little") | (len(key) & 255) << 56]:
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def words_of(bytes_):
    padded = bytes_ + bytes(-len(bytes_) % 8)
    return [int.from_bytes(padded[at : at + 8], "little") for at in range(0, len(padded), 8)]


class TableBench(Bench):
    def begin(self):
        d = self.dut
        for port in "input__tvalid output__tready host__valid host__write".split():
            getattr(d, port).value = 0
        self.sideband = d.output__tuser
        self.header, self.sequences, self.writes = {}, {}, []
        self.changes = False
        self.results = {}

    def feed(self, key):
        for at in range(0, len(key), 8):
            piece = key[at : at + 8]
            padded = piece + self.random.randbytes(8 - len(piece))
            self.coming.append((int.from_bytes(padded, "little"), (1 << len(piece)) - 1, int(at + 8 >= len(key))))

    async def frame(self, note, op):
        self.feed(bytes.fromhex(op["bytes"]))
        self.expected.append((note, REASONS[op["reason"]], bytes.fromhex(op["out"])))

    def look(self, note, key, reason, out=b""):
        """A lookup of the bench's own."""
        self.feed(key)
        self.expected.append((note, REASONS[reason], out))
        self.events.append((note, REASONS[reason]))

    async def host(self, space, index, word, write=None):
        if not (self.header or self.measures):
            self.look("before the host has written anything", b"key", "gets_busy")
            await self.drain()
        self.note_write(space, index, word, write)
        return await super().host(space, index, word, write)

    def note_write(self, space, index, word, write):
        if space == HEADER:
            self.header[word] = write
        if space == BUCKETS and word == 0:
            self.sequences[index] = write

    def count(self, reason):
        if self.changes:
            self.results[reason] = self.results.get(reason, 0) + 1
            return
        super().count(reason)

    def take(self, data, keep, last, user):
        if self.measures:
            super().take(data, keep, last, user)
            return
        kept = keep.bit_count()
        assert keep == (1 << kept) - 1 and (last or kept == self.words), f"TKEEP {keep:b}: {self.where()}"
        self.leaving += data.to_bytes(self.words, "little")[:kept]
        if not last:
            return
        value, self.leaving = self.leaving, b""
        got_reason, flags = user & (1 << REASON_BITS) - 1, user >> REASON_BITS
        self.frames_out += 1
        if self.changes:
            self.expected.pop(0)
            if got_reason == REASONS["gets_hit"]:
                byte = value[0]
                assert value == bytes([byte]) * (1 + 5 * byte) and flags == byte, f"torn: flags {flags}, {value.hex()}"
            else:
                assert not value
            return
        note, reason, expected = self.expected.pop(0)
        found = (flags.to_bytes(4, "big") + value) if got_reason == REASONS["gets_hit"] else value
        assert got_reason == reason, f"{note}: reason {got_reason} instead of {reason}"
        assert found == expected, f"{note}:\n{found.hex()}\ninstead of\n{expected.hex()}"

    def ask(self, **values):
        """While values change, the host writes a word in each cycle."""
        if self.writes and values == {"valid": 0}:
            space, index, word, data = self.writes.pop(0)
            self.note_write(space, index, word, data)
            values = {"space": space, "index": index, "word": word, "write": 1, "write_data": data, "valid": 1}
        super().ask(**values)

    def write(self, space, index, word, data):
        self.writes.append((space, index, word, data))

    def write_words(self, space, at, words):
        """From the last one to the first: a lookup that copies meanwhile, and faster, meets the writer."""
        for n, word in reversed(list(enumerate(words, at))):
            self.write(space, n // PIECE_WORDS, n % PIECE_WORDS, word)

    async def written(self):
        while self.writes:
            await self.cycle()

    async def put(self, hash_key, bits, key, value, number):
        """Makes a short key, with a short value and without flags, the only one of its bucket, and returns that."""
        hash_ = sip_hash(*hash_key, key)
        self.write_words(KEYS, number * 32, words_of(key))
        self.write_words(VALUES, number * LINE_BYTES // 8, words_of(value))
        await self.put_bucket(hash_ >> (64 - bits), [hash_, len(key) << 32 | len(value), 0, number << 32 | number * 32])
        return hash_ >> (64 - bits)

    async def put_bucket(self, bucket, words):
        sequence = self.sequences.get(bucket, 0)
        self.write(BUCKETS, bucket, 0, sequence + 1)
        self.write(BUCKETS, bucket, 1, 0)
        for word, data in enumerate(words + [0] * (4 * WAYS - len(words)), 4):
            self.write(BUCKETS, bucket, word, data)
        self.write(BUCKETS, bucket, 0, sequence + 2)
        await self.written()

    async def replace(self, bits):
        """
        Four lookups are under way while the table gets another hash key, and the reader of results is slow. Two of them have their
        result already. The hash of another is the old table's, and that of the last one is made of parts of both hash keys.
        """
        key, replaced = b"present", C["IB_BOX_T_REPLACED"]
        old_key = tuple(self.header[HASH_KEY + n] for n in range(2))
        new_key = tuple(self.random.getrandbits(64) for _ in range(2))
        old_bucket = await self.put(old_key, bits, key, b"old", 0)
        self.gaps = (0.0, 1.0)
        for reason in ["gets_hit", "gets_hit", "gets_busy"]:
            self.look("before the table is replaced", key, reason, bytes(4) + b"old" if reason == "gets_hit" else b"")
        for _ in range(HASHED_CYCLES):
            await self.cycle()
        self.write(HEADER, 0, replaced, 3)
        self.write(HEADER, 0, HASH_KEY, new_key[0])
        await self.written()
        self.look("while the table is replaced", key, "gets_busy")
        for _ in range(HASHED_CYCLES):
            await self.cycle()
        self.write(HEADER, 0, HASH_KEY + 1, new_key[1])
        await self.put_bucket(old_bucket, [])
        await self.put(new_key, bits, key, b"new", 1)
        self.write(HEADER, 0, replaced, 4)
        await self.written()
        self.gaps = (0.0, 0.0)
        await self.drain()
        self.look("after the table was replaced", key, "gets_hit", bytes(4) + b"new")
        await self.drain()

    async def finish(self):
        if self.measures:
            return
        # While the table is replaced, the host answers.
        replaced = C["IB_BOX_T_REPLACED"]
        await self.host(HEADER, 0, replaced, 1)
        self.look("while the table is replaced", b"key", "gets_busy")
        await self.drain()
        await self.host(HEADER, 0, replaced, 2)
        r = self.random
        buckets = 1 + max(self.sequences, default=0)
        bits = max(buckets - 1, 1).bit_length()
        await self.replace(bits)
        k0, k1 = (self.header[HASH_KEY + n] for n in range(2))
        self.gaps, self.changes = (0.0, 0.0), True
        # One key a bucket, so that an entry is always the first.
        keys = {}
        while len(keys) < CHANGED_KEYS:
            key = r.randbytes(r.randrange(1, 40))
            keys.setdefault(sip_hash(k0, k1, key) >> (64 - bits), key)
        free, places = list(range(CHANGED_KEYS + 1)), {}
        sequence = {}
        for n, (bucket, key) in enumerate(keys.items()):
            sequence[bucket] = (self.sequences.get(bucket, 0) | 1) + 1
            for word in [1, *range(4, 4 + 4 * WAYS)]:
                self.write(BUCKETS, bucket, word, 0)
            self.write(BUCKETS, bucket, 0, sequence[bucket])
            self.write_words(KEYS, n * 32, words_of(key))
        await self.written()
        for _ in range(CHANGES):
            bucket = r.choice(list(keys))
            n = list(keys).index(bucket)
            entry = None
            if r.random() < 0.9:
                byte, place = r.randrange(256), free.pop(0)
                value = bytes([byte]) * (1 + 5 * byte)
                self.write_words(VALUES, place * PLACE_LINES * LINE_BYTES // 8, words_of(value))
                lengths = len(keys[bucket]) << 32 | len(value)
                entry = [sip_hash(k0, k1, keys[bucket]), lengths, byte, place * PLACE_LINES << 32 | n * 32]
            self.write(BUCKETS, bucket, 0, sequence[bucket] + 1)
            for word, data in enumerate(entry or [0, 0, 0, 0], 4):
                self.write(BUCKETS, bucket, word, data)
            self.write(BUCKETS, bucket, 0, sequence[bucket] + 2)
            sequence[bucket] += 2
            if bucket in places:
                free.append(places.pop(bucket))
            if entry:
                places[bucket] = place
            while self.writes:
                if len(self.coming) < 20:
                    key = r.choice(list(keys.values()))
                    self.feed(key)
                    self.expected.append(("while values change", None, None))
                await self.cycle()
            if r.random() < 0.2:
                for _ in range(r.randrange(100)):
                    await self.cycle()
        while self.coming or self.expected:
            await self.cycle()
        names = {number: name for name, number in REASONS.items()}
        self.dut._log.info("while values changed: %s", {names[n]: count for n, count in self.results.items()})
        assert self.results.get(REASONS["gets_hit"], 0) > 100, self.results


@cocotb.test()
async def replay(dut):
    await run(dut, TableBench)
