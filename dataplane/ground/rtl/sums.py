# SPDX-License-Identifier: Apache-2.0
"""The checksums of ground/checksum.h, of headers and of values."""

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from .stream import Sums

MULTIPLIER = 0x9E3779B97F4A7C15
START = [MULTIPLIER * (2 * lane + 1) % 2**64 for lane in range(4)]
HEADER_WORDS = 11  # plus the tag
VALUE_WORD = 12  # index of the first word of a packet's value
Lanes = data.ArrayLayout(64, 4)


def step(m, name, lane, word):
    product = Signal(64, name=f"{name}_product")
    m.d.comb += product.eq((lane ^ word) * MULTIPLIER)
    return product ^ product[32:]


def lanes_at_once(width):
    """Words of a packet that are summed per cycle."""
    return min(4, width // 64)


class Finisher(wiring.Component):
    """The sum of four lanes, three cycles after `start`."""

    start: In(1)
    lanes: In(Lanes)
    busy: Out(1)
    done: Out(1)
    sum: Out(64)

    def elaborate(self, _):
        m = Module()
        a, b, c, d = (Signal(64, name=name) for name in "abcd")
        stage = Signal(2)
        stepped = step(m, "finisher", a, b)
        m.d.comb += [self.busy.eq(stage != 0), self.done.eq(stage == 3), self.sum.eq(stepped)]
        with m.If(self.start):
            m.d.sync += [Cat(a, b, c, d).eq(self.lanes), stage.eq(1)]
        with m.Elif(self.busy):
            # (a, b), then (c, d), then their results.
            m.d.sync += [stage.eq(stage + 1), d.eq(stepped)]
            with m.Switch(stage):
                with m.Case(1):
                    m.d.sync += [a.eq(c), b.eq(d)]
                with m.Case(2):
                    m.d.sync += [a.eq(d), b.eq(stepped)]
        return m


class HeaderSum(wiring.Component):
    """The sum of an outgoing header."""

    def __init__(self, width):
        self.at_once = lanes_at_once(width)
        super().__init__({"start": In(1), "header": In(64 * HEADER_WORDS), "done": Out(1), "sum": Out(64)})

    def elaborate(self, _):
        m = Module()
        m.submodules.finisher = finisher = Finisher()
        lanes = Signal(Lanes)
        left = Signal(64 * HEADER_WORDS)
        at = Signal(4)
        busy = Signal()
        after = Signal(Lanes)
        m.d.comb += [finisher.lanes.eq(after), after.eq(lanes)]
        m.d.comb += [self.done.eq(finisher.done), self.sum.eq(finisher.sum)]
        for i in range(self.at_once):
            lane = Signal(2)
            m.d.comb += lane.eq(at + i)
            stepped = step(m, f"lane{i}", lanes[lane], left[64 * i : 64 * i + 64])
            with m.If(at + i < HEADER_WORDS):
                m.d.comb += after[lane].eq(stepped)
        with m.If(self.start):
            m.d.sync += [left.eq(self.header), at.eq(0), busy.eq(1)]
            m.d.sync += [lanes[i].eq(START[i]) for i in range(4)]
        with m.Elif(busy):
            m.d.sync += [lanes.eq(after), left.eq(left >> 64 * self.at_once), at.eq(at + self.at_once)]
            with m.If(at + self.at_once >= HEADER_WORDS):
                m.d.comb += finisher.start.eq(1)
                m.d.sync += busy.eq(0)
        return m


def rest_of(word, rest):
    """The bytes after a value's last whole word as a number: four, then two, then one."""
    byte = [word[8 * i : 8 * i + 8] for i in range(8)]
    four = byte[0:4]
    orders = [
        [],
        byte[0:1],
        byte[0:2],
        [byte[2], *byte[0:2]],
        four,
        [byte[4], *four],
        [*byte[4:6], *four],
        [byte[6], *byte[4:6], *four],
    ]
    return Array(Cat(*order) for order in orders)[rest]


class PacketSums(wiring.Component):
    """
    Sums a packet that arrives in pieces of the stream's width, starting at the header's first byte. The value's length
    is taken from the header.
    """

    def __init__(self, width):
        self.width = width
        super().__init__({"piece": In(width), "end": In(1), "valid": In(1), "ready": Out(1), "sums": Out(Sums)})

    def elaborate(self, _):
        m = Module()
        at_once = lanes_at_once(self.width)
        groups = self.width // 64 // at_once
        m.submodules.finisher = finisher = Finisher()

        piece, is_end, busy = Signal(self.width), Signal(), Signal()
        group = Signal(range(max(groups, 2)))
        at = Signal(9)  # index of the group's first word in the packet
        tail_at = Signal(2)  # index of a word in the group: a value's last words are processed one by one
        value_len_bytes = Signal(16)
        value_done = Signal()
        lanes, after = Signal(Lanes), Signal(Lanes)
        draining, is_value = Signal(), Signal()

        words = [Signal(64, name=f"word{i}") for i in range(at_once)]
        all_words = Array(piece[64 * i : 64 * i + 64] for i in range(groups * at_once))
        m.d.comb += [words[i].eq(all_words[group * at_once + i]) for i in range(at_once)]

        value_at, tail_word = Signal(9), Signal(9)
        m.d.comb += [value_at.eq(at - VALUE_WORD), tail_word.eq(value_at + tail_at)]
        whole_words = value_len_bytes[3:]
        in_header, in_stripe = Signal(), Signal()
        m.d.comb += [in_header.eq(at < VALUE_WORD), in_stripe.eq(value_at[2:] < value_len_bytes[5:])]
        is_rest = Signal()
        m.d.comb += is_rest.eq(tail_word == whole_words)

        # The group's actions: steps, one per lane; possibly a sum to finish; possibly the end.
        group_done, finish, stalled = Signal(), Signal(), Signal()
        one_by_one = Signal()
        m.d.comb += [stalled.eq(finish & finisher.busy), after.eq(lanes), finisher.lanes.eq(after)]
        m.d.comb += one_by_one.eq(~in_header & ~in_stripe)
        tail = Signal(64)
        m.d.comb += tail.eq(Mux(is_rest, rest_of(Array(words)[tail_at], value_len_bytes[:3]), Array(words)[tail_at]))
        for i in range(at_once):
            lane, word, steps = Signal(2), Signal(64), Signal()
            m.d.comb += [lane.eq(at + i), word.eq(words[i]), steps.eq(~one_by_one & (at + i != HEADER_WORDS))]
            if i == 0:
                with m.If(one_by_one):
                    m.d.comb += [
                        lane.eq(~is_rest),
                        word.eq(tail),
                        steps.eq(~value_done & (tail_word <= whole_words)),
                    ]
            stepped = step(m, f"lane{i}", lanes[lane], word)
            with m.If(steps):
                m.d.comb += after[lane].eq(stepped)
        with m.If(in_header):
            m.d.comb += [finish.eq(at + at_once == VALUE_WORD), group_done.eq(1)]
        with m.Elif(in_stripe | value_done):
            m.d.comb += group_done.eq(1)
        with m.Else():
            m.d.comb += [finish.eq(is_rest), group_done.eq(is_rest | (tail_at == at_once - 1))]

        piece_done = Signal()
        works = Signal()
        m.d.comb += [
            works.eq(busy & ~stalled),
            piece_done.eq(works & group_done & (group == groups - 1)),
            self.ready.eq(~draining & (~busy | (piece_done & ~is_end))),
            finisher.start.eq(works & finish),
        ]
        with m.If(works):
            m.d.sync += [lanes.eq(after), tail_at.eq(Mux(group_done, 0, tail_at + 1))]
            with m.If(group_done):
                m.d.sync += group.eq(Mux(group == groups - 1, 0, group + 1))
                with m.If(at < 2**9 - 2 * at_once):
                    m.d.sync += at.eq(at + at_once)
            # Bytes 12 and 13 of the header.
            with m.If(at == (1 if at_once == 1 else 0)):
                length = words[min(1, at_once - 1)]
                m.d.sync += value_len_bytes.eq(Cat(length[40:48], length[32:40]))
            with m.If(finish):
                m.d.sync += is_value.eq(~in_header)
                with m.If(in_header):
                    m.d.sync += [lanes[i].eq(START[i]) for i in range(1, 4)]
                    m.d.sync += [lanes[0].eq(START[0] ^ value_len_bytes), value_done.eq(value_len_bytes == 0)]
                with m.Else():
                    m.d.sync += value_done.eq(1)
            with m.If(piece_done):
                m.d.sync += [busy.eq(0), draining.eq(is_end)]
        with m.If(self.valid & self.ready):
            m.d.sync += [piece.eq(self.piece), is_end.eq(self.end), busy.eq(1)]
        with m.If(finisher.done):
            with m.If(is_value):
                m.d.sync += self.sums.payload.value.eq(finisher.sum[:32] ^ finisher.sum[32:])
            with m.Else():
                m.d.sync += [self.sums.payload.header.eq(finisher.sum), self.sums.payload.value.eq(0)]

        m.d.comb += self.sums.valid.eq(draining & ~finisher.busy)
        with m.If((draining & ~finisher.busy & self.sums.ready) | ~self.started(m)):
            m.d.sync += [draining.eq(0), at.eq(0), tail_at.eq(0), value_done.eq(0), is_value.eq(0)]
            m.d.sync += [lanes[i].eq(START[i]) for i in range(4)]
        return m

    @staticmethod
    def started(m):
        """0 in the first cycle after a reset."""
        started = Signal()
        m.d.sync += started.eq(1)
        return started
