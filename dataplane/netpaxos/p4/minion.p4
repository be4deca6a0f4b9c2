/* SPDX-License-Identifier: Apache-2.0 */
/*
 * minion.p4 - role_minion.h for v1model: numbers each request, for its storage and the learners.
 * The switch handles one packet at a time, so no number is given twice.
 */
#include "netpaxos.p4"

control IbMinion(inout headers_t hdr, inout meta_t meta) {
    @name(".passed") register<bit<64>>(1) passed_of;
    /* Of this start of the minion: the control plane writes it once, before the first packet. */
    @name(".incarnation") register<bit<64>>(1) incarnation_of;
    IbRequestCheck() check;
    apply {
        check.apply(hdr, meta);
        if (meta.reason == IB_R_none) {
            bit<64> passed;
            passed_of.read(passed, 0);
            incarnation_of.read(hdr.netpaxos.incarnation, 0);
            if ((passed >> IB_NETPAXOS_NUMBER_BITS) != 0) {
                meta.reason = IB_R_netpaxos_numbers_used_up;
            } else {
                passed_of.write(0, passed + 1);
                hdr.common.type = IB_NETPAXOS_NUMBERED;
                hdr.netpaxos.number = passed + 1;
                meta.verdict = IB_V_GROUP;
                meta.reason = IB_R_netpaxos_numbered;
            }
        }
    }
}

IB_SWITCH(IbNoCheck, IbMinion);
