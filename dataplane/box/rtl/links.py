# SPDX-License-Identifier: Apache-2.0
"""
Direct links: a node's block with a pair of streams for each other node, besides the network's. Frames on them are those of
ground/xdp/raw.h, with the packet directly after the Ethernet header.

One block serves all streams, because a node's registers are one. In it a packet is always at the same place: `Widen` puts 28
bytes, of any content, where IPv4 and UDP are on the network, and `Narrow` removes them.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ground.rtl.block import Block
from ground.rtl.frame import HEADER_AT, IP, TO_GROUP, TO_HOST
from ground.rtl.stream import LINK_BITS, Axis, Event, Host, Settings, dest_bits

GAP_BYTES = HEADER_AT - IP  # of IPv4 and UDP
# A link for which a frame has waited in so many cycles is stuck. At 250 MHz the longest frame takes half of them at 1 Gbit/s.
PATIENCE_CYCLES = 8192


class Shifter(wiring.Component):
    """What `Widen` and `Narrow` have in common."""

    def __init__(self, width, **sideband):
        self.width, self.bytes = width, width // 8
        self.skip, self.rest = divmod(GAP_BYTES, self.bytes)  # whole words of the gap, and bytes
        self.head, self.in_head = divmod(IP - 1, self.bytes)  # the word with the Ethernet header's last byte, and that byte
        self.in_head += 1
        super().__init__({"input": In(Axis(width, **sideband)), "output": Out(Axis(width, **sideband))})

    def ones(self, count):
        return Const((1 << count) - 1, count)


class Widen(Shifter):
    """Frames from links get the gap; those from the network (TUSER 0) stay. A frame shorter than an Ethernet header is padded to one."""

    def __init__(self, width):
        super().__init__(width, user_bits=LINK_BITS)

    def elaborate(self, _):
        m = Module()
        i, o, rest, kept = self.input, self.output, self.rest, self.bytes - self.rest
        body = self.head + self.skip + bool(self.skip)  # the first word with bytes behind the gap
        at = Signal(range(body + 2))  # index of the word that leaves; the last one stands for all later ones
        before, link = Signal(self.width), Signal(LINK_BITS)  # of the input word before
        ended, left = Signal(), Signal(rest)  # the input frame has ended, and these bytes of it are left
        in_body, in_gap, is_whole, takes = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            is_whole.eq((at == 0) & (i.tuser == 0)),
            in_body.eq(at >= body),
            in_gap.eq(~in_body & (at > self.head)),
            takes.eq(~in_gap & ~ended),
            o.tvalid.eq(~takes | i.tvalid),
            i.tready.eq(takes & o.tready),
            o.tuser.eq(Mux(takes, i.tuser, link)),
            o.tdata.eq(i.tdata),
            o.tkeep.eq(~0),
        ]
        # An Ethernet header and the gap, at least.
        least = (IP + GAP_BYTES) % self.bytes or self.bytes
        padded = Const((1 << least) - 1, self.bytes)
        with m.If(is_whole):
            m.d.comb += [o.tkeep.eq(i.tkeep), o.tlast.eq(i.tlast)]
        with m.Elif(in_body):
            m.d.comb += [
                o.tdata.eq(Cat(before, Mux(ended, 0, i.tdata)).bit_select(8 * kept, self.width)),
                o.tlast.eq(ended | (i.tlast & ~i.tkeep[kept])),
            ]
            if self.head == body:  # header and gap are in one word
                with m.If(at == 0):
                    m.d.comb += o.tdata[: 8 * self.in_head].eq(i.tdata[: 8 * self.in_head])
            with m.If(o.tlast):
                m.d.comb += o.tkeep.eq(Mux(ended, left, Cat(self.ones(rest), i.tkeep[:kept])))
                if self.head == body:
                    with m.If(at == 0):
                        m.d.comb += o.tkeep.eq(Cat(self.ones(rest), i.tkeep[:kept]) | padded)
        with m.If(o.tvalid & o.tready):
            m.d.sync += at.eq(Mux(at == body + 1, at, at + 1))
            with m.If(takes):
                m.d.sync += [before.eq(i.tdata), link.eq(i.tuser)]
                m.d.sync += [ended.eq(i.tlast), left.eq(i.tkeep[kept:])]
                if self.head != body:
                    with m.If(~in_body):
                        m.d.sync += left.eq(Mux(at == self.head, i.tkeep[kept:], 0) | padded)
            with m.If(o.tlast):
                m.d.sync += [at.eq(0), ended.eq(0)]
            with m.Elif(is_whole):
                m.d.sync += [at.eq(0), ended.eq(0)]
        return m


class Narrow(Shifter):
    """Removes the gap of frames that came by links, as TDEST says."""

    def __init__(self, width):
        super().__init__(width, dest_bits=dest_bits(1))

    def elaborate(self, _):
        m = Module()
        i, o, rest, kept = self.input, self.output, self.rest, self.bytes - self.rest
        body = self.head + self.skip + 1  # the first word that leaves with bytes from behind the gap
        at = Signal(range(body + 2))  # index of the input word; the last one stands for all later ones
        before, dest = Signal(self.width), Signal.like(i.tdest)
        header = Signal(8 * self.in_head)
        ends, left = Signal(), Signal(kept)  # the input frame has ended, and these bytes of it are left
        is_whole, waits, is_first = Signal(), Signal(), Signal()
        m.d.comb += [
            is_whole.eq((at == 0) & (i.tdest[2:] == 0)),
            # The words of the gap, and the one in which the header ends, do not leave as they are.
            waits.eq(~is_whole & (at >= self.head) & (at < body)),
            is_first.eq(at == body),
            o.tvalid.eq(ends | (i.tvalid & ~waits)),
            i.tready.eq(~ends & (waits | o.tready)),
            o.tdest.eq(Mux(ends, dest, i.tdest)),
            o.tdata.eq(i.tdata),
            o.tkeep.eq(~0),
        ]
        with m.If(~ends & is_whole):
            m.d.comb += [o.tkeep.eq(i.tkeep), o.tlast.eq(i.tlast)]
        with m.Elif(ends | (at >= body)):
            m.d.comb += [
                o.tdata.eq(Cat(before, Mux(ends, 0, i.tdata)).bit_select(8 * rest, self.width)),
                o.tlast.eq(ends | (i.tlast & ~i.tkeep[rest])),
            ]
            with m.If(is_first):
                m.d.comb += o.tdata[: 8 * self.in_head].eq(header)
            with m.If(o.tlast):
                m.d.comb += o.tkeep.eq(Mux(ends, left, Cat(self.ones(kept), i.tkeep[:rest])))
        with m.If(i.tvalid & i.tready):
            m.d.sync += [before.eq(i.tdata), dest.eq(i.tdest), left.eq(i.tkeep[rest:])]
            m.d.sync += at.eq(Mux(at == body + 1, at, at + 1))
            m.d.sync += ends.eq(i.tlast & ~is_whole)
            with m.If(at == self.head):
                m.d.sync += header.eq(i.tdata)
            with m.If(is_whole):
                m.d.sync += at.eq(0)
        with m.If(o.tvalid & o.tready & o.tlast):
            m.d.sync += [at.eq(0), ends.eq(0)]
        return m


class Merge(wiring.Component):
    """Frames of several streams, in turn. TUSER is the number of the stream."""

    def __init__(self, width, count):
        self.count = count
        inputs = {f"input{n}": In(Axis(width)) for n in range(count)}
        super().__init__({**inputs, "output": Out(Axis(width, user_bits=LINK_BITS))})

    def elaborate(self, _):
        m = Module()
        o, inputs = self.output, [getattr(self, f"input{n}") for n in range(self.count)]
        last, chosen, holds = Signal(range(self.count)), Signal(range(self.count)), Signal()
        m.d.comb += chosen.eq(last)
        with m.If(~holds), m.Switch(last):
            for n in range(self.count):
                with m.Case(n):
                    # The next one that has a frame.
                    for after in reversed(range(self.count)):
                        other = (n + 1 + after) % self.count
                        with m.If(inputs[other].tvalid):
                            m.d.comb += chosen.eq(other)
        with m.Switch(chosen):
            for n, i in enumerate(inputs):
                with m.Case(n):
                    m.d.comb += [o.tvalid.eq(i.tvalid), o.tdata.eq(i.tdata), o.tkeep.eq(i.tkeep), o.tlast.eq(i.tlast)]
                    m.d.comb += [o.tuser.eq(n), i.tready.eq(o.tready)]
        with m.If(o.tvalid):
            m.d.sync += [last.eq(chosen), holds.eq(~(o.tready & o.tlast))]
        return m


class Copy(wiring.Component):
    """
    A link's copy of frames. Once the node `gives_up` waiting for the link, the link is stuck: the word that it was offered stays,
    because a stream may not withdraw it, and behind it the frame ends with a word of TLAST and TUSER, of which a MAC makes a wrong
    checksum. Frames that come before the link has taken both are not offered to it.
    """

    def __init__(self, width):
        self.width = width
        super().__init__(
            {
                "input": In(Axis(width)),  # words for this link; ready: the node need not wait for it
                "leaves": In(1),  # the node goes on to the next word
                "gives_up": In(1),
                "output": Out(Axis(width, user_bits=1)),
                "is_stuck": Out(1),
            }
        )

    def elaborate(self, _):
        m = Module()
        i, o = self.input, self.output
        taken, skips = Signal(), Signal()  # the link has the word; the rest of the frame is not for it
        late, cut = Signal(), Signal()  # the link has yet to take the word in `held`, and the end of a frame that was cut
        offers, gave_up, word = Signal(), Signal(), Cat(i.tdata, i.tkeep, i.tlast)
        held, end = Signal(len(word)), Cat(Const(0, self.width), Const(1, self.width // 8), Const(1, 1))
        m.d.comb += [
            self.is_stuck.eq(late | cut),
            offers.eq(i.tvalid & ~taken & ~skips & ~self.is_stuck),
            gave_up.eq(offers & ~o.tready & self.gives_up),
            i.tready.eq(~offers | o.tready | self.gives_up),
            o.tvalid.eq(offers | self.is_stuck),
            Cat(o.tdata, o.tkeep, o.tlast).eq(Mux(late, held, Mux(cut, end, word))),
            o.tuser.eq(~late & cut),
        ]
        m.d.sync += taken.eq(~self.leaves & (taken | (offers & o.tready)))
        with m.If(self.leaves & i.tlast):
            m.d.sync += skips.eq(0)
        with m.Elif(i.tvalid & (self.is_stuck | gave_up)):
            m.d.sync += skips.eq(1)
        with m.If(gave_up):
            m.d.sync += [held.eq(word), late.eq(1), cut.eq(~i.tlast)]
        with m.Elif(self.is_stuck & o.tready):
            m.d.sync += [late.eq(0), cut.eq(late & cut)]
        return m


class Linked(wiring.Component):
    """
    A node with direct links. TUSER of a frame for the host (TDEST 0) is the link that it came by, 0 for the network. A frame for
    all others leaves by all links at once, each at its own pace, as long as none is stuck (`links_stuck`, one bit a link).
    """

    def __init__(self, role, width):
        assert 0 < role.links < 1 << LINK_BITS, f"{role.links} direct links: at least 1, and at most {(1 << LINK_BITS) - 1}"
        self.role, self.width, self.links = role, width, range(1, role.links + 1)
        links = {}
        for n in self.links:
            links |= {f"link{n}_in": In(Axis(width)), f"link{n}_out": Out(Axis(width, user_bits=1))}
        super().__init__(
            {
                "input": In(Axis(width)),
                "output": Out(Axis(width, dest_bits=2, user_bits=LINK_BITS)),
                **links,
                "links_stuck": Out(role.links),
                "settings": In(Settings),
                "host": In(Host()),
                "event": Out(Event),
            }
        )

    def elaborate(self, _):
        m = Module()
        m.submodules.merge = merge = Merge(self.width, len(self.links) + 1)
        m.submodules.widen = widen = Widen(self.width)
        m.submodules.block = block = Block(self.role, self.width)
        m.submodules.narrow = narrow = Narrow(self.width)
        wiring.connect(m, wiring.flipped(self.input), merge.input0)
        for n in self.links:
            wiring.connect(m, wiring.flipped(getattr(self, f"link{n}_in")), getattr(merge, f"input{n}"))
        wiring.connect(m, merge.output, widen.input)
        wiring.connect(m, widen.output, block.input)
        wiring.connect(m, block.output, narrow.input)
        wiring.connect(m, wiring.flipped(self.settings), block.settings)
        wiring.connect(m, wiring.flipped(self.host), block.host)
        wiring.connect(m, block.event, wiring.flipped(self.event))

        leaving, o = narrow.output, self.output
        dest, link = leaving.tdest[:2], leaving.tdest[2:]
        copies = [Copy(self.width) for _ in self.links]
        by_links, done, leaves = Signal(), Signal(len(copies)), Signal()
        # Cycles in which the frame has waited for links.
        waited, gives_up = Signal(range(PATIENCE_CYCLES + 1)), Signal()
        m.d.comb += [
            by_links.eq((link != 0) & (dest != TO_HOST)),
            Cat(o.tdata, o.tkeep, o.tlast).eq(Cat(leaving.tdata, leaving.tkeep, leaving.tlast)),
            Cat(o.tdest, o.tuser).eq(leaving.tdest),
            o.tvalid.eq(leaving.tvalid & ~by_links),
            leaving.tready.eq(Mux(by_links, done.all(), o.tready)),
            leaves.eq(leaving.tvalid & leaving.tready),
            gives_up.eq(waited == PATIENCE_CYCLES),
            self.links_stuck.eq(Cat(copy.is_stuck for copy in copies)),
        ]
        with m.If(gives_up | (leaves & leaving.tlast)):
            m.d.sync += waited.eq(0)
        with m.Elif(leaving.tvalid & by_links & ~leaving.tready):
            m.d.sync += waited.eq(waited + 1)
        for bit, (n, copy) in enumerate(zip(self.links, copies, strict=True)):
            m.submodules[f"copy{n}"] = copy
            wiring.connect(m, copy.output, wiring.flipped(getattr(self, f"link{n}_out")))
            i = copy.input
            m.d.comb += [
                Cat(i.tdata, i.tkeep, i.tlast).eq(Cat(leaving.tdata, leaving.tkeep, leaving.tlast)),
                i.tvalid.eq(leaving.tvalid & by_links & ((dest == TO_GROUP) | (link == n))),
                Cat(copy.leaves, copy.gives_up).eq(Cat(leaves, gives_up)),
                done[bit].eq(i.tready),
            ]
        return m
