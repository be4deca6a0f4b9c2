/* SPDX-License-Identifier: Apache-2.0 */
/*
 * acceptor.p4 - role_acceptor.h and its part of shell.h, for v1model.
 *
 * A packet reads and writes each register array at most once, at one index, so that a pipeline of
 * stages could hold them. Writes follow all decisions; the ingress thread of the switch handles one
 * packet at a time, so neither locks nor a second read of the promise are needed.
 */
#define IB_VALUE_TYPE IB_PAXOS_PHASE2A
#include "paxos.p4"

#define IB_P4_SLOTS (IB_P4_PARTITIONS * IB_P4_RING_SLOTS)

/* The last word of struct ib_vote. The length is at the top, so the host reads a positive number. */
#define IB_VOTE_LEN(last) ((last)[63:48])
#define IB_VOTE_FLAGS(last) ((last)[47:32])
#define IB_VOTE_CHECKSUM(last) ((last)[31:0])

/*
 * The values: stripes 0 to 2 are words 0 to 11, the words after them 12 to 14, and the rest (4, 2
 * and 1 bytes from the top) is word 15. The length says which are used.
 */
control IbValues(inout headers_t hdr, in bit<32> at, in bool save, in bool load) {
    @name(".value0") register<bit<64>>(IB_P4_SLOTS) value0;
    @name(".value1") register<bit<64>>(IB_P4_SLOTS) value1;
    @name(".value2") register<bit<64>>(IB_P4_SLOTS) value2;
    @name(".value3") register<bit<64>>(IB_P4_SLOTS) value3;
    @name(".value4") register<bit<64>>(IB_P4_SLOTS) value4;
    @name(".value5") register<bit<64>>(IB_P4_SLOTS) value5;
    @name(".value6") register<bit<64>>(IB_P4_SLOTS) value6;
    @name(".value7") register<bit<64>>(IB_P4_SLOTS) value7;
    @name(".value8") register<bit<64>>(IB_P4_SLOTS) value8;
    @name(".value9") register<bit<64>>(IB_P4_SLOTS) value9;
    @name(".value10") register<bit<64>>(IB_P4_SLOTS) value10;
    @name(".value11") register<bit<64>>(IB_P4_SLOTS) value11;
    @name(".value12") register<bit<64>>(IB_P4_SLOTS) value12;
    @name(".value13") register<bit<64>>(IB_P4_SLOTS) value13;
    @name(".value14") register<bit<64>>(IB_P4_SLOTS) value14;
    @name(".value15") register<bit<64>>(IB_P4_SLOTS) value15;

    action save_stripe0() {
        value0.write(at, hdr.stripe0.a);
        value1.write(at, hdr.stripe0.b);
        value2.write(at, hdr.stripe0.c);
        value3.write(at, hdr.stripe0.d);
    }
    action save_stripe1() {
        value4.write(at, hdr.stripe1.a);
        value5.write(at, hdr.stripe1.b);
        value6.write(at, hdr.stripe1.c);
        value7.write(at, hdr.stripe1.d);
    }
    action save_stripe2() {
        value8.write(at, hdr.stripe2.a);
        value9.write(at, hdr.stripe2.b);
        value10.write(at, hdr.stripe2.c);
        value11.write(at, hdr.stripe2.d);
    }
    action load_stripe0() {
        hdr.stripe0.setValid();
        value0.read(hdr.stripe0.a, at);
        value1.read(hdr.stripe0.b, at);
        value2.read(hdr.stripe0.c, at);
        value3.read(hdr.stripe0.d, at);
    }
    action load_stripe1() {
        hdr.stripe1.setValid();
        value4.read(hdr.stripe1.a, at);
        value5.read(hdr.stripe1.b, at);
        value6.read(hdr.stripe1.c, at);
        value7.read(hdr.stripe1.d, at);
    }
    action load_stripe2() {
        hdr.stripe2.setValid();
        value8.read(hdr.stripe2.a, at);
        value9.read(hdr.stripe2.b, at);
        value10.read(hdr.stripe2.c, at);
        value11.read(hdr.stripe2.d, at);
    }
    action forget() {
        hdr.stripe0.setInvalid();
        hdr.stripe1.setInvalid();
        hdr.stripe2.setInvalid();
        hdr.word0.setInvalid();
        hdr.word1.setInvalid();
        hdr.word2.setInvalid();
        hdr.four.setInvalid();
        hdr.two.setInvalid();
        hdr.one.setInvalid();
    }

    apply {
        bit<64> rest = 0;
        if (save) {
            if (hdr.stripe0.isValid()) {
                save_stripe0();
            }
            if (hdr.stripe1.isValid()) {
                save_stripe1();
            }
            if (hdr.stripe2.isValid()) {
                save_stripe2();
            }
            if (hdr.word0.isValid()) {
                value12.write(at, hdr.word0.word);
            }
            if (hdr.word1.isValid()) {
                value13.write(at, hdr.word1.word);
            }
            if (hdr.word2.isValid()) {
                value14.write(at, hdr.word2.word);
            }
            if (hdr.four.isValid()) {
                rest[63:32] = hdr.four.bytes;
            }
            if (hdr.two.isValid()) {
                rest[31:16] = hdr.two.bytes;
            }
            if (hdr.one.isValid()) {
                rest[15:8] = hdr.one.bytes;
            }
            value15.write(at, rest);
        } else if (load) {
            /* hdr.common.value_len_bytes is already the stored one. */
            bit<16> len_bytes = hdr.common.value_len_bytes;
            forget();
            if (len_bytes >= 32) {
                load_stripe0();
            }
            if (len_bytes >= 64) {
                load_stripe1();
            }
            if (len_bytes >= 96) {
                load_stripe2();
            }
            if ((len_bytes & 31) >= 8) {
                hdr.word0.setValid();
                value12.read(hdr.word0.word, at);
            }
            if ((len_bytes & 31) >= 16) {
                hdr.word1.setValid();
                value13.read(hdr.word1.word, at);
            }
            if ((len_bytes & 31) >= 24) {
                hdr.word2.setValid();
                value14.read(hdr.word2.word, at);
            }
            value15.read(rest, at);
            if ((len_bytes & 4) != 0) {
                hdr.four.setValid();
                hdr.four.bytes = rest[63:32];
            }
            if ((len_bytes & 2) != 0) {
                hdr.two.setValid();
                hdr.two.bytes = rest[31:16];
            }
            if ((len_bytes & 1) != 0) {
                hdr.one.setValid();
                hdr.one.bytes = rest[15:8];
            }
        }
    }
}

