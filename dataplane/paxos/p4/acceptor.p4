/* SPDX-License-Identifier: Apache-2.0 */
/*
 * acceptor.p4 - role_acceptor.h and its part of shell.h, for v1model and TNA.
 *
 * A packet passes each register array once, and what it does there depends on what it has found in the
 * arrays before. The switch handles packets in the same order in every array, so the result is that of
 * one packet after the other: neither locks nor a second read of the promise are needed. An array is
 * only changed by a packet that no array behind it can refuse:
 * - voting and epoch are never changed;
 * - the partition's promise and its floor are changed by packets that no other array decides on;
 * - a slot's instance is raised only in a round that the partition's promise allows. It is the slot's
 *   own promise that could refuse, and a slot with a new instance has none;
 * - a slot's promise is raised by the packet that passes it. A vote of the same round is repeated then,
 *   and has raised nothing.
 *
 * A Tofino cannot check a value, and its longest value is shorter. p4c-barefoot tries each way to cut
 * words of 32 bits where anything that is copied to or from them is cut, also by a condition on some of
 * their bits. So nothing here is cut: masks take the bits, and what is shorter has an array of its own.
 */
#define IB_VALUE_TYPE IB_PAXOS_PHASE2A
#define IB_VOTES_IN_WORDS
#define IB_REPLIES
/* What is known of a packet before the arrays: a switch finds it beside the checks. */
#define IB_OWN_META                                                                                \
    bit<8> kind;                                                                                   \
    bit<32> partition;                                                                             \
    bit<32> slot;                                                                                  \
    bit<16> kept_flags;                                                                            \
    bit<16> value_flags;                                                                           \
    bit<16> recovery_flag;                                                                         \
    bit<32> votes;                                                                                 \
    bit<32> epoch;                                                                                 \
    bit<32> newer_epoch;                                                                           \
    bit<32> same_epoch;                                                                            \
    bit<32> has_instance;  /* not 0: yes */                                                        \
    bit<32> has_round;                                                                             \
    bit<32> bound_high;    /* what the floor is compared with: an instance, or the new floor */    \
    bit<32> bound_low;
#include "paxos.p4"
#include "../../ground/p4/registers.p4"

#define IB_P4_SLOTS (IB_P4_PARTITIONS * IB_P4_RING_SLOTS)

/* What a packet is to the acceptor. */
#define IB_P4_FOR_HOST 0
#define IB_P4_VOTE 1
#define IB_P4_PROMISE_SLOT 2
#define IB_P4_LEARN 3
#define IB_P4_PROMISE 4
#define IB_P4_TRIM 5
#define IB_P4_POSITION 6
#define IB_P4_TOO_LONG 7

