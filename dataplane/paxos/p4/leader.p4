/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leader.p4 - role_leader.h and its part of shell.h, for v1model. A packet reads and writes each
 * register array at most once. The ingress thread of the switch handles one packet at a time, so
 * round, epoch and next instance belong together without a second read of the round.
 */
#define IB_VALUE_TYPE IB_PAXOS_REQUEST
#include "paxos.p4"

control IbLeader(inout headers_t hdr, inout meta_t meta) {
    /* struct ib_leader_regs, by partition. */
    @name(".round") register<bit<64>>(IB_P4_PARTITIONS) round_of;
    @name(".next") register<bit<64>>(IB_P4_PARTITIONS) next_of;
    @name(".floor") register<bit<64>>(IB_P4_PARTITIONS) floor_of;
    @name(".epoch") register<bit<64>>(IB_P4_PARTITIONS) epoch_of;

    IbValueCheck() value_check;

    bit<64> round;
    bit<64> next;
    bit<64> floor;
    bit<64> epoch;
    bit<32> partition;

    action answer(bit<8> verdict, bit<16> reason) {
        meta.verdict = verdict;
        meta.reason = reason;
    }
    action read_partition() {
        round_of.read(round, partition);
        next_of.read(next, partition);
        floor_of.read(floor, partition);
        epoch_of.read(epoch, partition);
    }
    action stamp() {
        hdr.paxos.epoch = epoch[31:0];
        hdr.paxos.floor = floor;
        hdr.paxos.round = round;
    }

    apply {
        bit<8> type = hdr.common.type;
        bit<16> flags = hdr.common.flags;
        bool to_leader = (flags & IB_PAXOS_F_LEADER) != 0;
        bool take_instance = false;
        bool depose = false;
        bool raise_floor = false;

        partition = (bit<32>)hdr.common.partition;
        if (type == IB_PAXOS_REQUEST) {
            value_check.apply(hdr, meta);
        }
        if (meta.reason == IB_R_none) {
            read_partition();
            if (type == IB_PAXOS_REQUEST) {
                stamp();
                if (next < floor) {
                    next = floor;
                }
                if (round == 0) {
                    hdr.common.type = IB_PAXOS_NACK;
                    hdr.common.flags = flags | IB_PAXOS_F_LEADER;
                    answer(IB_V_REPLY, IB_R_leader_not_active);
                } else if (next >= floor + IB_P4_RING_SLOTS) {
                    hdr.common.type = IB_PAXOS_BUSY;
                    answer(IB_V_REPLY, IB_R_leader_window_full);
                } else {
                    hdr.common.type = IB_PAXOS_PHASE2A;
                    hdr.common.flags = flags & IB_PAXOS_F_VALUE_MASK;
                    hdr.paxos.instance = next;
                    hdr.paxos.vround = 0;
                    take_instance = true;
                    answer(IB_V_GROUP, IB_R_leader_stamped);
                }
            } else if (type == IB_PAXOS_NACK) {
                /* Only a promise for the whole partition deposes a leader, or a newer epoch. */
                bit<64> by = (bit<64>)hdr.paxos.epoch;
                answer(IB_V_PASS, IB_R_passed_up);
                if (!to_leader && round != 0 &&
                    (by > epoch ||
                     (by == epoch && hdr.paxos.round > round &&
                      (flags & (IB_PAXOS_F_SLOT | IB_PAXOS_F_BELOW_FLOOR)) == 0))) {
                    depose = true;
                    answer(IB_V_PASS, IB_R_leader_deposed);
                }
            } else if (type == IB_PAXOS_TRIM && to_leader) {
                if ((bit<64>)hdr.paxos.epoch != epoch) {
                    answer(IB_V_DROP, IB_R_wrong_epoch);
                } else if (hdr.paxos.floor <= floor) {
                    answer(IB_V_DROP, IB_R_floor_known);
                } else {
                    raise_floor = true;
                    answer(IB_V_DROP, IB_R_floor_raised);
                }
            } else if (type == IB_PAXOS_POSITION && to_leader &&
                       (flags & IB_PAXOS_F_ANSWER) == 0) {
                stamp();
                hdr.common.flags = flags | IB_PAXOS_F_ANSWER;
                hdr.paxos.instance = next;
                answer(IB_V_REPLY, IB_R_position_answered);
            } else {
                answer(IB_V_PASS, IB_R_passed_up);
            }

            if (take_instance) {
                next_of.write(partition, next + 1);
            }
            if (depose) {
                round_of.write(partition, 0);
            }
            if (raise_floor) {
                floor_of.write(partition, hdr.paxos.floor);
            }
        }
    }
}

IB_SWITCH(IbPaxosCheck, IbLeader);
