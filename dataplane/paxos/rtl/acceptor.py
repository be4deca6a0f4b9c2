# SPDX-License-Identifier: Apache-2.0
"""The acceptor: role_acceptor.h and its shell, with the words of registers.h."""

from amaranth.hdl import Cat, Const, Mux, Signal
from amaranth.lib import data

from ground.rtl.frame import TO_GROUP, TO_SENDER

from .role import VALUE_MASK, PaxosRole
from .wire import flag, read, type_of

# struct ib_acceptor_regs without the reserved fields, and struct ib_vote.
Registers = data.StructLayout({"promise": 64, "floor": 64, "highest": 64, "epoch": 64, "voting": 64})
Vote = data.StructLayout(
    {
        "instance": 64,
        "promise": 64,
        "vround": 64,
        "digest": 64,
        "client_id": 64,
        "client_seq": 64,
        "client_low": 64,
        "value_len_bytes": 16,
        "flags": 16,
        "checksum": 32,
    }
)
# The conditions for the role's decision.
BITS = (
    *("voting", "ahead", "behind", "below", "beyond", "later", "fresh", "under_partition", "under_slot", "slot_higher"),
    *("same_round", "no_vote", "floor_known", "damaged"),
)
# Fields of a vote that a packet contains.
SHOWN = ("digest", "checksum", "client_id", "client_seq", "client_low", "value_len_bytes")


