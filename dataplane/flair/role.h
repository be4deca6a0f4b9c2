/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flair.h - the FLAIR switch: knows which keys are being written and which replicas hold the
 * others, and routes reads to these (docs/flair.md).
 *
 * Pure. `v` and `g` are consistent copies of the registers of the packet's set and group; the shell
 * stores the parts that `io` requests. Time and random numbers come with the packet.
 */
#ifndef INBAND_FLAIR_ROLE_H
#define INBAND_FLAIR_ROLE_H

#include "msg.h"
#include "registers.h"

/* The session of a set. */
struct ib_flair_view {
    ib_u64 session;
    ib_u64 log_index;
    ib_u64 weights;
    ib_u64 step_down_ns;
    ib_u64 deadline_ns;
    ib_u64 seq;     /* the last one assigned; WRITE: this write's */
    ib_u64 replied; /* with LEADER_AVOIDANCE */
    ib_u32 term;
    ib_u8 leader;
    ib_u8 followers;
    ib_u8 replicas;
    ib_u8 policy; /* IB_FLAIR_F_LEADER_AVOIDANCE */
};

/* The stores that the role requests from the shell. */
struct ib_flair_io {
    int store_group;
    int store_session;
    ib_u64 raise_replied; /* 0: do not raise */
};

/* This alone determines whether a session is active: there is no flag that could be left set. */
IB_INLINE int ib_flair_is_active(const struct ib_flair_view *v, ib_u64 now_ns) {
    return now_ns < v->deadline_ns;
}

/* A group that has not been written in this session is as it was when the session began. */
IB_INLINE void ib_flair_as_found(struct ib_flair_group *g, const struct ib_flair_view *v) {
    if (g->session == v->session)
        return;
    g->session = v->session;
    g->seq = 0;
    g->stable = 1;
    g->log_index = v->log_index;
    g->followers = v->followers;
}

/* No session: the client should ask another switch. */
IB_INLINE struct ib_result ib_flair_nack(struct ib_flair_msg *m, const struct ib_flair_view *v) {
    m->type = IB_FLAIR_NACK;
    m->flags &= IB_FLAIR_F_WRITE_MASK;
    m->session = v->session;
    m->term = v->term;
    return ib_verdict(IB_REPLY, IB_R_flair_no_session);
}

/* Why to drop a reply, or IB_R_none. */
IB_INLINE unsigned int ib_flair_reply_check(const struct ib_flair_msg *m,
                                            const struct ib_flair_view *v, ib_u64 now_ns) {
    if (m->session != v->session)
        return IB_R_flair_reply_old_session;
    return ib_flair_is_active(v, now_ns) ? IB_R_none : IB_R_flair_reply_no_session;
}

/* Sets what replicas need to know about a request: its sender, and the session. */
IB_INLINE void ib_flair_note(struct ib_flair_msg *m, const struct ib_flair_view *v,
                             const struct ib_arrival *a) {
    m->session = v->session;
    m->term = v->term;
    m->client_address = a->from_address;
    m->client_port = a->from_port;
    m->followers = 0;
}

/* The group's slot is locked, and v->seq was assigned under the lock (schedules.md, 15). */
IB_INLINE struct ib_result ib_flair_write(struct ib_flair_msg *m, const struct ib_flair_view *v,
                                          struct ib_flair_group *g, struct ib_flair_io *io,
                                          const struct ib_arrival *a) {
    if (!ib_flair_is_active(v, a->now_ns))
        return ib_flair_nack(m, v);
    ib_flair_as_found(g, v);
    g->seq = v->seq;
    g->stable = 0;
    io->store_group = 1;
    ib_flair_note(m, v, a);
    m->flags &= IB_FLAIR_F_WRITE_MASK;
    m->seq = v->seq;
    m->log_index = 0;
    m->replica = v->leader;
    return ib_verdict(IB_TO_REPLICA, IB_R_flair_write_sequenced);
}

