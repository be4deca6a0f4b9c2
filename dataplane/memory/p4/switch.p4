/* SPDX-License-Identifier: Apache-2.0 */
/*
 * switch.p4 - role_switch.h and its part of shell.h, for v1model: the ABD protocol for one request
 * at a time, in the request's slot.
 *
 * A packet reads and writes each register array at most once, at one index, so that a pipeline of
 * stages could hold them. Writes follow all decisions; the ingress thread of the switch handles one
 * packet at a time, so neither locks nor a second look at the session are needed.
 */
#include "memory.p4"

#define IB_P4_BLOCKS ((IB_P4_CHUNKS + (1 << IB_P4_BLOCK_SHIFT) - 1) >> IB_P4_BLOCK_SHIFT)

/* A line and its timestamp in each slot, and which servers hold it. */
struct line_t {
    bit<64> version;
    bit<8> holders;
    bit<64> w0;
    bit<64> w1;
    bit<64> w2;
    bit<64> w3;
    bit<64> w4;
    bit<64> w5;
    bit<64> w6;
    bit<64> w7;
}

control IbMemorySwitch(inout headers_t hdr, inout meta_t meta) {
    /* struct ib_memory_switch, and the number of servers. */
    @name(".epoch") register<bit<64>>(1) epoch_of;
    @name(".deposed") register<bit<64>>(1) deposed_of;
    @name(".nearly_used_up") register<bit<64>>(1) nearly_used_up_of;
    @name(".servers") register<bit<64>>(1) servers_of;
    /* struct ib_memory_block. */
    @name(".block") register<bit<64>>(IB_P4_BLOCKS) block_of;
    /* struct ib_memory_session. */
    @name(".session") register<bit<64>>(IB_P4_SESSIONS) session_of;
    @name(".slot_first") register<bit<64>>(IB_P4_SESSIONS) slot_first_of;
    @name(".window") register<bit<64>>(IB_P4_SESSIONS) window_of;
    @name(".requests") register<bit<64>>(IB_P4_SESSIONS) requests_of;
    /* struct ib_memory_slot. */
    @name(".slot_session") register<bit<64>>(IB_P4_SLOTS) slot_session;
    @name(".slot_request") register<bit<64>>(IB_P4_SLOTS) slot_request;
    @name(".slot_epoch") register<bit<64>>(IB_P4_SLOTS) slot_epoch;
    @name(".slot_chunk") register<bit<64>>(IB_P4_SLOTS) slot_chunk;
    @name(".slot_timestamp") register<bit<64>>(IB_P4_SLOTS) slot_timestamp;
    @name(".slot_lines") register<bit<32>>(IB_P4_SLOTS) slot_lines;
    @name(".slot_digest") register<bit<32>>(IB_P4_SLOTS) slot_digest;
    @name(".slot_phase") register<bit<32>>(IB_P4_SLOTS) slot_phase;
    @name(".slot_answered") register<bit<8>>(IB_P4_SLOTS) slot_answered;
    /* Its client: addresses of the request's frame, and the port that it came in by. */
    @name(".client_mac") register<bit<48>>(IB_P4_SLOTS) client_mac;
    @name(".client_own_mac") register<bit<48>>(IB_P4_SLOTS) client_own_mac;
    @name(".client_address") register<bit<32>>(IB_P4_SLOTS) client_address;
    @name(".client_udp_port") register<bit<16>>(IB_P4_SLOTS) client_udp_port;
    @name(".client_port") register<bit<9>>(IB_P4_SLOTS) client_port;
    /* Its lines. */
    @name(".holders0") register<bit<8>>(IB_P4_SLOTS) holders0;
    @name(".version0") register<bit<64>>(IB_P4_SLOTS) version0;
    @name(".line0_0") register<bit<64>>(IB_P4_SLOTS) line0_0;
    @name(".line0_1") register<bit<64>>(IB_P4_SLOTS) line0_1;
    @name(".line0_2") register<bit<64>>(IB_P4_SLOTS) line0_2;
    @name(".line0_3") register<bit<64>>(IB_P4_SLOTS) line0_3;
    @name(".line0_4") register<bit<64>>(IB_P4_SLOTS) line0_4;
    @name(".line0_5") register<bit<64>>(IB_P4_SLOTS) line0_5;
    @name(".line0_6") register<bit<64>>(IB_P4_SLOTS) line0_6;
    @name(".line0_7") register<bit<64>>(IB_P4_SLOTS) line0_7;
    @name(".holders1") register<bit<8>>(IB_P4_SLOTS) holders1;
    @name(".version1") register<bit<64>>(IB_P4_SLOTS) version1;
    @name(".line1_0") register<bit<64>>(IB_P4_SLOTS) line1_0;
    @name(".line1_1") register<bit<64>>(IB_P4_SLOTS) line1_1;
    @name(".line1_2") register<bit<64>>(IB_P4_SLOTS) line1_2;
    @name(".line1_3") register<bit<64>>(IB_P4_SLOTS) line1_3;
    @name(".line1_4") register<bit<64>>(IB_P4_SLOTS) line1_4;
    @name(".line1_5") register<bit<64>>(IB_P4_SLOTS) line1_5;
    @name(".line1_6") register<bit<64>>(IB_P4_SLOTS) line1_6;
    @name(".line1_7") register<bit<64>>(IB_P4_SLOTS) line1_7;

    bit<64> epoch;
    bit<64> deposed;
    bit<64> servers;
    bit<64> session;
    bit<64> slot_first;
    bit<64> window;
    bit<64> requests;
    /* The slot, as it was and as it will be. */
    bit<64> session_here;
    bit<64> request;
    bit<64> epoch_begun;
    bit<64> chunk;
    bit<64> timestamp;
    bit<32> lines;
    bit<32> of_value; /* its digest */
    bit<32> phase;
    bit<8> answered;
    bit<48> mac;
    bit<48> own_mac;
    bit<32> address;
    bit<16> udp_port;
    bit<9> port;
    line_t line0;
    line_t line1;

    bit<32> slot;
    bit<8> of_node;
    bool store;
    bool new_value;

    IbValueSum() sum_of_answer;
    IbValueSum() sum_of_new;

    action drop(bit<16> reason) {
        meta.verdict = IB_V_DROP;
        meta.reason = reason;
    }
    /* ib_memory_set_type, of a type without a value. */
    action without_value(bit<8> type) {
        hdr.common.type = type;
        hdr.common.flags = 0;
        hdr.common.value_len_bytes = 0;
        hdr.memory.digest = 0;
    }
    /* ... of one with the lines of a request. */
    action with_value(bit<8> type) {
        hdr.common.type = type;
        hdr.common.flags = 0;
    }
    action refuse(bit<16> flags, bit<16> reason) {
        without_value(IB_MEMORY_REFUSED);
        hdr.common.flags = flags;
        meta.verdict = IB_V_REPLY;
        meta.reason = reason;
    }
    action begin_phase(bit<32> kind) {
        phase = ((phase >> IB_MEMORY_PHASE_BITS) + 1) << IB_MEMORY_PHASE_BITS | kind;
        epoch_begun = epoch;
        answered = 0;
    }
    action end_phase(bit<32> kind) {
        phase = (phase >> IB_MEMORY_PHASE_BITS) << IB_MEMORY_PHASE_BITS | kind;
    }
    action to_servers(bit<16> reason) {
        hdr.memory.epoch = epoch_begun;
        hdr.memory.timestamp = timestamp;
        hdr.memory.phase = phase;
        meta.verdict = IB_V_GROUP;
        meta.reason = reason;
    }
    /* IbSend turns the addresses round. */
    action to_client(bit<16> reason) {
        hdr.memory.timestamp = timestamp;
        hdr.ethernet.from = mac;
        hdr.ethernet.to = own_mac;
        hdr.ipv4.from = address;
        hdr.udp.from = udp_port;
        meta.sender_port = port;
        meta.verdict = IB_V_REPLY;
        meta.reason = reason;
    }
    action read_switch() {
        epoch_of.read(epoch, 0);
        deposed_of.read(deposed, 0);
        servers_of.read(servers, 0);
    }
    action read_session(in bit<32> at) {
        session_of.read(session, at);
        slot_first_of.read(slot_first, at);
        window_of.read(window, at);
        requests_of.read(requests, at);
    }
    action read_slot() {
        slot_session.read(session_here, slot);
        slot_request.read(request, slot);
        slot_epoch.read(epoch_begun, slot);
        slot_chunk.read(chunk, slot);
        slot_timestamp.read(timestamp, slot);
        slot_lines.read(lines, slot);
        slot_digest.read(of_value, slot);
        slot_phase.read(phase, slot);
        slot_answered.read(answered, slot);
        client_mac.read(mac, slot);
        client_own_mac.read(own_mac, slot);
        client_address.read(address, slot);
        client_udp_port.read(udp_port, slot);
        client_port.read(port, slot);
        holders0.read(line0.holders, slot);
        version0.read(line0.version, slot);
        line0_0.read(line0.w0, slot);
        line0_1.read(line0.w1, slot);
        line0_2.read(line0.w2, slot);
        line0_3.read(line0.w3, slot);
        line0_4.read(line0.w4, slot);
        line0_5.read(line0.w5, slot);
        line0_6.read(line0.w6, slot);
        line0_7.read(line0.w7, slot);
        holders1.read(line1.holders, slot);
        version1.read(line1.version, slot);
        line1_0.read(line1.w0, slot);
        line1_1.read(line1.w1, slot);
        line1_2.read(line1.w2, slot);
        line1_3.read(line1.w3, slot);
        line1_4.read(line1.w4, slot);
        line1_5.read(line1.w5, slot);
        line1_6.read(line1.w6, slot);
        line1_7.read(line1.w7, slot);
    }
    action write_slot() {
        slot_session.write(slot, session_here);
        slot_request.write(slot, request);
        slot_epoch.write(slot, epoch_begun);
        slot_chunk.write(slot, chunk);
        slot_timestamp.write(slot, timestamp);
        slot_lines.write(slot, lines);
        slot_digest.write(slot, of_value);
        slot_phase.write(slot, phase);
        slot_answered.write(slot, answered);
        client_mac.write(slot, mac);
        client_own_mac.write(slot, own_mac);
        client_address.write(slot, address);
        client_udp_port.write(slot, udp_port);
        client_port.write(slot, port);
        holders0.write(slot, line0.holders);
        version0.write(slot, line0.version);
        line0_0.write(slot, line0.w0);
        line0_1.write(slot, line0.w1);
        line0_2.write(slot, line0.w2);
        line0_3.write(slot, line0.w3);
        line0_4.write(slot, line0.w4);
        line0_5.write(slot, line0.w5);
        line0_6.write(slot, line0.w6);
        line0_7.write(slot, line0.w7);
        holders1.write(slot, line1.holders);
        version1.write(slot, line1.version);
        line1_0.write(slot, line1.w0);
        line1_1.write(slot, line1.w1);
        line1_2.write(slot, line1.w2);
        line1_3.write(slot, line1.w3);
        line1_4.write(slot, line1.w4);
        line1_5.write(slot, line1.w5);
        line1_6.write(slot, line1.w6);
        line1_7.write(slot, line1.w7);
    }
    /* The request takes the slot. */
    action take_slot(in bit<64> assigned) {
        session_here = hdr.memory.session;
        request = hdr.memory.request;
        chunk = hdr.memory.chunk;
        lines = hdr.memory.lines;
        of_value = hdr.memory.digest;
        timestamp = assigned;
        mac = hdr.ethernet.from;
        own_mac = hdr.ethernet.to;
        address = hdr.ipv4.from;
        udp_port = hdr.udp.from;
        port = meta.sender_port;
    }
    /* The first line of an answer with one, with two; the second. */
    action take_only() {
        line0.version = hdr.first.w0;
        line0.holders = of_node;
        line0.w0 = hdr.first.w1;
        line0.w1 = hdr.first.w2;
        line0.w2 = hdr.first.w3;
        line0.w3 = hdr.first.w4;
        line0.w4 = hdr.first.w5;
        line0.w5 = hdr.first.w6;
        line0.w6 = hdr.first.w7;
        line0.w7 = hdr.first.w8;
    }
    action take_first() {
        line0.version = hdr.first.w0;
        line0.holders = of_node;
        line0.w0 = hdr.first.w2;
        line0.w1 = hdr.first.w3;
        line0.w2 = hdr.first.w4;
        line0.w3 = hdr.first.w5;
        line0.w4 = hdr.first.w6;
        line0.w5 = hdr.first.w7;
        line0.w6 = hdr.first.w8;
        line0.w7 = hdr.second.w0;
    }
    action take_second() {
        line1.version = hdr.first.w1;
        line1.holders = of_node;
        line1.w0 = hdr.second.w1;
        line1.w1 = hdr.second.w2;
        line1.w2 = hdr.second.w3;
        line1.w3 = hdr.second.w4;
        line1.w4 = hdr.second.w5;
        line1.w5 = hdr.second.w6;
        line1.w6 = hdr.second.w7;
        line1.w7 = hdr.second.w8;
    }
    /* The slot's lines into the packet. */
    action put_one() {
        hdr.first.setValid();
        hdr.common.value_len_bytes = IB_P4_EACH_LEN_BYTES;
        hdr.first.w0 = line0.version;
        hdr.first.w1 = line0.w0;
        hdr.first.w2 = line0.w1;
        hdr.first.w3 = line0.w2;
        hdr.first.w4 = line0.w3;
        hdr.first.w5 = line0.w4;
        hdr.first.w6 = line0.w5;
        hdr.first.w7 = line0.w6;
        hdr.first.w8 = line0.w7;
    }
    action put_two() {
        hdr.first.setValid();
        hdr.second.setValid();
        hdr.common.value_len_bytes = 2 * IB_P4_EACH_LEN_BYTES;
        hdr.first.w0 = line0.version;
        hdr.first.w2 = line0.w0;
        hdr.first.w3 = line0.w1;
        hdr.first.w4 = line0.w2;
        hdr.first.w5 = line0.w3;
        hdr.first.w6 = line0.w4;
        hdr.first.w7 = line0.w5;
        hdr.first.w8 = line0.w6;
        hdr.second.w0 = line0.w7;
        hdr.first.w1 = line1.version;
        hdr.second.w1 = line1.w0;
        hdr.second.w2 = line1.w1;
        hdr.second.w3 = line1.w2;
        hdr.second.w4 = line1.w3;
        hdr.second.w5 = line1.w4;
        hdr.second.w6 = line1.w5;
        hdr.second.w7 = line1.w6;
        hdr.second.w8 = line1.w7;
    }

    apply {
        bit<8> type = hdr.common.type;
        bool writes = type == IB_MEMORY_WRITE_REQUEST;
        bool is_request = writes || type == IB_MEMORY_READ_REQUEST;
        bool is_value = type == IB_MEMORY_READ_ANSWER;
        bool is_answer = is_value || type == IB_MEMORY_ACK;
        bit<16> count = IB_P4_COUNT_16(hdr.memory.lines);
        bool is_two = count == 2;
        bool goes_on = false;
        slot = 0;
        requests = 0;
        store = false;
        new_value = false;

        read_switch();
        if (is_request) {
            bit<32> at = (bit<32>)(hdr.memory.session & IB_MEMORY_SESSION_MASK);
            bit<64> latest = epoch;
            if (deposed > epoch) {
                latest = deposed;
            }
            if (hdr.memory.chunk >= IB_P4_CHUNKS) {
                drop(IB_R_memory_bad_chunk);
            } else if (epoch == 0 || epoch < deposed) {
                refuse(IB_MEMORY_F_NOT_ACTIVE, IB_R_memory_not_active);
                hdr.memory.epoch = latest;
            } else {
                bool is_open = false;
                if (hdr.memory.session != 0 && at < IB_P4_SESSIONS) {
                    read_session(at);
                    if (session == hdr.memory.session) {
                        slot = slot_first[31:0] +
                               (hdr.memory.request[31:0] & (window[31:0] - 1));
                        hdr.memory.slot = slot;
                        is_open = slot < IB_P4_SLOTS;
                    }
                }
                if (!is_open) {
                    refuse(0, IB_R_memory_no_session);
                    hdr.memory.epoch = latest;
                } else if (!writes && count > IB_P4_LINES_MAX) {
                    drop(IB_R_no_room);
                } else {
                    goes_on = true;
                    if (requests < hdr.memory.request) {
                        requests_of.write(at, hdr.memory.request);
                    }
                }
            }
        } else if (is_answer) {
            slot = hdr.memory.slot;
            if (slot >= IB_P4_SLOTS) {
                drop(IB_R_memory_answer_late);
            } else if ((bit<64>)hdr.common.node > servers) {
                drop(IB_R_memory_not_for_role);
            } else {
                goes_on = true;
            }
        } else if (type == IB_MEMORY_HELLO ||
                   (type == IB_MEMORY_EPOCH &&
                    (hdr.common.flags & IB_MEMORY_F_TO_GRANT) != 0)) {
            meta.verdict = IB_V_PASS;
            meta.reason = IB_R_passed_up;
        } else if (type != IB_MEMORY_EPOCH) {
            drop(IB_R_memory_not_for_role);
        } else if (hdr.memory.epoch <= epoch) {
            drop(IB_R_memory_answer_late);
        } else if (hdr.memory.epoch > epoch + IB_MEMORY_EPOCH_AHEAD_MAX) {
            meta.verdict = IB_V_PASS;
            meta.reason = IB_R_memory_epoch_ahead;
        } else {
            drop(IB_R_memory_deposed);
            if (hdr.memory.epoch > deposed) {
                deposed_of.write(0, hdr.memory.epoch);
            }
        }

        if (goes_on) {
            read_slot();
            bit<32> kind = phase & ((1 << IB_MEMORY_PHASE_BITS) - 1);
            if (is_request) {
                bool takes = session_here != hdr.memory.session || request < hdr.memory.request;
                bool is_numbered = true;
                bit<64> assigned = 0;
                if (writes && takes) {
                    /* Below IB_P4_BLOCKS, because the chunk is below IB_P4_CHUNKS. */
                    bit<32> block = (bit<32>)(hdr.memory.chunk >> IB_P4_BLOCK_SHIFT);
                    bit<64> last;
                    block_of.read(last, block);
                    if ((last >> IB_MEMORY_COUNT_BITS) > epoch) {
                        is_numbered = false;
                    } else {
                        bit<64> before = epoch << IB_MEMORY_COUNT_BITS;
                        if (last > before) {
                            before = last;
                        }
                        assigned = before + 1;
                        if ((last >> (IB_MEMORY_COUNT_BITS - 3) & 7) == 7) {
                            nearly_used_up_of.write(0, last);
                        }
                        if ((assigned >> IB_MEMORY_COUNT_BITS) != epoch) {
                            assigned = 0;
                        } else {
                            block_of.write(block, assigned);
                        }
                    }
                }
                if (!is_numbered) {
                    drop(IB_R_contended);
                } else if (takes && writes && assigned == 0) {
                    drop(IB_R_memory_timestamps_used_up);
                } else if (!takes && request != hdr.memory.request) {
                    drop(IB_R_memory_old_request);
                } else if (!takes &&
                           (chunk != hdr.memory.chunk || lines != hdr.memory.lines ||
                            of_value != hdr.memory.digest || writes != (timestamp != 0))) {
                    drop(IB_R_memory_other_request);
                } else {
                    bool continues = !takes && epoch_begun == epoch;
                    store = true;
                    if (takes) {
                        take_slot(assigned);
                    }
                    if (!writes && continues && kind == IB_MEMORY_WRITING_BACK) {
                        with_value(IB_MEMORY_WRITE_BACK);
                        new_value = true;
                        to_servers(IB_R_memory_write_back_again);
                    } else if (!writes) {
                        if (!continues || kind != IB_MEMORY_READING) {
                            begin_phase(IB_MEMORY_READING);
                        }
                        meta.padding_len_bytes = hdr.udp.len_bytes - 8 - IB_HEADER_LEN_BYTES;
                        without_value(IB_MEMORY_READ);
                        to_servers(IB_R_memory_read_again);
                        if (takes) {
                            meta.reason = IB_R_memory_read_begun;
                        }
                    } else if (!takes && kind == IB_MEMORY_WRITTEN) {
                        without_value(IB_MEMORY_WRITE_REPLY);
                        hdr.memory.epoch = epoch_begun;
                        hdr.memory.timestamp = timestamp;
                        meta.verdict = IB_V_REPLY;
                        meta.reason = IB_R_memory_write_done_again;
                    } else {
                        if (!continues) {
                            begin_phase(IB_MEMORY_WRITING);
                        }
                        with_value(IB_MEMORY_WRITE);
                        to_servers(IB_R_memory_write_again);
                        if (takes) {
                            meta.reason = IB_R_memory_write_begun;
                        }
                    }
                }
            } else {
                bool waits = kind == IB_MEMORY_READING;
                bit<32> sum = hdr.memory.digest;
                if (is_value) {
                    sum_of_answer.apply(hdr, sum);
                } else {
                    waits = kind == IB_MEMORY_WRITING || kind == IB_MEMORY_WRITING_BACK;
                }
                /* IbFrameCheck has refused node 0; there are at most IB_MEMORY_SERVERS_MAX. */
                of_node = 8w1 << (bit<8>)((hdr.common.node - 1) & 7);
                if (!waits || session_here != hdr.memory.session ||
                    request != hdr.memory.request || phase != hdr.memory.phase ||
                    epoch_begun != hdr.memory.epoch || epoch_begun != epoch ||
                    chunk != hdr.memory.chunk || lines != hdr.memory.lines) {
                    drop(IB_R_memory_answer_late);
                } else if ((answered & of_node) != 0) {
                    drop(IB_R_memory_answer_repeated);
                } else if (sum != hdr.memory.digest) {
                    drop(IB_R_memory_bad_digest);
                } else {
                    bool is_first = answered == 0;
                    bit<64> majority = (servers >> 1) + 1;
                    store = true;
                    if (is_value && !is_two) {
                        if (is_first || hdr.first.w0 > line0.version) {
                            take_only();
                        } else if (hdr.first.w0 == line0.version) {
                            line0.holders = line0.holders | of_node;
                        }
                        if (is_first) {
                            line1.holders = of_node;
                        }
                        new_value = hdr.first.w0 != line0.version;
                    } else if (is_value) {
                        if (is_first || hdr.first.w0 > line0.version) {
                            take_first();
                        } else if (hdr.first.w0 == line0.version) {
                            line0.holders = line0.holders | of_node;
                        }
                        if (is_first || hdr.first.w1 > line1.version) {
                            take_second();
                        } else if (hdr.first.w1 == line1.version) {
                            line1.holders = line1.holders | of_node;
                        }
                        new_value = hdr.first.w0 != line0.version ||
                                    hdr.first.w1 != line1.version;
                    }
                    answered = answered | of_node;
                    if ((bit<64>)IB_P4_COUNT_8(answered) < majority) {
                        new_value = false;
                        if (is_value) {
                            drop(IB_R_memory_read_counted);
                        } else {
                            drop(IB_R_memory_ack_counted);
                        }
                    } else if (is_value) {
                        if ((bit<64>)IB_P4_COUNT_8(line0.holders) >= majority &&
                            (!is_two || (bit<64>)IB_P4_COUNT_8(line1.holders) >= majority)) {
                            end_phase(IB_MEMORY_HAS_READ);
                            with_value(IB_MEMORY_READ_REPLY);
                            to_client(IB_R_memory_read_done);
                        } else {
                            begin_phase(IB_MEMORY_WRITING_BACK);
                            with_value(IB_MEMORY_WRITE_BACK);
                            to_servers(IB_R_memory_read_write_back);
                        }
                    } else if (kind == IB_MEMORY_WRITING) {
                        end_phase(IB_MEMORY_WRITTEN);
                        without_value(IB_MEMORY_WRITE_REPLY);
                        to_client(IB_R_memory_write_done);
                    } else {
                        end_phase(IB_MEMORY_HAS_READ);
                        with_value(IB_MEMORY_READ_REPLY);
                        new_value = true;
                        to_client(IB_R_memory_write_back_done);
                    }
                }
            }
            if (store) {
                write_slot();
            }
            if (new_value) {
                if (is_two) {
                    put_two();
                } else {
                    put_one();
                }
                sum_of_new.apply(hdr, hdr.memory.digest);
            }
        }
    }
}

IB_SWITCH(IbMemoryCheck, IbMemorySwitch);
