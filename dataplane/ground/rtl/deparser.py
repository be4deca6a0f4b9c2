# SPDX-License-Identifier: Apache-2.0
"""
Sends frames: the header from a register, and the value from the frame's buffer or from a slot of the value store. The
deparser owns that store, so values are read and written in the order of frames.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from .frame import BUFFERS, C, FRAME_LEN_MAX_BYTES, HEADER_AT, IP_SUM, TAG_AT, VALUE_AT, get, ip_sum
from .stream import Axis, job
from .sums import HeaderSum


class Deparser(wiring.Component):
    """`slots`: size of the value store, 0 for none. `host_*`: the host's access to it while `idle`."""

    def __init__(self, width, slots=0):
        self.width = width
        self.slots = slots
        self.buffer_words = FRAME_LEN_MAX_BYTES * 8 // width
        first_at = VALUE_AT * 8 // width
        self.slot_words = -(-(VALUE_AT + C["IB_VALUE_LEN_MAX_BYTES"]) * 8 // width) - first_at
        # A power of two, so that an address is the concatenation of slot and word.
        self.slot_words = 1 << (self.slot_words - 1).bit_length()
        super().__init__(
            {
                "job": In(job(slots)),
                "output": Out(Axis(width, dest_bits=2)),
                "idle": Out(1),
                "release": Out(1),
                "read_enable": Out(1),
                "read_address": Out(range(BUFFERS * self.buffer_words)),
                "read_data": In(width),
                "host_enable": In(1),
                "host_write": In(1),
                "host_slot": In(range(max(slots, 2))),
                "host_word": In(8),
                "host_write_data": In(64),
                "host_read_data": Out(64),
            }
        )

    def elaborate(self, _):
        m = Module()
        m.submodules.sum = header_sum = HeaderSum(self.width)
        width_bytes = self.width // 8
        value_word, value_byte = divmod(VALUE_AT, width_bytes)
        tag_word, tag_byte = divmod(TAG_AT, width_bytes)
        job, o = self.job.payload, self.output

        words = Signal(range(self.buffer_words + 1))
        kept = Signal(width_bytes)  # bytes in the last word
        header = Signal(8 * VALUE_AT)  # shifted down by one word at a time
        tag, tag_ready = Signal(64), Signal()
        buffer, slot = Signal(BUFFERS.bit_length() - 1), Signal(range(max(self.slots, 2)))
        load, save, dest = Signal(), Signal(), Signal(2)

        # Word indices: `n` is the next one to fetch, `at` the one being sent.
        n, at = Signal(range(self.buffer_words + 1)), Signal(range(self.buffer_words + 1))
        piece, valid = Signal(self.width), Signal()
        sends, moves, fetches, from_store = Signal(), Signal(), Signal(), Signal(self.width)
        m.d.comb += [
            moves.eq(~valid | o.tready),
            fetches.eq(sends & moves & (n != words) & ((n < tag_word) | tag_ready)),
            self.read_enable.eq(fetches),
            self.read_address.eq(Cat(n[: len(n) - 1], buffer)),
        ]
        value = Mux(load, from_store, self.read_data)
        mixed = Cat(piece[: 8 * value_byte], value[8 * value_byte :])
        m.d.comb += [
            o.tvalid.eq(valid),
            o.tdata.eq(Mux(at < value_word, piece, Mux(at == value_word, mixed, value))),
            o.tlast.eq(at + 1 == words),
            o.tkeep.eq(Mux(o.tlast, kept, ~0)),
            o.tdest.eq(dest),
        ]
        with m.If(moves):
            m.d.sync += valid.eq(fetches)
            with m.If(fetches):
                m.d.sync += [n.eq(n + 1), at.eq(n), header.eq(header >> self.width), piece.eq(header)]
                for k in range(8):
                    word, byte = divmod(tag_byte + k, width_bytes)
                    with m.If(n == tag_word + word):
                        m.d.sync += piece[8 * byte : 8 * byte + 8].eq(tag[56 - 8 * k : 64 - 8 * k])

        job_len = Signal(12)
        m.d.comb += [
            job_len.eq(job.len_bytes),
            header_sum.header.eq(job.header[8 * HEADER_AT : 8 * TAG_AT]),
            header_sum.start.eq(self.job.valid & self.job.ready & job.rewritten & ~job.drop),
        ]
        with m.If(header_sum.done):
            m.d.sync += [tag.eq(header_sum.sum), tag_ready.eq(1)]
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += [
                    self.idle.eq(~self.job.valid),
                    self.job.ready.eq(1),
                    self.release.eq(self.job.valid & job.drop),
                ]
                m.d.sync += n.eq(0)
                with m.If(self.job.valid & ~job.drop):
                    last_bytes = Signal(range(width_bytes))
                    m.d.comb += last_bytes.eq(job_len)
                    m.d.sync += [
                        header.eq(job.header),
                        # A frame that is passed on unchanged keeps its tag.
                        tag.eq(get(job.header, TAG_AT, 8)),
                        tag_ready.eq(~job.rewritten),
                        Cat(buffer, slot, load, save, dest).eq(Cat(job.buffer, job.slot, job.load, job.save, job.dest)),
                        words.eq((job_len + (width_bytes - 1)) >> (width_bytes - 1).bit_length()),
                        kept.eq(Cat((last_bytes == 0) | (last_bytes > k) for k in range(width_bytes))),
                    ]
                    m.next = "SEND"
                    with m.If(job.rewritten):
                        m.next = "PREPARE"
            with m.State("PREPARE"):
                m.d.sync += header[8 * IP_SUM : 8 * IP_SUM + 16].eq(ip_sum(m, header))
                m.next = "SEND"
            with m.State("SEND"):
                m.d.comb += sends.eq(1)
                with m.If(valid & o.tready & o.tlast):
                    m.d.comb += self.release.eq(1)
                    m.next = "IDLE"

        if self.slots:
            m.submodules.store = store = Memory(shape=self.width, depth=self.slots * self.slot_words, init=[])
            read, write = store.read_port(), store.write_port(granularity=64)
            lanes = self.width // 64
            in_slot = self.slot_words.bit_length() - 1
            host_lane = self.host_word[: (lanes - 1).bit_length()] if lanes > 1 else 0
            host_address = Cat((self.host_word >> (lanes - 1).bit_length())[:in_slot], self.host_slot)
            m.d.comb += [
                from_store.eq(read.data),
                read.en.eq(fetches | self.host_enable),
                read.addr.eq(Mux(self.host_enable, host_address, Cat((n - value_word)[:in_slot], slot))),
                self.host_read_data.eq(read.data.word_select(host_lane, 64)),
                write.addr.eq(Cat((at - value_word)[:in_slot], slot)),
                write.data.eq(o.tdata),
                write.en.eq((valid & o.tready & save & (at >= value_word)).replicate(lanes)),
            ]
            with m.If(self.host_enable):
                m.d.comb += [
                    write.addr.eq(host_address),
                    write.data.eq(self.host_write_data.replicate(lanes)),
                    write.en.eq(self.host_write << host_lane),
                ]
        return m
