/* SPDX-License-Identifier: Apache-2.0 */
/*
 * registers.p4 - registers of roles that are for both targets. On Tofino a packet accesses an array
 * once, at one index: it reads an entry of one or two words of 32 bits, and a short program writes it
 * and gives words to the packet. Here the program is a macro, STEP. Its `kept` is the entry.
 *
 * An array with one program: IB_WORD_ARRAY, IB_WORD_STEP. If it depends on the packet which program
 * runs: IB_WORD_REGISTER, an IB_WORD_ACTION for each program, and between IB_WORD_BEGIN and
 * IB_WORD_END the packet runs at most one of them, by IB_EXECUTE. The same with PAIR. Programs that
 * set three words: IB_WORD_ACTION_3, IB_PAIR_ACTION_3 and IB_EXECUTE_3.
 */

struct ib_pair_t {
    bit<32> high;
    bit<32> low;
}

/* Whether an entry of two words is less than the number in number_high and number_low. */
#define IB_IS_LESS(kept, number)                                                                   \
    (kept.high < number##_high || (kept.high == number##_high && kept.low < number##_low))

#ifdef __TARGET_TOFINO__

/* Sets slot, of 32 bits, to these numbers beside each other, by the switch's hash unit. */
#define IB_INDEX_UNIT(unit) Hash<bit<32>>(HashAlgorithm_t.IDENTITY) unit;
#define IB_INDEX(slot, unit, high, low) slot = unit.get({ high, low });

#define IB_WORD_REGISTER(array, known_as, size) @name(known_as) Register<bit<32>, bit<32>>(size) array;
#define IB_PAIR_REGISTER(array, known_as, size) @name(known_as) Register<ib_pair_t, bit<32>>(size) array;

/* Entries of one word. STEP(kept, a) sets the word a. */
#define IB_WORD_ARRAY(array, known_as, size, STEP)                                                 \
    IB_WORD_REGISTER(array, known_as, size)                                                        \
    RegisterAction<bit<32>, bit<32>, bit<32>>(array) array##_step = {                              \
        void apply(inout bit<32> kept, out bit<32> a) {                                            \
            STEP(kept, a)                                                                          \
        }                                                                                          \
    };
#define IB_WORD_STEP(array, index, STEP, a) a = array##_step.execute(index);

/* Entries of 64 bits. STEP(kept, a, b, c) sets the words a, b, and c. */
#define IB_PAIR_ARRAY(array, known_as, size, STEP)                                                 \
    IB_PAIR_REGISTER(array, known_as, size)                                                        \
    RegisterAction<ib_pair_t, bit<32>, bit<32>>(array) array##_step = {                            \
        void apply(inout ib_pair_t kept, out bit<32> a, out bit<32> b, out bit<32> c) {            \
            STEP(kept, a, b, c)                                                                    \
        }                                                                                          \
    };
#define IB_PAIR_STEP(array, index, STEP, a, b, c) a = array##_step.execute(index, b, c);

/* One of several programs. STEP(kept, a, b) sets the words a and b; with _3, STEP(kept, a, b, c). */
#define IB_ACTION(entry, array, program, STEP)                                                     \
    RegisterAction<entry, bit<32>, bit<32>>(array) array##_##program = {                           \
        void apply(inout entry kept, out bit<32> a, out bit<32> b) {                               \
            STEP(kept, a, b)                                                                       \
        }                                                                                          \
    };
#define IB_ACTION_3(entry, array, program, STEP)                                                   \
    RegisterAction<entry, bit<32>, bit<32>>(array) array##_##program = {                           \
        void apply(inout entry kept, out bit<32> a, out bit<32> b, out bit<32> c) {                \
            STEP(kept, a, b, c)                                                                    \
        }                                                                                          \
    };
#define IB_WORD_ACTION(array, program, STEP) IB_ACTION(bit<32>, array, program, STEP)
#define IB_PAIR_ACTION(array, program, STEP) IB_ACTION(ib_pair_t, array, program, STEP)
#define IB_WORD_ACTION_3(array, program, STEP) IB_ACTION_3(bit<32>, array, program, STEP)
#define IB_PAIR_ACTION_3(array, program, STEP) IB_ACTION_3(ib_pair_t, array, program, STEP)
#define IB_WORD_BEGIN(array, index)
#define IB_PAIR_BEGIN(array, index)
#define IB_EXECUTE(array, program, index, STEP, a, b) a = array##_##program.execute(index, b);
#define IB_EXECUTE_3(array, program, index, STEP, a, b, c)                                         \
    a = array##_##program.execute(index, b, c);
#define IB_WORD_END(array, index)
#define IB_PAIR_END(array, index)

#else

#define IB_INDEX_UNIT(unit)
#define IB_INDEX(slot, unit, high, low) slot = (bit<32>)(high ++ low);

#define IB_WORD_REGISTER(array, known_as, size)                                                    \
    @name(known_as) register<bit<32>>(size) array;                                                 \
    bit<32> array##_kept;
#define IB_PAIR_REGISTER(array, known_as, size)                                                    \
    @name(known_as) register<bit<64>>(size) array;                                                 \
    bit<64> array##_word;                                                                          \
    ib_pair_t array##_kept;

#define IB_WORD_BEGIN(array, index) array.read(array##_kept, index);
#define IB_PAIR_BEGIN(array, index)                                                                \
    array.read(array##_word, index);                                                               \
    array##_kept.high = array##_word[63:32];                                                       \
    array##_kept.low = array##_word[31:0];
#define IB_WORD_ACTION(array, program, STEP)
#define IB_PAIR_ACTION(array, program, STEP)
#define IB_WORD_ACTION_3(array, program, STEP)
#define IB_PAIR_ACTION_3(array, program, STEP)
#define IB_EXECUTE(array, program, index, STEP, a, b) STEP(array##_kept, a, b)
#define IB_EXECUTE_3(array, program, index, STEP, a, b, c) STEP(array##_kept, a, b, c)
#define IB_WORD_END(array, index) array.write(index, array##_kept);
#define IB_PAIR_END(array, index) array.write(index, array##_kept.high ++ array##_kept.low);

#define IB_WORD_ARRAY(array, known_as, size, STEP) IB_WORD_REGISTER(array, known_as, size)
#define IB_WORD_STEP(array, index, STEP, a)                                                        \
    IB_WORD_BEGIN(array, index)                                                                    \
    STEP(array##_kept, a)                                                                          \
    IB_WORD_END(array, index)

#define IB_PAIR_ARRAY(array, known_as, size, STEP) IB_PAIR_REGISTER(array, known_as, size)
#define IB_PAIR_STEP(array, index, STEP, a, b, c)                                                  \
    IB_PAIR_BEGIN(array, index)                                                                    \
    STEP(array##_kept, a, b, c)                                                                    \
    IB_PAIR_END(array, index)

#endif
