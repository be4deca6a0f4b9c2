# SPDX-License-Identifier: Apache-2.0
"""
The bench (cocotb): replays a script, one JSON object per line, on a block. crates/inband-dataplane/tests/rtl.rs writes
the script.

Frames are sent without waiting for the results of earlier ones, with random gaps in both streams. Before the host reads
or writes registers, all frames have left.
"""

import json
import os
import random

import cocotb
from cocotb.triggers import Timer

GAPS = [
    (0.0, 0.0),
    (0.5, 0.0),
    (0.0, 0.5),
    (0.3, 0.3),
    (0.1, 0.7),
    (0.7, 0.1),
]  # (probability of a gap before an input word, before an output word)
GAPS_CHANGE_EVERY = 64  # frames
IDLE_CYCLES_MAX = 20_000
MEASURED = 16  # back-to-back frames
STEP = Timer(1, "step")  # half a cycle


class Bench:
    def __init__(self, dut, seed):
        self.dut = dut
        self.width = int(os.environ["RTL_WIDTH"])
        self.words = self.width // 8
        self.random = random.Random(seed)
        self.gaps = GAPS[0]
        self.cycles = 0
        self.coming = []  # words: (data, keep, last)
        self.leaving = b""  # bytes of the frame that is leaving
        self.expected = []  # [note, reason or None, dest, bytes]: expected events and frames, in order
        self.events = []
        self.frames_out = 0
        self.offered = None
        self.first_in = self.first_out = self.last_out = 0  # cycles, of the last frames
        self.measured_in = self.measured_out = False
        self.counted = []  # while measuring: reasons
        self.measures = os.environ["RTL_MEASURES"]
        self.stalled = None  # an output word that was not accepted: it must stay unchanged
        self.asked = {}  # the host's port: values that were written last

    async def cycle(self):
        d, r = self.dut, self.random
        if self.offered is None and self.coming and r.random() >= self.gaps[0]:
            self.offered = self.coming[0]
            d.input__tdata.value, d.input__tkeep.value, d.input__tlast.value = self.offered
            d.input__tvalid.value = 1
        self.ask(valid=0)
        takes = r.random() >= self.gaps[1]
        d.output__tready.value = takes
        d.clk.value = 0
        await STEP
        if self.offered is not None and d.input__tready.value:
            if not self.measured_in:
                self.first_in, self.measured_in = self.cycles, True
            self.coming.pop(0)
            self.offered = None
            accepted = True
        else:
            accepted = False
        if d.output__tvalid.value:
            word = tuple(int(s.value) for s in (d.output__tdata, d.output__tkeep, d.output__tlast, self.sideband))
            assert self.stalled in (None, word), f"a word that was not taken has changed: {self.where()}"
            self.stalled = None if takes else word
            if takes:
                self.take(*word)
        else:
            assert self.stalled is None, f"a word that was not taken is gone: {self.where()}"
        if d.event__valid.value:
            self.count(int(d.event__reason.value))
        d.clk.value = 1
        await STEP
        if accepted:
            d.input__tvalid.value = 0
        self.cycles += 1

    def where(self):
        return self.expected[0][0] if self.expected else "no frame is to leave"

    def count(self, reason):
        if self.measures:
            self.counted.append(reason)
            return
        assert self.events, f"reason {reason} was counted, and none was to be"
        note, expected = self.events.pop(0)
        assert reason == expected, f"{note}: reason {reason} instead of {expected}"

    def take(self, data, keep, last, dest):
        if self.measures:
            if not self.measured_out:
                self.first_out, self.measured_out = self.cycles, True
            if last:
                self.last_out = self.cycles
                self.frames_out += 1
            return
        assert self.expected, "a frame leaves, and none was to"
        kept = keep.bit_count()
        assert keep == (1 << kept) - 1 and (last or kept == self.words), f"TKEEP {keep:b}: {self.where()}"
        self.leaving += data.to_bytes(self.words, "little")[:kept]
        if last:
            note, expected_dest, expected = self.expected.pop(0)
            self.frames_out += 1
            assert dest == expected_dest, f"{note}: to {dest} instead of {expected_dest}"
            assert self.leaving == expected, f"{note}:\n{self.leaving.hex()}\ninstead of\n{expected.hex()}"
            self.leaving = b""

    async def frame(self, note, op):
        self.feed(bytes.fromhex(op["bytes"]))
        if op["dest"] is not None:
            self.expected.append((note, op["dest"], bytes.fromhex(op["out"])))

    def feed(self, frame):
        for at in range(0, len(frame), self.words):
            piece = frame[at : at + self.words]
            # Bytes without TKEEP are not zero.
            padded = piece + bytes(self.random.randrange(256) for _ in range(self.words - len(piece)))
            word = int.from_bytes(padded, "little"), (1 << len(piece)) - 1, int(at + self.words >= len(frame))
            self.coming.append(word)

    async def drain(self, until=0):
        idle = 0
        while len(self.coming) > until or (not until and (self.expected or self.events)):
            before = self.frames_out, len(self.coming), len(self.events)
            await self.cycle()
            idle = 0 if before != (self.frames_out, len(self.coming), len(self.events)) else idle + 1
            assert idle < IDLE_CYCLES_MAX, f"nothing happens any more: {self.where()}"

    async def measure(self, frame):
        """Cycles of a frame: until the first word leaves, until the last one, and between back-to-back frames."""
        self.gaps = GAPS[0]
        self.measured_in = self.measured_out = False
        self.counted.clear()
        before = self.frames_out
        self.feed(frame)
        for _ in range(len(self.coming) + 1000):
            await self.cycle()
        if self.frames_out == before or not self.counted:
            return None
        reason = self.counted[0]
        alone = self.first_out - self.first_in, self.last_out - self.first_in
        for _ in range(MEASURED):
            self.feed(frame)
        self.measured_out = False
        before, first_end = self.frames_out, None
        while self.frames_out < before + MEASURED:
            await self.cycle()
            if first_end is None and self.frames_out == before + MEASURED // 2:
                first_end = self.last_out
        period = (self.last_out - first_end) / (MEASURED - MEASURED // 2)
        return {"reason": reason, "frame_len_bytes": len(frame), "first": alone[0], "last": alone[1], "period": period}

    def ask(self, **values):
        """Writes to the host's port only what changes: scripts read ten thousands of registers, one after another."""
        for name, value in values.items():
            if self.asked.get(name) != value:
                getattr(self.dut, f"host__{name}").value = self.asked[name] = value

    async def host(self, space, index, word, write=None):
        d = self.dut
        self.ask(space=space, index=index, word=word, write=int(write is not None), write_data=write or 0, valid=1)
        for _ in range(IDLE_CYCLES_MAX):
            d.clk.value = 0
            await STEP
            ack = d.host__ack.value
            read = int(d.host__read_data.value) if ack else 0
            d.clk.value = 1
            await STEP
            if ack:
                return read
        raise AssertionError("the host's port does not answer")

    async def value(self, index, bytes_, write):
        """Reads or writes a value, which has the same alignment in its slot as in a frame."""
        offset = (42 + 96) % self.words
        lanes = -(-(offset + len(bytes_)) // 8)
        image = (bytes(offset) + bytes_).ljust(8 * lanes, b"\0")
        found = b""
        for lane in range(lanes):
            number = int.from_bytes(image[8 * lane : 8 * lane + 8], "little")
            found += (await self.host(2, index, lane, number if write else None)).to_bytes(8, "little")
        return found[offset : offset + len(bytes_)]


    def begin(self):
        for port in "input__tvalid output__tready host__valid host__write".split():
            getattr(self.dut, port).value = 0
        self.sideband = self.dut.output__tdest  # what a frame has besides its bytes

    async def finish(self):
        """What a bench tests after a script."""


@cocotb.test()
async def replay(dut):
    await run(dut, Bench)


async def run(dut, bench_of):
    seed = int(os.environ["RTL_SEED"])
    reasons = json.loads(os.environ["RTL_REASONS"])
    bench = bench_of(dut, seed)
    bench.begin()
    dut.rst.value = 1
    for _ in range(3):
        await bench.cycle()
    dut.rst.value = 0
    note, frames, measured = "", 0, []
    names = {number: name for name, number in reasons.items()}
    with open(os.environ["RTL_SCRIPT"]) as script:
        for line in script:
            op = json.loads(line)
            what = op.pop("op")
            if what == "note":
                note = op["text"]
            elif what == "settings":
                for name, setting in op.items():
                    getattr(dut, f"settings__{name}").value = setting if isinstance(setting, int) else int(setting, 16)
            elif what == "clock":
                await bench.drain()
                dut.settings__now_ns.value = op["now_ns"]
            elif what == "frame" and bench.measures:
                frames += 1
                found = await bench.measure(bytes.fromhex(op["bytes"]))
                if found:
                    measured.append({**found, "reason": names[found["reason"]]})
            elif bench.measures and what.startswith("check"):
                continue
            elif what == "frame":
                if frames % GAPS_CHANGE_EVERY == 0:
                    bench.gaps = bench.random.choice(GAPS)
                frames += 1
                await bench.frame(note, op)
                if op["reason"]:
                    bench.events.append((note, reasons[op["reason"]]))
                await bench.drain(until=200)
            else:
                await bench.drain()
                if what == "write":
                    await bench.host(op["space"], op["index"], op["word"], op["value"])
                elif what == "write_value":
                    await bench.value(op["index"], bytes.fromhex(op["bytes"]), True)
                elif what == "check":
                    found = await bench.host(op["space"], op["index"], op["word"])
                    assert found == op["value"], f"{note}: after it {op}, found {found}"
                elif what == "check_value":
                    found = await bench.value(op["index"], bytes.fromhex(op["bytes"]), False)
                    assert found.hex() == op["bytes"], f"{note}: after it {op}, found {found.hex()}"
                else:
                    raise AssertionError(f"the bench knows no {what}")
    await bench.drain()
    await bench.finish()
    # Nothing more may come.
    for _ in range(200):
        await bench.cycle()
    assert frames, "the script has no frame"
    if bench.measures:
        with open(bench.measures, "w") as file:
            json.dump(measured, file, indent=1)
    dut._log.info("%d frames, %d left, %d cycles, seed %d", frames, bench.frames_out, bench.cycles, seed)
