/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scheduler.p4 - role.h, queue.h, parking.h and shell.h, for v1model. Every policy but LOCALITY.
 *
 * A pass reads and writes each register array at most once, at one index. A PULL takes one pass. A
 * SUBMIT takes one for each task, and more if executors wait: it is resubmitted as it came in, with
 * what IB_OWN_META keeps. Reads follow each other as one's index needs another's word, then come
 * all decisions, then writes. The ingress thread of the switch handles one pass at a time, and
 * resubmitted packets first, so no locks are needed.
 */
#include "falcon.p4"

#if IB_P4_SLOTS & (IB_P4_SLOTS - 1) || IB_P4_QUEUES & (IB_P4_QUEUES - 1)
#error "powers of two: slots of a queue, queues of a set"
#endif
#if IB_P4_WORKERS > 128
#error "the bitmap of workers has two words"
#endif

#define IB_P4_ALL_SLOTS (IB_P4_PARTITIONS * IB_P4_QUEUES * IB_P4_SLOTS)
#define IB_P4_SETS_WORKERS (IB_P4_PARTITIONS * IB_P4_WORKERS)
#define IB_P4_ALL_EXECUTORS (IB_P4_SETS_WORKERS * IB_FALCON_EXECUTORS)
#define IB_P4_ALL_WORKERS ((128w1 << IB_P4_WORKERS) - 1)
#define IB_P4_TURN_EVERY 16    /* IB_FALCON_TURN_EVERY of role.h */
#define IB_P4_WAKE_TRIES_MAX 4 /* IB_FALCON_WAKE_TRIES_MAX of parking.h */
/* Counted for every pass that a packet is resubmitted after. */
#define IB_P4_ANOTHER_PASS (IB_REASONS_MAX - 1)

