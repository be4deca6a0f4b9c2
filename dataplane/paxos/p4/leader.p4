/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leader.p4 - role_leader.h and its part of shell.h, for v1model and TNA. The switch handles one packet
 * at a time, so no instance is given twice, and round, epoch and next instance belong together without
 * a second read of the round.
 *
 * A packet passes each register array once, and what it does there depends on what it has found in the
 * arrays before. One program of an array can compare an entry with one number of 64 bits, but a request
 * compares the next instance with two: the floor, which it must not be below, and the window's end. So
 * there is an array more than the C role has registers, `available`: the larger of `next` and `floor`.
 * Whoever raises one of them raises it, so that a request compares it with the window's end only, and
 * takes its instance there. `next` follows: it is what others see.
 *
 * A Tofino cannot check a value, and does not read it, so there it may have any length.
 */
#ifdef __TARGET_TOFINO__
#define IB_VALUE_TYPE 0
#else
#define IB_VALUE_TYPE IB_PAXOS_REQUEST
#endif
#define IB_REPLIES
#include "paxos.p4"
#include "../../ground/p4/registers.p4"

/* What a packet is to the leader. */
#define IB_P4_FOR_HOST 0
#define IB_P4_REQUEST 1
#define IB_P4_NACK 2
#define IB_P4_TRIM 3
#define IB_P4_POSITION 4

/* Sets a to the epoch, b to 1 if the packet's is newer, c to 1 if it is the same. */
#define IB_P4_COMPARE_EPOCH(kept, a, b, c)                                                         \
    a = kept;                                                                                      \
    b = 0;                                                                                         \
    c = 0;                                                                                         \
    if (kept < hdr.paxos.epoch) {                                                                  \
        b = 1;                                                                                     \
    }                                                                                              \
    if (kept == hdr.paxos.epoch) {                                                                 \
        c = 1;                                                                                     \
    }

/* A number. */
#define IB_P4_READ(kept, a, b, c)                                                                  \
    a = 0;                                                                                         \
    b = kept.high;                                                                                 \
    c = kept.low;

/* Both end the round, and set a to 1 then, the second only if the packet's round is higher. They set b
 * and c to what it was: a program that compares it with two numbers is too long. */
#define IB_P4_FENCE(kept, a, b, c)                                                                 \
    a = 1;                                                                                         \
    b = kept.high;                                                                                 \
    c = kept.low;                                                                                  \
    kept.high = 0;                                                                                 \
    kept.low = 0;
#define IB_P4_DEPOSE(kept, a, b, c)                                                                \
    a = 0;                                                                                         \
    b = kept.high;                                                                                 \
    c = kept.low;                                                                                  \
    if (IB_IS_LESS(kept, hdr.paxos.round)) {                                                       \
        a = 1;                                                                                     \
        kept.high = 0;                                                                             \
        kept.low = 0;                                                                              \
    }

/* A floor: sets a to 1 if the low word of the window's end has a carry. */
#define IB_P4_READ_FLOOR(kept, a, b, c)                                                            \
    a = 0;                                                                                         \
    b = kept.high;                                                                                 \
    c = kept.low;                                                                                  \
    if (kept.low >= 0x100000000 - IB_P4_RING_SLOTS) {                                              \
        a = 1;                                                                                     \
    }
/* Keeps the larger of two numbers. Sets a to 1 if it is the packet's. */
#define IB_P4_RAISE(kept, a, b, c)                                                                 \
    a = 0;                                                                                         \
    b = kept.high;                                                                                 \
    c = kept.low;                                                                                  \
    if (IB_IS_LESS(kept, hdr.paxos.floor)) {                                                       \
        a = 1;                                                                                     \
        kept.high = hdr.paxos.floor_high;                                                          \
        kept.low = hdr.paxos.floor_low;                                                            \
    }

/* The larger of an entry and a bound is kept. */
#define IB_P4_LIFT(kept, a, b, c)                                                                  \
    a = 0;                                                                                         \
    b = 0;                                                                                         \
    c = 0;                                                                                         \
    if (IB_IS_LESS(kept, bound)) {                                                                 \
        kept.high = bound_high;                                                                    \
        kept.low = bound_low;                                                                      \
    }
/* Takes an instance below the bound: b and c. Sets a to 1 if there was one. */
#define IB_P4_TAKE(kept, a, b, c)                                                                  \
    a = 0;                                                                                         \
    b = kept.high;                                                                                 \
    c = kept.low;                                                                                  \
    if (IB_IS_LESS(kept, bound)) {                                                                 \
        a = 1;                                                                                     \
        if (kept.low == 0xffffffff) {                                                              \
            kept.high = kept.high + 1;                                                             \
        }                                                                                          \
        kept.low = kept.low + 1;                                                                   \
    }
