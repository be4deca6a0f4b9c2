# SPDX-License-Identifier: Apache-2.0
"""The checksums of ground/checksum.h, of headers and of values."""

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from .stream import Sums

MULTIPLIER = 0x9E3779B97F4A7C15
START = [MULTIPLIER * (2 * lane + 1) % 2**64 for lane in range(4)]
HEADER_WORDS = 11  # plus the tag
VALUE_WORD = 12  # index of the first word of a packet's value
Lanes = data.ArrayLayout(64, 4)


def step(m, name, lane, word):
    """A step of a lane. Its result is there one cycle later."""
    mixed = lane ^ word
    digits = [mixed[at : at + 16] for at in range(0, 64, 16)]
    factors = [MULTIPLIER >> at & 0xFFFF for at in range(0, 64, 16)]
    p = {(i, j): Signal(32, name=f"{name}_{i}_{j}") for i in range(4) for j in range(4 - i)}
    m.d.sync += [product.eq(digits[i] * factors[j]) for (i, j), product in p.items()]
    # The sum of all products, modulo 2 ** 64; those that do not overlap are one number.
    product, high = Signal(64, name=f"{name}_product"), Signal(32, name=f"{name}_high")
    m.d.comb += [
        high.eq(p[1, 1] + p[2, 0] + Cat(Const(0, 16), (p[2, 1] + p[3, 0])[:16])),
        product.eq(
            (Cat(p[0, 0], p[0, 2]) + Cat(Const(0, 16), p[0, 1], p[0, 3][:16]))
            + (Cat(Const(0, 16), p[1, 0], p[1, 2][:16]) + Cat(Const(0, 32), high))
        ),
    ]
    return product ^ product[32:]


