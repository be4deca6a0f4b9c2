# SPDX-License-Identifier: Apache-2.0
"""
Bounded proofs about the acceptor: any PACKETS packets with small numbers, sent to a voting acceptor whose host does
nothing.

- It never votes below its promise: neither below a round that it has promised for the partition, nor below one that it
  has promised or voted in for the instance.
- No slot is reused before its instance is below the floor.

The proofs record its promises and votes from the packets that it sent, and do not read them from its registers.
"""

from amaranth.hdl import Assert, Assume, Elaboratable, Module, Signal

from .acceptor import Acceptor
from .wire import REASONS, read

PARTITION = {"promise": 0, "floor": 1, "highest": 0, "epoch": 3, "voting": 1}
RING_SLOTS = 4
PACKETS = 3
NUMBER_BITS = 6  # instances, rounds and floors are below 2 ** this
CYCLES = 4 * PACKETS + 2


class ForgetsSlotPromise(Acceptor):
    """A mutant: promises for a single instance are ignored."""

    def compare(self, m, header):
        super().compare(m, header)
        m.d.sync += [self.bits["under_slot"].eq(0), self.bits["slot_higher"].eq(0)]


class ForgetsPartitionPromise(Acceptor):
    """A mutant: a promise for the partition is answered but not stored."""

    def promise(self, m, header, out):
        super().promise(m, header, out)
        m.d.comb += self.stores_r.eq(0)


class ReusesBeforeFloor(Acceptor):
    """A mutant: the ring has no end."""

    def compare(self, m, header):
        super().compare(m, header)
        m.d.sync += self.bits["beyond"].eq(0)


class Property(Elaboratable):
    def __init__(self, acceptor):
        self.packets, self.cycles = PACKETS, CYCLES
        self.role = acceptor(partitions=1, ring_slots=RING_SLOTS, initial=PARTITION)
        self.chosen_in = Signal(64)

    def elaborate(self, _):
        m = Module()
        m.submodules.role = role = self.role
        header = role.received.header
        instance, round_ = read(header, "instance"), read(header, "round")

        # An arbitrary instance.
        chosen, first = Signal(64), Signal(init=1)
        m.d.sync += [first.eq(0), chosen.eq(chosen)]
        with m.If(first):
            m.d.sync += chosen.eq(self.chosen_in)

        def said(reason):
            return role.event.valid & (role.event.reason == REASONS[reason])

        promised, floor, voted = Signal(64), Signal(64, init=PARTITION["floor"]), Signal()
        is_chosen = instance == chosen
        takes_slot = (instance ^ chosen)[: (RING_SLOTS - 1).bit_length()] == 0
        vote = said("acceptor_voted")
        with m.If(said("acceptor_promised") | (said("acceptor_promised_slot") & is_chosen) | (vote & is_chosen)):
            with m.If(round_ > promised):
                m.d.sync += promised.eq(round_)
        with m.If(said("floor_raised")):
            m.d.sync += floor.eq(read(header, "floor"))
        with m.If(vote & is_chosen):
            m.d.sync += voted.eq(1)
        m.d.comb += [
            Assume(~role.host.valid),
            # Waiting changes nothing but the time.
            Assume(role.frame.valid & role.sums.valid & role.job.ready),
            *(Assume(read(header, name)[NUMBER_BITS:] == 0) for name in ("instance", "round", "floor")),
            Assert(~(vote & is_chosen & (round_ < promised))),
            Assert(~(vote & voted & takes_slot & ~is_chosen & (chosen >= floor))),
        ]
        return m

    def ports(self):
        r = self.role
        ins = [r.frame.valid, r.frame.payload, r.sums.valid, r.sums.payload, r.job.ready, r.host.valid]
        settings = [r.settings.node, r.settings.partitions, r.settings.address, r.settings.port]
        return [
            value.as_value() if hasattr(value, "as_value") else value for value in [*ins, *settings, self.chosen_in]
        ]


# What must be proved, and what must be refuted, to show that the checks detect faults.
PROOFS = {"acceptor": (Acceptor, True)}
PROOFS |= {
    mutant.__name__: (mutant, False) for mutant in (ForgetsSlotPromise, ForgetsPartitionPromise, ReusesBeforeFloor)
}
