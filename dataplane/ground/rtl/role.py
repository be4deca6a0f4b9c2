# SPDX-License-Identifier: Apache-2.0
"""
The core around a role: takes frames in order, checks them like ground/frame.h and ground/xdp/validate.h, lets the role
decide, and outputs what to do with each. Between two frames, the host may read and write registers.

A frame takes five cycles, more if the role has more `STEPS`: its registers are read, then compared with it, then the role
decides and stores at once, and then the header of what it sends is put together. So nothing can happen between reading and
storing a register. Its registers may be read before its checksums are known; the first of `STEPS` waits for them.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from . import frame as f
from .frame import C, FRAME_FIELDS, REASONS, Bytes, get
from .stream import Event, Host, Received, Settings, Sums, job


def is_ours(header, len_bytes, settings):
    """Of a frame from the network."""
    return (
        (len_bytes >= f.HEADER_AT)
        & (get(header, f.ETHER_TYPE, 2) == 0x0800)
        & (get(header, f.IP) == 0x45)
        & ((get(header, f.IP_FRAGMENT, 2) & 0x3FFF) == 0)
        & (get(header, f.IP_PROTOCOL) == 17)
        & (get(header, f.UDP_TO, 2) == settings.port)
        & (get(header, f.IP_TO, 4) == settings.address)
    )


def is_ours_of_link(header, len_bytes):
    """Of a frame from a direct link, which has 28 bytes of any content in the place of IPv4 and UDP."""
    return (len_bytes >= f.HEADER_AT) & (get(header, f.ETHER_TYPE, 2) == f.RAW_ETHER_TYPE)


class Role(wiring.Component):
    """
    A system's role defines `TYPES` (first, last), `PADDED` (types), `FIELDS` (fields that it may set: name to offset in
    the frame and length), `REASONS`, `slots` (of the value store), and

    - `checks(header)`: further invalid conditions, as (condition, reason);
    - `memories(m)`: creates the memories of its registers;
    - `read(m, header)`: starts reading registers;
    - `STEPS`: methods like `compare(m, header)`, one per cycle, which compute the conditions for the decision into the role's
      own registers; the first one is repeated until the frame's checksums, `self.sums_taken`, are known;
    - `decide(m, header, out)`: sets `out` and, with `out.commit`, stores;
    - `host_access(m, host)`: the read data of spaces 0 and 1.
    """

    slots = 0
    links = 0  # direct links, besides the network
    STEPS = ("compare",)

    def __init__(self):
        self.ports, self.addresses = [], []
        super().__init__(
            {
                "frame": In(Received),
                "sums": In(Sums),
                "job": Out(job(self.slots, self.links)),
                "settings": In(Settings),
                "event": Out(Event),
                "host": In(Host()),
                "deparser_idle": In(1),
                "store_enable": Out(1),
                "store_read_data": In(64),
            }
        )

        self.received = Signal(Received.members["payload"].shape)
        self.sums_taken = Signal(Sums.members["payload"].shape)  # in the first of `STEPS`

    def checks(self, header):
        return []

    def memories(self, m):
        pass

    def read(self, m, header):
        pass

    def compare(self, m, header):
        pass

    def decide(self, m, header, out):
        m.d.comb += out.reason.eq(self.number("passed_up"))

    def host_access(self, m, host):
        return []

    def memory(self, m, name, layout, depth, first_row=()):
        """
        A memory of 64-bit words; each row is a `layout`. Returns the row that was read, for the cycle after `read`, and a copy
        for later ones.
        """
        init = [layout.const(first_row).as_value().value] if first_row else []
        m.submodules[name] = memory = Memory(shape=layout.size, depth=depth, init=init)
        reads, writes = memory.read_port(), memory.write_port(granularity=64)
        m.d.comb += reads.en.eq(0)
        self.ports.append((reads, writes))
        row = Signal(layout, name=f"{name}_row")
        m.d.sync += row.eq(reads.data)
        return layout(reads.data), row

    def row(self, m, number, address):
        """Starts reading a row of a memory, which is also the row to store to."""
        reads, _ = self.ports[number]
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

    def access(self, m, number, host, index, word, written):
        """The host's access to a memory. Returns the data that it reads."""
        reads, writes = self.ports[number]
        m.d.comb += [reads.en.eq(1), reads.addr.eq(index), writes.addr.eq(index)]
        m.d.comb += [
            writes.data.eq(host.write_data.replicate(len(writes.en))),
            writes.en.eq(Mux(host.write & written, Const(1) << word, 0)),
        ]
        return reads.data.word_select(word, 64)

    def number(self, reason):
        return {**REASONS, **self.REASONS}[reason]

    def drop(self, m, out, reason):
        m.d.comb += [out.drop.eq(1), out.reason.eq(self.number(reason))]

    def answer(self, m, out, reason, kind, flags, dest=f.TO_SENDER, **fields):
        """`kind`: the number of the type."""
        m.d.comb += [out.rewritten.eq(1), out.dest.eq(dest), out.reason.eq(self.number(reason))]
        m.d.comb += [out.fields["type"].eq(kind), out.fields["flags"].eq(flags)]
        m.d.comb += [out.fields[name].eq(value) for name, value in fields.items()]

    def is_of_link(self):
        return self.received.link != 0 if self.links else Const(0, 1)

    def entry_reason(self, m, header, len_bytes, too_long):
        """
        In the order of the C code; the tag is checked last. The first condition that is true counts. They are known in the
        first of `STEPS`.
        """
        field = {name: get(header, *where) for name, where in FRAME_FIELDS.items()}
        ip_len, udp_len = get(header, f.IP_LEN, 2), get(header, f.UDP_LEN, 2)
        is_of_link = self.is_of_link()
        payload = Mux(is_of_link, len_bytes - f.HEADER_AT, udp_len - 8)[:16]
        value_len = field["value_len_bytes"]
        claimed = value_len + C["IB_HEADER_LEN_BYTES"]
        padded = Cat(field["type"] == kind for kind in self.PADDED).any()
        total = Signal(f.IP_TOTAL_BITS)
        m.d.sync += total.eq(f.ip_total(header))
        bad_sum = ~is_of_link & (f.ip_sum(total) != header[8 * f.IP_SUM : 8 * f.IP_SUM + 16])
        checks = [
            (too_long, "no_room"),
            (~is_of_link & (ip_len + 14 > len_bytes), "bad_truncated"),
            (~is_of_link & ((udp_len < 8) | (udp_len + 20 != ip_len)), "bad_length"),
            (bad_sum, "bad_checksum"),
            (payload < C["IB_HEADER_LEN_BYTES"], "bad_truncated"),
            (field["magic"] != C["IB_MAGIC"], "bad_magic"),
            ((field["version"] < C["IB_VERSION_MIN"]) | (field["version"] > C["IB_VERSION"]), "bad_version"),
            ((field["type"] < self.TYPES[0]) | (field["type"] > self.TYPES[1]), "bad_type"),
            ((value_len > C["IB_VALUE_LEN_MAX_BYTES"]) | (claimed > payload), "bad_length"),
            ((claimed != payload) & ~padded, "bad_length"),
            (field["partition"] >= self.settings.partitions, "bad_partition"),
            ((field["node"] >= C["IB_NODES_MAX"]) | (field["node"] == 0), "bad_node"),
            *self.checks(header),
            (field["key_id"] != 0, "bad_key"),
        ]

        def found(condition):
            bit = Signal(name="check")
            m.d.sync += bit.eq(condition)
            return bit

        return [(condition if condition is bad_sum else found(condition), name) for condition, name in checks]

    def elaborate(self, _):
        m = Module()
        received, sums = self.received, self.sums_taken
        header = received.header
        reason, ours, bad_tag = Signal(f.REASON_BITS), Signal(), Signal()
        decided = Signal()  # and not yet taken by the deparser
        out = Decision(self, header)
        # A frame waits here while another one is decided or waits for its sums, so that the parser can receive a third one.
        waiting, waits, takes = Signal(Received.members["payload"].shape), Signal(), Signal()

        self.memories(m)
        checks = self.entry_reason(m, header, received.len_bytes, received.too_long)
        # The parser's input depends on this, and is far from the rest of the role; so `takes` is not part of it.
        m.d.comb += [self.frame.ready.eq(~waits), sums.eq(self.sums.payload)]
        with m.If(~waits):
            m.d.sync += [waiting.eq(self.frame.payload), waits.eq(self.frame.valid)]
        with m.If(takes):
            m.d.sync += waits.eq(0)

        with m.If(self.job.ready):
            m.d.sync += decided.eq(0)
        with m.FSM():
            with m.State("IDLE"):
                # The header of the frame before is put together meanwhile.
                may_take = ~decided | self.job.ready
                m.d.comb += takes.eq(~self.host.valid & waits & may_take)
                with m.If(may_take):
                    m.d.sync += received.eq(waiting)
                with m.If(takes):
                    m.next = "READ"
                # A value may still be in flight to its slot.
                with m.If(self.host.valid & self.deparser_idle):
                    m.next = "HOST"
            with m.State("READ"):
                self.read(m, header)
                is_ours_here = is_ours(header, received.len_bytes, self.settings)
                if self.links:
                    is_ours_here = Mux(self.is_of_link(), is_ours_of_link(header, received.len_bytes), is_ours_here)
                m.d.sync += [reason.eq(REASONS["none"]), ours.eq(is_ours_here)]
                m.next = self.STEPS[0].upper()
            for step, after in zip(self.STEPS, [*self.STEPS[1:], "decide"], strict=True):
                with m.State(step.upper()):
                    getattr(self, step)(m, header)
                    if step == self.STEPS[0]:
                        for condition, name in reversed(checks):
                            with m.If(condition):
                                m.d.sync += reason.eq(self.number(name))
                        m.d.comb += self.sums.ready.eq(1)
                        m.d.sync += bad_tag.eq(sums.header != get(header, f.TAG_AT, 8))
                        with m.If(self.sums.valid):
                            m.next = after.upper()
                    else:
                        m.next = after.upper()
            with m.State("DECIDE"):
                m.d.sync += decided.eq(1)
                m.next = "IDLE"
                with m.If(~ours):
                    m.d.comb += out.drop.eq(received.too_long)
                with m.Elif(reason != REASONS["none"]):
                    m.d.comb += [out.drop.eq(1), out.reason.eq(reason)]
                with m.Elif(bad_tag):
                    self.drop(m, out, "bad_tag")
                with m.Else():
                    self.decide(m, header, out)
                    m.d.comb += out.commit.eq(1)
                m.d.comb += [
                    self.event.valid.eq(ours | received.too_long),
                    self.event.reason.eq(Mux(ours, out.reason, REASONS["no_room"])),
                ]
                m.d.sync += out.is_made()
            with m.State("HOST"):
                m.next = "ANSWER"
                spaces = self.host_access(m, self.host)
                m.d.comb += self.store_enable.eq(self.host.space == 2)
            with m.State("ANSWER"):
                m.d.comb += self.host.ack.eq(1)
                m.next = "IDLE"
        with m.Switch(self.host.space):
            for number, read_data in enumerate([*spaces, self.store_read_data]):
                with m.Case(number):
                    m.d.comb += self.host.read_data.eq(read_data)
        m.d.comb += self.job.valid.eq(decided)
        m.d.comb += out.into(self.job.payload, header, received, self.settings)
        return m


