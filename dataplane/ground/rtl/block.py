# SPDX-License-Identifier: Apache-2.0
"""A role between parser and deparser: Ethernet frames in, Ethernet frames out. The MAC is external."""

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from .deparser import Deparser
from .frame import BUFFERS, FRAME_LEN_MAX_BYTES
from .parser import Parser
from .stream import LINK_BITS, VALUES, Axis, Event, Host, Settings, dest_bits


class Block(wiring.Component):
    """With direct links (`role.links`), TUSER and the high bits of TDEST are links; see box/rtl/links.py."""

    def __init__(self, role, width):
        assert width in (64, 128, 512), "words of 64, 128 or 512 bits"
        self.role, self.width = role, width
        super().__init__(
            {
                "input": In(Axis(width, user_bits=LINK_BITS if role.links else 0)),
                "output": Out(Axis(width, dest_bits(role.links))),
                "settings": In(Settings),
                "host": In(Host()),
                "event": Out(Event),
            }
        )

    def elaborate(self, _):
        m = Module()
        m.submodules.parser = parser = Parser(self.width, self.role.links)
        m.submodules.role = role = self.role
        m.submodules.deparser = deparser = Deparser(self.width, role.slots, role.links)
        m.submodules.buffer = buffer = Memory(
            shape=self.width, depth=BUFFERS * FRAME_LEN_MAX_BYTES * 8 // self.width, init=[]
        )
        write, read = buffer.write_port(), buffer.read_port()
        wiring.connect(m, wiring.flipped(self.input), parser.input)
        wiring.connect(m, parser.frame, role.frame)
        wiring.connect(m, parser.sums, role.sums)
        wiring.connect(m, role.job, deparser.job)
        wiring.connect(m, deparser.output, wiring.flipped(self.output))
        wiring.connect(m, wiring.flipped(self.settings), role.settings)
        wiring.connect(m, wiring.flipped(self.host), role.host)
        wiring.connect(m, role.event, wiring.flipped(self.event))
        m.d.comb += [
            write.en.eq(parser.write_enable),
            write.addr.eq(parser.write_address),
            write.data.eq(parser.write_data),
            read.en.eq(deparser.read_enable),
            read.addr.eq(deparser.read_address),
            deparser.read_data.eq(read.data),
            parser.release.eq(deparser.release),
            role.deparser_idle.eq(deparser.idle),
            role.store_read_data.eq(deparser.host_read_data),
            deparser.host_enable.eq(role.store_enable),
            deparser.host_write.eq(self.host.write & (self.host.space == VALUES)),
            deparser.host_slot.eq(self.host.index),
            deparser.host_word.eq(self.host.word),
            deparser.host_write_data.eq(self.host.write_data),
        ]
        return m