/* Whether an entry of two words is more than the number in number_high and number_low. */
#define IB_P4_IS_MORE(kept, number)                                                                \
    (kept.high > number##_high || (kept.high == number##_high && kept.low > number##_low))

/* Sets a to 1 if the acceptor votes. */
#define IB_P4_READ_VOTING(kept, a)                                                                 \
    a = 0;                                                                                         \
    if (kept != 0) {                                                                               \
        a = 1;                                                                                     \
    }
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

/* A promise, in b and c: both set a to 1 if it is for more than this number, and the second keeps the
 * number otherwise. */
#define IB_P4_READ_PROMISE(kept, a, b, c, number)                                                  \
    a = 0;                                                                                         \
    b = kept.high;                                                                                 \
    c = kept.low;                                                                                  \
    if (IB_P4_IS_MORE(kept, number)) {                                                             \
        a = 1;                                                                                     \
    }
#define IB_P4_RAISE_PROMISE(kept, a, b, c, number)                                                 \
    a = 0;                                                                                         \
    b = kept.high;                                                                                 \
    c = kept.low;                                                                                  \
    if (IB_P4_IS_MORE(kept, number)) {                                                             \
        a = 1;                                                                                     \
    } else {                                                                                       \
        kept.high = number##_high;                                                                 \
        kept.low = number##_low;                                                                   \
    }
#define IB_P4_READ_OF_PARTITION(kept, a, b, c) IB_P4_READ_PROMISE(kept, a, b, c, hdr.paxos.round)
#define IB_P4_RAISE_OF_PARTITION(kept, a, b, c) IB_P4_RAISE_PROMISE(kept, a, b, c, hdr.paxos.round)
#define IB_P4_READ_OF_SLOT(kept, a, b, c) IB_P4_READ_PROMISE(kept, a, b, c, least)
#define IB_P4_RAISE_OF_SLOT(kept, a, b, c) IB_P4_RAISE_PROMISE(kept, a, b, c, least)
#define IB_P4_SET_OF_SLOT(kept, a, b, c)                                                           \
    a = 0;                                                                                         \
    b = 0;                                                                                         \
    c = 0;                                                                                         \
    kept.high = least_high;                                                                        \
    kept.low = least_low;

/* The floor, in b and c. Reading sets a to 1 if the bound is below it, raising if it was raised. */
#define IB_P4_READ_FLOOR(kept, a, b, c) IB_P4_READ_PROMISE(kept, a, b, c, meta.bound)
#define IB_P4_RAISE_FLOOR(kept, a, b, c)                                                           \
    a = 0;                                                                                         \
    b = kept.high;                                                                                 \
    c = kept.low;                                                                                  \
    if (IB_IS_LESS(kept, meta.bound)) {                                                            \
        a = 1;                                                                                     \
        kept.high = meta.bound_high;                                                               \
        kept.low = meta.bound_low;                                                                 \
    }

/* A slot's instance: both set a to 1 if it is below the packet's, and b to 1 if they are equal. */
#define IB_P4_COMPARE_INSTANCE(kept, a, b)                                                         \
    a = 0;                                                                                         \
    b = 0;                                                                                         \
    if (IB_IS_LESS(kept, hdr.paxos.instance)) {                                                    \
        a = 1;                                                                                     \
    } else if (kept.high == hdr.paxos.instance_high && kept.low == hdr.paxos.instance_low) {       \
        b = 1;                                                                                     \
    }
#define IB_P4_RAISE_INSTANCE(kept, a, b)                                                           \
    a = 0;                                                                                         \
    b = 0;                                                                                         \
    if (IB_IS_LESS(kept, hdr.paxos.instance)) {                                                    \
        a = 1;                                                                                     \
        kept.high = hdr.paxos.instance_high;                                                       \
        kept.low = hdr.paxos.instance_low;                                                         \
    } else if (kept.high == hdr.paxos.instance_high && kept.low == hdr.paxos.instance_low) {       \
        b = 1;                                                                                     \
    }

/* The round of a slot's vote. Reading sets a to 1 if there is one, in b and c; replacing it, if it is of
 * the packet's round already. */
#define IB_P4_READ_VROUND(kept, a, b, c)                                                           \
    a = 0;                                                                                         \
    b = kept.high;                                                                                 \
    c = kept.low;                                                                                  \
    if (kept.high != 0 || kept.low != 0) {                                                         \
        a = 1;                                                                                     \
    }
#define IB_P4_REPLACE_VROUND(kept, a, b, c)                                                        \
    a = 0;                                                                                         \
    b = 0;                                                                                         \
    c = 0;                                                                                         \
    if (kept.high == least_high && kept.low == least_low) {                                        \
        a = 1;                                                                                     \
    }                                                                                              \
    kept.high = least_high;                                                                        \
    kept.low = least_low;
#define IB_P4_CLEAR_VROUND(kept, a, b, c)                                                          \
    a = 0;                                                                                         \
    b = 0;                                                                                         \
    c = 0;                                                                                         \
    kept.high = 0;                                                                                 \
    kept.low = 0;

/* The highest instance with a vote, in b and c. */
#define IB_P4_READ(kept, a, b, c)                                                                  \
    a = 0;                                                                                         \
    b = kept.high;                                                                                 \
    c = kept.low;
#define IB_P4_RAISE_HIGHEST(kept, a, b, c)                                                         \
    a = 0;                                                                                         \
    b = kept.high;                                                                                 \
    c = kept.low;                                                                                  \
    if (IB_IS_LESS(kept, hdr.paxos.instance)) {                                                    \
        kept.high = hdr.paxos.instance_high;                                                       \
        kept.low = hdr.paxos.instance_low;                                                         \
    }

/* Two words of a vote or of its value. */
#define IB_P4_SAVE(kept, a, b, word_high, word_low)                                                \
    a = 0;                                                                                         \
    b = 0;                                                                                         \
    kept.high = word_high;                                                                         \
    kept.low = word_low;
#define IB_P4_LOAD(kept, a, b)                                                                     \
    a = kept.high;                                                                                 \
    b = kept.low;

#define IB_P4_SAVE_DIGEST(kept, a, b)                                                              \
    IB_P4_SAVE(kept, a, b, hdr.paxos.digest_high, hdr.paxos.digest_low)
#define IB_P4_SAVE_CLIENT_ID(kept, a, b)                                                           \
    IB_P4_SAVE(kept, a, b, hdr.paxos.client_id_high, hdr.paxos.client_id_low)
#define IB_P4_SAVE_CLIENT_SEQ(kept, a, b)                                                          \
    IB_P4_SAVE(kept, a, b, hdr.paxos.client_seq_high, hdr.paxos.client_seq_low)
#define IB_P4_SAVE_CLIENT_LOW(kept, a, b)                                                          \
    IB_P4_SAVE(kept, a, b, hdr.paxos.client_low_high, hdr.paxos.client_low_low)
#define IB_P4_SAVE_LAST(kept, a, b)                                                                \
    IB_P4_SAVE(kept, a, b, hdr.common.value_len_bytes ++ meta.value_flags, hdr.paxos.checksum)
#define IB_P4_CLEAR_LAST(kept, a, b)                                                               \
    a = 0;                                                                                         \
    b = 0;                                                                                         \
    kept.high = 0;
#define IB_P4_LOAD_CHECKSUM(kept, a, b)                                                            \
    a = 0;                                                                                         \
    b = kept.low;

/* An array of a vote's words: a packet saves them, loads them, or does neither. */
#define IB_P4_VOTE_ARRAY(array, known_as, SAVE)                                                    \
    IB_PAIR_REGISTER(array, known_as, IB_P4_SLOTS)                                                 \
    IB_PAIR_ACTION(array, save, SAVE)                                                              \
    IB_PAIR_ACTION(array, load, IB_P4_LOAD)
#define IB_P4_SAVE_OR_LOAD(array, SAVE, word)                                                      \
    IB_PAIR_BEGIN(array, meta.slot)                                                                \
    if (shows[0:0] == 1) {                                                                         \
        IB_EXECUTE(array, load, meta.slot, IB_P4_LOAD, word##_high, word##_low)                    \
    } else if (votes_now == 1) {                                                                   \
        IB_EXECUTE(array, save, meta.slot, SAVE, ignored, ignored)                                 \
    }                                                                                              \
    IB_PAIR_END(array, meta.slot)

/*
 * What is shorter than a word. On Tofino each is in an array of its own, because p4c-barefoot finds no
 * place for words of 32 bits that are cut into shorter fields, or takes hours to find one.
 */
#ifdef __TARGET_TOFINO__
#define IB_P4_PART_ARRAY(bits, array, known_as, part)                                              \
    @name(known_as) Register<bit<bits>, bit<32>>(IB_P4_SLOTS) array;                               \
    RegisterAction<bit<bits>, bit<32>, bit<bits>>(array) array##_save = {                          \
        void apply(inout bit<bits> kept) {                                                         \
            kept = part;                                                                           \
        }                                                                                          \
    };                                                                                             \
    RegisterAction<bit<bits>, bit<32>, bit<bits>>(array) array##_load = {                          \
        void apply(inout bit<bits> kept, out bit<bits> a) {                                        \
            a = kept;                                                                              \
        }                                                                                          \
    };
#define IB_P4_SAVE_OR_LOAD_PART(array, loaded)                                                     \
    if (shows[0:0] == 1) {                                                                         \
        loaded = array##_load.execute(meta.slot);                                                  \
    } else if (votes_now == 1) {                                                                   \
        array##_save.execute(meta.slot);                                                           \
    }
#endif

/*
 * The values: stripes 0 to 2 are words 0 to 11, the words after them 12 to 14, and the rest (4, 2
 * and 1 bytes from the top) is word 15. The length says which are used.
 */
