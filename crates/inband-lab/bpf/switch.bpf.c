/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lab's switch: one XDP program on every switch-side veth.
 *
 * Port p is the interface with index SWITCH_IFINDEX_BASE + p, and the host behind it has the MAC
 * address SWITCH_MAC_PREFIX:p. So both directions of the layer 2 table are arithmetic, and the path
 * that benchmarks measure has no table to search. The lab sets both when it makes the link.
 *
 * Faults are looked up per frame: loss, cuts and drop rules are decided here; a frame that must
 * wait (a held or delayed link) is handed to user space, which puts it on the wire later.
 *
 * What user space shares with this file is laid out in src/switch.rs, which compares sizes at load.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define SWITCH_PORTS 64          /* one bit each in a 64 bit mask */
#define SWITCH_IFINDEX_BASE 1000 /* interface index of port 0 */
#define SWITCH_DROP_RULES 16
#define SWITCH_FRAME_BYTES 1536 /* MTU 1500 and an Ethernet header, rounded up */
#define SWITCH_QUEUE_BYTES (4 << 20)
#define SWITCH_MAC_PREFIX_0 0x02 /* locally administered */
#define SWITCH_MAC_PREFIX_1 0x49 /* "IB" */
#define SWITCH_MAC_PREFIX_2 0x42
#define INBAND_TYPE_OFFSET_BYTES 5 /* of the message type, in the UDP payload */
#define LOSS_SCALE_PPM 1000000

enum switch_link_flag {
    SWITCH_LINK_CUT_FROM_HOST = 1,
    SWITCH_LINK_CUT_TO_HOST = 2,
};

struct switch_link {
    __u64 cut_to_ports; /* frames from this port to these ports are cut */
    __u32 loss_from_host_ppm;
    __u32 loss_to_host_ppm;
    __u32 flags;
    __u32 reserved;
};

struct switch_drop_rule {
    __u64 from_ports;
    __u64 to_ports;
    __u16 udp_port; /* source or destination */
    __u8 message_type;
    __u8 active;
    __u32 reserved;
};

struct switch_state {
    __u64 ports;        /* that exist */
    __u32 faults;       /* some link has a fault set */
    __u32 active_rules; /* how many drop rules are active */
};

enum switch_counter {
    SWITCH_FROM_HOST,
    SWITCH_TO_HOST,
    SWITCH_LOST,
    SWITCH_CUT,
    SWITCH_RULED,
    SWITCH_QUEUED,
    SWITCH_QUEUE_FULL,
    SWITCH_UNKNOWN,
    SWITCH_COUNTERS,
};

struct switch_counters {
    __u64 of[SWITCH_COUNTERS];
};

struct switch_queued_frame {
    __u32 in;
    __u32 out;
    __u32 len_bytes;
    __u32 reserved;
    __u8 frame[SWITCH_FRAME_BYTES];
};

enum switch_fate {
    SWITCH_FATE_PASS,
    SWITCH_FATE_DROP,
    SWITCH_FATE_QUEUE,
};

struct {
    __uint(type, BPF_MAP_TYPE_DEVMAP);
    __uint(max_entries, SWITCH_PORTS);
    __type(key, __u32);
    __type(value, __u32);
} ports SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, SWITCH_PORTS);
    __type(key, __u32);
    __type(value, struct switch_link);
} links SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, SWITCH_DROP_RULES);
    __type(key, __u32);
    __type(value, struct switch_drop_rule);
} drop_rules SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct switch_state);
} state SEC(".maps");

/* Ports whose frames wait in user space. Apart from `state` because another thread writes it. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64);
} queueing SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, SWITCH_PORTS);
    __type(key, __u32);
    __type(value, struct switch_counters);
} counters SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, SWITCH_QUEUE_BYTES);
} to_user SEC(".maps");

static __always_inline void count(__u32 port, enum switch_counter which) {
    struct switch_counters *c = bpf_map_lookup_elem(&counters, &port);

    if (c)
        c->of[which]++;
}

static __always_inline int lost(__u32 loss_ppm) {
    return loss_ppm && bpf_get_prandom_u32() % LOSS_SCALE_PPM < loss_ppm;
}

/* What a drop rule looks at; `is_udp` is 0 for a frame that no rule can match. */
struct switch_datagram {
    __u16 source;
    __u16 dest;
    __u8 message_type;
    __u8 is_udp;
};

static __always_inline void read_datagram(struct xdp_md *ctx, struct switch_datagram *d) {
    void *data = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    struct iphdr *ip = (void *)(eth + 1);
    struct udphdr *udp = (void *)(ip + 1);
    __u8 *payload = (void *)(udp + 1);

    d->is_udp = 0;
    if ((void *)(payload + INBAND_TYPE_OFFSET_BYTES + 1) > end)
        return;
    if (eth->h_proto != bpf_htons(ETH_P_IP) || ip->protocol != IPPROTO_UDP || ip->ihl != 5)
        return;
    d->source = bpf_ntohs(udp->source);
    d->dest = bpf_ntohs(udp->dest);
    d->message_type = payload[INBAND_TYPE_OFFSET_BYTES];
    d->is_udp = 1;
}

static __always_inline int ruled_out(const struct switch_datagram *d, __u32 in, __u32 out) {
    for (__u32 i = 0; i < SWITCH_DROP_RULES; i++) {
        __u32 key = i;
        struct switch_drop_rule *rule = bpf_map_lookup_elem(&drop_rules, &key);

        if (!rule || !rule->active || rule->message_type != d->message_type)
            continue;
        if (rule->udp_port != d->source && rule->udp_port != d->dest)
            continue;
        if ((rule->from_ports >> (in & 63) & 1) && (rule->to_ports >> (out & 63) & 1))
            return 1;
    }
    return 0;
}

