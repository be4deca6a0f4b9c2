# SPDX-License-Identifier: Apache-2.0
"""
Sends frames: the header from a register, and the value from the frame's buffer or from a slot of the value store. The
deparser owns that store, so values are read and written in the order of frames.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from .frame import BUFFERS, C, FRAME_LEN_MAX_BYTES, HEADER_AT, IP_SUM, IP_TOTAL_BITS, TAG_AT, VALUE_AT, get, ip_sum, ip_total
from .stream import Axis, dest_bits, job
from .sums import HeaderSum

TAGS = 4  # more than there are frames between their sum and their end


class Deparser(wiring.Component):
    """`slots`: size of the value store, 0 for none. `host_*`: the host's access to it while `idle`. `links`: see `job`."""

    def __init__(self, width, slots=0, links=0):
        self.width = width
        self.slots = slots
        self.dest_bits = dest_bits(links)
        self.buffer_words = FRAME_LEN_MAX_BYTES * 8 // width
        first_at = VALUE_AT * 8 // width
        self.slot_words = -(-(VALUE_AT + C["IB_VALUE_LEN_MAX_BYTES"]) * 8 // width) - first_at
        # A power of two, so that an address is the concatenation of slot and word.
        self.slot_words = 1 << (self.slot_words - 1).bit_length()
        super().__init__(
            {
                "job": In(job(slots, links)),
                "output": Out(Axis(width, self.dest_bits)),
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

        # Two stages, so that a frame is sent while the header of the next is summed: PREPARE and SEND. Tags are in between, in
        # the order of frames. SEND fetches a word while it sends the one before, which may be the last one of another frame.
        m.submodules.tags = tags = SyncFIFO(width=64, depth=TAGS)
        m.d.comb += [tags.w_data.eq(header_sum.sum), tags.w_en.eq(header_sum.done)]

        def words_of(len_bytes):
            return (len_bytes + (width_bytes - 1)) >> (width_bytes - 1).bit_length()

        next_, is_next, is_prepared, takes_next = Signal(job.shape()), Signal(), Signal(), Signal()
        total, is_summed = Signal(IP_TOTAL_BITS), Signal()
        m.d.comb += [
            self.job.ready.eq(~is_next & header_sum.ready),
            header_sum.header.eq(job.header[8 * HEADER_AT : 8 * TAG_AT]),
            header_sum.start.eq(self.job.valid & self.job.ready & job.rewritten & ~job.drop),
        ]
        with m.If(self.job.ready):
            m.d.sync += [next_.eq(job), is_next.eq(self.job.valid), is_prepared.eq(~job.rewritten | job.drop)]
            m.d.sync += is_summed.eq(0)
        with m.Elif(is_next & ~is_prepared):
            m.d.sync += [total.eq(ip_total(next_.header)), is_summed.eq(1), is_prepared.eq(is_summed)]
            m.d.sync += next_.header[8 * IP_SUM : 8 * IP_SUM + 16].eq(ip_sum(total))

        left = Signal(range(self.buffer_words + 1))  # words to fetch
        kept = Signal(width_bytes)  # bytes in the last word
        header = Signal(8 * VALUE_AT)  # shifted down by one word at a time
        is_rewritten = Signal()
        buffer, slot = Signal(BUFFERS.bit_length() - 1), Signal(range(max(self.slots, 2)))
        load, save, dest = Signal(), Signal(), Signal(self.dest_bits)

        # Word indices: `n` is the next one to fetch, `at` the one being sent; `copy_n` the next one to copy.
        n, at = Signal(range(self.buffer_words + 1)), Signal(range(self.buffer_words + 1))
        copy_n, copy_at, copy_end = (Signal(range(self.buffer_words + 1)) for _ in range(3))
        copies, copied = Signal(), Signal()
        sends, moves, fetches, from_store = Signal(), Signal(), Signal(), Signal(self.width)
        # Of the word that is sent.
        piece, valid, keep, last = Signal(self.width), Signal(), Signal(width_bytes), Signal()
        sent_load, sent_save, sent_dest, sent_slot = Signal(), Signal(), Signal.like(dest), Signal.like(slot)
        # A frame that leaves without its value is not whole before the value is stored.
        may_tag = (~is_rewritten | tags.r_rdy) & (copy_n == copy_end) & ~copied
        ends = Signal()
        m.d.comb += [
            moves.eq(~valid | o.tready),
            fetches.eq(sends & moves & ((n < tag_word) | may_tag)),
            ends.eq(fetches & (left == 1)),
            self.read_enable.eq(fetches | copies),
            self.read_address.eq(Cat(Mux(copies, copy_n, n)[: len(n) - 1], buffer)),
        ]
        value = Mux(sent_load, from_store, self.read_data)
        mixed = Cat(piece[: 8 * value_byte], value[8 * value_byte :])
        m.d.comb += [
            o.tvalid.eq(valid),
            o.tdata.eq(Mux(at < value_word, piece, Mux(at == value_word, mixed, value))),
            o.tlast.eq(last),
            o.tkeep.eq(keep),
            o.tdest.eq(sent_dest),
        ]
        with m.If(moves):
            m.d.sync += valid.eq(fetches)
            with m.If(fetches):
                m.d.sync += [n.eq(n + 1), left.eq(left - 1), at.eq(n), header.eq(header >> self.width), piece.eq(header)]
                m.d.sync += [last.eq(left == 1), keep.eq(Mux(left == 1, kept, ~0))]
                m.d.sync += Cat(sent_load, sent_save, sent_dest, sent_slot).eq(Cat(load, save, dest, slot))
                for k in range(8):
                    word, byte = divmod(tag_byte + k, width_bytes)
                    with m.If(is_rewritten & (n == tag_word + word)):
                        m.d.sync += piece[8 * byte : 8 * byte + 8].eq(tags.r_data[56 - 8 * k : 64 - 8 * k])
        m.d.sync += [copied.eq(copies), copy_at.eq(copy_n)]
        with m.If(copies):
            m.d.sync += copy_n.eq(copy_n + 1)

        m.d.comb += [
            tags.r_en.eq(ends & is_rewritten),
            takes_next.eq(is_next & is_prepared & (~sends | (ends & ~next_.drop))),
            self.release.eq(ends | (takes_next & next_.drop)),
            self.idle.eq(~sends & ~valid & ~is_next & ~self.job.valid),
        ]
        if self.slots:
            # The word that is sent may be of the buffer, and would be lost.
            m.d.comb += copies.eq(sends & moves & (copy_n != copy_end))
        with m.If(ends):
            m.d.sync += sends.eq(0)
        with m.If(takes_next):
            m.d.sync += is_next.eq(0)
            last_bytes = Signal(range(width_bytes))
            m.d.comb += last_bytes.eq(next_.len_bytes)
            m.d.sync += [
                sends.eq(~next_.drop),
                n.eq(0),
                header.eq(next_.header),
                is_rewritten.eq(next_.rewritten),
                Cat(buffer, slot, load, dest).eq(Cat(next_.buffer, next_.slot, next_.load, next_.dest)),
                save.eq(next_.save & ~next_.copy),
                left.eq(words_of(next_.len_bytes)),
                kept.eq(Cat((last_bytes == 0) | (last_bytes > k) for k in range(width_bytes))),
                copy_n.eq(value_word),
                copy_end.eq(Mux(next_.copy, words_of(next_.copy_len_bytes), value_word)),
            ]

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
                write.addr.eq(Cat((Mux(copied, copy_at, at) - value_word)[:in_slot], Mux(copied, slot, sent_slot))),
                write.data.eq(Mux(copied, self.read_data, o.tdata)),
                write.en.eq((copied | (valid & o.tready & sent_save & (at >= value_word))).replicate(lanes)),
            ]
            with m.If(self.host_enable):
                m.d.comb += [
                    write.addr.eq(host_address),
                    write.data.eq(self.host_write_data.replicate(lanes)),
                    write.en.eq(self.host_write << host_lane),
                ]
        return m
