/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slot.pml - the shell around the acceptor, load by load and store by store: packets of one partition
 * on two CPUs, a promise raised by user space or by a packet on another CPU, and a trim.
 *
 * Speaks of:
 *   dataplane/ground/seqlock.h               ib_seq_lock ib_atomic_max
 *   dataplane/paxos/shell.h                   ib_acceptor_snapshot
 *                                              ib_acceptor_unchanged ib_shell_acceptor_slot
 *                                              ib_shell_acceptor_partition
 *   crates/inband-paxos/src/dataplane/registers.rs   raise_promise slot
 *
 * After raising a promise, user space or the packet reports for each instance the vote that it found, or
 * that there is none. Afterwards no vote of a lower round may be stored that the report does not show.
 * Memory is sequentially consistent here: in the code every step that another must not overtake is a
 * compare-and-swap, which is a full fence, or an acquire or release.
 *
 * One slot: instance 1, and instance 2 once the floor is 2.
 *
 * -DUSER_SPACE or -DPACKET: what raises the promise.
 */
byte promise = 1, floor = 1, highest;
bool is_taken;
byte changes; /* of the slot: the sequence word without its lowest bit */
byte slot_instance, slot_vround, slot_value;

/* What was reported for each instance after the promise was raised. */
#define NOTHING 0 /* not reported yet, or below the floor */
#define NO_VOTE 1
#define VOTE(vround) ((vround) + 1)
byte raised;
byte reported[3]; /* by instance */

/* What must hold when a vote is stored, whatever the other CPUs do. */
inline check(instance, round, value) {
    assert(instance >= slot_instance);
    assert(instance > slot_instance || round > slot_vround);
    assert(reported[instance] == NOTHING || round >= raised || reported[instance] == VOTE(round))
}

inline take(ok) {
#ifdef MUTANT_NO_EXCLUSIVITY
    ok = true; is_taken = true
#else
    atomic { ok = !is_taken; is_taken = true } /* compare and swap; bounded, then dropped */
#endif
}

inline release() {
    atomic { changes++; is_taken = false }
}

/* If the floor is read in time, no slot holds a later instance than the requested one. */
#ifdef MUTANT_FLOOR_BEFORE_SLOT
#define NOT_BELOW(instance) true
#else
#define NOT_BELOW(instance) (instance >= slot_instance)
#endif

#if defined(MUTANT_NO_SECOND_READ) || defined(MUTANT_PROMISE_BEFORE_SLOT)
#define UNCHANGED true
#else
#define UNCHANGED (promise == my_promise)
#endif

inline raise_highest(instance) {
    atomic { highest = (highest > instance -> highest : instance) }
}

/* PHASE2A in ib_shell_acceptor_slot. */
inline vote(instance, round, value) {
#ifdef MUTANT_PROMISE_BEFORE_SLOT
    my_promise = promise;
#endif
#ifdef MUTANT_FLOOR_BEFORE_SLOT
    my_floor = floor;
#endif
    take(ok);
    if
    :: ok ->
#ifndef MUTANT_PROMISE_BEFORE_SLOT
        my_promise = promise;
#endif
#ifndef MUTANT_FLOOR_BEFORE_SLOT
        my_floor = floor;
#endif
        if
        :: instance == my_floor && NOT_BELOW(instance) && round >= my_promise &&
           (instance != slot_instance || round > slot_vround) ->
#ifndef MUTANT_HIGHEST_AFTER_VOTE
            raise_highest(instance);
#endif
            if
            :: UNCHANGED ->
                atomic { check(instance, round, value); slot_value = value };
                slot_instance = instance;
                slot_vround = round;
#ifdef MUTANT_HIGHEST_AFTER_VOTE
                raise_highest(instance)
#endif
            :: else
            fi
        :: else
        fi;
        release()
    :: else
    fi
}

proctype cpu_1() {
    byte my_promise, my_floor;
    bool ok;
    vote(1, 1, 1);
    vote(2, 1, 1)
}

proctype cpu_2() {
    byte my_promise, my_floor;
    bool ok;
    vote(1, 2, 2)
}

/* A late copy of a packet. */
proctype cpu_3() {
    byte my_promise, my_floor;
    bool ok;
    vote(1, 1, 1)
}

/* A consistent view of a slot: its value must be that of its round. */
#define IS_WHOLE(vround, value) ((vround) == (value))

inline report(instance, vround) {
    atomic {
        reported[1] = (my_highest >= 1 && instance == 1 -> VOTE(vround) : NO_VOTE);
        reported[1] = (my_floor > 1 -> NOTHING : reported[1]);
        reported[2] = (my_highest >= 2 && instance == 2 -> VOTE(vround) : NO_VOTE)
    }
}

#define ROUND 3
inline raise() {
    atomic { promise = ROUND; raised = ROUND }
}

/* Raise, fence, read the slot; wait while it is locked, and retry if it changed. */
proctype user_space() {
    byte my_floor, my_highest, before, instance, vround, value;
#ifndef MUTANT_PROMISE_AFTER_READING
    raise();
#endif
    my_highest = highest;
    my_floor = floor;
    if
    :: my_highest < my_floor -> skip /* no slot to read */
    :: else ->
read:
#ifndef MUTANT_SEQUENCE_IGNORED
        atomic { !is_taken -> before = changes };
#endif
        instance = slot_instance;
        vround = slot_vround;
        value = slot_value;
#ifndef MUTANT_SEQUENCE_IGNORED
        if
        :: is_taken || changes != before -> goto read
        :: else
        fi;
#endif
        assert(IS_WHOLE(vround, value))
    fi;
#ifdef MUTANT_PROMISE_AFTER_READING
    raise();
#endif
    report(instance, vround)
}

/* PHASE1A of the partition, and then of the slot, which locks the slot. */
proctype packet() {
    byte my_floor, my_highest;
    bool ok;
    raise();
    my_floor = floor;
    my_highest = highest;
    if
    :: my_highest < my_floor -> report(0, 0)
    :: else ->
        do
        :: take(ok);
            if
            :: ok -> break
            :: else -> atomic { !is_taken } /* dropped, and retransmitted */
            fi
        od;
        assert(IS_WHOLE(slot_vround, slot_value));
        report(slot_instance, slot_vround);
        release()
    fi
}

proctype trim() {
    floor = 2
}

init {
    atomic {
        run cpu_1(); run cpu_2(); run cpu_3(); run trim();
#ifdef PACKET
        run packet()
#else
        run user_space()
#endif
    }
}
