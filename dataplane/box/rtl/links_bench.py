# SPDX-License-Identifier: Apache-2.0
"""
The bench of a node with direct links (cocotb). It replays the scripts of the node without: each frame comes by the network or,
framed as ground/xdp/raw.h says, by a link, at random. What leaves must be what the script says, framed likewise.

Frames of a script come one after another, because their order decides the results. At some of them a link takes no words any more,
within its copy, and for the next ones, too: the others must get theirs, and the host must be reachable. After the script, frames
that are not the node's come by all streams at once, and all must reach the host unchanged.
"""

import cocotb

from ground.rtl.bench import IDLE_CYCLES_MAX, STEP, Bench, run
from ground.rtl.frame import HEADER_AT, TO_GROUP, TO_HOST, TO_SENDER, C

ETHER_TYPE = C["IB_XDP_RAW_ETHERTYPE"].to_bytes(2, "big")
LINKS_CHANGE_ONE_IN = 40  # frames
OTHERS = 60  # frames by each stream
LINK_STUCK_ONE_IN = 20  # frames for all others
STUCK_FRAMES_MAX = 6
DROPPED_CYCLES = 300  # more than a frame takes


class LinksBench(Bench):
    def begin(self):
        d = self.dut
        super().begin()
        self.links = [n for n in range(1, 8) if hasattr(d, f"link{n}_in__tvalid")]
        self.streams = {0: (d, "input", "output"), **{n: (d, f"link{n}_in", f"link{n}_out") for n in self.links}}
        # Handles, by stream: of the input and of the output.
        self.ins = {n: self.handles(into, "tvalid tready tdata tkeep tlast") for n, (_, into, _) in self.streams.items()}
        self.outs = {n: self.handles(out, "tvalid tready tdata tkeep tlast tuser") for n, (_, _, out) in self.streams.items()}
        for n in self.links:
            self.ins[n]["tvalid"].value = 0
            self.outs[n]["tready"].value = 0
        self.links_up = 1
        d.settings__links_up.value = 1
        self.in_order = True
        self.offered, self.stalled, self.partial = {}, dict.fromkeys(self.streams), dict.fromkeys(self.streams, b"")
        self.node, self.by_stream = None, dict.fromkeys(self.streams, 0)
        # The link that is stuck, if any, and for how many frames more; its copy of a frame, of which it takes so many bytes.
        self.stuck, self.is_blocked, self.stuck_frames = None, False, 0
        self.owed, self.takes_bytes, self.is_owed_new = b"", 0, False
        self.stuck_times, self.cut_times = 0, 0

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
        if self.is_blocked and len(self.partial[self.stuck]) >= self.takes_bytes:
            takes[self.stuck] = False
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
            # Of a link, TUSER is an error.
            to = int(o["tuser"].value) if n else (int(d.output__tdest.value), int(d.output__tuser.value))
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
        if n == self.stuck:
            self.take_owed(frame, is_cut=to)
            return
        found = next((one for one in self.expected if one[1] == n and (self.in_order or one[2] == to)), None)
        assert found, f"stream {n}: a frame leaves, and none was to: {frame.hex()}"
        note, _, expected_to, expected = found
        self.expected.remove(found)
        self.frames_out += 1
        self.by_stream[n] += 1
        assert to == expected_to, f"{note}: to {to} instead of {expected_to}"
        assert frame == expected, f"{note}, stream {n}:\n{frame.hex()}\ninstead of\n{expected.hex()}"

    def take_owed(self, frame, is_cut):
        """What a link that was stuck gets: the whole copy if only its last word was late."""
        assert not self.is_blocked
        kept = frame[:-1] if is_cut else frame
        is_right = kept == self.owed[: len(kept)] and (len(kept) < len(self.owed)) == bool(is_cut)
        assert is_right, f"link {self.stuck}: {frame.hex()}, error {is_cut}, of {self.owed.hex()}"
        self.stuck = None
        self.cut_times += is_cut

    def block(self, link, copy):
        """The link takes only the first words of the copy, such as one that loses its carrier."""
        self.stuck, self.is_blocked, self.stuck_frames = link, True, self.random.randrange(STUCK_FRAMES_MAX)
        # The first time not only the last word is late, so that the copy is cut.
        words = -(-len(copy) // self.words) - (self.stuck_times == 0)
        self.owed, self.takes_bytes = copy, self.words * self.random.randrange(words)
        self.is_owed_new = True
        self.stuck_times += 1

    async def drain(self, until=0):
        await super().drain(0 if self.is_owed_new else until)
        if self.is_owed_new:
            self.is_owed_new = False
            await self.pass_stuck_link()

    async def pass_stuck_link(self):
        """Every stream and the host's port get on while a link is stuck."""
        note = f"while link {self.stuck} is stuck"
        for n in self.streams:
            frame = bytes(range(12)) + b"\x86\xdd" + self.random.randbytes(100)
            self.put(n, frame)
            self.expected.append((note, 0, (TO_HOST, n), frame))
            await super().drain()
        await self.host(0, 0, 1)
        said = int(self.dut.links_stuck.value)
        assert said == 1 << (self.stuck - 1), f"{note}: {said:b} are said to be"

    async def unblock(self):
        await self.drain()
        # Copies for this link only may be on their way, and nothing is expected of them.
        for _ in range(DROPPED_CYCLES):
            await self.cycle()
        self.is_blocked = False
        for _ in range(IDLE_CYCLES_MAX):
            if self.stuck is None:
                break
            await self.cycle()
        assert self.stuck is None, f"link {self.stuck} got no end of its frame"
        await self.cycle()
        assert int(self.dut.links_stuck.value) == 0

    def raw(self, frame, node=None):
        """The frame on a link: as it is, or as this node sends it."""
        addresses = frame[:12] if node is None else bytes([0xFF] * 6 + [0x02, 0x49, 0x42, 0, 0, node])
        return addresses + ETHER_TYPE + frame[HEADER_AT:]

    async def frame(self, note, op):
        came, out, dest = bytes.fromhex(op["bytes"]), bytes.fromhex(op["out"]), op["dest"]
        node = int(self.dut.settings__node.value)
        n = self.random.choice([0, *self.links])
        if self.is_blocked and self.stuck_frames == 0:
            await self.unblock()
        self.stuck_frames -= self.is_blocked
        if dest == TO_GROUP and self.stuck is None and self.random.randrange(LINK_STUCK_ONE_IN if self.stuck_times else 1) == 0:
            await self.drain()
            n = self.random.choice(self.links)
            self.set_links_up(1)
            self.block(self.random.choice(self.links), self.raw(out, node))
        elif self.random.randrange(LINKS_CHANGE_ONE_IN) == 0:
            await self.drain()
            self.set_links_up(self.random.randrange(2))
        note = f"{note}, by stream {n}, links {'up' if self.links_up else 'down'}"
        self.put(n, self.raw(came) if n else came)
        if dest is None:
            return
        if n == 0:
            self.expected.append((note, 0, (dest, 0), out))
        elif dest == TO_HOST:
            self.expected.append((note, 0, (TO_HOST, n), self.raw(came)))
        elif dest == TO_SENDER:
            self.expected += self.copies(note, [n], self.raw(out, node))
        elif dest == TO_GROUP and not self.links_up:
            self.expected.append((note, 0, (TO_HOST, n), self.raw(out, node)))
        else:
            self.expected += self.copies(note, self.links, self.raw(out, node))

    def copies(self, note, links, frame):
        return [(note, link, 0, frame) for link in links if link != self.stuck]

    def set_links_up(self, value):
        self.links_up = self.dut.settings__links_up.value = value

    async def measure(self, frame):
        return await super().measure(self.raw(frame))

    async def finish(self):
        if self.measures:
            return
        if self.is_blocked:
            await self.unblock()
        self.dut._log.info("a link was stuck %d times, and %d frames were cut", self.stuck_times, self.cut_times)
        assert self.cut_times or not self.stuck_times
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