class Decision:
    """The role's decision. By default, the packet goes to the host unchanged. `made`: the last one."""

    def __init__(self, role, header):
        self.drop, self.rewritten, self.load, self.save, self.commit = (
            Signal(name=n) for n in "drop rewritten load save commit".split()
        )
        self.dest = Signal(2)
        self.reason = Signal(f.REASON_BITS)
        self.slot = Signal(range(max(role.slots, 2)))
        # The output header by field; a field is unchanged unless the role sets it.
        self.fields = {name: Signal(8 * length, name=f"out_{name}") for name, (_, length) in role.FIELDS.items()}
        self.places, self.links, self.is_of_link = role.FIELDS, role.links, role.is_of_link()
        self.made = {
            name: Signal.like(getattr(self, name), name=f"made_{name}")
            for name in "drop rewritten load save dest slot".split()
        }
        self.made_fields = {name: Signal.like(signal, name=f"made_{name}") for name, signal in self.fields.items()}

    def is_made(self):
        made = [signal.eq(getattr(self, name)) for name, signal in self.made.items()]
        return made + [signal.eq(self.fields[name]) for name, signal in self.made_fields.items()]

    def keep(self, header):
        return [signal.eq(get(header, *self.places[name])) for name, signal in self.fields.items()]

    def into(self, job, header, received, settings):
        """The job for the last decision, with a header for its destination."""
        new, made, fields = Bytes(header), self.made, self.made_fields
        to_group = made["dest"] == f.TO_GROUP
        for name, signal in fields.items():
            new.put(*self.places[name], signal)
        new.put(FRAME_FIELDS["node"][0], 2, settings.node)
        len_bytes = (fields["value_len_bytes"] + f.VALUE_AT)[:12]
        # Sent from the address that the packet arrived at.
        new.put(f.TO_MAC, 6, Mux(to_group, settings.group_mac, get(header, f.FROM_MAC, 6)))
        new.put(f.FROM_MAC, 6, get(header, f.TO_MAC, 6))
        new.put(f.IP_FROM, 4, get(header, f.IP_TO, 4))
        new.put(f.IP_TO, 4, Mux(to_group, settings.group_address, get(header, f.IP_FROM, 4)))
        new.put(f.UDP_FROM, 2, get(header, f.UDP_TO, 2))
        new.put(f.UDP_TO, 2, Mux(to_group, settings.group_port, get(header, f.UDP_FROM, 2)))
        new.put(f.IP_TTL, 1, C["IB_XDP_TTL"])
        new.put(f.IP_LEN, 2, (len_bytes - f.IP + Const(0, 16))[:16])
        new.put(f.UDP_LEN, 2, (len_bytes - f.UDP + Const(0, 16))[:16])
        # UDP over IPv4 may omit the checksum.
        new.put(f.UDP_SUM, 2, 0)
        dest = made["dest"]
        if self.links:
            # To the other end of the link, or to the host, which knows another way if a link is down.
            for at, mac in (f.TO_MAC, f.LINK_TO_MAC), (f.FROM_MAC, Cat(settings.node[:8], f.LINK_FROM_MAC)):
                new.put_if(self.is_of_link, at, 6, mac)
            passes = self.is_of_link & to_group & ~settings.links_up
            dest = Cat(Mux(passes, f.TO_HOST, dest), received.link)
        value_len_bytes = get(header, *FRAME_FIELDS["value_len_bytes"])
        keeps_value = fields["value_len_bytes"] != 0
        return [
            job.copy.eq(made["save"] & made["rewritten"] & ~keeps_value & (value_len_bytes != 0)),
            job.copy_len_bytes.eq(value_len_bytes + f.VALUE_AT),
            job.drop.eq(made["drop"]),
            job.rewritten.eq(made["rewritten"]),
            job.header.eq(Mux(made["rewritten"], new.flat(), header)),
            job.len_bytes.eq(Mux(made["rewritten"], len_bytes, received.len_bytes)),
            job.buffer.eq(received.buffer),
            Cat(job.load, job.save, job.slot, job.dest).eq(Cat(made["load"], made["save"], made["slot"], dest)),
        ]


__all__ = ["Decision", "In", "Out", "Role"]