control IbAcceptor(inout headers_t hdr, inout meta_t meta) {
    /* struct ib_acceptor_regs, by partition. */
    @name(".promise") register<bit<64>>(IB_P4_PARTITIONS) promise_of;
    @name(".floor") register<bit<64>>(IB_P4_PARTITIONS) floor_of;
    @name(".highest") register<bit<64>>(IB_P4_PARTITIONS) highest_of;
    @name(".epoch") register<bit<64>>(IB_P4_PARTITIONS) epoch_of;
    @name(".voting") register<bit<64>>(IB_P4_PARTITIONS) voting_of;
    /* struct ib_vote, by slot. */
    @name(".slot_instance") register<bit<64>>(IB_P4_SLOTS) slot_instance;
    @name(".slot_promise") register<bit<64>>(IB_P4_SLOTS) slot_promise;
    @name(".slot_vround") register<bit<64>>(IB_P4_SLOTS) slot_vround;
    @name(".slot_digest") register<bit<64>>(IB_P4_SLOTS) slot_digest;
    @name(".slot_client_id") register<bit<64>>(IB_P4_SLOTS) slot_client_id;
    @name(".slot_client_seq") register<bit<64>>(IB_P4_SLOTS) slot_client_seq;
    @name(".slot_client_low") register<bit<64>>(IB_P4_SLOTS) slot_client_low;
    @name(".slot_last") register<bit<64>>(IB_P4_SLOTS) slot_last;

    IbValueCheck() value_check;
    IbValues() values;

    bit<64> promise;
    bit<64> floor;
    bit<64> highest;
    bit<64> epoch;
    bit<64> voting;
    bit<64> v_instance = 0;
    bit<64> v_promise = 0;
    bit<64> v_vround = 0;
    bit<64> v_digest = 0;
    bit<64> v_client_id = 0;
    bit<64> v_client_seq = 0;
    bit<64> v_client_low = 0;
    bit<64> v_last = 0;
    bit<32> partition;
    bit<32> slot;

    action drop(bit<16> reason) {
        meta.verdict = IB_V_DROP;
        meta.reason = reason;
    }
    action answer(bit<8> verdict, bit<16> reason) {
        meta.verdict = verdict;
        meta.reason = reason;
    }
    action read_partition() {
        promise_of.read(promise, partition);
        floor_of.read(floor, partition);
        highest_of.read(highest, partition);
        epoch_of.read(epoch, partition);
        voting_of.read(voting, partition);
    }
    action read_slot() {
        slot_instance.read(v_instance, slot);
        slot_promise.read(v_promise, slot);
        slot_vround.read(v_vround, slot);
        slot_digest.read(v_digest, slot);
        slot_client_id.read(v_client_id, slot);
        slot_client_seq.read(v_client_seq, slot);
        slot_client_low.read(v_client_low, slot);
        slot_last.read(v_last, slot);
    }
    action write_slot() {
        slot_instance.write(slot, v_instance);
        slot_promise.write(slot, v_promise);
        slot_vround.write(slot, v_vround);
        slot_digest.write(slot, v_digest);
        slot_client_id.write(slot, v_client_id);
        slot_client_seq.write(slot, v_client_seq);
        slot_client_low.write(slot, v_client_low);
        slot_last.write(slot, v_last);
    }
    action refuse(bit<64> round, bit<16> scope, bit<16> reason) {
        hdr.common.type = IB_PAXOS_NACK;
        hdr.common.flags =
            (hdr.common.flags & (IB_PAXOS_F_RECOVERY | IB_PAXOS_F_VALUE_MASK)) | scope;
        hdr.paxos.round = round;
        hdr.paxos.floor = floor;
        hdr.paxos.epoch = epoch[31:0];
        meta.verdict = IB_V_REPLY;
        meta.reason = reason;
    }
    action no_value() {
        hdr.paxos.vround = 0;
        hdr.common.value_len_bytes = 0;
        hdr.paxos.checksum = 0;
    }
    action show_vote() {
        hdr.paxos.vround = v_vround;
        hdr.paxos.digest = v_digest;
        hdr.paxos.checksum = IB_VOTE_CHECKSUM(v_last);
        hdr.paxos.client_id = v_client_id;
        hdr.paxos.client_seq = v_client_seq;
        hdr.paxos.client_low = v_client_low;
        hdr.common.value_len_bytes = IB_VOTE_LEN(v_last);
        hdr.common.flags =
            (hdr.common.flags & (0xffff ^ IB_PAXOS_F_VALUE_MASK)) | IB_VOTE_FLAGS(v_last);
    }
    action take_vote() {
        v_promise = hdr.paxos.round;
        v_vround = hdr.paxos.round;
        v_digest = hdr.paxos.digest;
        v_client_id = hdr.paxos.client_id;
        v_client_seq = hdr.paxos.client_seq;
        v_client_low = hdr.paxos.client_low;
        v_last = hdr.common.value_len_bytes ++ (hdr.common.flags & IB_PAXOS_F_VALUE_MASK) ++
                 hdr.paxos.checksum;
        hdr.paxos.vround = hdr.paxos.round;
    }
    action clear_slot() {
        v_instance = hdr.paxos.instance;
        v_promise = 0;
        v_vround = 0;
        v_last[63:32] = 0;
    }

    apply {
        bit<8> type = hdr.common.type;
        bit<16> flags = hdr.common.flags;
        bool needs_slot =
            type == IB_PAXOS_PHASE2A ||
            (type == IB_PAXOS_LEARN && (flags & IB_PAXOS_F_PEER) == 0) ||
            (type == IB_PAXOS_PHASE1A && (flags & IB_PAXOS_F_SLOT) != 0);
        bool promises = type == IB_PAXOS_PHASE1A && !needs_slot;
        bool store_vote = false;
        bool raise_promise = false;
        bool raise_floor = false;
        bool save_value = false;
        bool load_value = false;

        /* Both in range: IbCheck has refused other partitions, and a ring is a power of two. */
        partition = (bit<32>)hdr.common.partition;
        slot = partition * IB_P4_RING_SLOTS + (hdr.paxos.instance[31:0] & (IB_P4_RING_SLOTS - 1));

        if (type == IB_PAXOS_PHASE2A) {
            value_check.apply(hdr, meta);
        }
        if (meta.reason == IB_R_none) {
            read_partition();
            if (needs_slot) {
                read_slot();
            }
            /* The round that applies to the instance, once its slot is known to be its own. */
            bit<64> applies = promise;
            bit<16> scope = 0;
            bit<16> refused = IB_R_acceptor_nack;
            if (needs_slot || promises) {
                /* Its host reads votes with LEARN while it is sealed: bmv2 shows it no word of 2^63. */
                bool host_reads = type == IB_PAXOS_LEARN && meta.sender_port == meta.host_port;
                if (voting == 0 && !host_reads) {
                    drop(IB_R_acceptor_recovering);
                } else if ((bit<64>)hdr.paxos.epoch > epoch) {
                    drop(IB_R_epoch_ahead);
                } else if ((bit<64>)hdr.paxos.epoch < epoch) {
                    refuse(promise, 0, IB_R_wrong_epoch);
                } else if (promises) {
                    if (hdr.paxos.round < promise) {
                        refuse(promise, 0, IB_R_acceptor_nack);
                    } else {
                        raise_promise = true;
                        hdr.common.type = IB_PAXOS_PHASE1B;
                        hdr.common.flags = 0;
                        hdr.paxos.instance = highest;
                        hdr.paxos.floor = floor;
                        no_value();
                        answer(IB_V_REPLY, IB_R_acceptor_promised);
                    }
                } else if (hdr.paxos.instance < floor || hdr.paxos.instance == 0) {
                    refuse(promise, IB_PAXOS_F_SLOT | IB_PAXOS_F_BELOW_FLOOR,
                           IB_R_acceptor_below_floor);
                } else if (hdr.paxos.instance >= floor + IB_P4_RING_SLOTS) {
                    drop(IB_R_acceptor_beyond_ring);
                } else if (v_instance > hdr.paxos.instance) {
                    drop(IB_R_acceptor_raced);
                } else {
                    if (v_instance < hdr.paxos.instance) {
                        clear_slot();
                    }
                    if (v_promise > promise) {
                        applies = v_promise;
                        scope = IB_PAXOS_F_SLOT;
                        refused = IB_R_acceptor_nack_slot;
                    }
                    if (type == IB_PAXOS_LEARN) {
                        if (v_vround == 0) {
                            drop(IB_R_acceptor_learn_no_vote);
                        } else {
                            hdr.common.type = IB_PAXOS_PHASE2B;
                            hdr.common.flags = IB_PAXOS_F_REPEAT;
                            hdr.paxos.round = v_vround;
                            hdr.paxos.floor = floor;
                            load_value = true;
                            answer(IB_V_REPLY, IB_R_acceptor_learn_answered);
                        }
                    } else if (hdr.paxos.round < applies) {
                        refuse(applies, scope, refused);
                    } else if (type == IB_PAXOS_PHASE1A) {
                        v_promise = hdr.paxos.round;
                        store_vote = true;
                        hdr.common.type = IB_PAXOS_PHASE1B;
                        hdr.common.flags = IB_PAXOS_F_SLOT;
                        hdr.paxos.floor = floor;
                        no_value();
                        if (v_vround != 0) {
                            load_value = true;
                            hdr.common.flags = IB_PAXOS_F_SLOT | IB_PAXOS_F_VOTE;
                        }
                        answer(IB_V_REPLY, IB_R_acceptor_promised_slot);
                    } else {
                        hdr.common.type = IB_PAXOS_PHASE2B;
                        hdr.common.flags = flags & (IB_PAXOS_F_VALUE_MASK | IB_PAXOS_F_RECOVERY);
                        hdr.paxos.floor = floor;
                        answer(IB_V_GROUP, IB_R_acceptor_voted);
                        if ((flags & IB_PAXOS_F_RECOVERY) != 0) {
                            meta.verdict = IB_V_REPLY;
                        }
                        if (v_vround == hdr.paxos.round) {
                            load_value = true;
                            meta.reason = IB_R_acceptor_vote_repeated;
                        } else {
                            take_vote();
                            store_vote = true;
                            save_value = true;
                        }
                    }
                    if (load_value) {
                        show_vote();
                    }
                }
            } else if (type == IB_PAXOS_TRIM && (flags & IB_PAXOS_F_LEADER) == 0) {
                if ((bit<64>)hdr.paxos.epoch != epoch) {
                    drop(IB_R_wrong_epoch);
                } else if (hdr.paxos.floor <= floor) {
                    drop(IB_R_floor_known);
                } else {
                    raise_floor = true;
                    drop(IB_R_floor_raised);
                }
            } else if (type == IB_PAXOS_POSITION &&
                       (flags & (IB_PAXOS_F_LEADER | IB_PAXOS_F_ANSWER)) == 0) {
                hdr.common.flags = flags | IB_PAXOS_F_ANSWER;
                if (voting == 0) {
                    hdr.common.flags = flags | IB_PAXOS_F_ANSWER | IB_PAXOS_F_RECOVERING;
                }
                hdr.paxos.epoch = epoch[31:0];
                hdr.paxos.instance = highest;
                hdr.paxos.floor = floor;
                hdr.paxos.round = promise;
                answer(IB_V_REPLY, IB_R_position_answered);
            } else {
                answer(IB_V_PASS, IB_R_passed_up);
            }

            if (raise_promise) {
                promise_of.write(partition, hdr.paxos.round);
            }
            if (raise_floor) {
                floor_of.write(partition, hdr.paxos.floor);
            }
            if (save_value && hdr.paxos.instance > highest) {
                highest_of.write(partition, hdr.paxos.instance);
            }
            if (store_vote) {
                write_slot();
            }
            values.apply(hdr, slot, save_value, load_value);
        }
    }
}

IB_SWITCH(IbPaxosCheck, IbAcceptor);
