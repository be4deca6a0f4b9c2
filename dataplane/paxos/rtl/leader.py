# SPDX-License-Identifier: Apache-2.0
"""The leader: role_leader.h and its shell, with the words of registers.h."""

from amaranth.hdl import Mux, Signal
from amaranth.lib import data

from ground.rtl.frame import TO_GROUP

from .role import VALUE_MASK, PaxosRole
from .wire import flag, read, type_of

# struct ib_leader_regs without the reserved fields.
Registers = data.StructLayout({"round": 64, "next": 64, "floor": 64, "epoch": 64})
# The conditions for the role's decision.
BITS = ("active", "ahead", "behind", "behind_floor", "full", "higher_round", "floor_known", "damaged")


class Leader(PaxosRole):
    """Registers are zero after configuration: it stamps nothing until the host activates it. A reset keeps them."""

    def __init__(self, partitions=4, ring_slots=64):
        self.partitions, self.ring_slots = partitions, ring_slots
        super().__init__()

    def memories(self, m):
        self.r_read, self.r = self.memory(m, "registers", Registers, self.partitions)

    def read(self, m, header):
        partition = read(header, "partition")[: (self.partitions - 1).bit_length()]
        self.row(m, 0, partition)

    def compare(self, m, header):
        r = self.r_read
        self.bits = bits = {name: Signal(name=name) for name in BITS}
        epoch = read(header, "epoch")
        m.d.sync += [
            bits["active"].eq(r.round != 0),
            bits["ahead"].eq(epoch > r.epoch),
            bits["behind"].eq(epoch < r.epoch),
            bits["behind_floor"].eq(r.next < r.floor),
            bits["full"].eq(r.next >= r.floor + self.ring_slots),
            bits["higher_round"].eq(read(header, "round") > r.round),
            bits["floor_known"].eq(read(header, "floor") <= r.floor),
            bits["damaged"].eq(self.sums_taken.value != read(header, "checksum")),
        ]

    def decide(self, m, header, out):
        r, bits = self.r, self.bits
        flags = read(header, "flags")
        self.new_r, self.stores_r = Signal(Registers), Signal()
        is_leaders = (flags & flag("LEADER")) != 0
        m.d.comb += [self.new_r.eq(r), *out.keep(header), out.reason.eq(self.number("passed_up"))]
        with m.Switch(read(header, "type")):
            with m.Case(type_of("REQUEST")):
                with m.If(bits["damaged"]):
                    self.drop(m, out, "bad_checksum")
                with m.Else():
                    self.request(m, out, flags)
            with m.Case(type_of("NACK")):
                scoped = (flags & flag("SLOT", "BELOW_FLOOR")) != 0
                deposed = ~scoped & ~bits["ahead"] & ~bits["behind"] & bits["higher_round"]
                with m.If(bits["active"] & ~is_leaders & (deposed | bits["ahead"])):
                    m.d.comb += [
                        out.reason.eq(self.number("leader_deposed")),
                        self.new_r.round.eq(0),
                        self.stores_r.eq(1),
                    ]
            with m.Case(type_of("TRIM")):
                with m.If(is_leaders):
                    self.trim(m, header, out)
            with m.Case(type_of("POSITION")):
                with m.If(is_leaders & ~((flags & flag("ANSWER")) != 0)):
                    where = dict(epoch=r.epoch, instance=r.next, floor=r.floor, round=r.round)
                    self.answer(m, out, "position_answered", "POSITION", flags | flag("ANSWER"), **where)
        self.store(m, out, [(self.new_r, self.stores_r)])

    def request(self, m, out, flags):
        r, bits = self.r, self.bits
        stamp = dict(epoch=r.epoch, floor=r.floor, round=r.round)
        with m.If(~bits["active"]):
            self.answer(m, out, "leader_not_active", "NACK", flags | flag("LEADER"), **stamp)
        with m.Elif(bits["full"]):
            self.answer(m, out, "leader_window_full", "BUSY", flags, **stamp)
        with m.Else():
            # Others may have filled and trimmed this leader's next instances.
            instance = Mux(bits["behind_floor"], r.floor, r.next)
            kept = flags & VALUE_MASK
            self.answer(m, out, "leader_stamped", "PHASE2A", kept, TO_GROUP, instance=instance, vround=0, **stamp)
            m.d.comb += [self.new_r.next.eq(instance + 1), self.stores_r.eq(1)]
