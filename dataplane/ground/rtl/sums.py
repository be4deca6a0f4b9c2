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


def step(m, name, mixed):
    """A step of a lane, of which `mixed` is the exclusive or with a word. Its result is there one cycle later."""
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
    """
    The sum of four lanes, five cycles after `start`. `pair` is the exclusive or of two lanes in that cycle, and of the other
    two in the next one; which of them is first does not matter. A sum may start every four cycles.
    """

    STAGES = 5

    start: In(1)
    pair: In(64)
    ready: Out(1)
    done: Out(1)
    sum: Out(64)

    def elaborate(self, _):
        m = Module()
        mixed, first = Signal(64), Signal(64)
        # Bit i: a sum has started i + 1 cycles ago.
        started = Signal(self.STAGES)
        stepped = step(m, "finisher", mixed)
        m.d.comb += [self.ready.eq(~started[:3].any()), self.done.eq(started[-1]), self.sum.eq(stepped)]
        m.d.sync += started.eq(Cat(self.start, started))
        with m.If(self.start | started[0]):
            m.d.sync += mixed.eq(self.pair)
        with m.If(started[1]):
            m.d.sync += first.eq(stepped)
        with m.If(started[2]):
            m.d.sync += mixed.eq(first ^ stepped)
        return m


class Lanes:
    """
    The lanes of `sums` sums. Each unit starts a step per cycle: unit i those of lanes i, i + units, ... A lane has the result
    two cycles later, and its next step may start then.
    """

    def __init__(self, m, units, sums=1):
        self.m, self.units = m, units
        self.lanes = [[Signal(64, init=START[lane], name=f"lane{of}_{lane}") for lane in range(4)] for of in range(sums)]
        self.of_unit = [[lanes[at] for at in range(unit, 4, units) for lanes in self.lanes] for unit in range(units)]

    def index(self, of, lane):
        """The index of a lane among its unit's lanes."""
        return Cat(of, lane[(self.units - 1).bit_length() : 2])

    def reset(self, of, first=START[0]):
        self.m.d.sync += [lane.eq(start) for lane, start in zip(self.lanes[of], [first, *START[1:]], strict=True)]

    def start(self, unit, index, word, starts):
        m, lanes = self.m, self.of_unit[unit]
        stepped = step(m, f"unit{unit}", word ^ (Array(lanes)[index] if len(lanes) > 1 else lanes[0]))
        ends, ends_at = Signal(name=f"unit{unit}_ends"), Signal.like(index, name=f"unit{unit}_ends_at")
        m.d.sync += [ends.eq(starts), ends_at.eq(index)]
        for at, lane in enumerate(lanes):
            with m.If(ends & (ends_at == at)):
                m.d.sync += lane.eq(stepped)

    def pair(self, of, first):
        """Two lanes for the finisher."""
        return self.lanes[of][first] ^ self.lanes[of][first + 1]


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
        lanes = Lanes(m, self.at_once)
        is_complete = at >= HEADER_WORDS
        if self.at_once == 4:
            # Each step needs the one before, and the sum needs the last one.
            m.d.sync += waits.eq(busy & ~waits & ~is_complete)
        second = Signal()
        m.d.sync += second.eq(finisher.start)
        m.d.comb += [
            finisher.pair.eq(Mux(second, lanes.pair(0, 2), lanes.pair(0, 0))),
            # A step of the second pair may end in this cycle.
            finisher.start.eq(busy & is_complete & ~waits),
            # The lanes are done after the previous header's sum.
            self.ready.eq(~busy),
            self.done.eq(finisher.done),
            self.sum.eq(finisher.sum),
        ]
        for i in range(self.at_once):
            index = lanes.index(Const(0, 0), (at + i)[:2])
            lanes.start(i, index, left[64 * i : 64 * i + 64], busy & ~waits & (at + i < HEADER_WORDS))
        with m.If(self.start):
            m.d.sync += [left.eq(self.header), at.eq(0), busy.eq(1)]
            lanes.reset(0)
        with m.Elif(finisher.start):
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
    is taken from the header. Header and value have lanes of their own, so the value's steps follow the header's, and those
    of the next packet may start before the sums of one are finished.
    """

    def __init__(self, width):
        self.width = width
        super().__init__({"piece": In(width), "end": In(1), "valid": In(1), "ready": Out(1), "sums": Out(Sums)})

    def elaborate(self, _):
        m = Module()
        at_once = lanes_at_once(self.width)
        at_once_bits = (at_once - 1).bit_length()
        groups = self.width // 64 // at_once

        piece, is_end, busy = Signal(self.width), Signal(), Signal()
        group = Signal(range(max(groups, 2)))
        at = Signal(9)  # index of the group's first word in the packet
        value_at = Signal(9, init=2**9 - VALUE_WORD)  # ... in the value, modulo 2 ** 9: `at - VALUE_WORD` takes too long
        tail_at = Signal(2)  # index of a word in the group: the words after a value's last stripe are processed one by one
        value_len_bytes = Signal(16)
        value_done = Signal()
        lanes = Lanes(m, at_once, sums=2)

        words = [Signal(64, name=f"word{i}") for i in range(at_once)]
        all_words = Array(piece[64 * i : 64 * i + 64] for i in range(groups * at_once))
        m.d.comb += [words[i].eq(all_words[group * at_once + i]) for i in range(at_once)]

        tail_word = Signal(9)
        m.d.comb += tail_word.eq(value_at | tail_at)
        whole_words = value_len_bytes[3:]
        in_header, in_stripe, in_tail = Signal(), Signal(), Signal()
        m.d.comb += [
            in_header.eq(at < VALUE_WORD),
            in_stripe.eq(value_at[2:] < value_len_bytes[5:]),
            in_tail.eq(~in_header & ~in_stripe),
        ]

        # The steps of the group, one for each unit: in the tail, a whole word into lane 1, and the rest of the value into lane
        # 0; both at once if there are two units, and the rest is the group's next word.
        is_rest, with_rest = Signal(), Signal()
        m.d.comb += is_rest.eq(tail_word == whole_words)
        rest, whole = words[0], words[0]
        if at_once > 1:
            rest, whole = Array(words)[whole_words[:at_once_bits]], Array(words)[tail_at]
            m.d.comb += with_rest.eq(
                (value_at[at_once_bits:] == whole_words[at_once_bits:]) & (tail_at + 1 == whole_words[:at_once_bits])
            )
        works = Signal()
        waits_of = []
        for i in range(at_once):
            lane, word, steps = Signal(2), Signal(64), Signal()
            m.d.comb += [lane.eq(at + i), word.eq(words[i]), steps.eq(at + i != HEADER_WORDS)]
            with m.If(in_tail):
                m.d.comb += [lane.eq(i), steps.eq(0)]
                if i == 0:
                    m.d.comb += [word.eq(rest_of(rest, value_len_bytes[:3])), steps.eq(~value_done & (is_rest | with_rest))]
                if i == 1:
                    m.d.comb += [word.eq(whole), steps.eq(~value_done & ~is_rest)]
                if at_once == 1:
                    m.d.comb += steps.eq(~value_done)
                    with m.If(~is_rest):
                        m.d.comb += [lane.eq(1), word.eq(whole)]
            # The step starts in the next cycle.
            index = lanes.index(~in_header, lane)
            starts, starts_word, starts_at = (
                Signal(name=f"starts{i}"), Signal(64, name=f"starts{i}_word"), Signal.like(index, name=f"starts{i}_at")
            )
            m.d.sync += [starts.eq(works & steps), starts_word.eq(word), starts_at.eq(index)]
            lanes.start(i, starts_at, starts_word, starts)
            waits_of.append(steps & starts & (starts_at == index))

        # The group may end the header or the value, also of a packet that is too short. While they are `whole`, they wait in
        # their lanes for the finisher.
        group_done, piece_done, last_group, finishes, has_value = Signal(), Signal(), Signal(), Signal(), Signal()
        header_whole, value_whole, stalled = Signal(), Signal(), Signal()
        ends = is_end & last_group
        with m.If(in_header):
            m.d.comb += [group_done.eq(1), finishes.eq((at + at_once == VALUE_WORD) | ends)]
        with m.Else():
            ends_value = in_tail & (is_rest | with_rest)
            m.d.comb += [
                group_done.eq(in_stripe | value_done | ends_value | (tail_at == at_once - 1)),
                finishes.eq(~value_done & (ends_value | (ends & group_done))),
            ]
        m.d.comb += [
            last_group.eq(group == groups - 1),
            has_value.eq((value_len_bytes != 0) & ~ends),
            # Lanes that wait must not change; the header's end resets those of the value.
            stalled.eq(Cat(waits_of).any() | (in_header & (header_whole | (finishes & value_whole)))),
            works.eq(busy & ~stalled),
            piece_done.eq(works & group_done & last_group),
        ]
        with m.If(works):
            m.d.sync += tail_at.eq(Mux(group_done, 0, tail_at + 1))
            with m.If(group_done):
                m.d.sync += group.eq(Mux(last_group, 0, group + 1))
                with m.If(at < 2**9 - 2 * at_once):
                    m.d.sync += [at.eq(at + at_once), value_at.eq(value_at + at_once)]
            # Bytes 12 and 13 of the header.
            with m.If(at == (1 if at_once == 1 else 0)):
                length = words[min(1, at_once - 1)]
                m.d.sync += value_len_bytes.eq(Cat(length[40:48], length[32:40]))
            with m.If(finishes):
                m.d.sync += value_done.eq(~in_header | ~has_value)
            with m.If(finishes & in_header):
                lanes.reset(1, START[0] ^ value_len_bytes)
        # A piece that comes while one is summed waits, so `ready` does not depend on what is summed: it is far from there.
        next_piece, next_is_end, waits, takes = Signal(self.width), Signal(), Signal(), Signal()
        m.d.comb += [takes.eq(~busy | piece_done), self.ready.eq(~waits)]
        with m.If(~waits):
            m.d.sync += [next_piece.eq(self.piece), next_is_end.eq(self.end)]
        m.d.sync += waits.eq(~takes & (waits | self.valid))
        with m.If(takes):
            m.d.sync += [
                piece.eq(Mux(waits, next_piece, self.piece)),
                is_end.eq(Mux(waits, next_is_end, self.end)),
                busy.eq(waits | self.valid),
            ]
        with m.If(piece_done & is_end):
            m.d.sync += [at.eq(0), value_at.eq(value_at.init), value_done.eq(0)]
        self.finish(m, lanes, works & finishes, in_header, has_value, header_whole, value_whole)
        return m

    def finish(self, m, lanes, finishes, in_header, has_value, header_whole, value_whole):
        """
        Header and value of a packet go through one finisher, in this order. Two packets may be in it or not yet taken.
        """
        m.submodules.finisher = finisher = Finisher()
        # The last steps are in their lanes three cycles after they were chosen. The finisher starts one cycle before, with the
        # lanes that are there already. With four lanes at once, a header has none.
        header_has_value, settles, header_settled, value_settled = Signal(), Signal(), Signal(), Signal()
        with m.If(finishes & in_header):
            m.d.sync += [header_whole.eq(1), header_has_value.eq(has_value)]
        with m.If(finishes & ~in_header):
            m.d.sync += value_whole.eq(1)
        m.d.sync += [settles.eq(header_whole), value_settled.eq(value_whole)]
        m.d.sync += header_settled.eq(settles & header_whole if lanes.units == 4 else header_whole)
        open_, complete = Signal(range(3)), Signal(range(3))
        starts_header, starts_value, taken = Signal(), Signal(), Signal()
        m.d.comb += [
            taken.eq(self.sums.valid & self.sums.ready),
            starts_header.eq(header_settled & finisher.ready & (open_ != 2)),
            starts_value.eq(value_settled & ~header_whole & finisher.ready),
            finisher.start.eq(starts_header | starts_value),
        ]
        second, second_of_value = Signal(), Signal()
        m.d.sync += [second.eq(finisher.start), second_of_value.eq(starts_value)]
        of_header, of_value = Mux(second, lanes.pair(0, 2), lanes.pair(0, 0)), Mux(second, lanes.pair(1, 0), lanes.pair(1, 2))
        m.d.comb += finisher.pair.eq(Mux(Mux(second, second_of_value, ~header_whole), of_value, of_header))
        with m.If(starts_header):
            m.d.sync += [header_whole.eq(0), header_settled.eq(0), settles.eq(0)]
        with m.If(starts_value):
            m.d.sync += [value_whole.eq(0), value_settled.eq(0)]
        with m.If(second & ~second_of_value):
            lanes.reset(0)

        # What is in the finisher, by stage.
        stages = Finisher.STAGES
        are_values, are_last = Signal(stages), Signal(stages)
        m.d.sync += are_values.eq(Cat(starts_value, are_values))
        m.d.sync += are_last.eq(Cat(starts_value | ~header_has_value, are_last))
        is_value, is_last = are_values[-1], finisher.done & are_last[-1]
        found = [Signal(Sums.members["payload"].shape, name=f"found{i}") for i in range(2)]
        to, from_ = Signal(), Signal()
        for i, sums in enumerate(found):
            with m.If(finisher.done & (to == i)):
                with m.If(is_value):
                    m.d.sync += sums.value.eq(finisher.sum[:32] ^ finisher.sum[32:])
                with m.Else():
                    m.d.sync += [sums.header.eq(finisher.sum), sums.value.eq(0)]
        m.d.comb += [self.sums.valid.eq(complete != 0), self.sums.payload.eq(Mux(from_, found[1], found[0]))]
        m.d.sync += [
            to.eq(to ^ is_last),
            from_.eq(from_ ^ taken),
            open_.eq(open_ + starts_header - taken),
            complete.eq(complete + is_last - taken),
        ]
