# SPDX-License-Identifier: Apache-2.0
"""
The bench of a node with direct links (cocotb). It replays the scripts of the node without: each frame comes by the network or,
framed as ground/xdp/raw.h says, by a link, at random. What leaves must be what the script says, framed likewise.

Frames of a script come one after another, because their order decides the results. After it, frames that are not the node's
come by all streams at once, and all must reach the host unchanged.
"""

import cocotb

from ground.rtl.bench import STEP, Bench, run
from ground.rtl.frame import HEADER_AT, TO_GROUP, TO_HOST, TO_SENDER, C

ETHER_TYPE = C["IB_XDP_RAW_ETHERTYPE"].to_bytes(2, "big")
LINKS_CHANGE_ONE_IN = 40  # frames
OTHERS = 60  # frames by each stream


class LinksBench(Bench):
    def begin(self):
        d = self.dut
        super().begin()
        self.links = [n for n in range(1, 8) if hasattr(d, f"link{n}_in__tvalid")]
        self.streams = {0: (d, "input", "output"), **{n: (d, f"link{n}_in", f"link{n}_out") for n in self.links}}
        # Handles, by stream: of the input and of the output.
        self.ins = {n: self.handles(into, "tvalid tready tdata tkeep tlast") for n, (_, into, _) in self.streams.items()}
        self.outs = {n: self.handles(out, "tvalid tready tdata tkeep tlast") for n, (_, _, out) in self.streams.items()}
        for n in self.links:
            self.ins[n]["tvalid"].value = 0
            self.outs[n]["tready"].value = 0
        self.links_up = 1
        d.settings__links_up.value = 1
        self.in_order = True
        self.offered, self.stalled, self.partial = {}, dict.fromkeys(self.streams), dict.fromkeys(self.streams, b"")
        self.node, self.by_stream = None, dict.fromkeys(self.streams, 0)

    def handles(self, stream, names):
        return {name: getattr(self.dut, f"{stream}__{name}") for name in names.split()}

    async def cycle(self):
        d, r = self.dut, self.random
        for n, i in self.ins.items():
            word = None if n in self.offered else self.next_word(n)
            if word and r.random() >= self.gaps[0]:
                self.offered[n] = word
                i["tdata"].value, i["tkeep"].value, i["tlast"].value = word[1:]
                i["tvalid"].value = 1
        self.ask(valid=0)
        takes = {n: r.random() >= self.gaps[1] for n in self.outs}
        for n, o in self.outs.items():
            o["tready"].value = takes[n]
        d.clk.value = 0
        await STEP
        accepted = [n for n in self.offered if self.ins[n]["tready"].value]
        for n in accepted:
            if not self.measured_in:
                self.first_in, self.measured_in = self.cycles, True
            self.coming.remove(self.offered.pop(n))
        for n, o in self.outs.items():
            if not o["tvalid"].value:
                assert self.stalled[n] is None, f"a word that was not taken is gone: {self.where()}"
                continue
            word = tuple(int(o[name].value) for name in ("tdata", "tkeep", "tlast"))
            to = (int(d.output__tdest.value), int(d.output__tuser.value)) if n == 0 else None
            assert self.stalled[n] in (None, (word, to)), f"a word that was not taken has changed: {self.where()}"
            self.stalled[n] = None if takes[n] else (word, to)
            if takes[n]:
                self.take_from(n, word, to)
        if d.event__valid.value:
            self.count(int(d.event__reason.value))
        d.clk.value = 1
        await STEP
        for n in accepted:
            self.ins[n]["tvalid"].value = 0
        self.cycles += 1

    def next_word(self, n):
        if self.in_order:
            return self.coming[0] if self.coming and self.coming[0][0] == n else None
        return next((word for word in self.coming if word[0] == n), None)

    def put(self, n, frame):
        base = len(self.coming)
        super().feed(frame)
        self.coming[base:] = [(n, *word) for word in self.coming[base:]]

    def feed(self, frame):
        """While measuring: all come by the first link."""
        self.put(1, frame)

    def take_from(self, n, word, to):
        if self.measures:
            if n <= 1:  # one of the copies
                self.take(*word, to)
            return
        data, keep, last = word
        kept = keep.bit_count()
        assert keep == (1 << kept) - 1 and (last or kept == self.words), f"TKEEP {keep:b}: {self.where()}"
        self.partial[n] += data.to_bytes(self.words, "little")[:kept]
        if not last:
            return
        frame, self.partial[n] = self.partial[n], b""
        found = next((one for one in self.expected if one[1] == n and (self.in_order or one[2] == to)), None)
        assert found, f"stream {n}: a frame leaves, and none was to: {frame.hex()}"
        note, _, expected_to, expected = found
        self.expected.remove(found)
        self.frames_out += 1
        self.by_stream[n] += 1
        assert to == expected_to, f"{note}: to {to} instead of {expected_to}"
        assert frame == expected, f"{note}, stream {n}:\n{frame.hex()}\ninstead of\n{expected.hex()}"

    def raw(self, frame, node=None):
        """The frame on a link: as it is, or as this node sends it."""
        addresses = frame[:12] if node is None else bytes([0xFF] * 6 + [0x02, 0x49, 0x42, 0, 0, node])
        return addresses + ETHER_TYPE + frame[HEADER_AT:]

    async def frame(self, note, op):
        if self.random.randrange(LINKS_CHANGE_ONE_IN) == 0:
            await self.drain()
            self.links_up = self.random.randrange(2)
            self.dut.settings__links_up.value = self.links_up
        came, out, dest = bytes.fromhex(op["bytes"]), bytes.fromhex(op["out"]), op["dest"]
        node = int(self.dut.settings__node.value)
        n = self.random.choice([0, *self.links])
        note = f"{note}, by stream {n}, links {'up' if self.links_up else 'down'}"
        self.put(n, self.raw(came) if n else came)
        if dest is None:
            return
        if n == 0:
            self.expected.append((note, 0, (dest, 0), out))
        elif dest == TO_HOST:
            self.expected.append((note, 0, (TO_HOST, n), self.raw(came)))
        elif dest == TO_SENDER:
            self.expected.append((note, n, None, self.raw(out, node)))
        elif dest == TO_GROUP and not self.links_up:
            self.expected.append((note, 0, (TO_HOST, n), self.raw(out, node)))
        else:
            self.expected += [(note, link, None, self.raw(out, node)) for link in self.links]

    async def measure(self, frame):
        return await super().measure(self.raw(frame))

    async def finish(self):
        if self.measures:
            return
        r, self.in_order = self.random, False
        mac = bytes(range(12))
        packet = b"INBD" + bytes([C["IB_VERSION"], 57]) + bytes(90)
        for at in range(OTHERS):
            for n in self.streams:
                # A packet as on a link from the network, one of the network from a link, and anything else.
                ours = (b"\x08\x00" if n else ETHER_TYPE) + packet
                length = r.choice([0, at, at, r.randrange(300), r.randrange(1400)])
                other = bytes([0x86, 0xDD]) + r.randbytes(length)
                frame = mac + (ours if r.randrange(3) == 0 else other)
                self.put(n, frame)
                self.expected.append((f"frame {at} by stream {n}, all at once", 0, (TO_HOST, n), frame))
            if at % 8 == 0:
                self.gaps = r.choice([(0.0, 0.0), (0.3, 0.3), (0.1, 0.7), (0.7, 0.1)])
                await self.drain(until=200)
        await self.drain()
        self.dut._log.info("frames that left by each stream: %s", self.by_stream)
        assert all(self.by_stream.values()) or self.frames_out < 10 * len(self.streams), self.by_stream


@cocotb.test()
async def replay(dut):
    await run(dut, LinksBench)
