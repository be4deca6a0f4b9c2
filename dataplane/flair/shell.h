/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flair/shell.h - the code around the FLAIR role on every backend: lock, copy, run the role, store,
 * unlock.
 *
 * The rules and why:
 *  - A write locks its group's slot, and only THEN are the session read and the next seq assigned.
 *    If this were done earlier, a lower seq could be stored over a higher one whose reply is still
 *    to come: the group would become stable with a write in flight (schedules.md, 15).
 *  - Reads and their replies lock nothing: the group is copied between two equal even sequences,
 *    and the session before it is the session after it. So they decide on consistent registers.
 *  - HEARTBEAT and INSTALL lock the session's sequence word, so that a heartbeat never extends a
 *    session that has replaced its own.
 *  - Every loop is bounded; on failure the packet is dropped. Loss is always safe.
 */
#ifndef INBAND_FLAIR_SHELL_H
#define INBAND_FLAIR_SHELL_H

#include "../ground/seqlock.h"
#include "role.h"

#define IB_FLAIR_COPY_TRIES_MAX 16

/* For faulty builds: long enough for everything that another CPU does with a packet. */
#define IB_LONG_RACE_WINDOW()                                                                      \
    for (int i = 0; i < 24; i++)                                                                   \
    IB_RACE_WINDOW()

IB_INLINE void ib_flair_load_session(struct ib_flair_view *v, const struct ib_flair_session *s) {
    ib_u64 route = IB_LOAD(&s->route);
    v->session = IB_LOAD(&s->session);
    v->log_index = IB_LOAD(&s->log_index);
    v->weights = IB_LOAD(&s->weights);
    v->step_down_ns = IB_LOAD(&s->step_down_ns);
    v->deadline_ns = IB_LOAD(&s->deadline_ns);
    v->term = (ib_u32)(route >> 32);
    v->leader = (ib_u8)(route >> 24);
    v->followers = (ib_u8)(route >> 16);
    v->replicas = (ib_u8)(route >> 8);
    v->policy = (ib_u8)route;
    v->seq = 0;
    v->replied = 0;
}

IB_INLINE void ib_flair_store_session(struct ib_flair_session *s, const struct ib_flair_view *v) {
    s->session = v->session;
    s->log_index = v->log_index;
    s->weights = v->weights;
    s->step_down_ns = v->step_down_ns;
    s->deadline_ns = v->deadline_ns;
    s->route = (ib_u64)v->term << 32 | (ib_u64)v->leader << 24 | (ib_u64)v->followers << 16 |
               (ib_u64)v->replicas << 8 | v->policy;
}

IB_INLINE void ib_flair_load_group(struct ib_flair_group *copy, const struct ib_flair_group *g) {
    copy->session = IB_LOAD(&g->session);
    copy->seq = IB_LOAD(&g->seq);
    IB_RACE_WINDOW();
    copy->stable = IB_LOAD(&g->stable);
    copy->log_index = IB_LOAD(&g->log_index);
    copy->followers = IB_LOAD(&g->followers);
}

IB_INLINE void ib_flair_store_group(struct ib_flair_group *g, const struct ib_flair_group *copy) {
    g->session = copy->session;
    g->seq = copy->seq;
    IB_RACE_WINDOW();
    g->stable = copy->stable;
    g->log_index = copy->log_index;
    g->followers = copy->followers;
}

/* Makes a consistent copy of the session. Returns 0 if concurrent changes prevented it. */
IB_INLINE int ib_flair_copy_session(struct ib_flair_view *v, const struct ib_flair_session *s) {
    for (int i = 0; i < IB_FLAIR_COPY_TRIES_MAX; i++) {
        ib_u64 before = IB_LOAD(&s->sequence);
        IB_LOADS_IN_ORDER();
        ib_flair_load_session(v, s);
        IB_LOADS_IN_ORDER();
        if (!(before & 1) && IB_LOAD(&s->sequence) == before)
            return 1;
    }
    return 0;
}

/* Makes a consistent copy of session and group. Returns 0 if concurrent changes prevented it. */
IB_INLINE int ib_flair_copy_both(struct ib_flair_view *v, const struct ib_flair_session *s,
                                 struct ib_flair_group *copy, const struct ib_flair_group *g) {
    for (int i = 0; i < IB_FLAIR_COPY_TRIES_MAX; i++) {
        ib_u64 session_before = IB_LOAD(&s->sequence);
        IB_LOADS_IN_ORDER();
        ib_flair_load_session(v, s);
        IB_LOADS_IN_ORDER();
        ib_u64 group_before = IB_LOAD(&g->sequence);
        IB_LOADS_IN_ORDER();
        ib_flair_load_group(copy, g);
        IB_LOADS_IN_ORDER();
#ifdef IB_MUTANT_TORN_COPIES
        return 1;
#endif
        ib_u64 taken = (session_before | group_before) & 1;
        if (!taken && IB_LOAD(&g->sequence) == group_before &&
            IB_LOAD(&s->sequence) == session_before)
            return 1;
    }
    return 0;
}

/* Only a hint for LEADER_AVOIDANCE: correctness does not depend on it. */
IB_INLINE void ib_flair_raise_replied(struct ib_flair_session *s, const struct ib_flair_io *io) {
    if (io->raise_replied)
        ib_atomic_max(&s->replied, io->raise_replied);
}