/* The group's slot is locked. Only the reply to the group's last write makes it stable. */
IB_INLINE struct ib_result ib_flair_write_reply(struct ib_flair_msg *m,
                                                const struct ib_flair_view *v,
                                                struct ib_flair_group *g, struct ib_flair_io *io,
                                                const struct ib_arrival *a) {
    unsigned int reason = ib_flair_reply_check(m, v, a->now_ns);
    if (reason != IB_R_none)
        return ib_verdict(IB_DROP, reason);
    int refresh = (m->flags & IB_FLAIR_F_REFRESH) != 0;
    io->raise_replied = m->seq;
    if (g->session != m->session || g->seq != m->seq)
        return refresh ? ib_verdict(IB_DROP, IB_R_flair_refresh_overtaken)
                       : ib_verdict(IB_TO_CLIENT, IB_R_flair_write_overtaken);
    g->log_index = m->log_index;
    g->followers = m->followers;
    g->stable = 1;
    io->store_group = 1;
    return refresh ? ib_verdict(IB_DROP, IB_R_flair_refresh_stable)
                   : ib_verdict(IB_TO_CLIENT, IB_R_flair_write_stable);
}

/* The sum of the weights of the replicas in a bitmap. */
IB_INLINE ib_u32 ib_flair_weight(ib_u64 weights, ib_u32 replicas) {
    ib_u32 sum = 0;
    for (ib_u32 i = 0; i < IB_FLAIR_REPLICAS_MAX; i++)
        sum += replicas >> i & 1 ? (ib_u32)(weights >> 8 * i) & 0xff : 0;
    return sum;
}

/* Chooses a replica from a bitmap that is not empty, by weight; if all weights are 0, uniformly. */
IB_INLINE ib_u8 ib_flair_choose(ib_u64 weights, ib_u32 replicas, ib_u32 random) {
    ib_u32 sum = ib_flair_weight(weights, replicas);
    if (IB_RARE(sum == 0)) {
        weights = 0x0101010101010101ULL;
        sum = ib_flair_weight(weights, replicas);
    }
    ib_u32 left = (ib_u32)((ib_u64)random * sum >> 32); /* below sum */
    ib_u8 chosen = 0;
    int found = 0;
    for (ib_u32 i = 0; i < IB_FLAIR_REPLICAS_MAX; i++) {
        ib_u32 weight = replicas >> i & 1 ? (ib_u32)(weights >> 8 * i) & 0xff : 0;
        if (!found && left < weight) {
            chosen = (ib_u8)i;
            found = 1;
        }
        left -= weight;
    }
    return chosen;
}

/* The replicas that may answer a read of a stable group: a bitmap. */
IB_INLINE ib_u32 ib_flair_readers(const struct ib_flair_view *v, const struct ib_flair_group *g) {
    ib_u32 readers = (ib_u32)g->followers & v->replicas;
    ib_u32 others = readers & ~(1U << (v->leader & (IB_FLAIR_REPLICAS_MAX - 1)));
    int writing = v->policy & IB_FLAIR_F_LEADER_AVOIDANCE && v->seq != v->replied;
    return writing && others ? others : readers;
}

IB_INLINE struct ib_result ib_flair_read(struct ib_flair_msg *m, const struct ib_flair_view *v,
                                         struct ib_flair_group *g, const struct ib_arrival *a) {
    if (!ib_flair_is_active(v, a->now_ns))
        return ib_flair_nack(m, v);
    ib_flair_as_found(g, v);
    ib_flair_note(m, v, a);
    m->flags = 0;
    m->seq = g->seq;
    m->log_index = g->log_index;
    m->replica = v->leader;
    if (!g->stable)
        return ib_verdict(IB_TO_REPLICA, IB_R_flair_read_unstable);
    ib_u32 readers = ib_flair_readers(v, g);
    if (IB_RARE(!readers))
        return ib_verdict(IB_TO_REPLICA, IB_R_flair_read_nobody);
    m->replica = ib_flair_choose(v->weights, readers, a->random);
    if (m->replica == v->leader)
        return ib_verdict(IB_TO_REPLICA, IB_R_flair_read_to_leader);
    m->flags = IB_FLAIR_F_STABLE;
    return ib_verdict(IB_TO_REPLICA, IB_R_flair_read_to_follower);
}

/* Turns a suspect reply back into the read, for the leader. */
IB_INLINE struct ib_result ib_flair_read_again(struct ib_flair_msg *m,
                                               const struct ib_flair_view *v,
                                               const struct ib_flair_group *g,
                                               unsigned int reason) {
    ib_flair_to_read(m);
    m->term = v->term;
    m->seq = g->seq;
    m->log_index = g->log_index;
    m->replica = v->leader;
    return ib_verdict(IB_TO_REPLICA, reason);
}

