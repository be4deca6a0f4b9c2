# SPDX-License-Identifier: Apache-2.0
"""
The ZAB controller: role.h and shell.h for a node, with the words of registers.h. Only packets of nodes come to it: SETs and
GETs of clients (sets.h, gets.h) are the host's.

The node's registers, and what each member has acknowledged, are flip-flops, because the quorum is computed from all of them
at once. The rest about members, and the records, are memories; values are in the deparser's store.
"""

from amaranth.hdl import Cat, Const, Mux, Signal
from amaranth.lib import data

from ground.rtl.frame import TO_GROUP, TO_SENDER
from ground.rtl.role import Role

from . import wire
from .wire import NODE, PEER, C, flag, is_any, read, type_of

NODES = range(1, C["IB_BOX_NODES_MAX"] + 1)
ID_BITS = C["IB_BOX_NODES_MAX"].bit_length()
# The registers, by their width; the host reads and writes each as a word.
WIDTHS = {
    **dict.fromkeys(("epoch", "first", "last", "last_epoch", "last_time_ms", "matched", "committed"), 64),
    **dict.fromkeys(("established_at", "window", "heard_ns", "higher_epoch", "applied", "time_ms", "advances"), 64),
    "process_heard_ns": 64,
    "mode": 2,
    "leader": 16,
    **dict.fromkeys(("members", "guests"), len(NODES) + 1),
    "quorum": ID_BITS + 1,
    **dict.fromkeys(("recovering", "acks_by_process"), 1),
}
IDLE, FOLLOWING, LEADING = (C[f"IB_BOX_{mode}"] for mode in ("IDLE", "FOLLOWING", "LEADING"))
LINE_BYTES = 64  # a row of the host's port
# The peers follow the node's words, in lines of their own.
PEERS_AT = max(NODE.values()) // LINE_BYTES + 1

# struct ib_box_record without its lock, and the part of struct ib_box_peer that is not `matched`.
Record = data.StructLayout(
    {
        "zxid": 64,
        "epoch": 64,
        "time_ms": 64,
        "origin_session": 64,
        "origin_seq": 64,
        "value_len_bytes": 32,
        "digest": 32,
        "origin": 64,
    }
)
Peer = data.StructLayout(dict.fromkeys(("recovered", "committed", "round", "heard_ns"), 64))
# The conditions for the decision.
BITS = (
    *("ahead", "above", "below", "no_member", "is_own", "bad_origin", "damaged", "not_proposer", "notes_epoch"),
    *("waits", "no_room", "no_zxid", "bad_record_epoch", "had", "follows", "kept", "moves_first", "later_time"),
    *("commit_is_new", "zxid_is_new", "matched_is_new", "commit_beyond_zxid", "commit_beyond_matched", "commit_behind"),
    *("beyond_last", "raises_commit", "raises_recovered", "raises_matched", "raises_round", "advances"),
)


