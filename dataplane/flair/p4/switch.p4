/* SPDX-License-Identifier: Apache-2.0 */
/*
 * switch.p4 - role.h and shell.h for v1model: which key groups are being written, which replicas hold
 * the others, and where reads go.
 *
 * A packet reads and writes each register array at most once, at one index: that of its set, or that
 * of its group. Writes follow all decisions. The ingress thread of the switch handles one packet at a
 * time, so there is nothing to lock and no copy to repeat.
 */
#include "flair.p4"

#define IB_P4_GROUPS (IB_P4_PARTITIONS << IB_P4_GROUP_BITS)

/* The switch's clock. For tests of the rounding it can be compiled to stand still. */
#ifndef IB_P4_NOW_US
#define IB_P4_NOW_US meta.now_us
#endif

control IbFlairSwitch(inout headers_t hdr, inout meta_t meta) {
    /* Of this start of the switch: the control plane writes it once, before the first packet. */
    @name(".incarnation") register<bit<64>>(1) incarnation_of;
    /* struct ib_flair_session. */
    @name(".session") register<bit<64>>(IB_P4_PARTITIONS) session_of;
    @name(".log_index") register<bit<64>>(IB_P4_PARTITIONS) log_index_of;
    @name(".weights") register<bit<64>>(IB_P4_PARTITIONS) weights_of;
    @name(".step_down_ns") register<bit<64>>(IB_P4_PARTITIONS) step_down_ns_of;
    @name(".deadline_ns") register<bit<64>>(IB_P4_PARTITIONS) deadline_ns_of;
    @name(".route") register<bit<64>>(IB_P4_PARTITIONS) route_of;
    @name(".seq") register<bit<64>>(IB_P4_PARTITIONS) seq_of;
    @name(".replied") register<bit<64>>(IB_P4_PARTITIONS) replied_of;
    /* struct ib_flair_group. */
    @name(".group_session") register<bit<64>>(IB_P4_GROUPS) group_session_of;
    @name(".group_seq") register<bit<64>>(IB_P4_GROUPS) group_seq_of;
    @name(".group_stable") register<bit<1>>(IB_P4_GROUPS) group_stable_of;
    @name(".group_log_index") register<bit<64>>(IB_P4_GROUPS) group_log_index_of;
    @name(".group_followers") register<bit<8>>(IB_P4_GROUPS) group_followers_of;
#ifdef IB_P4_GIVEN
    /* For tests: time and random numbers are given, as with IB_GIVEN_ARRIVAL. */
    @name(".given_now_ns") register<bit<64>>(1) given_now_ns;
    @name(".given_random") register<bit<32>>(1) given_random;
#endif

    bit<32> set;
    bit<32> at; /* the group */
    bit<64> incarnation;
    bit<64> now_ns;
    bit<32> chance;
    /* The session, as it was and as it will be. */
    bit<64> session;
    bit<64> log_index;
    bit<64> weights;
    bit<64> step_down_ns;
    bit<64> deadline_ns;
    bit<32> term;
    bit<8> leader;
    bit<8> followers;
    bit<8> replicas;
    bit<8> policy;
    bit<64> seq;
    bit<64> replied;
    /* The group, likewise. */
    bit<64> group_session;
    bit<64> group_seq;
    bit<1> group_stable;
    bit<64> group_log_index;
    bit<8> group_followers;
    /* What is to be done. */
    bool store_session;
    bool store_seq;
    bool store_group;
    bit<64> raise_replied; /* 0: do not raise */
    bool to_replica;
    bool to_client;
    bit<16> replica_at;
    /* How a replica is chosen: the weights of those that may be, and a number below their sum. */
    bit<64> weights_here;
    bit<16> left;

    action drop(bit<16> reason) {
        meta.verdict = IB_V_DROP;
        meta.reason = reason;
    }
    action read_session() {
        bit<64> route;
        session_of.read(session, set);
        log_index_of.read(log_index, set);
        weights_of.read(weights, set);
        step_down_ns_of.read(step_down_ns, set);
        deadline_ns_of.read(deadline_ns, set);
        route_of.read(route, set);
        seq_of.read(seq, set);
        replied_of.read(replied, set);
        term = route[63:32];
        leader = route[31:24];
        followers = route[23:16];
        replicas = route[15:8];
        policy = route[7:0];
    }
    action write_session() {
        session_of.write(set, session);
        log_index_of.write(set, log_index);
        weights_of.write(set, weights);
        step_down_ns_of.write(set, step_down_ns);
        deadline_ns_of.write(set, deadline_ns);
        route_of.write(set, term ++ leader ++ followers ++ replicas ++ policy);
    }
    action read_group() {
        group_session_of.read(group_session, at);
        group_seq_of.read(group_seq, at);
        group_stable_of.read(group_stable, at);
        group_log_index_of.read(group_log_index, at);
        group_followers_of.read(group_followers, at);
    }
    action write_group() {
        group_session_of.write(at, group_session);
        group_seq_of.write(at, group_seq);
        group_stable_of.write(at, group_stable);
        group_log_index_of.write(at, group_log_index);
        group_followers_of.write(at, group_followers);
    }
    /* A group that has not been written in this session. */
    action as_found() {
        group_session = session;
        group_seq = 0;
        group_stable = 1;
        group_log_index = log_index;
        group_followers = followers;
    }
    action nack() {
        hdr.common.type = IB_FLAIR_NACK;
        hdr.common.flags = hdr.common.flags & IB_FLAIR_F_WRITE_MASK;
        hdr.flair.session = session;
        hdr.flair.term = term;
        meta.verdict = IB_V_REPLY;
        meta.reason = IB_R_flair_no_session;
    }
    /* What replicas need to know about a request. IbSend has not yet turned the addresses. */
    action note() {
        hdr.flair.session = session;
        hdr.flair.term = term;
        hdr.flair.client_address = hdr.ipv4.from;
        hdr.flair.client_port = hdr.udp.from;
        hdr.flair.followers = 0;
        hdr.flair.replica = leader;
    }
    action sends_to_replica(bit<16> reason) {
        to_replica = true;
        meta.verdict = IB_V_REPLY;
        meta.reason = reason;
    }
    action sends_to_client(bit<16> reason) {
        to_client = true;
        meta.verdict = IB_V_REPLY;
        meta.reason = reason;
    }
    /* Turns a suspect reply back into the read, for the leader. IbEgress cuts the value off. */
    action read_again(bit<16> reason) {
        hdr.common.type = IB_FLAIR_READ;
        hdr.common.flags = 0;
        hdr.common.value_len_bytes = hdr.flair.key_len_bytes;
        hdr.flair.digest = IB_FLAIR_NO_DATA_DIGEST;
        hdr.flair.followers = 0;
        hdr.flair.term = term;
        hdr.flair.seq = group_seq;
        hdr.flair.log_index = group_log_index;
        hdr.flair.replica = leader;
        sends_to_replica(reason);
    }
    action route() {
        weights = hdr.flair.key_hash;
        followers = hdr.flair.followers;
        replicas = hdr.flair.window[7:0];
        policy = hdr.common.flags[7:0] & IB_FLAIR_F_LEADER_AVOIDANCE;
        store_session = true;
    }
    action answer(bit<16> reason) {
        hdr.common.flags = hdr.common.flags | IB_FLAIR_F_ANSWER;
        hdr.flair.session = session;
        hdr.flair.term = term;
        hdr.flair.seq = incarnation;
        hdr.flair.client_seq = now_ns;
        meta.verdict = IB_V_REPLY;
        meta.reason = reason;
    }

    /* Replicas by set * IB_FLAIR_REPLICAS_MAX + replica. IbSend turns the addresses round. */
    @name(".replica") action replica(bit<48> to_mac, bit<48> from_mac, bit<32> to, bit<16> to_port, bit<9> port) {
        hdr.ethernet.from = to_mac;
        hdr.ethernet.to = from_mac;
        hdr.ipv4.from = to;
        hdr.udp.from = to_port;
        meta.sender_port = port;
    }
    @name(".no_replica") action no_replica() {
        drop(IB_R_copy_unresolved);
    }
    @name(".replicas") table replicas_table {
        key = { replica_at : exact; }
        actions = { replica; no_replica; }
        default_action = no_replica();
        size = IB_P4_PARTITIONS * IB_FLAIR_REPLICAS_MAX;
    }
    /* Clients by address. A packet for another one goes to the host, still addressed to it. */
    @name(".client") action client(bit<48> to_mac, bit<48> from_mac, bit<9> port) {
        hdr.ethernet.from = to_mac;
        hdr.ethernet.to = from_mac;
        hdr.ipv4.from = hdr.flair.client_address;
        hdr.udp.from = hdr.flair.client_port;
        meta.sender_port = port;
    }
    @name(".client_by_host") action client_by_host() {
        bit<48> mac = hdr.ethernet.to;
        bit<32> address = hdr.ipv4.to;
        bit<16> port = hdr.udp.to;
        hdr.ethernet.to = hdr.ethernet.from;
        hdr.ethernet.from = mac;
        hdr.ipv4.to = hdr.ipv4.from;
        hdr.ipv4.from = address;
        hdr.udp.to = hdr.udp.from;
        hdr.udp.from = port;
        meta.sender_port = meta.host_port;
        meta.reason = IB_R_flair_client_by_host;
    }
    @name(".clients") table clients {
        key = { hdr.flair.client_address : exact; }
        actions = { client; client_by_host; }
        default_action = client_by_host();
        size = 1024;
    }

/* Eight bits for each bit of the bitmap. */
#define IB_P4_BYTE(bits, i) (8w0 - (7w0 ++ (bits)[i:i]))
#define IB_P4_BYTES(bits)                                                                          \
    (IB_P4_BYTE(bits, 7) ++ IB_P4_BYTE(bits, 6) ++ IB_P4_BYTE(bits, 5) ++ IB_P4_BYTE(bits, 4) ++   \
     IB_P4_BYTE(bits, 3) ++ IB_P4_BYTE(bits, 2) ++ IB_P4_BYTE(bits, 1) ++ IB_P4_BYTE(bits, 0))

/* The sum of the weights up to a replica; and 1 if the number drawn is not below it. */
#define IB_P4_UP_TO_0(w) ((bit<16>)(w)[7:0])
#define IB_P4_UP_TO_1(w) (IB_P4_UP_TO_0(w) + (bit<16>)(w)[15:8])
#define IB_P4_UP_TO_2(w) (IB_P4_UP_TO_1(w) + (bit<16>)(w)[23:16])
#define IB_P4_UP_TO_3(w) (IB_P4_UP_TO_2(w) + (bit<16>)(w)[31:24])
#define IB_P4_UP_TO_4(w) (IB_P4_UP_TO_3(w) + (bit<16>)(w)[39:32])
#define IB_P4_UP_TO_5(w) (IB_P4_UP_TO_4(w) + (bit<16>)(w)[47:40])
#define IB_P4_UP_TO_6(w) (IB_P4_UP_TO_5(w) + (bit<16>)(w)[55:48])
#define IB_P4_UP_TO_7(w) (IB_P4_UP_TO_6(w) + (bit<16>)(w)[63:56])
#define IB_P4_BEHIND(i) (left >= IB_P4_UP_TO_##i(weights_here) ? 8w1 : 0)

    /* ib_flair_choose: translates a bitmap that is not empty into a replica, by weight. In several
     * actions, because p4c writes out what an action computes wherever the action uses it. */
    action weigh(in bit<8> readers) {
        weights_here = weights & IB_P4_BYTES(readers);
    }
    action weigh_equally(in bit<8> readers) {
        weights_here = 64w0x0101010101010101 & IB_P4_BYTES(readers);
    }
    action draw() {
        bit<64> product = (bit<64>)chance * (bit<64>)IB_P4_UP_TO_7(weights_here);
        left = product[47:32]; /* below the sum */
    }
    /* How many replicas come before it. */
    action choose() {
        hdr.flair.replica = IB_P4_BEHIND(0) + IB_P4_BEHIND(1) + IB_P4_BEHIND(2) +
                            IB_P4_BEHIND(3) + IB_P4_BEHIND(4) + IB_P4_BEHIND(5) +
                            IB_P4_BEHIND(6);
    }

    apply {
        bit<8> type = hdr.common.type;
        bit<16> flags = hdr.common.flags;
        store_session = false;
        store_seq = false;
        store_group = false;
        raise_replied = 0;
        to_replica = false;
        to_client = false;

#ifdef IB_P4_GIVEN
        given_now_ns.read(now_ns, 0);
        given_random.read(chance, 0);
        bit<64> latest_ns = now_ns;
#else
        /* The clock counts microseconds: what is told is rounded down, what ends a session up. */
        now_ns = (bit<64>)IB_P4_NOW_US * 1000;
        bit<64> latest_ns = now_ns + 999;
        random(chance, 0, 0xffffffff);
#endif
        incarnation_of.read(incarnation, 0);
        /* IbFrameCheck has refused other sets; the group is below 1 << IB_P4_GROUP_BITS. */
        set = (bit<32>)hdr.common.partition;
        at = set << IB_P4_GROUP_BITS |
             (bit<32>)(hdr.flair.key_hash >> (64 - IB_P4_GROUP_BITS));
        read_session();
        read_group();
        /* This alone determines whether a session is active. */
        bool is_active = latest_ns < deadline_ns;
        if (type != IB_FLAIR_WRITE_REPLY && group_session != session) {
            as_found();
        }

        if (type == IB_FLAIR_READ || type == IB_FLAIR_WRITE) {
            if (!is_active) {
                nack();
            } else if (type == IB_FLAIR_WRITE) {
                seq = seq + 1;
                store_seq = true;
                group_seq = seq;
                group_stable = 0;
                store_group = true;
                note();
                hdr.common.flags = flags & IB_FLAIR_F_WRITE_MASK;
                hdr.flair.seq = seq;
                hdr.flair.log_index = 0;
                sends_to_replica(IB_R_flair_write_sequenced);
            } else {
                note();
                hdr.common.flags = 0;
                hdr.flair.seq = group_seq;
                hdr.flair.log_index = group_log_index;
                /* ib_flair_readers. */
                bit<8> readers = group_followers & replicas;
                bit<8> others = readers & ~(8w1 << (leader & (IB_FLAIR_REPLICAS_MAX - 1)));
                if ((policy & IB_FLAIR_F_LEADER_AVOIDANCE) != 0 && seq != replied && others != 0) {
                    readers = others;
                }
                if (group_stable == 0) {
                    sends_to_replica(IB_R_flair_read_unstable);
                } else if (readers == 0) {
                    sends_to_replica(IB_R_flair_read_nobody);
                } else {
                    weigh(readers);
                    if (weights_here == 0) {
                        weigh_equally(readers);
                    }
                    draw();
                    choose();
                    if (hdr.flair.replica == leader) {
                        sends_to_replica(IB_R_flair_read_to_leader);
                    } else {
                        hdr.common.flags = IB_FLAIR_F_STABLE;
                        sends_to_replica(IB_R_flair_read_to_follower);
                    }
                }
            }
        } else if (type == IB_FLAIR_READ_REPLY || type == IB_FLAIR_WRITE_REPLY) {
            if (hdr.flair.session != session) {
                drop(IB_R_flair_reply_old_session);
            } else if (!is_active) {
                drop(IB_R_flair_reply_no_session);
            } else if (type == IB_FLAIR_WRITE_REPLY) {
                bool refresh = (flags & IB_FLAIR_F_REFRESH) != 0;
                raise_replied = hdr.flair.seq;
                if (group_session == session && group_seq == hdr.flair.seq) {
                    group_log_index = hdr.flair.log_index;
                    group_followers = hdr.flair.followers;
                    group_stable = 1;
                    store_group = true;
                    if (refresh) {
                        drop(IB_R_flair_refresh_stable);
                    } else {
                        sends_to_client(IB_R_flair_write_stable);
                    }
                } else if (refresh) {
                    drop(IB_R_flair_refresh_overtaken);
                } else {
                    sends_to_client(IB_R_flair_write_overtaken);
                }
            } else if ((flags & IB_FLAIR_F_STABLE) == 0) {
                sends_to_client(IB_R_flair_read_of_leader);
            } else if ((flags & IB_FLAIR_F_REFUSED) != 0) {
                read_again(IB_R_flair_read_refused);
            } else if (hdr.flair.seq != group_seq) {
                read_again(IB_R_flair_read_overtaken);
            } else {
                sends_to_client(IB_R_flair_read_of_follower);
            }
        } else if (type == IB_FLAIR_NACK || (flags & IB_FLAIR_F_ANSWER) != 0) {
            drop(IB_R_flair_not_for_switch);
        } else if (type == IB_FLAIR_INSTALL) {
            if (hdr.flair.client_id > IB_FLAIR_STEP_DOWN_MAX_NS) {
                drop(IB_R_flair_bad_step_down);
            } else if (hdr.flair.seq != incarnation) {
                answer(IB_R_flair_other_incarnation);
            } else if (hdr.flair.session <= session) {
                answer(IB_R_flair_session_known);
            } else {
                session = hdr.flair.session;
                term = hdr.flair.term;
                log_index = hdr.flair.log_index;
                step_down_ns = hdr.flair.client_id;
                deadline_ns = 0;
                leader = hdr.flair.replica;
                route();
                raise_replied = seq; /* no write is in flight when a session begins */
                if ((flags & IB_FLAIR_F_NEUTRALISE) != 0) {
                    answer(IB_R_flair_neutralised);
                } else {
                    answer(IB_R_flair_installed);
                }
            }
        } else {
            /* ib_flair_renew: only from a time that this switch has sent. */
            bit<64> renewed_ns = hdr.flair.client_seq + step_down_ns;
            if (hdr.flair.seq != incarnation) {
                answer(IB_R_flair_other_incarnation);
            } else if (hdr.flair.session != session) {
                answer(IB_R_flair_other_session);
            } else if (hdr.flair.client_seq == 0) {
                answer(IB_R_flair_time_none);
            } else if (hdr.flair.client_seq > now_ns) {
                answer(IB_R_flair_time_ahead);
            } else if (renewed_ns < deadline_ns) {
                answer(IB_R_flair_time_old);
            } else {
                deadline_ns = renewed_ns;
                route();
                answer(IB_R_flair_renewed);
            }
        }

        if (store_session) {
            write_session();
        }
        if (store_seq) {
            seq_of.write(set, seq);
        }
        if (store_group) {
            write_group();
        }
        if (raise_replied > replied) {
            replied_of.write(set, raise_replied);
        }
        if (to_replica) {
            replica_at = hdr.common.partition * IB_FLAIR_REPLICAS_MAX + (bit<16>)hdr.flair.replica;
            replicas_table.apply();
        } else if (to_client) {
            clients.apply();
        }
    }
}

IB_SWITCH(IbFlairCheck, IbFlairSwitch);
