/* SPDX-License-Identifier: Apache-2.0 */
/*
 * registers.p4 - registers of roles that are for both targets. On Tofino a packet accesses an array
 * once, at one index: it reads an entry of one or two words of 32 bits, and a short program writes it
 * and gives words to the packet. Here the program is a macro, STEP. Its `kept` is the entry.
 */

struct ib_pair_t {
    bit<32> high;
    bit<32> low;
}

#ifdef __TARGET_TOFINO__

/* Sets slot, of 32 bits, to these numbers beside each other, by the switch's hash unit. */
#define IB_INDEX_UNIT(unit) Hash<bit<32>>(HashAlgorithm_t.IDENTITY) unit;
#define IB_INDEX(slot, unit, high, low) slot = unit.get({ high, low });

/* Entries of one word. STEP(kept, a) sets the word a. */
#define IB_WORD_ARRAY(array, known_as, size, STEP)                                                          \
    @name(known_as) Register<bit<32>, bit<32>>(size) array;                                            \
    RegisterAction<bit<32>, bit<32>, bit<32>>(array) array##_step = {                              \
        void apply(inout bit<32> kept, out bit<32> a) {                                            \
            STEP(kept, a)                                                                          \
        }                                                                                          \
    };
#define IB_WORD_STEP(array, index, STEP, a) a = array##_step.execute(index);

/* Entries of 64 bits. STEP(kept, a, b, c) sets the words a, b, and c. */
#define IB_PAIR_ARRAY(array, known_as, size, STEP)                                                          \
    @name(known_as) Register<ib_pair_t, bit<32>>(size) array;                                          \
    RegisterAction<ib_pair_t, bit<32>, bit<32>>(array) array##_step = {                            \
        void apply(inout ib_pair_t kept, out bit<32> a, out bit<32> b, out bit<32> c) {            \
            STEP(kept, a, b, c)                                                                    \
        }                                                                                          \
    };
#define IB_PAIR_STEP(array, index, STEP, a, b, c) a = array##_step.execute(index, b, c);

#else

#define IB_INDEX_UNIT(unit)
#define IB_INDEX(slot, unit, high, low) slot = (bit<32>)(high ++ low);

#define IB_WORD_ARRAY(array, known_as, size, STEP) @name(known_as) register<bit<32>>(size) array;
#define IB_WORD_STEP(array, index, STEP, a)                                                        \
    {                                                                                              \
        bit<32> kept;                                                                              \
        array.read(kept, index);                                                                   \
        STEP(kept, a)                                                                              \
        array.write(index, kept);                                                                  \
    }

#define IB_PAIR_ARRAY(array, known_as, size, STEP) @name(known_as) register<bit<64>>(size) array;
#define IB_PAIR_STEP(array, index, STEP, a, b, c)                                                  \
    {                                                                                              \
        bit<64> word;                                                                              \
        ib_pair_t kept;                                                                            \
        array.read(word, index);                                                                   \
        kept.high = word[63:32];                                                                   \
        kept.low = word[31:0];                                                                     \
        STEP(kept, a, b, c)                                                                        \
        array.write(index, kept.high ++ kept.low);                                                 \
    }

#endif