class Node(Role):
    """
    Registers are zero after configuration: a node is idle, and no packet is from a member, until the host says otherwise. A
    reset keeps the memories.
    """

    TYPES, PADDED, FIELDS, REASONS = wire.TYPES, (), wire.FIELDS, wire.REASONS
    STEPS = ("compare", "count", "advance")

    def __init__(self, ring_slots=8, links=0):
        assert ring_slots.bit_count() == 1, "a power of two"
        self.slots, self.links = ring_slots, links
        self.r = {name: Signal(bits, name=name) for name, bits in WIDTHS.items()}
        self.matched = [Signal(64, name=f"matched{node}") for node in range(len(NODES) + 1)]
        super().__init__()

    def checks(self, header):
        return wire.checks(header)

    def memories(self, m):
        self.there, _ = self.memory(m, "records", Record, self.slots)
        self.peer_read, self.peer = self.memory(m, "peers", Peer, len(NODES) + 1)
        self.bits = {name: Signal(name=f"is_{name}") for name in BITS}

    def read(self, m, header):
        """Reads the sender's row, and the slot of the record, whose zxid is the next one if it is submitted."""
        self.at, self.sender = Signal(64), read(header, "node")[:ID_BITS]
        at = Mux(is_any(header, "SUBMIT"), (self.r["last"] + 1)[:64], read(header, "zxid"))
        m.d.sync += self.at.eq(at)
        self.slot = self.at[: (self.slots - 1).bit_length()]
        self.row(m, 0, at[: (self.slots - 1).bit_length()])
        self.row(m, 1, self.sender)
        self.addresses[:] = [self.slot, self.sender]

    def compare(self, m, header):
        r, there, peer, at = self.r, self.there, self.peer_read, self.at
        own = self.settings.node
        node, epoch, zxid, committed, record_epoch, origin, flags = (
            read(header, name)
            for name in ("node", "epoch", "zxid", "committed", "record_epoch", "origin", "flags")
        )
        self.first_after = Signal(64)
        behind_ring = (at - self.slots)[:64]
        unknown = (r["last"] - r["committed"])[:64] >= r["window"]
        found = {
            "ahead": epoch > (r["epoch"] + C["IB_BOX_EPOCH_AHEAD_MAX"])[:64],
            "above": epoch > r["epoch"],
            "below": epoch < r["epoch"],
            "no_member": ~(r["members"] | r["guests"]).bit_select(self.sender, 1),
            "is_own": node == own,
            "bad_origin": (origin != node) & ((origin != 0) | (node != own)),
            "damaged": self.sums_taken.value != read(header, "digest"),
            "not_proposer": epoch[: (C["IB_BOX_PROPOSERS"] - 1).bit_length()] != node,
            "notes_epoch": epoch > r["higher_epoch"],
            # A no-op establishes the epoch, regardless of uncommitted records.
            "waits": (origin != 0) & ((r["committed"] < r["established_at"]) | unknown),
            "no_room": (at > self.slots) & (behind_ring > r["applied"]),
            "no_zxid": zxid == 0,
            "bad_record_epoch": (record_epoch == 0) | (record_epoch > epoch),
            "had": zxid <= r["matched"],
            "follows": zxid == (r["matched"] + 1)[:64],
            "kept": (zxid <= r["last"]) & (there.zxid == zxid) & (there.epoch == record_epoch),
            "moves_first": (at > self.slots) & (behind_ring >= r["first"]),
            "later_time": r["time_ms"] > r["last_time_ms"],
            "commit_is_new": committed > r["committed"],
            "zxid_is_new": zxid > r["committed"],
            "matched_is_new": r["matched"] > r["committed"],
            "commit_beyond_zxid": committed > zxid,
            "commit_beyond_matched": committed > r["matched"],
            "commit_behind": (committed < zxid) & (committed < r["committed"]),
            "beyond_last": zxid > r["last"],
            "raises_commit": committed > peer.committed,
            "raises_recovered": zxid > peer.recovered,
            "raises_round": ((flags & flag("ROUND")) != 0) & (read(header, "round") > peer.round),
        }
        m.d.sync += [self.bits[name].eq(condition) for name, condition in found.items()]
        m.d.sync += self.first_after.eq(behind_ring + 1)
        # An order of the members by what they have acknowledged, before this packet, and this packet's place in it. Of members
        # with the same zxid, the one that acknowledges now is first, then the one with the lower id.
        self.before = {(i, j): Signal(name=f"before_{i}_{j}") for i in NODES for j in NODES if i < j}
        self.reaches = Signal(len(NODES) + 1)
        m.d.sync += [bit.eq(self.matched[i] >= self.matched[j]) for (i, j), bit in self.before.items()]
        m.d.sync += self.reaches.eq(Cat(zxid >= one for one in self.matched))

    def count(self, m, header):
        """Finds the highest zxid that a quorum of the members has, with what the sender acknowledges (ib_box_at_quorum)."""
        r, counts = self.r, ~self.is_recovering(header)
        raises = [counts & (self.sender == node) & self.reaches[node] for node in range(len(NODES) + 1)]
        m.d.sync += self.bits["raises_matched"].eq(Cat(raises).any())

        def is_before(i, j):
            before = self.before[i, j] if i < j else ~self.before[j, i]
            return Mux(raises[i], self.reaches[j], Mux(raises[j], ~self.reaches[i], before))

        self.at_quorum = Signal(64)
        m.d.sync += self.at_quorum.eq(0)
        for j in NODES:
            place = 1 + sum(r["members"][i] & is_before(i, j) for i in NODES if i != j)
            with m.If(r["members"][j] & (place == r["quorum"])):
                m.d.sync += self.at_quorum.eq(Mux(raises[j], read(header, "zxid"), self.matched[j]))

    def advance(self, m, header):
        r = self.r
        m.d.sync += self.bits["advances"].eq(
            (self.at_quorum > r["committed"]) & (self.at_quorum >= r["established_at"])
        )

    def decide(self, m, header, out):
        r, bits = self.r, self.bits
        self.new = {name: Signal(bits_, name=f"new_{name}") for name, bits_ in WIDTHS.items()}
        self.new_record, self.new_peer = Signal(Record), Signal(Peer)
        self.stores_record, self.stores_peer, self.wakes = Signal(), Signal(), Signal()
        self.new_matched = {"en": Signal(), "node": Signal(ID_BITS), "zxid": Signal(64)}
        m.d.comb += [self.new[name].eq(r[name]) for name in WIDTHS]
        m.d.comb += [self.new_record.eq(self.record_of(header)), self.new_peer.eq(self.peer)]
        m.d.comb += [*out.keep(header), out.slot.eq(self.slot), self.new["advances"].eq(r["advances"] + self.wakes)]

        with m.If(bits["ahead"] & ~is_any(header, "CONTROL")):
            self.drop(m, out, "box_epoch_ahead")
        with m.Elif(bits["damaged"] & is_any(header, "SUBMIT", "PROPOSE")):
            self.drop(m, out, "box_bad_digest")
        with m.Elif(is_any(header, "CONTROL", "REFUSED")):
            m.d.comb += out.reason.eq(self.number("passed_up"))
            told = is_any(header, "REFUSED") & ((read(header, "flags") & flag("EPOCH")) != 0) & bits["above"]
            self.note_epoch(m, header, told)
        with m.Elif(bits["no_member"]):
            self.drop(m, out, "box_not_member")
        with m.Elif(is_any(header, "SUBMIT")):
            self.submit(m, header, out)
        with m.Elif(is_any(header, "PROPOSE")):
            self.if_led(m, header, out, lambda: self.propose(m, header, out))
        with m.Elif(is_any(header, "COMMIT")):
            self.if_led(m, header, out, lambda: self.hear(m, header, out))
        with m.Elif(bits["is_own"]):
            self.drop(m, out, "box_not_member")
        with m.Else():
            self.acknowledged(m, header, out)

        with m.If(out.commit):
            m.d.sync += [r[name].eq(self.new[name]) for name in WIDTHS]
            for node in range(len(NODES) + 1):
                with m.If(self.new_matched["en"] & (self.new_matched["node"] == node)):
                    m.d.sync += self.matched[node].eq(self.new_matched["zxid"])
        self.store(m, out, [(self.new_record, self.stores_record), (self.new_peer, self.stores_peer)])

    # The equivalents of the functions of role.h and shell.h.

    def record_of(self, header):
        fields = {
            name: read(header, name)
            for name in ("time_ms", "origin_session", "origin_seq", "value_len_bytes", "digest", "origin")
        }
        fields |= dict(zxid=self.at, epoch=read(header, "record_epoch"))
        widths = {name: member.width for name, member in Record}
        return Cat(Cat(fields[name], Const(0, widths[name] - len(fields[name]))) for name in widths)

    def is_recovering(self, header):
        return (read(header, "flags") & flag("RECOVERING")) != 0

    def note_epoch(self, m, header, condition):
        with m.If(condition & self.bits["notes_epoch"]):
            m.d.comb += self.new["higher_epoch"].eq(read(header, "epoch"))

    def passes(self, m, out, reason):
        m.d.comb += out.reason.eq(self.number(reason))

    def becomes(self, m, out, reason, kind, flags, dest=TO_SENDER, **fields):
        """A packet without a value."""
        fields = dict(round=0) | fields
        self.answer(
            m,
            out,
            reason,
            type_of(kind),
            flags,
            dest,
            epoch=self.r["epoch"],
            committed=self.new["committed"],
            leader=self.r["leader"],
            value_len_bytes=0,
            digest=0,
            **fields,
        )

    def refuse(self, m, out, reason, flags):
        self.becomes(m, out, reason, "REFUSED", flags)

    def acknowledge(self, m, header, out, reason, flags=0):
        """Everything up to `matched` is in the log."""
        with m.If(self.r["acks_by_process"]):
            self.passes(m, out, reason)
        with m.Else():
            flags = flags | Mux(self.r["recovering"], flag("RECOVERING"), 0)
            nothing = dict(record_epoch=0, time_ms=0)
            self.becomes(m, out, reason, "ACK", flags, zxid=self.new["matched"], **nothing)
            with m.If((flags & flag("ROUND")) != 0):
                m.d.comb += out.fields["round"].eq(read(header, "round"))

    def append(self, m, header, out, record_epoch, time_ms):
        """Stores the record in its slot. Later ones were never committed, and are gone."""
        stored = self.new_record
        m.d.comb += [
            stored.epoch.eq(record_epoch),
            stored.time_ms.eq(time_ms),
            self.stores_record.eq(1),
            out.save.eq(1),
            self.new["last"].eq(self.at),
            self.new["last_epoch"].eq(record_epoch),
            self.new["last_time_ms"].eq(time_ms),
        ]
        with m.If(self.bits["moves_first"]):
            m.d.comb += self.new["first"].eq(self.first_after)

    def submit(self, m, header, out):
        r, bits = self.r, self.bits
        with m.If(bits["bad_origin"]):
            self.drop(m, out, "box_bad_origin")
        with m.Elif(r["mode"] != LEADING):
            self.refuse(m, out, "box_submit_elsewhere", flag("NOT_LEADER"))
        with m.Elif(bits["waits"] | bits["no_room"]):
            self.refuse(m, out, "box_submit_busy", flag("BUSY"))
        with m.Else():
            time_ms = Mux(bits["later_time"], r["time_ms"], r["last_time_ms"])
            stamp = dict(epoch=r["epoch"], record_epoch=r["epoch"], committed=r["committed"], leader=r["leader"])
            stamp |= dict(zxid=self.at, time_ms=time_ms, round=0)
            self.answer(m, out, "box_submitted", type_of("PROPOSE"), 0, TO_GROUP, **stamp)
            self.append(m, header, out, r["epoch"], time_ms)
            with m.If(~r["acks_by_process"]):
                self.raise_matched(m, self.settings.node[:ID_BITS], self.at)

    def raise_matched(self, m, node, zxid):
        matched = self.new_matched
        m.d.comb += [matched["en"].eq(1), matched["node"].eq(node), matched["zxid"].eq(zxid)]

    def if_led(self, m, header, out, then):
        """Whether the packet is from our leader."""
        bits, mode = self.bits, self.r["mode"]
        with m.If(bits["not_proposer"]):
            self.drop(m, out, "box_bad_epoch")
        with m.Elif(bits["below"]):
            self.refuse(m, out, "box_old_epoch", flag("EPOCH"))
        with m.Elif(bits["above"]):
            self.passes(m, out, "box_higher_epoch")
            self.note_epoch(m, header, Const(1, 1))
        with m.Elif(mode != FOLLOWING):
            self.passes(m, out, "box_not_following")
            m.d.comb += out.drop.eq(mode != IDLE)
        with m.Else():
            m.d.comb += self.new["heard_ns"].eq(self.settings.now_ns)
            then()

    def propose(self, m, header, out):
        bits = self.bits
        with m.If(bits["no_zxid"]):
            self.drop(m, out, "box_bad_zxid")
        with m.Elif(bits["bad_record_epoch"]):
            self.drop(m, out, "box_bad_epoch")
        with m.Elif(bits["had"]):
            self.learn_and_acknowledge(m, header, out, "box_had_already")
        with m.Elif(~bits["follows"]):
            self.learn_and_acknowledge(m, header, out, "box_gap", flag("GAP"))
        with m.Elif(bits["kept"]):
            self.match(m, header, out, "box_kept")
        with m.Elif(bits["no_room"]):
            self.drop(m, out, "box_not_applied")
        with m.Else():
            self.append(m, header, out, read(header, "record_epoch"), read(header, "time_ms"))
            self.match(m, header, out, "box_appended")

    def match(self, m, header, out, reason):
        """The record is in the log, and so is everything before it."""
        bits, committed = self.bits, read(header, "committed")
        m.d.comb += self.new["matched"].eq(self.at)
        with m.If(bits["commit_is_new"] & bits["zxid_is_new"]):
            self.learn(m, Mux(bits["commit_beyond_zxid"], self.at, committed))
        self.acknowledge(m, header, out, reason)

    def learn(self, m, committed):
        m.d.comb += [self.new["committed"].eq(committed), self.wakes.eq(1)]

    def learn_matched(self, m, header):
        bits = self.bits
        with m.If(bits["commit_is_new"] & bits["matched_is_new"]):
            self.learn(m, Mux(bits["commit_beyond_matched"], self.r["matched"], read(header, "committed")))

    def learn_and_acknowledge(self, m, header, out, reason, flags=0):
        self.learn_matched(m, header)
        self.acknowledge(m, header, out, reason, flags)

    def hear(self, m, header, out):
        bits = self.bits
        asks = (read(header, "flags") & flag("ROUND")) != 0
        round_ = Mux(asks, flag("ROUND"), 0)
        self.learn_matched(m, header)
        with m.If(asks):
            m.d.comb += self.new["process_heard_ns"].eq(self.settings.now_ns)
        with m.If(bits["commit_beyond_matched"]):
            self.acknowledge(m, header, out, "box_gap", round_ | flag("GAP"))
        with m.Else():
            with m.If(asks):
                self.acknowledge(m, header, out, "box_heard", round_)
            with m.Else():
                self.drop(m, out, "box_heard")
            with m.If(self.wakes):
                m.d.comb += out.reason.eq(self.number("box_commit_learned"))

    def acknowledged(self, m, header, out):
        """ACK from a member (ib_box_count)."""
        r, bits, peer = self.r, self.bits, self.new_peer
        flags, zxid = read(header, "flags"), read(header, "zxid")
        is_gap = (flags & flag("GAP")) != 0
        with m.If(bits["above"]):
            self.passes(m, out, "box_higher_epoch")
            self.note_epoch(m, header, Const(1, 1))
        with m.Elif(bits["below"]):
            self.drop(m, out, "box_old_epoch")
        with m.Elif(r["mode"] != LEADING):
            self.drop(m, out, "box_not_leading")
        with m.Elif(bits["beyond_last"]):
            self.drop(m, out, "box_bad_zxid")
        with m.Else():
            m.d.comb += [peer.heard_ns.eq(self.settings.now_ns), self.stores_peer.eq(1)]
            with m.If(bits["raises_commit"]):
                m.d.comb += peer.committed.eq(read(header, "committed"))
            with m.If(self.is_recovering(header)):
                with m.If(bits["raises_recovered"]):
                    m.d.comb += peer.recovered.eq(zxid)
                self.drop(m, out, "box_ack_recovering")
            with m.Else():
                with m.If(bits["raises_matched"]):
                    self.raise_matched(m, self.sender, zxid)
                with m.If(bits["raises_round"]):
                    m.d.comb += [peer.round.eq(read(header, "round")), self.wakes.eq(1)]
                with m.If(bits["advances"]):
                    self.learn(m, self.at_quorum)
                with m.If(bits["advances"]):
                    self.becomes(m, out, "box_committed", "COMMIT", 0, TO_GROUP, zxid=r["last"])
                with m.Elif(bits["commit_behind"]):
                    self.becomes(m, out, "box_ack_late", "COMMIT", 0, zxid=r["last"])
                with m.Else():
                    self.drop(m, out, "box_ack_counted")
            with m.If(is_gap):
                # The host sends again what is missing.
                self.passes(m, out, "box_ack_of_gap")
                m.d.comb += [out.drop.eq(0), out.rewritten.eq(0), out.dest.eq(0)]

    def host_access(self, m, host):
        """
        Space 0 is struct ib_box_node, and space 1 the records: word `word` of their 64 bytes from `index`. The words of locks
        are not there.
        """
        node, words = Signal(64), {}
        for name, signal in self.r.items():
            words[divmod(NODE[name] // 8, 8)] = signal
        for number, signal in enumerate(self.matched):
            words[PEERS_AT + number, PEER["matched"] // 8] = signal
        is_node = host.space == 0
        m.d.sync += node.eq(0)
        for (line, word), signal in words.items():
            with m.If((host.index == line) & (host.word == word)):
                m.d.sync += node.eq(signal)
                with m.If(host.write & is_node):
                    m.d.sync += signal.eq(host.write_data)
        in_peer = (host.word - 1)[:2]
        is_peer = (host.index >= PEERS_AT) & (in_peer + 1 == host.word)
        peer = self.access(m, 1, host, (host.index - PEERS_AT)[:ID_BITS], in_peer, is_node & is_peer)
        slot = host.index[: (self.slots - 1).bit_length()]
        record = self.access(m, 0, host, slot, host.word[:3], host.space == 1)
        return [Mux(is_peer, peer, node), record]
