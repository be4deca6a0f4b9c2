/* SPDX-License-Identifier: Apache-2.0 */
/*
 * minion.p4 - role_minion.h, for v1model and TNA: numbers each request, for its storage and the
 * learners. The switch handles one packet at a time, so no number is given twice.
 */
#include "netpaxos.p4"
#include "../../ground/p4/registers.p4"

/* Sets b and c to the request's number, or a to 1 if all are used up. */
#define IB_P4_NUMBER(kept, a, b, c)                                                                \
    a = 0;                                                                                         \
    if (kept.high >= (32w1 << (IB_NETPAXOS_NUMBER_BITS - 32))) {                                   \
        a = 1;                                                                                     \
    } else {                                                                                       \
        if (kept.low == 0xffffffff) {                                                              \
            kept.high = kept.high + 1;                                                             \
        }                                                                                          \
        kept.low = kept.low + 1;                                                                   \
    }                                                                                              \
    b = kept.high;                                                                                 \
    c = kept.low;

#define IB_P4_READ(kept, a, b, c)                                                                  \
    a = 0;                                                                                         \
    b = kept.high;                                                                                 \
    c = kept.low;

control IbMinion(inout headers_t hdr, inout meta_t meta) {
    IB_PAIR_ARRAY(passed, ".passed", 1, IB_P4_NUMBER)
    /* Of this start of the minion: the control plane writes it once, before the first packet. */
    IB_PAIR_ARRAY(incarnation, ".incarnation", 1, IB_P4_READ)
    IbRequestCheck() check;

    bit<32> used_up;
    bit<32> ignored;
    bit<32> high;
    bit<32> low;

    apply {
        check.apply(hdr, meta);
        if (meta.reason == IB_R_none) {
            IB_PAIR_STEP(passed, 0, IB_P4_NUMBER, used_up, high, low)
            hdr.netpaxos.number = high ++ low;
            IB_PAIR_STEP(incarnation, 0, IB_P4_READ, ignored, high, low)
            hdr.netpaxos.incarnation = high ++ low;
            if (used_up == 1) {
                meta.reason = IB_R_netpaxos_numbers_used_up;
            } else {
                hdr.common.type = IB_NETPAXOS_NUMBERED;
                hdr.common.node = meta.node;
                meta.verdict = IB_V_GROUP;
                meta.reason = IB_R_netpaxos_numbered;
            }
        }
    }
}

IB_SWITCH(IbNoCheck, IbMinion);