def lanes_at_once(width):
    """Words of a packet that are summed per cycle."""
    return min(4, width // 64)


class Finisher(wiring.Component):
    """The sum of four lanes, five cycles after `start`."""

    start: In(1)
    lanes: In(Lanes)
    busy: Out(1)
    done: Out(1)
    sum: Out(64)

    def elaborate(self, _):
        m = Module()
        a, b, c, d = (Signal(64, name=name) for name in "abcd")
        stage = Signal(3)
        stepped = step(m, "finisher", a, b)
        m.d.comb += [self.busy.eq(stage != 0), self.done.eq(stage == 5), self.sum.eq(stepped)]
        with m.If(self.start):
            m.d.sync += [Cat(a, b, c, d).eq(self.lanes), stage.eq(1)]
        with m.Elif(self.busy):
            # (a, b), then (c, d), then their results.
            m.d.sync += stage.eq(Mux(self.done, 0, stage + 1))
            with m.Switch(stage):
                with m.Case(1):
                    m.d.sync += [a.eq(c), b.eq(d)]
                with m.Case(2):
                    m.d.sync += a.eq(stepped)
                with m.Case(3):
                    m.d.sync += b.eq(stepped)
        return m


class StepsOfLanes:
    """Lanes and their steps, of which some start in a cycle and end in the next."""

    def __init__(self, m, at_once):
        self.m = m
        self.lanes, self.after = Signal(Lanes, init=START), Signal(Lanes)
        self.lane_of = [Signal(2, name=f"lane{i}_of") for i in range(at_once)]
        self.running = [Signal(name=f"lane{i}_runs") for i in range(at_once)]
        m.d.comb += self.after.eq(self.lanes)
        m.d.sync += self.lanes.eq(self.after)

    def reset(self, first=START[0]):
        """After `start`: steps that start now do not count."""
        starts = [first, *START[1:]]
        self.m.d.sync += [self.lanes[i].eq(starts[i]) for i in range(4)]
        self.m.d.sync += [runs.eq(0) for runs in self.running]

    def start(self, i, lane, word, starts):
        m = self.m
        stepped = step(m, f"lane{i}", self.lanes[lane], word)
        m.d.sync += [self.lane_of[i].eq(lane), self.running[i].eq(starts)]
        with m.If(self.running[i]):
            m.d.comb += self.after[self.lane_of[i]].eq(stepped)


class HeaderSum(wiring.Component):
    """The sum of an outgoing header."""

    def __init__(self, width):
        self.at_once = lanes_at_once(width)
        super().__init__(
            {"start": In(1), "ready": Out(1), "header": In(64 * HEADER_WORDS), "done": Out(1), "sum": Out(64)}
        )

    def elaborate(self, _):
        m = Module()
        m.submodules.finisher = finisher = Finisher()
        left = Signal(64 * HEADER_WORDS)
        at = Signal(4)
        busy, waits = Signal(), Signal()
        lanes = StepsOfLanes(m, self.at_once)
        is_complete = at >= HEADER_WORDS
        m.d.comb += [
            # With four lanes at once, each step needs the one before.
            waits.eq(lanes.running[0] if self.at_once == 4 else 0),
            finisher.lanes.eq(lanes.after),
            finisher.start.eq(busy & is_complete),
            # The lanes are done after the previous header's sum.
            self.ready.eq(~busy),
            self.done.eq(finisher.done),
            self.sum.eq(finisher.sum),
        ]
        for i in range(self.at_once):
            lane = (at + i)[:2]
            lanes.start(i, lane, left[64 * i : 64 * i + 64], busy & ~waits & (at + i < HEADER_WORDS))
        with m.If(self.start):
            m.d.sync += [left.eq(self.header), at.eq(0), busy.eq(1)]
            lanes.reset()
        with m.Elif(busy & is_complete):
            m.d.sync += busy.eq(0)
        with m.Elif(busy & ~waits):
            m.d.sync += [left.eq(left >> 64 * self.at_once), at.eq(at + self.at_once)]
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
    Sums packets that arrive in pieces of the stream's width, starting at the header's first byte. The value's length
    is taken from the header. The next packet may arrive while the sums of one are finished.
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
        lanes = StepsOfLanes(m, at_once)
        ended, is_value = Signal(), Signal()
        result = Signal(Sums.members["payload"].shape)

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
        m.d.comb += one_by_one.eq(~in_header & ~in_stripe)
        tail = Signal(64)
        m.d.comb += tail.eq(Mux(is_rest, rest_of(Array(words)[tail_at], value_len_bytes[:3]), Array(words)[tail_at]))
        works, waits = Signal(), Signal()
        all_waits = []
        # Lane and word of each step that starts in the next cycle.
        start = data.StructLayout({"lane": 2, "word": 64, "starts": 1})
        starting = [Signal(start, name=f"starting{i}") for i in range(at_once)]
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
            m.d.sync += [starting[i].lane.eq(lane), starting[i].word.eq(word), starting[i].starts.eq(works & steps)]
            lanes.start(i, starting[i].lane, starting[i].word, starting[i].starts)
            all_waits.append(steps & Cat(one.starts & (one.lane == lane) for one in starting).any())
        m.d.comb += waits.eq(Cat(all_waits).any())
        with m.If(in_header):
            m.d.comb += [finish.eq(at + at_once == VALUE_WORD), group_done.eq(1)]
        with m.Elif(in_stripe | value_done):
            m.d.comb += group_done.eq(1)
        with m.Else():
            m.d.comb += [finish.eq(is_rest), group_done.eq(is_rest | (tail_at == at_once - 1))]

        piece_done = Signal()
        # The last steps of header or value end while `closing`, and start in the cycle before, while no others may be chosen. The
        # lanes of a value may have to wait for the header's sum. `ended`: a packet's sums are not finished, or not taken.
        closing, closes_value = Signal(), Signal()
        closes_next, closes_value_next = Signal(), Signal()
        queued, is_queued, queued_is_value = Signal(Lanes), Signal(), Signal()
        starts_now = Signal()
        m.d.sync += [closes_next.eq(works & finish), closes_value_next.eq(~in_header)]
        m.d.sync += [closing.eq(closes_next), closes_value.eq(closes_value_next)]
        m.d.comb += [
            stalled.eq(closes_next | waits | (finish & (is_queued | closing | (in_header & ended))) | (is_end & ended)),
            starts_now.eq(closing & ~finisher.busy),
            finisher.lanes.eq(Mux(is_queued, queued, lanes.after)),
            finisher.start.eq(starts_now | (is_queued & ~finisher.busy)),
            works.eq(busy & ~stalled),
            piece_done.eq(works & group_done & (group == groups - 1)),
            self.ready.eq(~busy | piece_done),
        ]
        with m.If(finisher.start):
            m.d.sync += [is_queued.eq(0), is_value.eq(Mux(is_queued, queued_is_value, closes_value))]
        with m.If(closing & ~starts_now):
            m.d.sync += [is_queued.eq(1), queued.eq(lanes.after), queued_is_value.eq(closes_value)]
        with m.If(closing):
            # A packet that ends with its header has no value: the next lanes are those of the next packet's header.
            lanes.reset(START[0] ^ Mux(closes_value | ended, 0, value_len_bytes))
        with m.If(works):
            m.d.sync += tail_at.eq(Mux(group_done, 0, tail_at + 1))
            with m.If(group_done):
                m.d.sync += group.eq(Mux(group == groups - 1, 0, group + 1))
                with m.If(at < 2**9 - 2 * at_once):
                    m.d.sync += at.eq(at + at_once)
            # Bytes 12 and 13 of the header.
            with m.If(at == (1 if at_once == 1 else 0)):
                length = words[min(1, at_once - 1)]
                m.d.sync += value_len_bytes.eq(Cat(length[40:48], length[32:40]))
            with m.If(finish):
                m.d.sync += value_done.eq(~in_header | (value_len_bytes == 0))
            with m.If(piece_done):
                m.d.sync += busy.eq(0)
        with m.If(self.valid & self.ready):
            m.d.sync += [piece.eq(self.piece), is_end.eq(self.end), busy.eq(1)]
        with m.If(finisher.done):
            with m.If(is_value):
                m.d.sync += result.value.eq(finisher.sum[:32] ^ finisher.sum[32:])
            with m.Else():
                m.d.sync += [result.header.eq(finisher.sum), result.value.eq(0)]

        with m.If(self.sums.ready):
            m.d.sync += self.sums.valid.eq(0)
        with m.If(ended & ~closes_next & ~closing & ~is_queued & ~finisher.busy & (~self.sums.valid | self.sums.ready)):
            m.d.sync += [self.sums.valid.eq(1), self.sums.payload.eq(result), ended.eq(0)]
        with m.If(piece_done & is_end):
            m.d.sync += [at.eq(0), group.eq(0), tail_at.eq(0), value_done.eq(0), ended.eq(1)]
            with m.If(~finish):
                lanes.reset()
                m.d.sync += [one.starts.eq(0) for one in starting]
        return m