#ifdef IB_P4_HAS_STRIPES
#define IB_P4_SAVE_0(kept, a, b) IB_P4_SAVE(kept, a, b, hdr.stripe0.a_high, hdr.stripe0.a_low)
#define IB_P4_SAVE_1(kept, a, b) IB_P4_SAVE(kept, a, b, hdr.stripe0.b_high, hdr.stripe0.b_low)
#define IB_P4_SAVE_2(kept, a, b) IB_P4_SAVE(kept, a, b, hdr.stripe0.c_high, hdr.stripe0.c_low)
#define IB_P4_SAVE_3(kept, a, b) IB_P4_SAVE(kept, a, b, hdr.stripe0.d_high, hdr.stripe0.d_low)
#define IB_P4_SAVE_4(kept, a, b) IB_P4_SAVE(kept, a, b, hdr.stripe1.a_high, hdr.stripe1.a_low)
#define IB_P4_SAVE_5(kept, a, b) IB_P4_SAVE(kept, a, b, hdr.stripe1.b_high, hdr.stripe1.b_low)
#define IB_P4_SAVE_6(kept, a, b) IB_P4_SAVE(kept, a, b, hdr.stripe1.c_high, hdr.stripe1.c_low)
#define IB_P4_SAVE_7(kept, a, b) IB_P4_SAVE(kept, a, b, hdr.stripe1.d_high, hdr.stripe1.d_low)
#define IB_P4_SAVE_8(kept, a, b) IB_P4_SAVE(kept, a, b, hdr.stripe2.a_high, hdr.stripe2.a_low)
#define IB_P4_SAVE_9(kept, a, b) IB_P4_SAVE(kept, a, b, hdr.stripe2.b_high, hdr.stripe2.b_low)
#define IB_P4_SAVE_10(kept, a, b) IB_P4_SAVE(kept, a, b, hdr.stripe2.c_high, hdr.stripe2.c_low)
#define IB_P4_SAVE_11(kept, a, b) IB_P4_SAVE(kept, a, b, hdr.stripe2.d_high, hdr.stripe2.d_low)
#endif
#define IB_P4_SAVE_12(kept, a, b) IB_P4_SAVE(kept, a, b, hdr.word0.w_high, hdr.word0.w_low)
#define IB_P4_SAVE_13(kept, a, b) IB_P4_SAVE(kept, a, b, hdr.word1.w_high, hdr.word1.w_low)
#define IB_P4_SAVE_14(kept, a, b) IB_P4_SAVE(kept, a, b, hdr.word2.w_high, hdr.word2.w_low)
#define IB_P4_SAVE_15(kept, a, b) IB_P4_SAVE(kept, a, b, rest_high, rest_low)

control IbValues(inout headers_t hdr, in meta_t meta, in bit<1> votes_now, in bit<32> shows,
                 in bit<16> stored_len) {
#ifdef IB_P4_HAS_STRIPES
    IB_P4_VOTE_ARRAY(value0, ".value0", IB_P4_SAVE_0)
    IB_P4_VOTE_ARRAY(value1, ".value1", IB_P4_SAVE_1)
    IB_P4_VOTE_ARRAY(value2, ".value2", IB_P4_SAVE_2)
    IB_P4_VOTE_ARRAY(value3, ".value3", IB_P4_SAVE_3)
    IB_P4_VOTE_ARRAY(value4, ".value4", IB_P4_SAVE_4)
    IB_P4_VOTE_ARRAY(value5, ".value5", IB_P4_SAVE_5)
    IB_P4_VOTE_ARRAY(value6, ".value6", IB_P4_SAVE_6)
    IB_P4_VOTE_ARRAY(value7, ".value7", IB_P4_SAVE_7)
    IB_P4_VOTE_ARRAY(value8, ".value8", IB_P4_SAVE_8)
    IB_P4_VOTE_ARRAY(value9, ".value9", IB_P4_SAVE_9)
    IB_P4_VOTE_ARRAY(value10, ".value10", IB_P4_SAVE_10)
    IB_P4_VOTE_ARRAY(value11, ".value11", IB_P4_SAVE_11)
#endif
#ifdef IB_P4_HAS_WORDS
    IB_P4_VOTE_ARRAY(value12, ".value12", IB_P4_SAVE_12)
    IB_P4_VOTE_ARRAY(value13, ".value13", IB_P4_SAVE_13)
    IB_P4_VOTE_ARRAY(value14, ".value14", IB_P4_SAVE_14)
#endif
#ifdef __TARGET_TOFINO__
    IB_P4_PART_ARRAY(32, value_four, ".value_four", hdr.four.bytes)
    IB_P4_PART_ARRAY(16, value_two, ".value_two", hdr.two.bytes)
    IB_P4_PART_ARRAY(8, value_one, ".value_one", hdr.one.bytes)
#else
    IB_P4_VOTE_ARRAY(value15, ".value15", IB_P4_SAVE_15)
    bit<32> rest_high = 0;
    bit<32> rest_low = 0;
#endif

    bit<32> ignored;
    bit<16> stripes;
    bit<16> words;
    bit<16> four;
    bit<16> two;
    bit<16> one;

    action find_pieces() {
        stripes = stored_len & IB_P4_STRIPES;
        words = stored_len & IB_P4_WORDS;
        four = stored_len & 4;
        two = stored_len & 2;
        one = stored_len & 1;
    }

    apply {
        if (shows[0:0] == 1) {
            find_pieces();
#ifdef IB_P4_HAS_STRIPES
            if (stripes != 0) {
                hdr.stripe0.setValid();
            } else {
                hdr.stripe0.setInvalid();
            }
            if (stripes > 0x20) {
                hdr.stripe1.setValid();
            } else {
                hdr.stripe1.setInvalid();
            }
            if (stripes == 0x60) {
                hdr.stripe2.setValid();
            } else {
                hdr.stripe2.setInvalid();
            }
#endif
#ifdef IB_P4_HAS_WORDS
            if (words != 0) {
                hdr.word0.setValid();
            } else {
                hdr.word0.setInvalid();
            }
            if (words > 0x8) {
                hdr.word1.setValid();
            } else {
                hdr.word1.setInvalid();
            }
            if (words == 0x18) {
                hdr.word2.setValid();
            } else {
                hdr.word2.setInvalid();
            }
#endif
            if (four != 0) {
                hdr.four.setValid();
            } else {
                hdr.four.setInvalid();
            }
            if (two != 0) {
                hdr.two.setValid();
            } else {
                hdr.two.setInvalid();
            }
            if (one != 0) {
                hdr.one.setValid();
            } else {
                hdr.one.setInvalid();
            }
        }
#ifdef IB_P4_HAS_STRIPES
        IB_P4_SAVE_OR_LOAD(value0, IB_P4_SAVE_0, hdr.stripe0.a)
        IB_P4_SAVE_OR_LOAD(value1, IB_P4_SAVE_1, hdr.stripe0.b)
        IB_P4_SAVE_OR_LOAD(value2, IB_P4_SAVE_2, hdr.stripe0.c)
        IB_P4_SAVE_OR_LOAD(value3, IB_P4_SAVE_3, hdr.stripe0.d)
        IB_P4_SAVE_OR_LOAD(value4, IB_P4_SAVE_4, hdr.stripe1.a)
        IB_P4_SAVE_OR_LOAD(value5, IB_P4_SAVE_5, hdr.stripe1.b)
        IB_P4_SAVE_OR_LOAD(value6, IB_P4_SAVE_6, hdr.stripe1.c)
        IB_P4_SAVE_OR_LOAD(value7, IB_P4_SAVE_7, hdr.stripe1.d)
        IB_P4_SAVE_OR_LOAD(value8, IB_P4_SAVE_8, hdr.stripe2.a)
        IB_P4_SAVE_OR_LOAD(value9, IB_P4_SAVE_9, hdr.stripe2.b)
        IB_P4_SAVE_OR_LOAD(value10, IB_P4_SAVE_10, hdr.stripe2.c)
        IB_P4_SAVE_OR_LOAD(value11, IB_P4_SAVE_11, hdr.stripe2.d)
#endif
#ifdef IB_P4_HAS_WORDS
        IB_P4_SAVE_OR_LOAD(value12, IB_P4_SAVE_12, hdr.word0.w)
        IB_P4_SAVE_OR_LOAD(value13, IB_P4_SAVE_13, hdr.word1.w)
        IB_P4_SAVE_OR_LOAD(value14, IB_P4_SAVE_14, hdr.word2.w)
#endif
#ifdef __TARGET_TOFINO__
        IB_P4_SAVE_OR_LOAD_PART(value_four, hdr.four.bytes)
        IB_P4_SAVE_OR_LOAD_PART(value_two, hdr.two.bytes)
        IB_P4_SAVE_OR_LOAD_PART(value_one, hdr.one.bytes)
#else
        if (votes_now == 1) {
            if (hdr.four.isValid()) {
                rest_high = hdr.four.bytes;
            }
            if (hdr.two.isValid()) {
                rest_low[31:16] = hdr.two.bytes;
            }
            if (hdr.one.isValid()) {
                rest_low[15:8] = hdr.one.bytes;
            }
        }
        IB_P4_SAVE_OR_LOAD(value15, IB_P4_SAVE_15, rest)
        if (shows[0:0] == 1) {
            hdr.four.bytes = rest_high;
            hdr.two.bytes = rest_low[31:16];
            hdr.one.bytes = rest_low[15:8];
        }
#endif
    }
}

