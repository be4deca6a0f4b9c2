/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quorum.p4 - role_quorum.h and its part of shell.h, for v1model: one vote for each decided instance
 * goes to the host. Its value is not read, so it may have any length. The vote is counted as
 * delivered when it is sent to the host's port: there is no ring buffer that could be full.
 */
#define IB_VALUE_TYPE 0 /* no type has a value that is read here */
#include "paxos.p4"

#define IB_P4_SLOTS (IB_P4_PARTITIONS * IB_P4_RING_SLOTS)

/* A member's bit, added up. */
#define IB_P4_BIT(i) ((bit<8>)members[i:i])

control IbQuorum(inout headers_t hdr, inout meta_t meta) {
    /* struct ib_quorum_config. */
    @name(".epoch") register<bit<64>>(1) epoch_of;
    @name(".majority") register<bit<64>>(1) majority_of;
    @name(".member_bit") register<bit<64>>(256) member_bit;
    /* struct ib_count, by slot. */
    @name(".count_instance") register<bit<64>>(IB_P4_SLOTS) count_instance;
    @name(".count_epoch") register<bit<64>>(IB_P4_SLOTS) count_epoch;
    @name(".count_round") register<bit<64>>(IB_P4_SLOTS) count_round;
    @name(".count_digest") register<bit<64>>(IB_P4_SLOTS) count_digest;
    @name(".count_members") register<bit<64>>(IB_P4_SLOTS) count_members;
    @name(".count_done") register<bit<64>>(IB_P4_SLOTS) count_done;

    bit<64> epoch;
    bit<64> majority;
    bit<64> member;
    bit<64> instance;
    bit<64> epoch_counted;
    bit<64> round;
    bit<64> of_value;
    bit<64> members;
    bit<64> done;
    bit<32> slot;

    action drop(bit<16> reason) {
        meta.verdict = IB_V_DROP;
        meta.reason = reason;
    }
    action read_count() {
        epoch_of.read(epoch, 0);
        majority_of.read(majority, 0);
        member_bit.read(member, (bit<32>)(hdr.common.node & 0xff));
        count_instance.read(instance, slot);
        count_epoch.read(epoch_counted, slot);
        count_round.read(round, slot);
        count_digest.read(of_value, slot);
        count_members.read(members, slot);
        count_done.read(done, slot);
    }
    action write_count() {
        count_instance.write(slot, instance);
        count_epoch.write(slot, epoch_counted);
        count_round.write(slot, round);
        count_digest.write(slot, of_value);
        count_members.write(slot, members);
        count_done.write(slot, done);
    }
    action begin_count() {
        instance = hdr.paxos.instance;
        epoch_counted = epoch;
        round = hdr.paxos.round;
        of_value = hdr.paxos.digest;
        members = 0;
        done = 0;
    }

    apply {
        bool counts = hdr.common.type == IB_PAXOS_PHASE2B &&
                      (hdr.common.flags & (IB_PAXOS_F_REPEAT | IB_PAXOS_F_RECOVERY)) == 0;
        bool store = false;

        /* Both in range: IbFrameCheck has refused other partitions, a ring is a power of two. */
        slot = (bit<32>)hdr.common.partition * IB_P4_RING_SLOTS +
               (hdr.paxos.instance[31:0] & (IB_P4_RING_SLOTS - 1));
        if (!counts) {
            meta.verdict = IB_V_PASS;
            meta.reason = IB_R_passed_up;
        } else {
            read_count();
            if ((bit<64>)hdr.paxos.epoch != epoch) {
                drop(IB_R_wrong_epoch);
            } else if (member == 0) {
                drop(IB_R_quorum_not_member);
            } else if (hdr.paxos.instance < instance) {
                drop(IB_R_quorum_old_instance);
            } else if (hdr.paxos.instance == instance && done != 0) {
                drop(IB_R_quorum_late);
            } else {
                if (hdr.paxos.instance > instance || epoch_counted != epoch ||
                    hdr.paxos.round > round) {
                    begin_count();
                    store = true;
                }
                bit<64> of_member = 64w1 << (bit<8>)((member - 1) & 63);
                if (hdr.paxos.round < round) {
                    drop(IB_R_quorum_lower_round);
                } else if (hdr.paxos.digest != of_value) {
                    drop(IB_R_quorum_other_value);
                } else if ((members & of_member) != 0) {
                    drop(IB_R_quorum_duplicate);
                } else {
                    members = members | of_member;
                    store = true;
                    /* IB_ACCEPTORS_MAX bits. */
                    bit<8> size = IB_P4_BIT(0) + IB_P4_BIT(1) + IB_P4_BIT(2) + IB_P4_BIT(3) +
                                  IB_P4_BIT(4) + IB_P4_BIT(5) + IB_P4_BIT(6) + IB_P4_BIT(7) +
                                  IB_P4_BIT(8) + IB_P4_BIT(9) + IB_P4_BIT(10) + IB_P4_BIT(11) +
                                  IB_P4_BIT(12) + IB_P4_BIT(13) + IB_P4_BIT(14) + IB_P4_BIT(15);
                    if ((bit<64>)size < majority) {
                        drop(IB_R_quorum_counted);
                    } else {
                        done = 1;
                        meta.verdict = IB_V_PASS;
                        meta.reason = IB_R_quorum_reached;
                    }
                }
            }
            if (store) {
                write_count();
            }
        }
    }
}

IB_SWITCH(IbPaxosCheck, IbQuorum);
