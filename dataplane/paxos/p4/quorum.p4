/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quorum.p4 - role_quorum.h and its part of shell.h, for v1model and TNA: one vote for each decided
 * instance goes to the host. Its value is not read, so it may have any length. The vote is counted as
 * delivered when it is sent to the host's port: there is no ring buffer that could be full.
 *
 * A packet passes each register array once, and what it does there depends on what it has found in
 * the arrays before, never on those behind. So, unlike in the C role:
 * - the votes that an instance lacks are counted down, instead of counting the members;
 * - a vote for a decided instance may still change its epoch, round, value and members. Nothing
 *   depends on them: the instance stays decided until a higher one takes its slot.
 *
 * A register's program gives the packet flags, of 32 bits as all that it gives. Conditions take one
 * bit of a flag, since p4c-barefoot refuses conditions on more than 4 bytes.
 */
#define IB_VALUE_TYPE 0 /* no type has a value that is read here */
#include "paxos.p4"
#include "../../ground/p4/registers.p4"

#define IB_P4_SLOTS (IB_P4_PARTITIONS * IB_P4_RING_SLOTS)

/* In count_lacking: the instance is decided. Else the word is the votes it lacks, less one. */
#define IB_P4_DECIDED 0xffffffff

#define IB_P4_READ(kept, a) a = kept;
/* Sets a to 1 if the packet has another epoch. */
#define IB_P4_COMPARE_EPOCH(kept, a)                                                               \
    a = 0;                                                                                         \
    if (kept != hdr.paxos.epoch) {                                                                 \
        a = 1;                                                                                     \
    }
#define IB_P4_SET_EPOCH(kept, a)                                                                   \
    IB_P4_COMPARE_EPOCH(kept, a)                                                                   \
    kept = hdr.paxos.epoch;

/* The larger of two numbers is kept. Sets a to 1 if it is the packet's, b to 1 if they are equal. */
#define IB_P4_RAISE(kept, a, b, number)                                                            \
    a = 0;                                                                                         \
    b = 0;                                                                                         \
    if (IB_IS_LESS(kept, number)) {                                                                \
        a = 1;                                                                                     \
        kept.high = number##_high;                                                                 \
        kept.low = number##_low;                                                                   \
    } else if (kept.high == number##_high && kept.low == number##_low) {                           \
        b = 1;                                                                                     \
    }
#define IB_P4_RAISE_INSTANCE(kept, a, b) IB_P4_RAISE(kept, a, b, hdr.paxos.instance)
#define IB_P4_RAISE_ROUND(kept, a, b) IB_P4_RAISE(kept, a, b, hdr.paxos.round)
#define IB_P4_SET_ROUND(kept, a, b)                                                                \
    a = 1;                                                                                         \
    b = 0;                                                                                         \
    kept.high = hdr.paxos.round_high;                                                              \
    kept.low = hdr.paxos.round_low;

/* The first vote's value counts. Comparing sets b to 1 if it is the packet's. */
#define IB_P4_SET_DIGEST(kept, a, b)                                                               \
    a = 0;                                                                                         \
    b = 0;                                                                                         \
    kept.high = hdr.paxos.digest_high;                                                             \
    kept.low = hdr.paxos.digest_low;
#define IB_P4_COMPARE_DIGEST(kept, a, b)                                                           \
    a = 0;                                                                                         \
    b = 0;                                                                                         \
    if (kept.high == hdr.paxos.digest_high && kept.low == hdr.paxos.digest_low) {                  \
        b = 1;                                                                                     \
    }

/* Adding sets a to the members before. */
#define IB_P4_SET_MEMBER(kept, a, b)                                                               \
    a = 0;                                                                                         \
    b = 0;                                                                                         \
    kept = member;
#define IB_P4_ADD_MEMBER(kept, a, b)                                                               \
    a = kept;                                                                                      \
    b = 0;                                                                                         \
    kept = kept | member;

/* All set a to 1 if the instance was decided, and b to 1 if it lacked one vote, which this one is. */
#define IB_P4_BEGIN_COUNT(kept, a, b)                                                              \
    a = 0;                                                                                         \
    b = 0;                                                                                         \
    kept = lacks;