class Acceptor(PaxosRole):
    """
    Registers are zero after configuration: the acceptor does not vote until the host enables it. A reset keeps them.
    `initial`: state of the first partition, for proofs.
    """

    def __init__(self, partitions=4, ring_slots=64, initial=None):
        assert ring_slots.bit_count() == 1 and partitions.bit_count() == 1, "powers of two"
        self.partitions, self.ring_slots, self.slots = partitions, ring_slots, partitions * ring_slots
        self.initial = initial or {}
        super().__init__()

    def memories(self, m):
        self.r_read, self.r = self.memory(m, "registers", Registers, self.partitions, self.initial)
        self.v_read, self.v = self.memory(m, "votes", Vote, self.slots)

    def read(self, m, header):
        """Reads the partition's registers, and the slot of the instance."""
        partition = read(header, "partition")[: (self.partitions - 1).bit_length()]
        self.slot = Cat(read(header, "instance")[: (self.ring_slots - 1).bit_length()], partition)
        self.row(m, 0, partition)
        self.row(m, 1, self.slot)

    def compare(self, m, header):
        r, v = self.r_read, self.v_read
        instance, round_, epoch = (read(header, name) for name in ("instance", "round", "epoch"))
        self.bits = bits = {name: Signal(name=name) for name in BITS}
        fresh = v.instance < instance
        m.d.sync += [
            bits["voting"].eq(r.voting != 0),
            bits["ahead"].eq(epoch > r.epoch),
            bits["behind"].eq(epoch < r.epoch),
            bits["below"].eq((instance < r.floor) | (instance == 0)),
            bits["beyond"].eq(instance >= r.floor + self.ring_slots),
            bits["later"].eq(v.instance > instance),
            # The slot's old instance is below the floor: its promise and its vote no longer count.
            bits["fresh"].eq(fresh),
            bits["under_partition"].eq(round_ < r.promise),
            bits["under_slot"].eq(~fresh & (round_ < v.promise)),
            bits["slot_higher"].eq(~fresh & (v.promise > r.promise)),
            bits["same_round"].eq(Mux(fresh, 0, v.vround) == round_),
            bits["no_vote"].eq(fresh | (v.vround == 0)),
            bits["floor_known"].eq(read(header, "floor") <= r.floor),
            bits["damaged"].eq(self.sums_taken.value != read(header, "checksum")),
        ]

    def decide(self, m, header, out):
        r, v, bits = self.r, self.v, self.bits
        kind, flags = read(header, "type"), read(header, "flags")
        # The values to store.
        self.new_r, self.new_v = Signal(Registers), Signal(Vote)
        self.stores_r, self.stores_v = Signal(), Signal()
        m.d.comb += [self.new_r.eq(r), self.new_v.eq(v), out.slot.eq(self.slot), *out.keep(header)]

        with m.Switch(kind):
            with m.Case(type_of("PHASE2A")):
                with m.If(bits["damaged"]):
                    self.drop(m, out, "bad_checksum")
                with m.Else():
                    self.about_slot(m, header, out, lambda: self.vote(m, header, out))
            with m.Case(type_of("LEARN")):
                with m.If(flags & flag("PEER")):
                    m.d.comb += out.reason.eq(self.number("passed_up"))
                with m.Else():
                    self.about_slot(m, header, out, lambda: self.learn(m, out))
            with m.Case(type_of("PHASE1A")):
                with m.If(flags & flag("SLOT")):
                    self.about_slot(m, header, out, lambda: self.promise_slot(m, header, out))
                with m.Else():
                    self.if_it_votes(m, header, out, lambda: self.promise(m, header, out))
            with m.Case(type_of("TRIM")):
                with m.If(flags & flag("LEADER")):
                    m.d.comb += out.reason.eq(self.number("passed_up"))
                with m.Else():
                    self.trim(m, header, out)
            with m.Case(type_of("POSITION")):
                with m.If(flags & flag("LEADER", "ANSWER")):
                    m.d.comb += out.reason.eq(self.number("passed_up"))
                with m.Else():
                    self.position(m, header, out)
            with m.Default():
                m.d.comb += out.reason.eq(self.number("passed_up"))

        self.store(m, out, [(self.new_r, self.stores_r), (self.new_v, self.stores_v)])

    # The equivalents of the functions of role_acceptor.h.

    def refuse(self, m, header, out, reason, promise, scope):
        flags = (read(header, "flags") & (flag("RECOVERY") | VALUE_MASK)) | scope
        self.answer(m, out, reason, "NACK", flags, round=promise, floor=self.r.floor, epoch=self.r.epoch)

    def refuse_lower_round(self, m, header, out):
        with m.If(self.bits["slot_higher"]):
            self.refuse(m, header, out, "acceptor_nack_slot", self.v.promise, flag("SLOT"))
        with m.Else():
            self.refuse(m, header, out, "acceptor_nack", self.r.promise, 0)

    def if_it_votes(self, m, header, out, then):
        bits = self.bits
        with m.If(~bits["voting"]):
            self.drop(m, out, "acceptor_recovering")
        with m.Elif(bits["ahead"]):
            self.drop(m, out, "epoch_ahead")
        with m.Elif(bits["behind"]):
            self.refuse(m, header, out, "wrong_epoch", self.r.promise, 0)
        with m.Else():
            then()

    def about_slot(self, m, header, out, then):
        def within_ring():
            bits = self.bits
            with m.If(bits["below"]):
                self.refuse(m, header, out, "acceptor_below_floor", self.r.promise, flag("SLOT", "BELOW_FLOOR"))
            with m.Elif(bits["beyond"]):
                self.drop(m, out, "acceptor_beyond_ring")
            with m.Elif(bits["later"]):
                self.drop(m, out, "acceptor_raced")
            with m.Else():
                m.d.comb += self.new_v.instance.eq(read(header, "instance"))
                with m.If(bits["fresh"]):
                    m.d.comb += [
                        getattr(self.new_v, name).eq(0) for name in ("promise", "vround", "value_len_bytes", "flags")
                    ]
                then()

        self.if_it_votes(m, header, out, within_ring)

    def show_vote(self, m, out, flags):
        """Copies the stored vote into the packet, with these flags in addition to its own."""
        fresh = self.bits["fresh"]
        m.d.comb += [out.fields[name].eq(getattr(self.v, name)) for name in SHOWN]
        m.d.comb += [
            out.load.eq(1),
            out.fields["vround"].eq(Mux(fresh, 0, self.v.vround)),
            out.fields["value_len_bytes"].eq(Mux(fresh, 0, self.v.value_len_bytes)),
            out.fields["flags"].eq((flags & ~VALUE_MASK & 0xFFFF) | Mux(fresh, 0, self.v.flags)),
        ]

    def vote(self, m, header, out):
        bits, flags = self.bits, read(header, "flags")
        with m.If(bits["under_partition"] | bits["under_slot"]):
            self.refuse_lower_round(m, header, out)
        with m.Else():
            kept = flags & (VALUE_MASK | flag("RECOVERY"))
            dest = Mux((flags & flag("RECOVERY")) != 0, TO_SENDER, TO_GROUP)
            self.answer(m, out, "acceptor_voted", "PHASE2B", kept, dest, floor=self.r.floor)
            with m.If(bits["same_round"]):
                m.d.comb += out.reason.eq(self.number("acceptor_vote_repeated"))
                self.show_vote(m, out, kept)
            with m.Else():
                round_ = read(header, "round")
                m.d.comb += [self.new_v.promise.eq(round_), self.new_v.vround.eq(round_)]
                m.d.comb += [getattr(self.new_v, name).eq(read(header, name)) for name in SHOWN]
                m.d.comb += [
                    self.new_v.flags.eq(flags & VALUE_MASK),
                    out.fields["vround"].eq(round_),
                    out.save.eq(1),
                    self.stores_v.eq(1),
                ]
                with m.If(read(header, "instance") > self.r.highest):
                    m.d.comb += [self.new_r.highest.eq(read(header, "instance")), self.stores_r.eq(1)]

    def learn(self, m, out):
        with m.If(self.bits["no_vote"]):
            self.drop(m, out, "acceptor_learn_no_vote")
        with m.Else():
            self.answer(
                m, out, "acceptor_learn_answered", "PHASE2B", flag("REPEAT"), round=self.v.vround, floor=self.r.floor
            )
            self.show_vote(m, out, Const(flag("REPEAT"), 16))

    def promise_slot(self, m, header, out):
        bits = self.bits
        with m.If(bits["under_partition"] | bits["under_slot"]):
            self.refuse_lower_round(m, header, out)
        with m.Else():
            nothing = dict(floor=self.r.floor, vround=0, value_len_bytes=0, checksum=0)
            self.answer(m, out, "acceptor_promised_slot", "PHASE1B", flag("SLOT"), **nothing)
            m.d.comb += [self.new_v.promise.eq(read(header, "round")), self.stores_v.eq(1)]
            with m.If(~bits["no_vote"]):
                self.show_vote(m, out, Const(flag("SLOT", "VOTE"), 16))

    def promise(self, m, header, out):
        with m.If(self.bits["under_partition"]):
            self.refuse(m, header, out, "acceptor_nack", self.r.promise, 0)
        with m.Else():
            said = dict(instance=self.r.highest, floor=self.r.floor, vround=0, value_len_bytes=0, checksum=0)
            self.answer(m, out, "acceptor_promised", "PHASE1B", 0, **said)
            m.d.comb += [self.new_r.promise.eq(read(header, "round")), self.stores_r.eq(1)]

    def position(self, m, header, out):
        r = self.r
        flags = read(header, "flags") | flag("ANSWER") | Mux(self.bits["voting"], 0, flag("RECOVERING"))
        where = dict(epoch=r.epoch, instance=r.highest, floor=r.floor, round=r.promise)
        self.answer(m, out, "position_answered", "POSITION", flags, **where)
