# SPDX-License-Identifier: Apache-2.0
"""Receives frames: each into a buffer, its first bytes into a register, and its packet into the checksums."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .frame import BUFFERS, FRAME_LEN_MAX_BYTES, HEADER_AT, VALUE_AT
from .stream import LINK_BITS, Axis, Received, Sums
from .sums import PacketSums


class Parser(wiring.Component):
    """`release`: frees the oldest buffer. `links`: the number of direct links; TUSER is the link that a frame comes by."""

    def __init__(self, width, links=0):
        self.width = width
        self.links = links
        self.buffer_words = FRAME_LEN_MAX_BYTES * 8 // width
        super().__init__(
            {
                "input": In(Axis(width, user_bits=LINK_BITS if links else 0)),
                "frame": Out(Received),
                "sums": Out(Sums),
                "release": In(1),
                "write_enable": Out(1),
                "write_address": Out(range(BUFFERS * self.buffer_words)),
                "write_data": Out(width),
            }
        )

    def elaborate(self, _):
        m = Module()
        m.submodules.sums = sums = PacketSums(self.width)
        wiring.connect(m, wiring.flipped(self.sums), sums.sums)
        width_bytes = self.width // 8
        first_at, offset = divmod(HEADER_AT, width_bytes)

        buffer, held = Signal(range(BUFFERS)), Signal(range(BUFFERS + 1))
        n = Signal(range(self.buffer_words + 1))  # words of the frame received so far
        pending, flush = Signal(), Signal()
        previous = Signal(self.width)
        # The rest of a frame's last word, which waits here for the checksums while the next frame arrives.
        rest = Signal(self.width - 8 * offset)
        header = Signal(-(-8 * VALUE_AT // self.width) * self.width)
        len_bytes, too_long, link = Signal(12), Signal(), Signal(LINK_BITS)

        i = self.input
        may_accept, needs_sums, accepts = Signal(), Signal(), Signal()
        m.d.comb += [
            # A piece for the checksums also needs the word after it.
            needs_sums.eq(n > first_at),
            may_accept.eq((held != BUFFERS) & (~pending | self.frame.ready)),
            i.tready.eq(may_accept & Mux(needs_sums, sums.ready & ~flush, sums.ready | ~flush | ~i.tlast)),
            accepts.eq(i.tvalid & i.tready),
            sums.valid.eq(flush | (i.tvalid & may_accept & needs_sums)),
            sums.end.eq(flush),
            sums.piece.eq(Mux(flush, rest, Cat(previous[8 * offset :], i.tdata[: 8 * offset]))),
            self.write_enable.eq(accepts & (n != self.buffer_words)),
            self.write_address.eq(Cat(n[: len(n) - 1], buffer)),
            self.write_data.eq(i.tdata),
            self.frame.valid.eq(pending),
            self.frame.payload.header.eq(header),
            self.frame.payload.len_bytes.eq(len_bytes),
            self.frame.payload.too_long.eq(too_long),
            self.frame.payload.buffer.eq(buffer - 1),
            self.frame.payload.link.eq(link),
        ]
        kept = Signal(range(width_bytes + 1))
        m.d.comb += kept.eq(sum(i.tkeep[k] for k in range(width_bytes)))
        with m.If(self.frame.ready):
            m.d.sync += pending.eq(0)
        with m.If(sums.ready):
            m.d.sync += flush.eq(0)
        with m.If(accepts):
            m.d.sync += previous.eq(i.tdata)
            with m.Switch(n):
                for piece in range(len(header) // self.width):
                    with m.Case(piece):
                        m.d.sync += header[piece * self.width : (piece + 1) * self.width].eq(i.tdata)
            with m.If(n != self.buffer_words):
                m.d.sync += n.eq(n + 1)
            with m.If(i.tlast):
                m.d.sync += [
                    n.eq(0),
                    pending.eq(1),
                    flush.eq(1),
                    rest.eq(i.tdata[8 * offset :]),
                    buffer.eq(buffer + 1),
                    len_bytes.eq(n * width_bytes + kept),
                    too_long.eq(n == self.buffer_words),
                    link.eq(i.tuser if self.links else 0),
                ]
        m.d.sync += held.eq(held + (accepts & i.tlast) - self.release)
        return m