#define IB_P4_BEGIN_COUNT_AGAIN(kept, a, b)                                                        \
    a = 0;                                                                                         \
    b = 0;                                                                                         \
    if (kept == IB_P4_DECIDED) {                                                                   \
        a = 1;                                                                                     \
    } else {                                                                                       \
        kept = lacks;                                                                              \
    }
#define IB_P4_COUNT_DOWN(kept, a, b)                                                               \
    a = 0;                                                                                         \
    b = 0;                                                                                         \
    if (kept == IB_P4_DECIDED) {                                                                   \
        a = 1;                                                                                     \
    } else {                                                                                       \
        if (kept == 0) {                                                                           \
            b = 1;                                                                                 \
        }                                                                                          \
        kept = kept - 1;                                                                           \
    }
#define IB_P4_READ_COUNT(kept, a, b)                                                               \
    a = 0;                                                                                         \
    b = 0;                                                                                         \
    if (kept == IB_P4_DECIDED) {                                                                   \
        a = 1;                                                                                     \
    }

control IbQuorum(inout headers_t hdr, inout meta_t meta) {
    bit<32> member;
    bit<32> lacks; /* after the first vote, less one */

    /* struct ib_quorum_config; a member's bit by node. */
    IB_WORD_ARRAY(epoch_of, ".epoch", 1, IB_P4_COMPARE_EPOCH)
    IB_WORD_ARRAY(majority_of, ".majority", 1, IB_P4_READ)
    IB_WORD_ARRAY(member_of, ".member", 256, IB_P4_READ)
    /* By slot. */
    IB_PAIR_REGISTER(count_instance, ".count_instance", IB_P4_SLOTS)
    IB_PAIR_ACTION(count_instance, raise, IB_P4_RAISE_INSTANCE)
    IB_WORD_ARRAY(count_epoch, ".count_epoch", IB_P4_SLOTS, IB_P4_SET_EPOCH)
    IB_PAIR_REGISTER(count_round, ".count_round", IB_P4_SLOTS)
    IB_PAIR_ACTION(count_round, set, IB_P4_SET_ROUND)
    IB_PAIR_ACTION(count_round, raise, IB_P4_RAISE_ROUND)
    IB_PAIR_REGISTER(count_digest, ".count_digest", IB_P4_SLOTS)
    IB_PAIR_ACTION(count_digest, set, IB_P4_SET_DIGEST)
    IB_PAIR_ACTION(count_digest, compare, IB_P4_COMPARE_DIGEST)
    IB_WORD_REGISTER(count_members, ".count_members", IB_P4_SLOTS)
    IB_WORD_ACTION(count_members, set, IB_P4_SET_MEMBER)
    IB_WORD_ACTION(count_members, add, IB_P4_ADD_MEMBER)
    IB_WORD_REGISTER(count_lacking, ".count_lacking", IB_P4_SLOTS)
    IB_WORD_ACTION(count_lacking, begin, IB_P4_BEGIN_COUNT)
    IB_WORD_ACTION(count_lacking, begin_again, IB_P4_BEGIN_COUNT_AGAIN)
    IB_WORD_ACTION(count_lacking, count, IB_P4_COUNT_DOWN)
    IB_WORD_ACTION(count_lacking, read, IB_P4_READ_COUNT)

    IB_INDEX_UNIT(slot_unit)
    bit<32> slot;
    bit<32> wrong_epoch;
    bit<32> majority;
    bit<32> instance_raised;
    bit<32> same_instance;
    bit<32> other_epoch;
    bit<32> begins = 0;
    bit<32> same_round = 0;
    bit<32> same_value = 0;
    bit<32> members = 0;
    bit<32> voted_before;
    bit<32> was_decided;
    bit<32> lacked_one;
    bit<32> ignored;

    action prepare() {
        lacks = majority - 2;
    }
    action compare_members() {
        voted_before = members & member;
    }
    action drop(bit<16> reason) {
        meta.verdict = IB_V_DROP;
        meta.reason = reason;
    }
    action pass(bit<16> reason) {
        meta.verdict = IB_V_PASS;
        meta.reason = reason;
    }

    apply {
        /* In range: IbFrameCheck has refused other partitions, a ring is a power of two. */
        IB_INDEX(slot, slot_unit, hdr.common.partition,
                 hdr.paxos.instance_low[IB_P4_RING_SLOTS_BITS - 1 : 0])
        IB_WORD_STEP(epoch_of, 0, IB_P4_COMPARE_EPOCH, wrong_epoch)
        IB_WORD_STEP(majority_of, 0, IB_P4_READ, majority)
        IB_WORD_STEP(member_of, (bit<32>)hdr.common.node[7:0], IB_P4_READ, member)
        prepare();

        if (hdr.common.type != IB_PAXOS_PHASE2B ||
            (hdr.common.flags & (IB_PAXOS_F_REPEAT | IB_PAXOS_F_RECOVERY)) != 0) {
            pass(IB_R_passed_up);
        } else if (wrong_epoch[0:0] == 1) {
            drop(IB_R_wrong_epoch);
        } else if (member[15:0] == 0) {
            drop(IB_R_quorum_not_member);
        } else {
            IB_PAIR_BEGIN(count_instance, slot)
            IB_EXECUTE(count_instance, raise, slot, IB_P4_RAISE_INSTANCE, instance_raised,
                       same_instance)
            IB_PAIR_END(count_instance, slot)
            if (instance_raised[0:0] == 0 && same_instance[0:0] == 0) {
                drop(IB_R_quorum_old_instance);
            } else {
                IB_WORD_STEP(count_epoch, slot, IB_P4_SET_EPOCH, other_epoch)

                IB_PAIR_BEGIN(count_round, slot)
                if (instance_raised[0:0] == 1 || other_epoch[0:0] == 1) {
                    IB_EXECUTE(count_round, set, slot, IB_P4_SET_ROUND, begins, same_round)
                } else {
                    IB_EXECUTE(count_round, raise, slot, IB_P4_RAISE_ROUND, begins, same_round)
                }
                IB_PAIR_END(count_round, slot)

                IB_PAIR_BEGIN(count_digest, slot)
                if (begins[0:0] == 1) {
                    IB_EXECUTE(count_digest, set, slot, IB_P4_SET_DIGEST, ignored, same_value)
                } else if (same_round[0:0] == 1) {
                    IB_EXECUTE(count_digest, compare, slot, IB_P4_COMPARE_DIGEST, ignored,
                               same_value)
                }
                IB_PAIR_END(count_digest, slot)

                IB_WORD_BEGIN(count_members, slot)
                if (begins[0:0] == 1) {
                    IB_EXECUTE(count_members, set, slot, IB_P4_SET_MEMBER, members, ignored)
                } else if (same_value[0:0] == 1) {
                    IB_EXECUTE(count_members, add, slot, IB_P4_ADD_MEMBER, members, ignored)
                }
                IB_WORD_END(count_members, slot)
                compare_members();

                IB_WORD_BEGIN(count_lacking, slot)
                if (instance_raised[0:0] == 1) {
                    IB_EXECUTE(count_lacking, begin, slot, IB_P4_BEGIN_COUNT, was_decided,
                               lacked_one)
                } else if (begins[0:0] == 1) {
                    IB_EXECUTE(count_lacking, begin_again, slot, IB_P4_BEGIN_COUNT_AGAIN, was_decided,
                               lacked_one)
                } else if (same_value[0:0] == 1 && voted_before[15:0] == 0) {
                    IB_EXECUTE(count_lacking, count, slot, IB_P4_COUNT_DOWN, was_decided,
                               lacked_one)
                } else {
                    IB_EXECUTE(count_lacking, read, slot, IB_P4_READ_COUNT, was_decided, lacked_one)
                }
                IB_WORD_END(count_lacking, slot)

                if (was_decided[0:0] == 1) {
                    drop(IB_R_quorum_late);
                } else if (begins[0:0] == 1) {
                    if (lacks == IB_P4_DECIDED) {
                        pass(IB_R_quorum_reached);
                    } else {
                        drop(IB_R_quorum_counted);
                    }
                } else if (same_round[0:0] == 0) {
                    drop(IB_R_quorum_lower_round);
                } else if (same_value[0:0] == 0) {
                    drop(IB_R_quorum_other_value);
                } else if (voted_before[15:0] != 0) {
                    drop(IB_R_quorum_duplicate);
                } else if (lacked_one[0:0] == 1) {
                    pass(IB_R_quorum_reached);
                } else {
                    drop(IB_R_quorum_counted);
                }
            }
        }
    }
}

IB_SWITCH(IbPaxosCheck, IbQuorum);