/* The checks, and what the role wants to know of a packet. */
control IbAcceptorCheck(in headers_t hdr, inout meta_t meta) {
    /* Of struct ib_acceptor_regs: packets do not change these, so they need not be valid yet. */
    IB_WORD_ARRAY(voting_of, ".voting", IB_P4_PARTITIONS, IB_P4_READ_VOTING)
    IB_WORD_REGISTER(epoch_of, ".epoch", IB_P4_PARTITIONS)
    IB_WORD_ACTION_3(epoch_of, compare, IB_P4_COMPARE_EPOCH)

    IbPaxosCheck() check;
    IB_INDEX_UNIT(slot_unit)

    action prepare() {
        meta.kind = IB_P4_FOR_HOST;
        meta.partition = (bit<32>)hdr.common.partition;
        meta.kept_flags = hdr.common.flags & (IB_PAXOS_F_RECOVERY | IB_PAXOS_F_VALUE_MASK);
        meta.recovery_flag = hdr.common.flags & IB_PAXOS_F_RECOVERY;
        meta.value_flags = hdr.common.flags & IB_PAXOS_F_VALUE_MASK;
        meta.has_instance = hdr.paxos.instance_high | hdr.paxos.instance_low;
        meta.has_round = hdr.paxos.round_high | hdr.paxos.round_low;
        meta.bound_high = hdr.paxos.instance_high;
        meta.bound_low = hdr.paxos.instance_low;
    }
    action new_floor() {
        meta.kind = IB_P4_TRIM;
        meta.bound_high = hdr.paxos.floor_high;
        meta.bound_low = hdr.paxos.floor_low;
    }

    apply {
        check.apply(hdr, meta);
        prepare();
        IB_WORD_STEP(voting_of, meta.partition, IB_P4_READ_VOTING, meta.votes)
        IB_WORD_BEGIN(epoch_of, meta.partition)
        IB_EXECUTE_3(epoch_of, compare, meta.partition, IB_P4_COMPARE_EPOCH, meta.epoch,
                     meta.newer_epoch, meta.same_epoch)
        IB_WORD_END(epoch_of, meta.partition)
        /* In range: IbFrameCheck has refused other partitions, a ring is a power of two. */
        IB_INDEX(meta.slot, slot_unit, hdr.common.partition,
                 hdr.paxos.instance_low[IB_P4_RING_SLOTS_BITS - 1 : 0])
        if (hdr.common.type == IB_PAXOS_PHASE2A) {
            if ((hdr.common.value_len_bytes & IB_P4_LONGER) == 0) {
                meta.kind = IB_P4_VOTE;
            } else {
                meta.kind = IB_P4_TOO_LONG;
            }
        } else if (hdr.common.type == IB_PAXOS_PHASE1A) {
            if ((hdr.common.flags & IB_PAXOS_F_SLOT) != 0) {
                meta.kind = IB_P4_PROMISE_SLOT;
            } else {
                meta.kind = IB_P4_PROMISE;
            }
        } else if (hdr.common.type == IB_PAXOS_LEARN) {
            if ((hdr.common.flags & IB_PAXOS_F_PEER) == 0) {
                meta.kind = IB_P4_LEARN;
            }
        } else if (hdr.common.type == IB_PAXOS_TRIM) {
            if ((hdr.common.flags & IB_PAXOS_F_LEADER) == 0) {
                new_floor();
            }
        } else if (hdr.common.type == IB_PAXOS_POSITION) {
            if ((hdr.common.flags & (IB_PAXOS_F_LEADER | IB_PAXOS_F_ANSWER)) == 0) {
                meta.kind = IB_P4_POSITION;
            }
        }
    }
}