/* READ and READ_REPLY. */
IB_INLINE struct ib_result ib_shell_flair_read(struct ib_flair_msg *m,
                                               const struct ib_flair_session *session,
                                               const struct ib_flair_group *group,
                                               const struct ib_arrival *a) {
    struct ib_flair_view v;
    struct ib_flair_group g = {0};
    if (IB_RARE(!ib_flair_copy_both(&v, session, &g, group)))
        return ib_verdict(IB_DROP, IB_R_contended);
    if (m->type == IB_FLAIR_READ_REPLY)
        return ib_flair_read_reply(m, &v, &g, a);
    if (v.policy & IB_FLAIR_F_LEADER_AVOIDANCE) {
        v.seq = IB_LOAD(&session->seq);
        v.replied = IB_LOAD(&session->replied);
    }
    return ib_flair_read(m, &v, &g, a);
}

/* WRITE and WRITE_REPLY. */
IB_INLINE struct ib_result ib_shell_flair_write(struct ib_flair_msg *m,
                                                struct ib_flair_session *session,
                                                struct ib_flair_group *group,
                                                const struct ib_arrival *a) {
    struct ib_flair_view v;
    struct ib_flair_group g = {0};
    struct ib_flair_io io = {0, 0, 0};
    struct ib_result result = {IB_DROP, IB_R_contended};
#ifdef IB_MUTANT_SEQ_OUTSIDE_GROUP
    ib_u64 seq_early = m->type == IB_FLAIR_WRITE ? __sync_fetch_and_add(&session->seq, 1) + 1 : 0;
    IB_LONG_RACE_WINDOW();
#endif
    ib_u64 odd = ib_seq_lock(&group->sequence);
    if (IB_RARE(!odd))
        return result;
    IB_RACE_WINDOW();
    if (IB_RARE(!ib_flair_copy_session(&v, session)))
        goto release;
    ib_flair_load_group(&g, group);
    if (m->type == IB_FLAIR_WRITE) {
#ifdef IB_MUTANT_SEQ_OUTSIDE_GROUP
        v.seq = seq_early;
#else
        if (ib_flair_is_active(&v, a->now_ns))
            v.seq = __sync_fetch_and_add(&session->seq, 1) + 1;
#endif
        result = ib_flair_write(m, &v, &g, &io, a);
    } else {
        result = ib_flair_write_reply(m, &v, &g, &io, a);
    }
    IB_RACE_WINDOW();
    if (io.store_group)
        ib_flair_store_group(group, &g);
release:
    ib_seq_unlock(&group->sequence, odd);
    ib_flair_raise_replied(session, &io);
    return result;
}

/* HEARTBEAT and INSTALL. */
IB_INLINE struct ib_result ib_shell_flair_control(struct ib_flair_msg *m,
                                                  struct ib_flair_session *session,
                                                  ib_u64 incarnation, ib_u64 now_ns) {
    struct ib_flair_view v;
    struct ib_flair_io io = {0, 0, 0};
#ifdef IB_MUTANT_HEARTBEAT_TAKES_NOTHING
    int take = m->type == IB_FLAIR_INSTALL;
    ib_u64 odd = take ? ib_seq_lock(&session->sequence) : 1;
#else
    ib_u64 odd = ib_seq_lock(&session->sequence);
#endif
    if (IB_RARE(!odd))
        return ib_verdict(IB_DROP, IB_R_contended);
    ib_flair_load_session(&v, session);
    v.seq = IB_LOAD(&session->seq);
    struct ib_result result = m->type == IB_FLAIR_INSTALL
                                  ? ib_flair_install(m, &v, &io, incarnation, now_ns)
                                  : ib_flair_heartbeat(m, &v, &io, incarnation, now_ns);
    IB_RACE_WINDOW();
#ifdef IB_MUTANT_HEARTBEAT_TAKES_NOTHING
    if (!take)
        IB_LONG_RACE_WINDOW();
#endif
    if (io.store_session)
        ib_flair_store_session(session, &v);
#ifdef IB_MUTANT_HEARTBEAT_TAKES_NOTHING
    if (take)
#endif
        ib_seq_unlock(&session->sequence, odd);
    ib_flair_raise_replied(session, &io);
    return result;
}

/* Handles any message. `session` and `group` are those of the packet's set and key. */
IB_INLINE struct ib_result ib_shell_flair(struct ib_flair_msg *m, struct ib_flair_session *session,
                                          struct ib_flair_group *group, ib_u64 incarnation,
                                          const struct ib_arrival *a) {
    if (m->type == IB_FLAIR_READ || m->type == IB_FLAIR_READ_REPLY)
        return ib_shell_flair_read(m, session, group, a);
    if (m->type == IB_FLAIR_WRITE || m->type == IB_FLAIR_WRITE_REPLY)
        return ib_shell_flair_write(m, session, group, a);
    if (m->type == IB_FLAIR_NACK || m->flags & IB_FLAIR_F_ANSWER)
        return ib_verdict(IB_DROP, IB_R_flair_not_for_switch);
    return ib_shell_flair_control(m, session, incarnation, a->now_ns);
}

#endif
