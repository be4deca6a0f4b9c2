# SPDX-License-Identifier: Apache-2.0
"""Shared by the roles of Paxos: their memories, and the answers."""

from amaranth.hdl import Const, Mux
from amaranth.lib.memory import Memory

from ground.rtl.frame import TO_SENDER
from ground.rtl.role import Role

from . import wire
from .wire import flag, type_of

VALUE_MASK = flag("VALUE_MASK")


class PaxosRole(Role):
    TYPES, PADDED, FIELDS, REASONS = wire.TYPES, wire.PADDED, wire.FIELDS, wire.REASONS

    def __init__(self):
        self.ports, self.addresses = [], []
        super().__init__()

    def checks(self, header):
        return wire.checks(header)

    def memory(self, m, name, layout, depth, first_row=()):
        """A memory of 64-bit words; each row is a `layout`."""
        init = [layout.const(first_row).as_value().value] if first_row else []
        m.submodules[name] = memory = Memory(shape=layout.size, depth=depth, init=init)
        reads, writes = memory.read_port(), memory.write_port(granularity=64)
        m.d.comb += reads.en.eq(0)
        self.ports.append((reads, writes))
        return layout(reads.data)

    def row(self, m, space, address):
        """Starts reading a row, which is also the row to store to."""
        reads, _ = self.ports[space]
        m.d.comb += [reads.en.eq(1), reads.addr.eq(address)]
        self.addresses.append(address)

    def store(self, m, out, stored):
        """For each memory, the row to store and whether to store it."""
        for (_, writes), address, (new, stores) in zip(self.ports, self.addresses, stored, strict=True):
            m.d.comb += [
                writes.addr.eq(address),
                writes.data.eq(new),
                writes.en.eq((stores & out.commit).replicate(len(writes.en))),
            ]

    def host_access(self, m, host):
        found = []
        for space, (reads, writes) in enumerate(self.ports):
            m.d.comb += [reads.en.eq(1), reads.addr.eq(host.index), writes.addr.eq(host.index)]
            m.d.comb += [
                writes.data.eq(host.write_data.replicate(len(writes.en))),
                writes.en.eq(Mux(host.write & (host.space == space), Const(1) << host.word[:3], 0)),
            ]
            found.append(reads.data.word_select(host.word[:3], 64))
        return found

    def drop(self, m, out, reason):
        m.d.comb += [out.drop.eq(1), out.reason.eq(self.number(reason))]

    def answer(self, m, out, reason, kind, flags, dest=TO_SENDER, **fields):
        m.d.comb += [out.rewritten.eq(1), out.dest.eq(dest), out.reason.eq(self.number(reason))]
        m.d.comb += [out.fields["type"].eq(type_of(kind)), out.fields["flags"].eq(flags)]
        m.d.comb += [out.fields[name].eq(value) for name, value in fields.items()]

    def trim(self, m, header, out):
        with m.If(self.bits["ahead"] | self.bits["behind"]):
            self.drop(m, out, "wrong_epoch")
        with m.Elif(self.bits["floor_known"]):
            self.drop(m, out, "floor_known")
        with m.Else():
            self.drop(m, out, "floor_raised")
            m.d.comb += [self.new_r.floor.eq(wire.read(header, "floor")), self.stores_r.eq(1)]
