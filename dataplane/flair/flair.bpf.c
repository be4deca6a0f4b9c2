/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flair - the FLAIR switch as a program on an interface, which it does not share with other roles.
 *
 * All packets leave according to the kernel's routing tables. A reply to a client that they cannot
 * resolve (yet) is rewritten but left addressed to this host, and passed to the host's process. The
 * process recognizes it by the node id, which is this switch's own, and only has to forward it;
 * that also makes the kernel resolve the client.
 */
/* variant: flair_slow IB_RACE_DELAY */
/* variant: flair_seq_outside_group IB_RACE_DELAY IB_MUTANT_SEQ_OUTSIDE_GROUP */
/* variant: flair_torn_copies IB_RACE_DELAY IB_MUTANT_TORN_COPIES */
/* variant: flair_heartbeat_takes_nothing IB_RACE_DELAY IB_MUTANT_HEARTBEAT_TAKES_NOTHING */
/* variant: flair_given IB_GIVEN_ARRIVAL */
#define IB_SYSTEM_CHECK ib_flair_check

#include "msg.h"
#include "settings.h"
#include "../ground/xdp/validate.h"
#include "../ground/xdp/route.h"
#include "../ground/xdp/race_wait.h"
#include "../ground/xdp/given.h"
#include "shell.h"

const volatile struct ib_flair_settings ib_flair_settings SEC(".rodata.own");

IB_REGISTERS(ib_sessions_map, struct ib_flair_session);

/* Indexed by set * groups + group. */
IB_REGISTERS(ib_flair_groups_map, struct ib_flair_group);

/* Indexed by set * IB_FLAIR_REPLICAS_MAX + replica. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, IB_FLAIR_REPLICAS_MAX); /* sets * replicas, set by the loader */
    __type(key, ib_u32);
    __type(value, struct ib_member);
} ib_replicas_map SEC(".maps");

IB_INLINE struct ib_arrival ib_flair_arrives(const ib_u8 *data, ib_u8 type) {
    struct ib_arrival arrival = {
        .from_address = bpf_ntohl(IB_IP(data)->saddr),
        .from_port = bpf_ntohs(IB_UDP(data)->source),
    };
#ifdef IB_GIVEN_ARRIVAL
    const struct ib_given *given = ib_given();
    arrival.now_ns = given ? given->now_ns : 0;
    arrival.random = given ? (ib_u32)given->random : 0;
    (void)type;
#else
    arrival.now_ns = bpf_ktime_get_boot_ns();
    arrival.random = type == IB_FLAIR_READ ? bpf_get_prandom_u32() : 0;
#endif
    return arrival;
}

IB_INLINE int ib_flair_to_replica(struct xdp_md *ctx, ib_u8 *data, const struct ib_flair_msg *m) {
    ib_u32 at = (ib_u32)m->set * IB_FLAIR_REPLICAS_MAX + m->replica;
    const struct ib_member *member = bpf_map_lookup_elem(&ib_replicas_map, &at);
    if (!member)
        return XDP_ABORTED;
    if (IB_RARE(!member->known)) {
        ib_count_reason(IB_R_copy_unresolved);
        return XDP_DROP;
    }
    ib_frame_address(data, member);
    return ib_route_out(ctx, member->ifindex);
}

IB_INLINE int ib_flair_send(struct xdp_md *ctx, struct ib_flair_msg *m, struct ib_result result) {
    if (result.verdict == IB_DROP) {
        ib_count_reason(result.reason);
        return XDP_DROP;
    }
    const struct ib_keys *keys = NULL;
    ib_u8 *data = IB_SEND_BEGIN(ctx, m, keys);
    ib_flair_emit(data + IB_XDP_FRAME_LEN_BYTES, m);
    ib_send_finish(data, keys, m->key_id, m->value_len_bytes);
    ib_count_reason(result.reason);
    if (result.verdict == IB_TO_REPLICA)
        return ib_flair_to_replica(ctx, data, m);
    if (result.verdict == IB_TO_CLIENT)
        return ib_route_or_by_host(ctx, data, m->client_address, m->client_port,
                                   IB_R_flair_client_by_host);
    return ib_route_back(ctx, data);
}

SEC("xdp")
int ib_flair_xdp(struct xdp_md *ctx) {
    struct ib_flair_msg m = {0};
    const ib_u8 *data = IB_RECEIVE(ctx, &m, ib_flair_read_header);
    ib_u32 set = m.set;
    ib_u32 at =
        set * ib_flair_settings.groups + ib_flair_group_of(m.key_hash, ib_flair_settings.groups);
    struct ib_flair_session *session = bpf_map_lookup_elem(&ib_sessions_map, &set);
    struct ib_flair_group *group = bpf_map_lookup_elem(&ib_flair_groups_map, &at);
    if (!session || !group)
        return XDP_ABORTED;
    struct ib_arrival arrival = ib_flair_arrives(data, m.type);
    struct ib_result result =
        ib_shell_flair(&m, session, group, ib_flair_settings.incarnation, &arrival);
    return ib_flair_send(ctx, &m, result);
}

char ib_license[] SEC("license") = "Dual BSD/GPL";