/* The instance is in the ring: compares it with the slot's, which is raised if nothing refuses it. */
#define IB_P4_FIND_SLOT                                                                            \
    is_in_ring = 1;                                                                                \
    if (promised_more[0:0] == 1 || meta.kind == IB_P4_LEARN) {                                     \
        IB_EXECUTE(slot_instance, compare, meta.slot, IB_P4_COMPARE_INSTANCE, is_new, is_same)     \
    } else if (meta.kind == IB_P4_VOTE && meta.has_round == 0) {                                   \
        IB_EXECUTE(slot_instance, compare, meta.slot, IB_P4_COMPARE_INSTANCE, is_new, is_same)     \
    } else {                                                                                       \
        IB_EXECUTE(slot_instance, raise, meta.slot, IB_P4_RAISE_INSTANCE, is_new, is_same)         \
    }

control IbAcceptor(inout headers_t hdr, inout meta_t meta) {
    /* What a slot's promise is compared with: the packet's round, or the partition's promise if that is
     * more. An array's programs take their numbers from one place, or p4c-barefoot finds no room for
     * them on the input crossbar. */
    bit<32> least_high;
    bit<32> least_low;

    /* struct ib_acceptor_regs, by partition. */
    IB_PAIR_REGISTER(promise_of, ".promise", IB_P4_PARTITIONS)
    IB_PAIR_ACTION_3(promise_of, read, IB_P4_READ_OF_PARTITION)
    IB_PAIR_ACTION_3(promise_of, raise, IB_P4_RAISE_OF_PARTITION)
    IB_PAIR_REGISTER(floor_of, ".floor", IB_P4_PARTITIONS)
    IB_PAIR_ACTION_3(floor_of, read, IB_P4_READ_FLOOR)
    IB_PAIR_ACTION_3(floor_of, raise, IB_P4_RAISE_FLOOR)
    IB_PAIR_REGISTER(highest_of, ".highest", IB_P4_PARTITIONS)
    IB_PAIR_ACTION_3(highest_of, read, IB_P4_READ)
    IB_PAIR_ACTION_3(highest_of, raise, IB_P4_RAISE_HIGHEST)
    /* struct ib_vote, by slot. */
    IB_PAIR_REGISTER(slot_instance, ".slot_instance", IB_P4_SLOTS)
    IB_PAIR_ACTION(slot_instance, compare, IB_P4_COMPARE_INSTANCE)
    IB_PAIR_ACTION(slot_instance, raise, IB_P4_RAISE_INSTANCE)
    IB_PAIR_REGISTER(slot_promise, ".slot_promise", IB_P4_SLOTS)
    IB_PAIR_ACTION_3(slot_promise, read, IB_P4_READ_OF_SLOT)
    IB_PAIR_ACTION_3(slot_promise, raise, IB_P4_RAISE_OF_SLOT)
    IB_PAIR_ACTION_3(slot_promise, set, IB_P4_SET_OF_SLOT)
    IB_PAIR_REGISTER(slot_vround, ".slot_vround", IB_P4_SLOTS)
    IB_PAIR_ACTION_3(slot_vround, read, IB_P4_READ_VROUND)
    IB_PAIR_ACTION_3(slot_vround, replace, IB_P4_REPLACE_VROUND)
    IB_PAIR_ACTION_3(slot_vround, set, IB_P4_SET_OF_SLOT)
    IB_PAIR_ACTION_3(slot_vround, clear, IB_P4_CLEAR_VROUND)
    IB_P4_VOTE_ARRAY(slot_digest, ".slot_digest", IB_P4_SAVE_DIGEST)
    IB_P4_VOTE_ARRAY(slot_client_id, ".slot_client_id", IB_P4_SAVE_CLIENT_ID)
    IB_P4_VOTE_ARRAY(slot_client_seq, ".slot_client_seq", IB_P4_SAVE_CLIENT_SEQ)
    IB_P4_VOTE_ARRAY(slot_client_low, ".slot_client_low", IB_P4_SAVE_CLIENT_LOW)
#ifdef __TARGET_TOFINO__
    IB_P4_PART_ARRAY(16, slot_len, ".slot_len", hdr.common.value_len_bytes)
    IB_P4_PART_ARRAY(16, slot_flags, ".slot_flags", meta.value_flags)
    IB_P4_PART_ARRAY(32, slot_checksum, ".slot_checksum", hdr.paxos.checksum)
#else
    IB_P4_VOTE_ARRAY(slot_last, ".slot_last", IB_P4_SAVE_LAST)
    IB_PAIR_ACTION(slot_last, clear, IB_P4_CLEAR_LAST)
    IB_PAIR_ACTION(slot_last, load_checksum, IB_P4_LOAD_CHECKSUM)
    bit<32> last_high;
#endif

#ifndef __TARGET_TOFINO__
    IbValueCheck() value_check;
#endif
    IbValues() values;

    bit<32> promised_more;
    bit<32> promise_high;
    bit<32> promise_low;
    bit<32> raised;
    bit<32> below;
    bit<32> floor_high;
    bit<32> floor_low;
    bit<32> distance_high;
    bit<32> distance_low;
    bit<32> borrow;
    bit<1> is_in_ring = 0;
    bit<32> is_new = 0;
    bit<32> is_same = 0;
    bit<32> slot_promised_more = 0;
    bit<32> slot_promise_high;
    bit<32> slot_promise_low;
    bit<1> votes_now = 0;
    bit<32> shows = 0;
    bit<32> vround_high;
    bit<32> vround_low;
    bit<1> clears = 0;
    bit<16> stored_len = 0;
    bit<16> stored_flags = 0;
    bit<32> highest_high;
    bit<32> highest_low;
    bit<32> ignored;

    /* How far the instance is above the floor, as two words, and whether the high one lends to the low. */
    action find_distance() {
        distance_high = hdr.paxos.instance_high - floor_high;
        distance_low = hdr.paxos.instance_low - floor_low;
        borrow = floor_low |-| hdr.paxos.instance_low;
    }
    action compare_with_round() {
        least_high = hdr.paxos.round_high;
        least_low = hdr.paxos.round_low;
    }
    action compare_with_promise() {
        least_high = promise_high;
        least_low = promise_low;
    }
    action drop(bit<16> reason) {
        meta.verdict = IB_V_DROP;
        meta.reason = reason;
    }
    action answer(bit<8> verdict, bit<16> reason) {
        meta.verdict = verdict;
        meta.reason = reason;
    }
    action refuse(bit<16> scope, bit<16> reason) {
        hdr.common.type = IB_PAXOS_NACK;
        hdr.common.flags = meta.kept_flags | scope;
        hdr.paxos.round_high = promise_high;
        hdr.paxos.round_low = promise_low;
        hdr.paxos.floor_high = floor_high;
        hdr.paxos.floor_low = floor_low;
        hdr.paxos.epoch = meta.epoch;
        meta.verdict = IB_V_REPLY;
        meta.reason = reason;
    }
    action refuse_by_slot() {
        hdr.common.type = IB_PAXOS_NACK;
        hdr.common.flags = meta.kept_flags | IB_PAXOS_F_SLOT;
        hdr.paxos.round_high = slot_promise_high;
        hdr.paxos.round_low = slot_promise_low;
        hdr.paxos.floor_high = floor_high;
        hdr.paxos.floor_low = floor_low;
        hdr.paxos.epoch = meta.epoch;
        meta.verdict = IB_V_REPLY;
        meta.reason = IB_R_acceptor_nack_slot;
    }
    action promised(bit<16> flags, bit<16> reason) {
        hdr.common.type = IB_PAXOS_PHASE1B;
        hdr.common.flags = flags;
        hdr.common.value_len_bytes = 0;
        hdr.paxos.checksum = 0;
        hdr.paxos.vround_high = 0;
        hdr.paxos.vround_low = 0;
        hdr.paxos.floor_high = floor_high;
        hdr.paxos.floor_low = floor_low;
        meta.verdict = IB_V_REPLY;
        meta.reason = reason;
    }
    action show_highest() {
        hdr.paxos.instance_high = highest_high;
        hdr.paxos.instance_low = highest_low;
    }
    action show_position(bit<16> flags) {
        hdr.common.flags = hdr.common.flags | flags;
        hdr.paxos.epoch = meta.epoch;
        hdr.paxos.floor_high = floor_high;
        hdr.paxos.floor_low = floor_low;
        hdr.paxos.round_high = promise_high;
        hdr.paxos.round_low = promise_low;
        meta.verdict = IB_V_REPLY;
        meta.reason = IB_R_position_answered;
    }
    action learned() {
        hdr.common.type = IB_PAXOS_PHASE2B;
        hdr.common.flags = stored_flags | IB_PAXOS_F_REPEAT;
        hdr.common.value_len_bytes = stored_len;
        hdr.paxos.round_high = vround_high;
        hdr.paxos.round_low = vround_low;
        hdr.paxos.vround_high = vround_high;
        hdr.paxos.vround_low = vround_low;
        hdr.paxos.floor_high = floor_high;
        hdr.paxos.floor_low = floor_low;
        meta.verdict = IB_V_REPLY;
        meta.reason = IB_R_acceptor_learn_answered;
    }
    action promised_with_vote() {
        hdr.common.type = IB_PAXOS_PHASE1B;
        hdr.common.flags = stored_flags | (IB_PAXOS_F_SLOT | IB_PAXOS_F_VOTE);
        hdr.common.value_len_bytes = stored_len;
        hdr.paxos.vround_high = vround_high;
        hdr.paxos.vround_low = vround_low;
        hdr.paxos.floor_high = floor_high;
        hdr.paxos.floor_low = floor_low;
        meta.verdict = IB_V_REPLY;
        meta.reason = IB_R_acceptor_promised_slot;
    }
    action voted() {
        hdr.common.type = IB_PAXOS_PHASE2B;
        hdr.common.flags = meta.kept_flags;
        hdr.paxos.vround_high = hdr.paxos.round_high;
        hdr.paxos.vround_low = hdr.paxos.round_low;
        hdr.paxos.floor_high = floor_high;
        hdr.paxos.floor_low = floor_low;
        meta.reason = IB_R_acceptor_voted;
    }
    action voted_before() {
        hdr.common.type = IB_PAXOS_PHASE2B;
        hdr.common.flags = stored_flags | meta.recovery_flag;
        hdr.common.value_len_bytes = stored_len;
        hdr.paxos.vround_high = hdr.paxos.round_high;
        hdr.paxos.vround_low = hdr.paxos.round_low;
        hdr.paxos.floor_high = floor_high;
        hdr.paxos.floor_low = floor_low;
        meta.reason = IB_R_acceptor_vote_repeated;
    }

    /* What is behind the value stays in the frame, behind its packet. */
    action finish() {
        hdr.common.node = meta.node;
#ifdef __TARGET_TOFINO__
        hdr.udp.len_bytes = hdr.common.value_len_bytes + (8 + IB_HEADER_LEN_BYTES);
        hdr.ipv4.len_bytes = hdr.common.value_len_bytes + (20 + 8 + IB_HEADER_LEN_BYTES);
#endif
    }

    apply {
#ifndef __TARGET_TOFINO__
        if (meta.kind == IB_P4_VOTE) {
            value_check.apply(hdr, meta);
        }
#endif
        if (meta.reason == IB_R_none) {
#ifndef __TARGET_TOFINO__
            /* Its host reads votes with LEARN while it is sealed: bmv2 shows it no word of 2^63. */
            if (meta.kind == IB_P4_LEARN && meta.sender_port == meta.host_port) {
                meta.votes = 1;
            }
#endif

            IB_PAIR_BEGIN(promise_of, meta.partition)
            if (meta.kind == IB_P4_PROMISE && meta.votes[0:0] == 1 && meta.same_epoch[0:0] == 1) {
                IB_EXECUTE_3(promise_of, raise, meta.partition, IB_P4_RAISE_OF_PARTITION, promised_more,
                             promise_high, promise_low)
            } else {
                IB_EXECUTE_3(promise_of, read, meta.partition, IB_P4_READ_OF_PARTITION, promised_more,
                             promise_high, promise_low)
            }
            IB_PAIR_END(promise_of, meta.partition)

            IB_PAIR_BEGIN(floor_of, meta.partition)
            if (meta.kind == IB_P4_TRIM && meta.same_epoch[0:0] == 1) {
                IB_EXECUTE_3(floor_of, raise, meta.partition, IB_P4_RAISE_FLOOR, raised, floor_high,
                             floor_low)
            } else {
                IB_EXECUTE_3(floor_of, read, meta.partition, IB_P4_READ_FLOOR, below, floor_high,
                             floor_low)
            }
            IB_PAIR_END(floor_of, meta.partition)

            if (promised_more[0:0] == 1) {
                compare_with_promise();
            } else {
                compare_with_round();
            }
            find_distance();

            IB_PAIR_BEGIN(slot_instance, meta.slot)
            if ((meta.kind == IB_P4_VOTE || meta.kind == IB_P4_PROMISE_SLOT ||
                 meta.kind == IB_P4_LEARN) &&
                meta.votes[0:0] == 1 && meta.same_epoch[0:0] == 1) {
                if (below[0:0] == 0) {
                    if (meta.has_instance != 0) {
                        if (distance_low[31:IB_P4_RING_SLOTS_BITS] == 0) {
                            if (borrow == 0) {
                                if (distance_high == 0) {
                                    IB_P4_FIND_SLOT
                                }
                            } else if (distance_high == 1) {
                                IB_P4_FIND_SLOT
                            }
                        }
                    }
                }
            }
            IB_PAIR_END(slot_instance, meta.slot)

            IB_PAIR_BEGIN(slot_promise, meta.slot)
            if (is_same[0:0] == 1 && meta.kind != IB_P4_LEARN) {
                if (promised_more[0:0] == 1) {
                    IB_EXECUTE_3(slot_promise, read, meta.slot, IB_P4_READ_OF_SLOT,
                                 slot_promised_more, slot_promise_high, slot_promise_low)
                } else {
                    IB_EXECUTE_3(slot_promise, raise, meta.slot, IB_P4_RAISE_OF_SLOT,
                                 slot_promised_more, slot_promise_high, slot_promise_low)
                }
            } else if (is_new[0:0] == 1 && promised_more[0:0] == 0 && meta.kind != IB_P4_LEARN) {
                if (meta.kind == IB_P4_PROMISE_SLOT || meta.has_round != 0) {
                    IB_EXECUTE_3(slot_promise, set, meta.slot, IB_P4_SET_OF_SLOT,
                                 slot_promised_more, slot_promise_high, slot_promise_low)
                }
            }
            IB_PAIR_END(slot_promise, meta.slot)

            IB_PAIR_BEGIN(slot_vround, meta.slot)
            if (is_same[0:0] == 1) {
                if (meta.kind == IB_P4_LEARN) {
                    IB_EXECUTE_3(slot_vround, read, meta.slot, IB_P4_READ_VROUND, shows, vround_high,
                                 vround_low)
                } else if (promised_more[0:0] == 0 && slot_promised_more[0:0] == 0) {
                    if (meta.kind == IB_P4_PROMISE_SLOT) {
                        IB_EXECUTE_3(slot_vround, read, meta.slot, IB_P4_READ_VROUND, shows,
                                     vround_high, vround_low)
                    } else {
                        votes_now = 1;
                        IB_EXECUTE_3(slot_vround, replace, meta.slot, IB_P4_REPLACE_VROUND, shows,
                                     vround_high, vround_low)
                    }
                }
            } else if (is_new[0:0] == 1 && promised_more[0:0] == 0 && meta.kind != IB_P4_LEARN) {
                if (meta.kind == IB_P4_PROMISE_SLOT) {
                    clears = 1;
                    IB_EXECUTE_3(slot_vround, clear, meta.slot, IB_P4_CLEAR_VROUND, shows,
                                 vround_high, vround_low)
                } else if (meta.has_round == 0) {
                    shows = 1; /* as the C role: round 0 is no vote, and is never sent */
                } else {
                    votes_now = 1;
                    IB_EXECUTE_3(slot_vround, set, meta.slot, IB_P4_SET_OF_SLOT, shows, vround_high,
                                 vround_low)
                }
            }
            IB_PAIR_END(slot_vround, meta.slot)

            IB_P4_SAVE_OR_LOAD(slot_digest, IB_P4_SAVE_DIGEST, hdr.paxos.digest)
            IB_P4_SAVE_OR_LOAD(slot_client_id, IB_P4_SAVE_CLIENT_ID, hdr.paxos.client_id)
            IB_P4_SAVE_OR_LOAD(slot_client_seq, IB_P4_SAVE_CLIENT_SEQ, hdr.paxos.client_seq)
            IB_P4_SAVE_OR_LOAD(slot_client_low, IB_P4_SAVE_CLIENT_LOW, hdr.paxos.client_low)
#ifdef __TARGET_TOFINO__
            IB_P4_SAVE_OR_LOAD_PART(slot_len, stored_len)
            IB_P4_SAVE_OR_LOAD_PART(slot_flags, stored_flags)
            IB_P4_SAVE_OR_LOAD_PART(slot_checksum, hdr.paxos.checksum)
#else
            IB_PAIR_BEGIN(slot_last, meta.slot)
            if (shows[0:0] == 1) {
                if (is_new[0:0] == 1) {
                    IB_EXECUTE(slot_last, load_checksum, meta.slot, IB_P4_LOAD_CHECKSUM, last_high,
                               hdr.paxos.checksum)
                } else {
                    IB_EXECUTE(slot_last, load, meta.slot, IB_P4_LOAD, last_high,
                               hdr.paxos.checksum)
                }
                stored_len = last_high[31:16];
                stored_flags = last_high[15:0];
            } else if (votes_now == 1) {
                IB_EXECUTE(slot_last, save, meta.slot, IB_P4_SAVE_LAST, ignored, ignored)
            } else if (clears == 1) {
                IB_EXECUTE(slot_last, clear, meta.slot, IB_P4_CLEAR_LAST, ignored, ignored)
            }
            IB_PAIR_END(slot_last, meta.slot)
#endif
            values.apply(hdr, meta, votes_now, shows, stored_len);

            IB_PAIR_BEGIN(highest_of, meta.partition)
            if (votes_now == 1 && shows[0:0] == 0) {
                IB_EXECUTE_3(highest_of, raise, meta.partition, IB_P4_RAISE_HIGHEST, ignored,
                             highest_high, highest_low)
            } else {
                IB_EXECUTE_3(highest_of, read, meta.partition, IB_P4_READ, ignored, highest_high,
                             highest_low)
            }
            IB_PAIR_END(highest_of, meta.partition)

            if (meta.kind == IB_P4_FOR_HOST) {
                answer(IB_V_PASS, IB_R_passed_up);
            } else if (meta.kind == IB_P4_TOO_LONG) {
                drop(IB_R_no_room);
            } else if (meta.kind == IB_P4_TRIM) {
                if (meta.same_epoch[0:0] == 0) {
                    drop(IB_R_wrong_epoch);
                } else if (raised[0:0] == 0) {
                    drop(IB_R_floor_known);
                } else {
                    drop(IB_R_floor_raised);
                }
            } else if (meta.kind == IB_P4_POSITION) {
                if (meta.votes[0:0] == 1) {
                    show_position(IB_PAXOS_F_ANSWER);
                } else {
                    show_position(IB_PAXOS_F_ANSWER | IB_PAXOS_F_RECOVERING);
                }
            } else if (meta.votes[0:0] == 0) {
                drop(IB_R_acceptor_recovering);
            } else if (meta.newer_epoch[0:0] == 1) {
                drop(IB_R_epoch_ahead);
            } else if (meta.same_epoch[0:0] == 0) {
                refuse(0, IB_R_wrong_epoch);
            } else if (meta.kind == IB_P4_PROMISE) {
                if (promised_more[0:0] == 1) {
                    refuse(0, IB_R_acceptor_nack);
                } else {
                    promised(0, IB_R_acceptor_promised);
                }
            } else if (below[0:0] == 1) {
                refuse(IB_PAXOS_F_SLOT | IB_PAXOS_F_BELOW_FLOOR, IB_R_acceptor_below_floor);
            } else if (meta.has_instance == 0) {
                refuse(IB_PAXOS_F_SLOT | IB_PAXOS_F_BELOW_FLOOR, IB_R_acceptor_below_floor);
            } else if (is_in_ring == 0) {
                drop(IB_R_acceptor_beyond_ring);
            } else if (is_new[0:0] == 0 && is_same[0:0] == 0) {
                drop(IB_R_acceptor_raced);
            } else if (meta.kind == IB_P4_LEARN) {
                if (shows[0:0] == 0) {
                    drop(IB_R_acceptor_learn_no_vote);
                } else {
                    learned();
                }
            } else if (slot_promised_more[0:0] == 1) {
                refuse_by_slot();
            } else if (promised_more[0:0] == 1) {
                refuse(0, IB_R_acceptor_nack);
            } else if (meta.kind == IB_P4_PROMISE_SLOT) {
                if (shows[0:0] == 1) {
                    promised_with_vote();
                } else {
                    promised(IB_PAXOS_F_SLOT, IB_R_acceptor_promised_slot);
                }
            } else {
                if (meta.recovery_flag != 0) {
                    meta.verdict = IB_V_REPLY;
                } else {
                    meta.verdict = IB_V_GROUP;
                }
                if (shows[0:0] == 1) {
                    voted_before();
                } else {
                    voted();
                }
            }
            if (meta.kind == IB_P4_POSITION) {
                show_highest();
            } else if (meta.kind == IB_P4_PROMISE && meta.votes[0:0] == 1 &&
                       meta.same_epoch[0:0] == 1 && promised_more[0:0] == 0) {
                show_highest();
            }
            if (meta.verdict[1:1] == 1) { /* IB_V_REPLY, IB_V_GROUP */
                finish();
            }
        }
    }
}