/* Keeps the number behind the instance that was taken. */
#define IB_P4_FOLLOW(kept, a, b, c)                                                                \
    a = 0;                                                                                         \
    b = 0;                                                                                         \
    c = 0;                                                                                         \
    if (instance_low == 0xffffffff) {                                                              \
        kept.high = instance_high + 1;                                                             \
    } else {                                                                                       \
        kept.high = instance_high;                                                                 \
    }                                                                                              \
    kept.low = instance_low + 1;

control IbLeader(inout headers_t hdr, inout meta_t meta) {
    /* Of the next instance: the end of the window, or the new floor. An array's programs take their
     * numbers from one place, or p4c-barefoot finds no room for them on the input crossbar. */
    bit<32> bound_high;
    bit<32> bound_low;
    bit<32> instance_high = 0;
    bit<32> instance_low = 0;

    /* struct ib_leader_regs, by partition. */
    IB_WORD_REGISTER(epoch_of, ".epoch", IB_P4_PARTITIONS)
    IB_WORD_ACTION_3(epoch_of, compare, IB_P4_COMPARE_EPOCH)
    IB_PAIR_REGISTER(round_of, ".round", IB_P4_PARTITIONS)
    IB_PAIR_ACTION_3(round_of, read, IB_P4_READ)
    IB_PAIR_ACTION_3(round_of, fence, IB_P4_FENCE)
    IB_PAIR_ACTION_3(round_of, depose, IB_P4_DEPOSE)
    IB_PAIR_REGISTER(floor_of, ".floor", IB_P4_PARTITIONS)
    IB_PAIR_ACTION_3(floor_of, read, IB_P4_READ_FLOOR)
    IB_PAIR_ACTION_3(floor_of, raise, IB_P4_RAISE)
    IB_PAIR_REGISTER(available_of, ".available", IB_P4_PARTITIONS)
    IB_PAIR_ACTION_3(available_of, take, IB_P4_TAKE)
    IB_PAIR_ACTION_3(available_of, lift, IB_P4_LIFT)
    IB_PAIR_REGISTER(next_of, ".next", IB_P4_PARTITIONS)
    IB_PAIR_ACTION_3(next_of, read, IB_P4_READ)
    IB_PAIR_ACTION_3(next_of, follow, IB_P4_FOLLOW)

#if IB_VALUE_TYPE
    IbValueCheck() value_check;
#endif

    bit<32> partition;
    bit<8> kind = IB_P4_FOR_HOST;
    bit<32> epoch;
    bit<32> newer_epoch;
    bit<32> same_epoch;
    bit<32> ended;
    bit<32> round_high;
    bit<32> round_low;
    bit<32> has_round; /* not 0: yes */
    bit<32> carries = 0;
    bit<32> raised = 0;
    bit<32> floor_high;
    bit<32> floor_low;
    bit<32> taken = 0;
    bit<32> next_high = 0;
    bit<32> next_low = 0;
    bit<32> ignored;

    action end_of_window() {
        bound_high = floor_high;
        bound_low = floor_low + IB_P4_RING_SLOTS;
    }
    action end_of_window_with_carry() {
        bound_high = floor_high + 1;
        bound_low = floor_low + IB_P4_RING_SLOTS;
    }
    action new_floor() {
        bound_high = hdr.paxos.floor_high;
        bound_low = hdr.paxos.floor_low;
    }
    action find_round() {
        has_round = round_high | round_low;
    }
    action stamp() {
        hdr.common.node = meta.node;
        hdr.paxos.epoch = epoch;
        hdr.paxos.floor_high = floor_high;
        hdr.paxos.floor_low = floor_low;
        hdr.paxos.round_high = round_high;
        hdr.paxos.round_low = round_low;
    }
    action answer(bit<8> verdict, bit<16> reason) {
        meta.verdict = verdict;
        meta.reason = reason;
    }

    apply {
        partition = (bit<32>)hdr.common.partition;
        if (hdr.common.type == IB_PAXOS_REQUEST) {
            kind = IB_P4_REQUEST;
#if IB_VALUE_TYPE
            value_check.apply(hdr, meta);
#endif
        } else if ((hdr.common.flags & IB_PAXOS_F_LEADER) == 0) {
            if (hdr.common.type == IB_PAXOS_NACK) {
                kind = IB_P4_NACK;
            }
        } else if (hdr.common.type == IB_PAXOS_TRIM) {
            kind = IB_P4_TRIM;
        } else if (hdr.common.type == IB_PAXOS_POSITION &&
                   (hdr.common.flags & IB_PAXOS_F_ANSWER) == 0) {
            kind = IB_P4_POSITION;
        }
        if (meta.reason == IB_R_none) {
            IB_WORD_BEGIN(epoch_of, partition)
            IB_EXECUTE_3(epoch_of, compare, partition, IB_P4_COMPARE_EPOCH, epoch, newer_epoch,
                         same_epoch)
            IB_WORD_END(epoch_of, partition)

            /* Only a promise for the whole partition deposes a leader, or a newer epoch. */
            IB_PAIR_BEGIN(round_of, partition)
            if (kind == IB_P4_NACK && newer_epoch[0:0] == 1) {
                IB_EXECUTE_3(round_of, fence, partition, IB_P4_FENCE, ended, round_high, round_low)
            } else if (kind == IB_P4_NACK && same_epoch[0:0] == 1 &&
                       (hdr.common.flags & (IB_PAXOS_F_SLOT | IB_PAXOS_F_BELOW_FLOOR)) == 0) {
                IB_EXECUTE_3(round_of, depose, partition, IB_P4_DEPOSE, ended, round_high, round_low)
            } else {
                IB_EXECUTE_3(round_of, read, partition, IB_P4_READ, ended, round_high, round_low)
            }
            IB_PAIR_END(round_of, partition)
            find_round();

            IB_PAIR_BEGIN(floor_of, partition)
            if (kind == IB_P4_TRIM && same_epoch[0:0] == 1) {
                IB_EXECUTE_3(floor_of, raise, partition, IB_P4_RAISE, raised, floor_high, floor_low)
            } else {
                IB_EXECUTE_3(floor_of, read, partition, IB_P4_READ_FLOOR, carries, floor_high,
                             floor_low)
            }
            IB_PAIR_END(floor_of, partition)
            if (kind == IB_P4_TRIM) {
                new_floor();
            } else if (carries[0:0] == 1) {
                end_of_window_with_carry();
            } else {
                end_of_window();
            }

            IB_PAIR_BEGIN(available_of, partition)
            if (kind == IB_P4_REQUEST && has_round != 0) {
                IB_EXECUTE_3(available_of, take, partition, IB_P4_TAKE, taken, instance_high,
                             instance_low)
            } else if (raised[0:0] == 1) {
                IB_EXECUTE_3(available_of, lift, partition, IB_P4_LIFT, ignored, instance_high,
                             instance_low)
            }
            IB_PAIR_END(available_of, partition)

            IB_PAIR_BEGIN(next_of, partition)
            if (taken[0:0] == 1) {
                IB_EXECUTE_3(next_of, follow, partition, IB_P4_FOLLOW, ignored, next_high, next_low)
            } else {
                IB_EXECUTE_3(next_of, read, partition, IB_P4_READ, ignored, next_high, next_low)
            }
            IB_PAIR_END(next_of, partition)

            if (kind == IB_P4_REQUEST) {
                stamp();
                if (has_round == 0) {
                    hdr.common.type = IB_PAXOS_NACK;
                    hdr.common.flags = hdr.common.flags | IB_PAXOS_F_LEADER;
                    answer(IB_V_REPLY, IB_R_leader_not_active);
                } else if (taken[0:0] == 0) {
                    hdr.common.type = IB_PAXOS_BUSY;
                    answer(IB_V_REPLY, IB_R_leader_window_full);
                } else {
                    hdr.common.type = IB_PAXOS_PHASE2A;
                    hdr.common.flags = hdr.common.flags & IB_PAXOS_F_VALUE_MASK;
                    hdr.paxos.instance_high = instance_high;
                    hdr.paxos.instance_low = instance_low;
                    hdr.paxos.vround = 0;
                    answer(IB_V_GROUP, IB_R_leader_stamped);
                }
            } else if (kind == IB_P4_NACK) {
                if (ended[0:0] == 1 && has_round != 0) {
                    answer(IB_V_PASS, IB_R_leader_deposed);
                } else {
                    answer(IB_V_PASS, IB_R_passed_up);
                }
            } else if (kind == IB_P4_TRIM) {
                if (same_epoch[0:0] == 0) {
                    answer(IB_V_DROP, IB_R_wrong_epoch);
                } else if (raised[0:0] == 0) {
                    answer(IB_V_DROP, IB_R_floor_known);
                } else {
                    answer(IB_V_DROP, IB_R_floor_raised);
                }
            } else if (kind == IB_P4_POSITION) {
                stamp();
                hdr.common.flags = hdr.common.flags | IB_PAXOS_F_ANSWER;
                hdr.paxos.instance_high = next_high;
                hdr.paxos.instance_low = next_low;
                answer(IB_V_REPLY, IB_R_position_answered);
            } else {
                answer(IB_V_PASS, IB_R_passed_up);
            }
        }
    }
}

IB_SWITCH(IbPaxosCheck, IbLeader);
