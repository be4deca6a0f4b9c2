# SPDX-License-Identifier: Apache-2.0
"""Shared by the roles of Paxos: their host's access, and the answers."""

from ground.rtl.frame import TO_SENDER
from ground.rtl.role import Role

from . import wire
from .wire import flag, type_of

VALUE_MASK = flag("VALUE_MASK")


class PaxosRole(Role):
    TYPES, PADDED, FIELDS, REASONS = wire.TYPES, wire.PADDED, wire.FIELDS, wire.REASONS

    def checks(self, header):
        return wire.checks(header)

    def host_access(self, m, host):
        """Each memory is a space."""
        return [
            self.access(m, space, host, host.index, host.word[:3], host.space == space)
            for space in range(len(self.ports))
        ]

    def answer(self, m, out, reason, kind, flags, dest=TO_SENDER, **fields):
        super().answer(m, out, reason, type_of(kind), flags, dest, **fields)

    def trim(self, m, header, out):
        with m.If(self.bits["ahead"] | self.bits["behind"]):
            self.drop(m, out, "wrong_epoch")
        with m.Elif(self.bits["floor_known"]):
            self.drop(m, out, "floor_known")
        with m.Else():
            self.drop(m, out, "floor_raised")
            m.d.comb += [self.new_r.floor.eq(wire.read(header, "floor")), self.stores_r.eq(1)]