#ifdef __TARGET_TOFINO__
/* These are in one container each, and so is what is copied to or from them: otherwise p4c-barefoot
 * tries each way to cut them. */
#define IB_P4_IS_WHOLE(field) @pa_container_size("ingress", #field, 32)
IB_P4_IS_WHOLE(hdr.paxos.instance_high)
IB_P4_IS_WHOLE(hdr.paxos.instance_low)
IB_P4_IS_WHOLE(hdr.paxos.floor_high)
IB_P4_IS_WHOLE(hdr.paxos.floor_low)
IB_P4_IS_WHOLE(hdr.paxos.round_high)
IB_P4_IS_WHOLE(hdr.paxos.round_low)
IB_P4_IS_WHOLE(hdr.paxos.vround_high)
IB_P4_IS_WHOLE(hdr.paxos.vround_low)
IB_P4_IS_WHOLE(hdr.paxos.client_id_high)
IB_P4_IS_WHOLE(hdr.paxos.client_id_low)
IB_P4_IS_WHOLE(hdr.paxos.client_seq_high)
IB_P4_IS_WHOLE(hdr.paxos.client_seq_low)
IB_P4_IS_WHOLE(hdr.paxos.client_low_high)
IB_P4_IS_WHOLE(hdr.paxos.client_low_low)
IB_P4_IS_WHOLE(hdr.paxos.digest_high)
IB_P4_IS_WHOLE(hdr.paxos.digest_low)
IB_P4_IS_WHOLE(hdr.paxos.epoch)
IB_P4_IS_WHOLE(hdr.paxos.checksum)
#endif
IB_SWITCH(IbAcceptorCheck, IbAcceptor);
