/* SPDX-License-Identifier: Apache-2.0 */
/* serializer.p4 - role_serializer.h for v1model: a copy of each request to every minion. */
#include "netpaxos.p4"

control IbSerializer(inout headers_t hdr, inout meta_t meta) {
    @name(".passed") register<bit<64>>(1) passed_of;
    IbRequestCheck() check;
    apply {
        check.apply(hdr, meta);
        if (meta.reason == IB_R_none) {
            bit<64> passed;
            passed_of.read(passed, 0);
            passed_of.write(0, passed + 1);
            meta.verdict = IB_V_GROUP;
            meta.reason = IB_R_netpaxos_serialized;
        }
    }
}

IB_SWITCH(IbNoCheck, IbSerializer);
