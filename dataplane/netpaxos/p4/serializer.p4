/* SPDX-License-Identifier: Apache-2.0 */
/* serializer.p4 - role_serializer.h, for v1model and TNA: a copy of each request to every minion. */
#include "netpaxos.p4"
#include "../../ground/p4/registers.p4"

#define IB_P4_COUNT_UP(kept, a, b, c)                                                              \
    if (kept.low == 0xffffffff) {                                                                  \
        kept.high = kept.high + 1;                                                                 \
    }                                                                                              \
    kept.low = kept.low + 1;                                                                       \
    a = 0;                                                                                         \
    b = 0;                                                                                         \
    c = 0;

control IbSerializer(inout headers_t hdr, inout meta_t meta) {
    IB_PAIR_ARRAY(passed, ".passed", 1, IB_P4_COUNT_UP)
    IbRequestCheck() check;

    bit<32> a;
    bit<32> b;
    bit<32> c;

    apply {
        check.apply(hdr, meta);
        if (meta.reason == IB_R_none) {
            IB_PAIR_STEP(passed, 0, IB_P4_COUNT_UP, a, b, c)
            meta.verdict = IB_V_GROUP;
            meta.reason = IB_R_netpaxos_serialized;
        }
    }
}

IB_SWITCH(IbNoCheck, IbSerializer);