struct task_t {
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

control IbScheduler(inout headers_t hdr, inout meta_t meta) {
    /* struct ib_falcon_set; which queues have tasks, and which workers have parked executors. */
    @name(".not_empty") register<bit<64>>(IB_P4_PARTITIONS) not_empty_of;
    @name(".turn") register<bit<64>>(IB_P4_PARTITIONS) turn_of;
    @name(".given") register<bit<64>>(IB_P4_PARTITIONS) given_of;
    @name(".woken") register<bit<64>>(IB_P4_PARTITIONS) woken_of;
    @name(".waiting0") register<bit<64>>(IB_P4_PARTITIONS) waiting0;
    @name(".waiting1") register<bit<64>>(IB_P4_PARTITIONS) waiting1;
    @name(".user_tasks") register<bit<64>>(IB_P4_PARTITIONS * IB_FALCON_USERS) user_tasks;
    /* Of each queue: the next positions to put a task at and to take one from. */
    @name(".add") register<bit<32>>(IB_P4_PARTITIONS * IB_P4_QUEUES) add_of;
    @name(".retrieve") register<bit<32>>(IB_P4_PARTITIONS * IB_P4_QUEUES) retrieve_of;
    /* struct ib_falcon_slot. */
    @name(".slot_sequence") register<bit<64>>(IB_P4_ALL_SLOTS) slot_sequence;
    @name(".slot_whose") register<bit<64>>(IB_P4_ALL_SLOTS) slot_whose;
    @name(".slot_which") register<bit<64>>(IB_P4_ALL_SLOTS) slot_which;
    @name(".slot_where") register<bit<64>>(IB_P4_ALL_SLOTS) slot_where;
    @name(".slot_digest") register<bit<64>>(IB_P4_ALL_SLOTS) slot_digest;
    @name(".slot_d0") register<bit<64>>(IB_P4_ALL_SLOTS) slot_d0;
    @name(".slot_d1") register<bit<64>>(IB_P4_ALL_SLOTS) slot_d1;
    @name(".slot_d2") register<bit<64>>(IB_P4_ALL_SLOTS) slot_d2;
    @name(".slot_d3") register<bit<64>>(IB_P4_ALL_SLOTS) slot_d3;
    @name(".slot_d4") register<bit<64>>(IB_P4_ALL_SLOTS) slot_d4;
    @name(".slot_d5") register<bit<64>>(IB_P4_ALL_SLOTS) slot_d5;
    @name(".slot_d6") register<bit<64>>(IB_P4_ALL_SLOTS) slot_d6;
    @name(".slot_d7") register<bit<64>>(IB_P4_ALL_SLOTS) slot_d7;
    /* struct ib_falcon_worker. */
    @name(".parked") register<bit<64>>(IB_P4_SETS_WORKERS) parked_of;
    @name(".incarnation") register<bit<64>>(IB_P4_SETS_WORKERS) incarnation_of;
    @name(".resources") register<bit<64>>(IB_P4_SETS_WORKERS) resources_of;
    @name(".worker_turn") register<bit<64>>(IB_P4_SETS_WORKERS) worker_turn_of;
    /* struct ib_falcon_executor; hardware addresses of its last PULL, and the port it came in by. */
    @name(".pull_seq") register<bit<64>>(IB_P4_ALL_EXECUTORS) pull_seq_of;
    @name(".state") register<bit<64>>(IB_P4_ALL_EXECUTORS) state_of;
    @name(".address") register<bit<64>>(IB_P4_ALL_EXECUTORS) address_of;
    @name(".executor_mac") register<bit<48>>(IB_P4_ALL_EXECUTORS) mac_of;
    @name(".executor_own_mac") register<bit<48>>(IB_P4_ALL_EXECUTORS) own_mac_of;
    @name(".executor_port") register<bit<9>>(IB_P4_ALL_EXECUTORS) port_of;
    @name(".task_whose") register<bit<64>>(IB_P4_ALL_EXECUTORS) task_whose;
    @name(".task_which") register<bit<64>>(IB_P4_ALL_EXECUTORS) task_which;
    @name(".task_where") register<bit<64>>(IB_P4_ALL_EXECUTORS) task_where;
    @name(".task_digest") register<bit<64>>(IB_P4_ALL_EXECUTORS) task_digest;
    @name(".task_d0") register<bit<64>>(IB_P4_ALL_EXECUTORS) task_d0;
    @name(".task_d1") register<bit<64>>(IB_P4_ALL_EXECUTORS) task_d1;
    @name(".task_d2") register<bit<64>>(IB_P4_ALL_EXECUTORS) task_d2;
    @name(".task_d3") register<bit<64>>(IB_P4_ALL_EXECUTORS) task_d3;
    @name(".task_d4") register<bit<64>>(IB_P4_ALL_EXECUTORS) task_d4;
    @name(".task_d5") register<bit<64>>(IB_P4_ALL_EXECUTORS) task_d5;
    @name(".task_d6") register<bit<64>>(IB_P4_ALL_EXECUTORS) task_d6;
    @name(".task_d7") register<bit<64>>(IB_P4_ALL_EXECUTORS) task_d7;

    /* struct ib_falcon_config. */
    bit<8> policy = IB_FALCON_FIFO;
    bit<8> slots_log2 = 0;
    bit<32> user_tasks_max = 0;
    bit<64> own_incarnation = 0;

    bit<32> set;
    bit<64> not_empty;
    bit<64> turn;
    bit<64> given;
    bit<64> woken;
    bit<64> waiting_low;
    bit<64> waiting_high;
    bit<64> tasks; /* of the user */
    bit<32> add;
    bit<32> retrieve;
    bit<64> sequence;
    task_t first; /* the task in the slot */
    bit<64> parked;
    bit<64> registered;
    bit<64> resources;
    bit<64> worker_turn;
    bit<64> pull_seq;
    bit<64> state;
    bit<64> address;
    bit<48> mac;
    bit<48> own_mac;
    bit<9> port;
    task_t task; /* of the executor */

    /* Indexes of register arrays. */
    bit<32> of_user;
    bit<32> of_queue;
    bit<32> of_slot;
    bit<32> of_worker;
    bit<32> of_executor;

    action drop(bit<16> reason) {
        meta.verdict = IB_V_DROP;
        meta.reason = reason;
    }
    action another_pass() {
        meta.again = 1;
        drop(IB_P4_ANOTHER_PASS);
        resubmit_preserving_field_list(1);
    }
    /* ib_falcon_answer. */
    action answer(bit<8> type, bit<16> flags, bit<16> reason) {
        hdr.common.type = type;
        hdr.common.flags = flags;
        hdr.common.value_len_bytes = 0;
        hdr.falcon.count = 0;
        hdr.falcon.digest = 0;
        meta.verdict = IB_V_REPLY;
        meta.reason = reason;
    }
    action nack(bit<16> reason) {
        hdr.falcon.incarnation = own_incarnation;
        answer(IB_FALCON_NACK, 0, reason);
    }
    /* ib_falcon_give, ib_falcon_fill. */
    action give(bit<16> flags, bit<16> reason) {
        hdr.common.type = IB_FALCON_TASK;
        hdr.common.flags = flags;
        hdr.common.value_len_bytes = IB_FALCON_TASK_LEN_BYTES;
        hdr.falcon.count = 1;
        hdr.falcon.digest = task.digest;
        hdr.task.setValid();
        hdr.task.whose = task.whose;
        hdr.task.which = task.which;
        hdr.task.where = task.where;
        hdr.task.digest = task.digest;
        hdr.task.d0 = task.d0;
        hdr.task.d1 = task.d1;
        hdr.task.d2 = task.d2;
        hdr.task.d3 = task.d3;
        hdr.task.d4 = task.d4;
        hdr.task.d5 = task.d5;
        hdr.task.d6 = task.d6;
        hdr.task.d7 = task.d7;
        meta.verdict = IB_V_REPLY;
        meta.reason = reason;
    }
    /* IbSend turns the addresses round. */
    action to_executor() {
        hdr.falcon.worker_incarnation = state[63:32];
        hdr.falcon.pull_seq = pull_seq;
        hdr.ethernet.from = mac;
        hdr.ethernet.to = own_mac;
        hdr.ipv4.from = address[47:16];
        hdr.udp.from = address[15:0];
        meta.sender_port = port;
    }
    action read_set() {
        not_empty_of.read(not_empty, set);
        turn_of.read(turn, set);
        given_of.read(given, set);
        woken_of.read(woken, set);
        waiting0.read(waiting_low, set);
        waiting1.read(waiting_high, set);
    }
    action read_worker() {
        parked_of.read(parked, of_worker);
        incarnation_of.read(registered, of_worker);
        resources_of.read(resources, of_worker);
        worker_turn_of.read(worker_turn, of_worker);
    }
    action read_executor() {
        pull_seq_of.read(pull_seq, of_executor);
        state_of.read(state, of_executor);
        address_of.read(address, of_executor);
        mac_of.read(mac, of_executor);
        own_mac_of.read(own_mac, of_executor);
        port_of.read(port, of_executor);
        task_whose.read(task.whose, of_executor);
        task_which.read(task.which, of_executor);
        task_where.read(task.where, of_executor);
        task_digest.read(task.digest, of_executor);
        task_d0.read(task.d0, of_executor);
        task_d1.read(task.d1, of_executor);
        task_d2.read(task.d2, of_executor);
        task_d3.read(task.d3, of_executor);
        task_d4.read(task.d4, of_executor);
        task_d5.read(task.d5, of_executor);
        task_d6.read(task.d6, of_executor);
        task_d7.read(task.d7, of_executor);
    }
    action read_queue() {
        add_of.read(add, of_queue);
        retrieve_of.read(retrieve, of_queue);
    }
    action read_slot() {
        slot_sequence.read(sequence, of_slot);
        slot_whose.read(first.whose, of_slot);
        slot_which.read(first.which, of_slot);
        slot_where.read(first.where, of_slot);
        slot_digest.read(first.digest, of_slot);
        slot_d0.read(first.d0, of_slot);
        slot_d1.read(first.d1, of_slot);
        slot_d2.read(first.d2, of_slot);
        slot_d3.read(first.d3, of_slot);
        slot_d4.read(first.d4, of_slot);
        slot_d5.read(first.d5, of_slot);
        slot_d6.read(first.d6, of_slot);
        slot_d7.read(first.d7, of_slot);
    }
    action read_user() {
        user_tasks.read(tasks, of_user);
    }
    /* The packet's task, with what its sender may not say. */
    action write_slot() {
        slot_whose.write(of_slot, hdr.falcon.user ++ hdr.falcon.job);
        slot_which.write(of_slot, hdr.task.which[63:32] ++ hdr.ipv4.from);
        slot_where.write(of_slot, hdr.udp.from ++ hdr.task.where[47:0]);
        slot_digest.write(of_slot, hdr.task.digest);
        slot_d0.write(of_slot, hdr.task.d0);
        slot_d1.write(of_slot, hdr.task.d1);
        slot_d2.write(of_slot, hdr.task.d2);
        slot_d3.write(of_slot, hdr.task.d3);
        slot_d4.write(of_slot, hdr.task.d4);
        slot_d5.write(of_slot, hdr.task.d5);
        slot_d6.write(of_slot, hdr.task.d6);
        slot_d7.write(of_slot, hdr.task.d7);
    }
    action write_queue() {
        slot_sequence.write(of_slot, sequence);
        add_of.write(of_queue, add);
        retrieve_of.write(of_queue, retrieve);
        user_tasks.write(of_user, tasks);
        not_empty_of.write(set, not_empty);
        turn_of.write(set, turn);
        given_of.write(set, given);
    }
    action write_worker() {
        parked_of.write(of_worker, parked);
        worker_turn_of.write(of_worker, worker_turn);
        waiting0.write(set, waiting_low);
        waiting1.write(set, waiting_high);
        woken_of.write(set, woken);
    }
    action write_executor() {
        pull_seq_of.write(of_executor, pull_seq);
        state_of.write(of_executor, state);
        address_of.write(of_executor, address);
        mac_of.write(of_executor, mac);
        own_mac_of.write(of_executor, own_mac);
        port_of.write(of_executor, port);
    }
    action write_task() {
        task_whose.write(of_executor, task.whose);
        task_which.write(of_executor, task.which);
        task_where.write(of_executor, task.where);
        task_digest.write(of_executor, task.digest);
        task_d0.write(of_executor, task.d0);
        task_d1.write(of_executor, task.d1);
        task_d2.write(of_executor, task.d2);
        task_d3.write(of_executor, task.d3);
        task_d4.write(of_executor, task.d4);
        task_d5.write(of_executor, task.d5);
        task_d6.write(of_executor, task.d6);
        task_d7.write(of_executor, task.d7);
    }

    /* Set by the control plane. Slots of a queue: at most IB_P4_SLOTS. */
    @name(".schedule") action schedule(bit<8> by_policy, bit<8> log2, bit<32> tasks_max,
                                       bit<64> of_scheduler) {
        policy = by_policy;
        slots_log2 = log2;
        user_tasks_max = tasks_max;
        own_incarnation = of_scheduler;
    }
    @name(".scheduler") table scheduler {
        actions = { schedule; NoAction; }
        default_action = NoAction();
    }

    apply {
        bool pulls = hdr.common.type == IB_FALCON_PULL;
        bool submits = hdr.common.type == IB_FALCON_SUBMIT;
        bool goes_on = false;

        scheduler.apply();
        if (hdr.common.type == IB_FALCON_HOST) {
            meta.verdict = IB_V_PASS;
            meta.reason = IB_R_passed_up;
        } else if (pulls) {
            if (hdr.falcon.executor >= IB_P4_WORKERS * IB_FALCON_EXECUTORS) {
                drop(IB_R_falcon_bad_executor);
            } else if (hdr.falcon.incarnation != own_incarnation) {
                nack(IB_R_falcon_other_incarnation);
            } else {
                goes_on = true;
            }
        } else if (!submits) {
            drop(IB_R_falcon_not_for_scheduler);
        } else if (meta.again == 1) {
            goes_on = true;
        } else if (meta.bad != 0) {
            drop(IB_R_falcon_bad_task);
        } else if (meta.digests != hdr.falcon.digest) {
            drop(IB_R_falcon_bad_digest);
        } else {
            goes_on = true;
            meta.place = hdr.falcon.queue & (IB_FALCON_QUEUES_MAX - 1);
            if (policy == IB_FALCON_PRIORITY) {
                meta.place = hdr.falcon.queue & (IB_FALCON_PRIORITIES - 1);
            } else if (policy == IB_FALCON_FIFO) {
                meta.place = 0;
            }
        }

        if (goes_on) {
            /* In range: IbFrameCheck has refused other sets. */
            set = (bit<32>)hdr.common.partition;
            read_set();

            /* What this pass does, unless it serves a PULL. `rest`: workers that may be woken. */
            bit<128> waiting = (waiting_high ++ waiting_low) & IB_P4_ALL_WORKERS;
            bit<128> rest = waiting & ~meta.unsuited;
            bool pushes = submits && meta.handled < hdr.falcon.count;
            bool wakes = submits && !pushes && meta.woken == 0 && meta.ends == 0 && rest != 0 &&
                         not_empty != 0;
            bool looks = submits && !pushes && !wakes;

            /* The worker: the PULL's, or the first of `rest` from the one after the last woken. */
            bit<128> from_turn = rest & ~((128w1 << woken[7:0]) - 1);
            if (from_turn == 0) {
                from_turn = rest;
            }
            bit<32> worker = 64 + (bit<32>)ib_lowest(from_turn[127:64]);
            if (from_turn[63:0] != 0 || from_turn == 0) {
                worker = (bit<32>)ib_lowest(from_turn[63:0]);
            }
            bit<32> executor = hdr.falcon.executor;
            if (pulls) {
                worker = executor >> 6;
            }
            of_worker = set * IB_P4_WORKERS + worker;
            read_worker();
            if (wakes) {
                executor = (worker << 6) | (bit<32>)ib_lowest(parked);
            } else if (looks && meta.woken != 0) {
                executor = meta.woken - 1;
            } else if (!pulls) {
                executor = 0;
            }
            bit<64> executor_bit = 64w1 << executor[5:0];
            bit<128> worker_bit = 128w1 << worker[6:0];
            of_executor = set * (IB_P4_WORKERS * IB_FALCON_EXECUTORS) + executor;
            read_executor();

            /* ib_falcon_candidates. */
            bit<64> candidates = not_empty;
            if (policy == IB_FALCON_RESOURCES) {
                candidates = not_empty & (resources | 1);
            }

            /* Whether the executor is to get a task. */
            bool pops = false;
            if (pulls) {
                bool is_known = state[63:32] == hdr.falcon.worker_incarnation;
                if (hdr.falcon.worker_incarnation == 0 ||
                    registered != (bit<64>)hdr.falcon.worker_incarnation) {
                    nack(IB_R_falcon_not_registered);
                } else if (is_known && hdr.falcon.pull_seq < pull_seq) {
                    drop(IB_R_falcon_overtaken);
                } else if (is_known && hdr.falcon.pull_seq == pull_seq &&
                           state[31:0] == IB_FALCON_BUSY) {
                    give(IB_FALCON_F_REPEATED, IB_R_falcon_given_again);
                } else {
                    pops = true;
                    parked = parked & ~executor_bit;
                    pull_seq = hdr.falcon.pull_seq;
                    state = hdr.falcon.worker_incarnation ++ (bit<32>)IB_FALCON_IDLE;
                    address = 16w0 ++ hdr.ipv4.from ++ hdr.udp.from;
                    mac = hdr.ethernet.from;
                    own_mac = hdr.ethernet.to;
                    port = meta.sender_port;
                }
            } else if (wakes && candidates != 0) {
                pops = state == ((registered << 32) | IB_FALCON_WAITS);
                parked = parked & ~executor_bit;
                woken = (bit<64>)worker + 1;
            }
            bool has_worker = (wakes && candidates != 0) || (pulls && pops);

            /* The queue: ib_falcon_queue_of, ib_falcon_choose. */
            bit<8> queue = meta.place;
            bool in_turn = false;
            if (pushes) {
                queue = 0;
                if (policy == IB_FALCON_PRIORITY) {
                    queue = hdr.task.where[47:40];
                } else if (policy == IB_FALCON_RESOURCES) {
                    queue = hdr.task.where[39:32];
                } else if (policy == IB_FALCON_FAIR) {
                    queue = hdr.falcon.user[7:0];
                }
            } else if (!looks) {
                bit<64> next = turn;
                if (policy == IB_FALCON_RESOURCES) {
                    next = worker_turn;
                }
                bit<64> in_order = candidates & (64w0xffffffffffffffff << next[5:0]);
                in_turn = policy != IB_FALCON_FIFO &&
                          (policy != IB_FALCON_PRIORITY ||
                           ((given + 1) & (IB_P4_TURN_EVERY - 1)) == 0);
                if (!in_turn || in_order == 0) {
                    in_order = candidates;
                }
                queue = ib_lowest(in_order);
            }
            queue = queue & (IB_P4_QUEUES - 1);
            bit<64> queue_bit = 64w1 << queue;
            of_queue = set * IB_P4_QUEUES + (bit<32>)queue;
            read_queue();

            /* The slot, and whether it is free, or has a task. */
            bit<32> position = retrieve;
            if (pushes) {
                position = add;
            }
            bit<32> slots = 32w1 << slots_log2;
            of_slot = of_queue * IB_P4_SLOTS + (position & (slots - 1) & (IB_P4_SLOTS - 1));
            read_slot();
            bit<64> free = (bit<64>)(position >> slots_log2) << 1;

            /* Its user. */
            of_user = first.whose[63:32];
            if (pushes) {
                of_user = hdr.falcon.user;
            }
            of_user = set * IB_FALCON_USERS + (of_user & (IB_FALCON_USERS - 1));
            read_user();

            bool pushed = false;
            bool popped = false;
            if (pushes) {
                if ((meta.refused & queue_bit) == 0) {
                    if (tasks >= (bit<64>)user_tasks_max) {
                        meta.flags = meta.flags | IB_FALCON_F_USER_FULL;
                        meta.refused = 64w0xffffffffffffffff;
                    } else if (sequence != free) {
                        meta.flags = meta.flags | IB_FALCON_F_FULL;
                        meta.refused = meta.refused | queue_bit;
                    } else {
                        pushed = true;
                        sequence = free | 1;
                        add = add + 1;
                        tasks = tasks + 1;
                        not_empty = not_empty | queue_bit;
                        meta.taken = meta.taken | (64w1 << meta.handled);
                        meta.place = queue;
                        meta.tail = add;
                        meta.head = retrieve;
                    }
                }
                meta.handled = meta.handled + 1;
            } else if (pops && add != retrieve && sequence == (free | 1)) {
                popped = true;
                sequence = (bit<64>)((position + slots) >> slots_log2) << 1;
                retrieve = retrieve + 1;
                tasks = tasks - 1;
                if (add == retrieve) {
                    not_empty = not_empty & ~queue_bit;
                }
                if (policy != IB_FALCON_FIFO) {
                    given = given + 1;
                }
                if (in_turn) {
                    if (policy == IB_FALCON_RESOURCES) {
                        worker_turn = (bit<64>)((queue + 1) & (IB_FALCON_QUEUES_MAX - 1));
                    } else {
                        turn = (bit<64>)((queue + 1) & (IB_FALCON_QUEUES_MAX - 1));
                    }
                }
                task = first;
                state = state[63:32] ++ (bit<32>)IB_FALCON_BUSY;
            }

            if (pulls && pops) {
                if (popped) {
                    give(0, IB_R_falcon_given);
                } else if ((hdr.common.flags & IB_FALCON_F_PARK) == 0) {
                    answer(IB_FALCON_NO_TASK, 0, IB_R_falcon_empty);
                } else if (candidates != 0) {
                    answer(IB_FALCON_NO_TASK, 0, IB_R_falcon_busy);
                } else {
                    state = state[63:32] ++ (bit<32>)IB_FALCON_WAITS;
                    parked = parked | executor_bit;
                    drop(IB_R_falcon_parked);
                }
            } else if (wakes) {
                if (candidates == 0) {
                    meta.unsuited = meta.unsuited | worker_bit;
                } else if (popped) {
                    meta.woken = executor + 1;
                } else {
                    if (pops) {
                        parked = parked | executor_bit;
                    }
                    meta.tries = meta.tries + 1;
                    if (meta.tries == IB_P4_WAKE_TRIES_MAX) {
                        meta.ends = 1;
                    }
                }
            }
            if (has_worker) {
                waiting = waiting & ~worker_bit;
                if (parked != 0) {
                    waiting = waiting | worker_bit;
                }
                waiting_low = waiting[63:0];
                waiting_high = waiting[127:64];
            }

            /* What a SUBMIT ends with, if it needs no further pass. */
            if (submits) {
                bool is_last = looks;
                /* Whether there may be an executor to wake. */
                bool others = (waiting & ~meta.unsuited) != 0 && not_empty != 0;
                if (queue == meta.place) {
                    meta.head = retrieve;
                    if (meta.taken == 0) {
                        meta.tail = add;
                    }
                }
                /* Whether head and tail are known. */
                bool is_asked = queue == meta.place || meta.taken != 0;
                if (pushes) {
                    is_last = meta.handled == hdr.falcon.count && !others && is_asked;
                } else if (popped) {
                    is_last = (!others || policy != IB_FALCON_RESOURCES) && is_asked;
                } else if (looks && others && policy == IB_FALCON_RESOURCES && candidates == 0) {
                    meta.unsuited = meta.unsuited | worker_bit;
                    is_last = false;
                }
                if (!is_last) {
                    another_pass();
                } else {
                    if (others) {
                        meta.flags = meta.flags | IB_FALCON_F_PARKED;
                    }
                    hdr.falcon.incarnation = own_incarnation;
                    hdr.falcon.client_address = hdr.ipv4.from;
                    hdr.falcon.client_port = hdr.udp.from;
                    hdr.falcon.taken = meta.taken;
                    hdr.falcon.queue = meta.place;
                    hdr.falcon.tail = meta.tail;
                    hdr.falcon.head = meta.head;
                    if (meta.woken != 0) {
                        hdr.falcon.executor = executor;
                        give(meta.flags | IB_FALCON_F_ORIGIN, IB_R_falcon_woken);
                        to_executor();
                    } else {
                        /* ib_falcon_submitted. */
                        bit<16> reason = IB_R_falcon_queued;
                        if ((meta.flags & IB_FALCON_F_USER_FULL) != 0) {
                            reason = IB_R_falcon_user_full;
                        } else if ((meta.flags & IB_FALCON_F_FULL) != 0) {
                            reason = IB_R_falcon_queue_full;
                        } else if (hdr.falcon.count == 0) {
                            reason = IB_R_falcon_asked;
                        }
                        answer(IB_FALCON_SUBMIT_REPLY, meta.flags, reason);
                    }
                }
            }

            if (pushed) {
                write_slot();
            }
            if (pushed || popped) {
                write_queue();
            }
            if (has_worker) {
                write_worker();
                write_executor();
            }
            if (popped) {
                write_task();
            }
        }
    }
}

IB_SWITCH(IbFalconCheck, IbScheduler);
