/* SPDX-License-Identifier: Apache-2.0 */
/*
 * falcon.p4 - the header and the tasks of wire.h, what is kept from one pass of a packet to the next,
 * parser, and what is checked beyond the frame (ib_falcon_check).
 */

/* Kept when a SUBMIT is resubmitted, which begins again with the packet as it came in. */
#define IB_OWN_META                                                                                \
    @field_list(1) bit<1> again;       /* not the first pass */                                    \
    @field_list(1) bit<8> handled;     /* tasks */                                                 \
    @field_list(1) bit<8> place;       /* struct ib_falcon_msg: queue, ... */                      \
    @field_list(1) bit<16> flags;                                                                  \
    @field_list(1) bit<64> taken;                                                                  \
    @field_list(1) bit<32> tail;                                                                   \
    @field_list(1) bit<32> head;                                                                   \
    @field_list(1) bit<64> refused;    /* queues that refused one of the tasks */                  \
    @field_list(1) bit<8> tries;       /* to wake an executor */                                   \
    @field_list(1) bit<1> ends;        /* no further try */                                        \
    @field_list(1) bit<128> unsuited;  /* parked workers for which there is no task */             \
    @field_list(1) bit<32> woken;      /* the executor's number plus 1 */                          \
    bit<8> before;                     /* tasks to pass over */                                    \
    bit<8> left;                       /* tasks to read */                                         \
    bit<64> digests;                   /* of all tasks, XORed */                                   \
    bit<16> bad;                       /* not 0: a task is bad */

#include "../../ground/p4/frame.p4"

/* Without the first 16 bytes and the tag. */
header falcon_h {
    bit<64> incarnation;
    bit<32> user;
    bit<32> job;
    bit<32> client_address;
    bit<16> client_port;
    bit<8> count;
    bit<8> queue;
    bit<32> executor;
    bit<32> worker_incarnation;
    bit<64> pull_seq;
    bit<64> taken;
    bit<64> submit_seq;
    bit<32> tail;
    bit<32> head;
    bit<64> digest;
}

/* enum ib_falcon_task_words, and the description. */
header task_h {
    bit<64> whose;
    bit<64> which;
    bit<64> where;
    bit<64> digest;
    bit<64> d0;
    bit<64> d1;
    bit<64> d2;
    bit<64> d3;
    bit<64> d4;
    bit<64> d5;
    bit<64> d6;
    bit<64> d7;
}

struct headers_t {
    ethernet_h ethernet;
    ipv4_h ipv4;
    udp_h udp;
    common_h common;
    falcon_h falcon;
    tag_h tag;
    task_h task; /* of a SUBMIT: the one that this pass handles */
    /* All others that the length of `count` allows, in their order: a packet that is only forwarded
     * stays as it is. Of one that is rewritten, IbEgress cuts off what follows the first task. */
    task_h[14] others;
}

/* ib_falcon_is_bad_task: not 0 if priority, resource or length are invalid. */
#define IB_P4_BAD(where)                                                                           \
    ((bit<16>)((where)[47:40] & (0xff ^ (IB_FALCON_PRIORITIES - 1))) |                             \
     (bit<16>)((where)[39:32] & (0xff ^ (IB_FALCON_QUEUES_MAX - 1))) |                             \
     (((bit<16>)(where)[7:0] + (127 - IB_FALCON_DESC_LEN_BYTES)) & 0xff80))

/* The first pass reads all tasks, to check them; a later one only its own. */
parser IbParser(packet_in packet, out headers_t hdr, IB_PARSER_REST) {
    IB_PARSER_LOCALS
#include "../../ground/p4/start.p4"
    state ours {
        packet.extract(hdr.common);
        packet.extract(hdr.falcon);
        packet.extract(hdr.tag);
        transition select(hdr.common.magic, hdr.common.type, hdr.falcon.count) {
            /* More than IB_FALCON_TASKS_MAX are refused by their length. */
            (IB_MAGIC, IB_FALCON_SUBMIT, 0 &&& 0xf0) : tasks;
            default : accept;
        }
    }
    state tasks {
        meta.before = meta.handled;
        meta.left = hdr.falcon.count - meta.handled;
        transition select(meta.left) {
            0 : accept;
            default : earlier;
        }
    }
    state earlier {
        transition select(meta.before) {
            0 : own;
            default : pass_over;
        }
    }
    state pass_over {
        packet.extract(hdr.others.next);
        meta.before = meta.before - 1;
        transition earlier;
    }
    state own {
        packet.extract(hdr.task);
        meta.digests = hdr.task.digest;
        meta.bad = IB_P4_BAD(hdr.task.where);
        meta.left = meta.left - 1;
        transition select(meta.again) {
            0 : later;
            default : accept;
        }
    }
    state later {
        transition select(meta.left) {
            0 : accept;
            default : check;
        }
    }
    state check {
        packet.extract(hdr.others.next);
        meta.digests = meta.digests ^ hdr.others.last.digest;
        meta.bad = meta.bad | IB_P4_BAD(hdr.others.last.where);
        meta.left = meta.left - 1;
        transition later;
    }
}

/* IB_FALCON_FAMILY of msg.h. */
#define IB_TYPE_FIRST IB_FALCON_SUBMIT
#define IB_TYPE_LAST IB_FALCON_HOST
#define IB_IS_PADDED(type) false
#define IB_IS_FROM_CLIENT(type)                                                                    \
    (type == IB_FALCON_SUBMIT || type == IB_FALCON_PULL || type == IB_FALCON_HOST)

#define IB_BODY(hdr)                                                                               \
    hdr.falcon.incarnation, hdr.falcon.user ++ hdr.falcon.job,                                     \
        hdr.falcon.client_address ++ hdr.falcon.client_port ++ hdr.falcon.count ++                 \
            hdr.falcon.queue,                                                                      \
        hdr.falcon.executor ++ hdr.falcon.worker_incarnation, hdr.falcon.pull_seq,                 \
        hdr.falcon.taken, hdr.falcon.submit_seq, hdr.falcon.tail ++ hdr.falcon.head,               \
        hdr.falcon.digest

#include "../../ground/p4/switch.p4"

/* The rest of ib_falcon_check: room for an answer, or exactly the tasks. */
control IbFalconCheck(in headers_t hdr, inout meta_t meta) {
    apply {
        bit<8> type = hdr.common.type;
        bit<16> count = (bit<16>)hdr.falcon.count;
        if (type == IB_FALCON_PULL || count == 0) {
            count = 1;
        }
        if ((type == IB_FALCON_SUBMIT || type == IB_FALCON_PULL) &&
            hdr.common.value_len_bytes != count * IB_FALCON_TASK_LEN_BYTES) {
            meta.reason = IB_R_bad_length;
        }
    }
}

/* The index of the lowest set bit; 0 if there is none. */
bit<8> ib_lowest(in bit<64> word) {
    bit<64> bit_of = word & (~word + 1);
    return 2w0 ++ (bit<1>)((bit_of & 64w0xffffffff00000000) != 0) ++
           (bit<1>)((bit_of & 64w0xffff0000ffff0000) != 0) ++
           (bit<1>)((bit_of & 64w0xff00ff00ff00ff00) != 0) ++
           (bit<1>)((bit_of & 64w0xf0f0f0f0f0f0f0f0) != 0) ++
           (bit<1>)((bit_of & 64w0xcccccccccccccccc) != 0) ++
           (bit<1>)((bit_of & 64w0xaaaaaaaaaaaaaaaa) != 0);
}