IB_INLINE struct ib_result ib_flair_read_reply(struct ib_flair_msg *m,
                                               const struct ib_flair_view *v,
                                               struct ib_flair_group *g,
                                               const struct ib_arrival *a) {
    unsigned int reason = ib_flair_reply_check(m, v, a->now_ns);
    if (reason != IB_R_none)
        return ib_verdict(IB_DROP, reason);
    if (!(m->flags & IB_FLAIR_F_STABLE))
        return ib_verdict(IB_TO_CLIENT, IB_R_flair_read_of_leader);
    ib_flair_as_found(g, v);
    if (m->flags & IB_FLAIR_F_REFUSED)
        return ib_flair_read_again(m, v, g, IB_R_flair_read_refused);
    if (m->seq != g->seq)
        return ib_flair_read_again(m, v, g, IB_R_flair_read_overtaken);
    return ib_verdict(IB_TO_CLIENT, IB_R_flair_read_of_follower);
}

/* Copies the routing from a HEARTBEAT or INSTALL. */
IB_INLINE void ib_flair_route(const struct ib_flair_msg *m, struct ib_flair_view *v) {
    v->weights = m->key_hash;
    v->followers = m->followers;
    v->replicas = (ib_u8)m->window;
    v->policy = (ib_u8)m->flags & IB_FLAIR_F_LEADER_AVOIDANCE;
}

/* Turns the request into its answer: the current session, the switch's incarnation and its time. */
IB_INLINE struct ib_result ib_flair_answer(struct ib_flair_msg *m, const struct ib_flair_view *v,
                                           ib_u64 incarnation, ib_u64 now_ns, unsigned int reason) {
    m->flags |= IB_FLAIR_F_ANSWER;
    m->session = v->session;
    m->term = v->term;
    m->seq = incarnation;
    m->client_seq = now_ns;
    return ib_verdict(IB_REPLY, reason);
}

/*
 * A session is extended only from a time that this switch has sent, after which a majority has
 * confirmed the leader. So two switches are never active at once (schedules.md, 14). Time 0 means
 * none: the heartbeat only asks for an answer.
 */
IB_INLINE unsigned int ib_flair_renew(const struct ib_flair_msg *m, struct ib_flair_view *v,
                                      struct ib_flair_io *io, ib_u64 incarnation, ib_u64 now_ns) {
    if (m->seq != incarnation)
        return IB_R_flair_other_incarnation;
    if (m->session != v->session)
        return IB_R_flair_other_session;
    if (m->client_seq == 0)
        return IB_R_flair_time_none;
    if (m->client_seq > now_ns)
        return IB_R_flair_time_ahead;
    ib_u64 deadline_ns = m->client_seq + v->step_down_ns;
    if (deadline_ns < v->deadline_ns)
        return IB_R_flair_time_old; /* overtaken by a later heartbeat */
    v->deadline_ns = deadline_ns;
    ib_flair_route(m, v);
    io->store_session = 1;
    return IB_R_flair_renewed;
}

IB_INLINE struct ib_result ib_flair_heartbeat(struct ib_flair_msg *m, struct ib_flair_view *v,
                                              struct ib_flair_io *io, ib_u64 incarnation,
                                              ib_u64 now_ns) {
    unsigned int reason = ib_flair_renew(m, v, io, incarnation, now_ns);
    return ib_flair_answer(m, v, incarnation, now_ns, reason);
}

IB_INLINE struct ib_result ib_flair_install(struct ib_flair_msg *m, struct ib_flair_view *v,
                                            struct ib_flair_io *io, ib_u64 incarnation,
                                            ib_u64 now_ns) {
    if (m->client_id > IB_FLAIR_STEP_DOWN_MAX_NS)
        return ib_verdict(IB_DROP, IB_R_flair_bad_step_down);
    if (m->seq != incarnation)
        return ib_flair_answer(m, v, incarnation, now_ns, IB_R_flair_other_incarnation);
    if (m->session <= v->session)
        return ib_flair_answer(m, v, incarnation, now_ns, IB_R_flair_session_known);
    v->session = m->session;
    v->term = m->term;
    v->log_index = m->log_index;
    v->step_down_ns = m->client_id;
    v->deadline_ns = 0;
    v->leader = m->replica;
    ib_flair_route(m, v);
    io->store_session = 1;
    io->raise_replied = v->seq; /* no write is in flight when a session begins */
    return ib_flair_answer(m, v, incarnation, now_ns,
                           m->flags & IB_FLAIR_F_NEUTRALISE ? IB_R_flair_neutralised
                                                            : IB_R_flair_installed);
}

#endif