/* Decide, and count whatever is not passed. `in` and `out` are below SWITCH_PORTS. */
static __always_inline enum switch_fate fate(const struct switch_state *s,
                                             const struct switch_datagram *d, __u32 in, __u32 out) {
    __u32 zero = 0;
    __u64 *waiting;

    if (s->active_rules && d->is_udp && ruled_out(d, in, out)) {
        count(in, SWITCH_RULED);
        return SWITCH_FATE_DROP;
    }
    if (s->faults) {
        struct switch_link *from = bpf_map_lookup_elem(&links, &in);
        struct switch_link *to = bpf_map_lookup_elem(&links, &out);

        if (!from || !to)
            return SWITCH_FATE_DROP;
        if ((from->flags & SWITCH_LINK_CUT_FROM_HOST) || (from->cut_to_ports >> (out & 63) & 1)) {
            count(in, SWITCH_CUT);
            return SWITCH_FATE_DROP;
        }
        if (to->flags & SWITCH_LINK_CUT_TO_HOST) {
            count(out, SWITCH_CUT);
            return SWITCH_FATE_DROP;
        }
        if (lost(from->loss_from_host_ppm)) {
            count(in, SWITCH_LOST);
            return SWITCH_FATE_DROP;
        }
        if (lost(to->loss_to_host_ppm)) {
            count(out, SWITCH_LOST);
            return SWITCH_FATE_DROP;
        }
    }
    waiting = bpf_map_lookup_elem(&queueing, &zero);
    if (waiting && (*waiting >> (in & 63) & 1 || *waiting >> (out & 63) & 1))
        return SWITCH_FATE_QUEUE;
    return SWITCH_FATE_PASS;
}

static __always_inline void hand_to_user(struct xdp_md *ctx, __u32 in, __u32 out) {
    __u64 len_bytes = bpf_xdp_get_buff_len(ctx);
    struct switch_queued_frame *q;

    if (len_bytes < ETH_HLEN || len_bytes > SWITCH_FRAME_BYTES) {
        count(in, SWITCH_QUEUE_FULL);
        return;
    }
    q = bpf_ringbuf_reserve(&to_user, sizeof(*q), 0);
    if (!q) {
        count(in, SWITCH_QUEUE_FULL);
        return;
    }
    q->in = in;
    q->out = out;
    q->len_bytes = len_bytes;
    q->reserved = 0;
    if (bpf_xdp_load_bytes(ctx, 0, q->frame, len_bytes)) {
        bpf_ringbuf_discard(q, 0);
        count(in, SWITCH_QUEUE_FULL);
        return;
    }
    bpf_ringbuf_submit(q, 0);
    count(in, SWITCH_QUEUED);
}

struct switch_flood {
    struct xdp_md *ctx;
    const struct switch_state *state;
    struct switch_datagram datagram;
    __u32 in;
};

/* One copy of a broadcast. Copies go through user space: a program can redirect a frame only once,
 * and each copy has its own fate. Only while faults are set, and only ARP, so its cost is of no
 * matter. */
static int flood_one(__u32 out, struct switch_flood *flood) {
    if (out == flood->in || !(flood->state->ports >> (out & 63) & 1))
        return 0;
    if (fate(flood->state, &flood->datagram, flood->in, out) != SWITCH_FATE_DROP)
        hand_to_user(flood->ctx, flood->in, out);
    return 0;
}

SEC("xdp")
int lab_switch(struct xdp_md *ctx) {
    void *data = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    __u32 in = ctx->ingress_ifindex - SWITCH_IFINDEX_BASE;
    struct switch_datagram datagram = {};
    struct switch_state *s;
    __u64 *waiting;
    __u32 zero = 0;
    __u32 out;

    if ((void *)(eth + 1) > end || in >= SWITCH_PORTS)
        return XDP_DROP;
    s = bpf_map_lookup_elem(&state, &zero);
    waiting = bpf_map_lookup_elem(&queueing, &zero);
    if (!s || !waiting)
        return XDP_DROP;
    count(in, SWITCH_FROM_HOST);
    if (s->active_rules)
        read_datagram(ctx, &datagram);

    if (eth->h_dest[0] & 1) {
        if (s->faults || s->active_rules || *waiting) {
            struct switch_flood flood = {
                .ctx = ctx,
                .state = s,
                .datagram = datagram,
                .in = in,
            };

            bpf_loop(SWITCH_PORTS, flood_one, &flood, 0);
            return XDP_DROP;
        }
        return bpf_redirect_map(&ports, 0, BPF_F_BROADCAST | BPF_F_EXCLUDE_INGRESS);
    }

    out = eth->h_dest[5];
    if (eth->h_dest[0] != SWITCH_MAC_PREFIX_0 || eth->h_dest[1] != SWITCH_MAC_PREFIX_1 ||
        eth->h_dest[2] != SWITCH_MAC_PREFIX_2 || out >= SWITCH_PORTS ||
        !(s->ports >> (out & 63) & 1)) {
        count(in, SWITCH_UNKNOWN);
        return XDP_DROP;
    }
    switch (fate(s, &datagram, in, out)) {
    case SWITCH_FATE_PASS:
        count(out, SWITCH_TO_HOST);
        return bpf_redirect_map(&ports, out, XDP_DROP);
    case SWITCH_FATE_QUEUE:
        hand_to_user(ctx, in, out);
        return XDP_DROP;
    default:
        return XDP_DROP;
    }
}

char _license[] SEC("license") = "Dual BSD/GPL";
