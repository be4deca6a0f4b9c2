/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packets.pml - the protocol packet by packet: learners never decide two values for one instance.
 *
 * Speaks of:
 *   dataplane/paxos/role_leader.h       ib_leader_request
 *   dataplane/paxos/role_acceptor.h     ib_acceptor_slot ib_acceptor_promise ib_acceptor_promised
 *                                        ib_acceptor_promise_slot ib_acceptor_vote ib_acceptor_trim
 *   dataplane/paxos/role_quorum.h       ib_quorum
 *   crates/inband-paxos/src/leadership/phases.rs  on_promise propose on_nack go_on
 *   crates/inband-paxos/src/recovery.rs    on_promise on_vote
 *   crates/inband-paxos/src/learner.rs     on_vote
 *
 * Two leaders and a learner that recovers an instance, each with its own round; the recovery's round may
 * be lower or higher than the second leader's. Three acceptors with a ring of
 * ONE slot, so that instance 2 reuses the slot of instance 1 once 1 is trimmed.
 *
 * The network is a set: a packet that was sent may arrive at any time, any number of times, or never. So
 * loss, duplication and reordering need no separate steps; arrivals that change nothing are left out.
 * An answer to phase 1 is lost or received at once: a proposer collects answers and does nothing before
 * it has a majority, so a later arrival makes no difference.
 *
 * -DQUORUM: two instances, ring reuse and the quorum counter. -DRECOVERY: one instance and a recovery.
 */
#define NOBODY 0
#define MAJORITY(mask) ((mask) == 3 || (mask) == 5 || (mask) == 6 || (mask) == 7)
#define BIT(n) (1 << (n))

/* Values. The first leader's contain their instance, so that a vote that outlives its slot is noticed. */
#define NO_VALUE 0
#define OF_FIRST(instance) (instance) /* 1, 2 */
#define OF_SECOND 3
#define NOOP 4

#ifndef INSTANCES
#define INSTANCES 2
#endif
#define RING_SLOTS 1
#define ROUND_FIRST 1 /* the second leader and the recovery have rounds 2 and 3 */
byte round_second, round_recovery;

/* Acceptors: registers, and the ring's slot. */
byte promise[3], floor[3], highest[3];
byte slot_instance[3], slot_promise[3], slot_vround[3], slot_value[3];

/* Packets sent. Of round r and instance i at (r - 1) * 2 + i - 1; PHASE2A: set of values. */
byte phase2a[6];
byte phase2b[24]; /* further * 4 + value - 1: set of acceptors that cast this vote */
#define AT(round, instance) (((round) - 1) * 2 + (instance) - 1)
#define CAST(round, instance, value) phase2b[AT(round, instance) * 4 + (value) - 1]
bool is_trimmed; /* TRIM 2 is in flight */

/* First leader. */
byte first_next = 1, first_floor = 1;

/* Phases of a proposer. */
#define WATCHING 0
#define PROMISING 1
#define SCANNING 2
#define ACTIVE 3

/* Second leader. */
byte phase, promised, leader_floor, leader_highest, next;
byte scanning, scanned, best_vround, best_value; /* instance; acceptors that answered; the highest vote */

/* Recovery of an instance by a learner. */
byte recovered, recovery_phase, recovery_promised;
byte recovery_best_vround, recovery_best_value;
bool is_recovered;

/* Quorum counter: a ring of one slot. */
byte count_instance, count_round, count_members;
bool count_done;

byte chosen[3]; /* by instance */
bool is_held;   /* replicas hold instance 1 */

/* A learner learns only what was chosen. */
inline learn(instance, value) {
    assert(chosen[instance] == value);
    is_held = is_held || instance == 1
}

/* A majority voted in one round: a learner that asks (LEARN) counts these votes, so this decides. */
inline choose(round, instance, value) {
    if
    :: MAJORITY(CAST(round, instance, 1) | CAST(round, instance, 2) | CAST(round, instance, 3) |
                CAST(round, instance, 4)) ->
        assert(chosen[instance] == NO_VALUE || chosen[instance] == value);
        chosen[instance] = value
    :: else
    fi
}

/* Checks before every message about a slot (ib_acceptor_slot). `ok`: handle it. */
inline enter_slot(a, instance, ok) {
    ok = instance >= floor[a] && instance < floor[a] + RING_SLOTS && instance >= slot_instance[a];
#ifdef MUTANT_SLOT_MOVES_BACK
    ok = true;
#endif
    if
    :: ok && instance != slot_instance[a] ->
        assert(instance > slot_instance[a]); /* a slot never moves back */
        slot_instance[a] = instance;
        slot_promise[a] = 0;
#ifndef MUTANT_REUSE_KEEPS_VOTE
        slot_vround[a] = 0;
        slot_value[a] = NO_VALUE;
#endif
    :: else
    fi
}

#define COUNTS(a) (slot_promise[a] > promise[a] -> slot_promise[a] : promise[a])

inline vote(round, instance, value) {
    enter_slot(a, instance, ok);
    if
    :: ok && round >= COUNTS(a) ->
        if
        :: slot_vround[a] == round -> skip /* repeats the stored vote */
        :: else ->
            assert(round > slot_vround[a]); /* a vote is a promise too */
#ifndef MUTANT_VOTE_IS_NO_PROMISE
            slot_promise[a] = round;
#endif
            slot_vround[a] = round;
            slot_value[a] = value;
            highest[a] = (highest[a] > instance -> highest[a] : instance)
        fi;
        CAST(round, instance, slot_value[a]) = CAST(round, instance, slot_value[a]) | BIT(a);
        choose(round, instance, slot_value[a])
    :: else
    fi;
    ok = false
}

/* Promise a slot: `says` is 0 (no answer), vround + 1, or BELOW_FLOOR. */
#define BELOW_FLOOR 9
inline promise_slot(round, instance) {
    says = 0;
    if
    :: instance < floor[a] -> says = BELOW_FLOOR
    :: else ->
        enter_slot(a, instance, ok);
        if
        :: ok && round >= COUNTS(a) ->
#ifndef MUTANT_PROMISE_FORGOTTEN
            slot_promise[a] = round;
#endif
            says = slot_vround[a] + 1
        :: else
        fi;
        ok = false
    fi
}

inline send_2a(round, instance, value) {
    assert(value != NO_VALUE && (instance == 1 || instance == 2));
    phase2a[AT(round, instance)] = phase2a[AT(round, instance)] | BIT(value)
}

/* Scan, or lead if there is nothing to scan: at most one instance, as the ring has one slot. */
inline go_on() {
    if
    :: leader_floor > leader_highest ->
        phase = ACTIVE;
        next = leader_floor
    :: else ->
        phase = SCANNING;
        scanning = leader_floor
    fi
}

inline hear_promise() {
    promised = promised | BIT(a);
#ifndef MUTANT_TRIMMED_IS_NO_VOTE
    leader_floor = (floor[a] > leader_floor -> floor[a] : leader_floor);
#endif
    leader_highest = (highest[a] > leader_highest -> highest[a] : leader_highest);
    if
    :: MAJORITY(promised) ->
        promised = 0;
        go_on()
    :: else
    fi
}

inline hear_slot() {
    if
    :: says == BELOW_FLOOR ->
#ifdef MUTANT_TRIMMED_IS_NO_VOTE
        scanned = scanned | BIT(a)
#else
        leader_floor = floor[a];
        scanned = 0; best_vround = 0; best_value = NO_VALUE;
        go_on()
#endif
    :: else ->
        scanned = scanned | BIT(a);
        if
        :: says - 1 > best_vround ->
            best_vround = says - 1;
            best_value = slot_value[a]
        :: else
        fi
    fi;
    if
#ifdef MUTANT_SILENCE_IS_NO_VOTE
    :: phase == SCANNING && scanned != 0 ->
#else
    :: phase == SCANNING && MAJORITY(scanned) ->
#endif
#ifdef MUTANT_NOT_ADOPTED
        best_value = NO_VALUE;
#endif
        send_2a(round_second, scanning, (best_value == NO_VALUE -> NOOP : best_value));
        phase = ACTIVE;
        next = scanning + 1;
        scanned = 0; best_vround = 0; best_value = NO_VALUE
    :: else
    fi
}

inline hear_recovery_slot() {
    recovery_promised = recovery_promised | BIT(a);
    if
    :: says - 1 > recovery_best_vround ->
        recovery_best_vround = says - 1;
        recovery_best_value = slot_value[a]
    :: else
    fi;
    if
    :: MAJORITY(recovery_promised) ->
        recovery_best_value = (recovery_best_value == NO_VALUE -> NOOP : recovery_best_value);
        send_2a(round_recovery, recovered, recovery_best_value);
        recovery_phase = ACTIVE;
        recovery_promised = 0;
        recovery_best_vround = 0
    :: else
    fi
}

#define PHASE2A(r, i, v)                                                                           \
    atomic {                                                                                       \
        (phase2a[AT(r, i)] & BIT(v)) && !(CAST(r, i, v) & BIT(a)) -> vote(r, i, v)                 \
    }

proctype acceptor(byte a) {
    bool ok;
    byte says;
    do
    :: atomic { /* PHASE1A of the partition */
        phase >= PROMISING && round_second >= promise[a] ->
#ifndef MUTANT_PROMISE_FORGOTTEN
        promise[a] = round_second;
#endif
        if
        :: phase == PROMISING -> hear_promise()
        :: true /* late, or the answer is lost */
        fi }
    :: atomic { /* PHASE1A of the slot that the second leader scans */
        scanning != 0 ->
        promise_slot(round_second, scanning);
        if
        :: phase == SCANNING && says != 0 -> hear_slot()
        :: true
        fi;
        says = 0 }
    :: atomic { /* PHASE1A of a recovery */
        recovery_phase >= PROMISING ->
        promise_slot(round_recovery, recovered);
        if
        :: recovery_phase == PROMISING && says != 0 && says != BELOW_FLOOR -> hear_recovery_slot()
        :: true
        fi;
        says = 0 }
    :: PHASE2A(1, 1, 1) :: PHASE2A(1, 1, 3) :: PHASE2A(1, 2, 2)
    :: PHASE2A(2, 1, 1) :: PHASE2A(2, 1, 3) :: PHASE2A(2, 1, 4)
    :: PHASE2A(2, 2, 1) :: PHASE2A(2, 2, 2) :: PHASE2A(2, 2, 3) :: PHASE2A(2, 2, 4)
    :: PHASE2A(3, 1, 1) :: PHASE2A(3, 1, 3) :: PHASE2A(3, 1, 4)
    :: PHASE2A(3, 2, 1) :: PHASE2A(3, 2, 2) :: PHASE2A(3, 2, 3) :: PHASE2A(3, 2, 4)
    :: atomic { /* TRIM */ is_trimmed && floor[a] == 1 -> floor[a] = 2 }
    od
}

proctype first_leader() {
    do
    :: atomic { /* REQUEST; the window ends at floor + ring */
        first_next <= INSTANCES && first_next < first_floor + RING_SLOTS ->
        send_2a(ROUND_FIRST, first_next, OF_FIRST(first_next));
        first_next++ }
#ifdef MUTANT_INSTANCE_REUSED
    :: atomic { first_next == 2 -> send_2a(ROUND_FIRST, 1, OF_SECOND) }
#endif
    :: atomic { /* TRIM */ is_trimmed && first_floor == 1 -> first_floor = 2 }
    od
}

proctype second_leader() {
    do
    :: atomic { phase == WATCHING -> phase = PROMISING; leader_floor = 1 }
    :: atomic { /* REQUEST */
        phase == ACTIVE && next <= INSTANCES && next < leader_floor + RING_SLOTS ->
        send_2a(round_second, next, OF_SECOND);
        next++ }
    :: atomic { /* TRIM */
        phase == ACTIVE && is_trimmed && leader_floor == 1 ->
        leader_floor = 2;
        next = (next < 2 -> 2 : next) }
    od
}

proctype recovery() {
    do
    :: atomic { recovery_phase == WATCHING -> recovery_phase = PROMISING }
    :: atomic { /* PHASE2B from a majority, of the recovery's round */
        recovery_phase == ACTIVE && !is_recovered &&
        MAJORITY(CAST(round_recovery, recovered, recovery_best_value)) ->
        is_recovered = true;
        learn(recovered, recovery_best_value) }
    od
}

inline count(round, instance, value) {
    if
    :: instance > count_instance || round > count_round ->
#ifdef MUTANT_ROUNDS_ADDED_UP
        count_members = (instance > count_instance -> 0 : count_members);
#else
        count_members = 0;
#endif
        count_instance = instance;
        count_round = round;
        count_done = false
    :: else
    fi;
#ifdef MUTANT_ACCEPTOR_COUNTED_TWICE
    count_done = count_members != 0;
#endif
    count_members = count_members | BIT(a);
    count_done = count_done || MAJORITY(count_members);
    if
    :: count_done ->
        count_members = 0;
        learn(instance, value)
    :: else
    fi
}

#ifdef MUTANT_ACCEPTOR_COUNTED_TWICE
#define COUNTED(a) false
#else
#define COUNTED(a) (count_members & BIT(a))
#endif
/* A finished count ignores higher rounds too: they decide the same value. */
#define COUNT_NEWS(r, i, a)                                                                        \
    (r != round_recovery &&                                                                        \
     (i > count_instance || (i == count_instance && !count_done &&                                 \
                             (r > count_round || (r == count_round && !COUNTED(a))))))
#define PHASE2B(r, i, v)                                                                           \
    atomic { (CAST(r, i, v) & BIT(a)) && COUNT_NEWS(r, i, a) -> count(r, i, v) }

/* The quorum counter, receiving from one acceptor. */
proctype quorum(byte a) {
    do
    :: PHASE2B(1, 1, 1) :: PHASE2B(1, 1, 3) :: PHASE2B(1, 2, 2)
    :: PHASE2B(2, 1, 1) :: PHASE2B(2, 1, 3) :: PHASE2B(2, 1, 4)
    :: PHASE2B(2, 2, 1) :: PHASE2B(2, 2, 2) :: PHASE2B(2, 2, 3) :: PHASE2B(2, 2, 4)
    :: PHASE2B(3, 1, 1) :: PHASE2B(3, 1, 3) :: PHASE2B(3, 1, 4)
    :: PHASE2B(3, 2, 1) :: PHASE2B(3, 2, 2) :: PHASE2B(3, 2, 3) :: PHASE2B(3, 2, 4)
    od
}

/* The floor is announced once replicas hold everything below it, from a counter or by asking. */
proctype replicas() {
#ifdef RECOVERY
    atomic { chosen[1] != NO_VALUE -> is_trimmed = true }
#else
    atomic { is_held -> is_trimmed = true }
#endif
}

init {
    atomic {
        round_second = 2;
#ifdef RECOVERY
        if
        :: round_recovery = 3
        :: round_second = 3; round_recovery = 2
        fi;
        if
        :: recovered = 1
        :: recovered = INSTANCES
        fi;
#endif
        floor[0] = 1; floor[1] = 1; floor[2] = 1;
        /* Phase 1 of the first leader is over: a majority has promised. */
        promise[0] = ROUND_FIRST; promise[1] = ROUND_FIRST;
        run acceptor(0); run acceptor(1); run acceptor(2);
        run first_leader(); run second_leader(); run replicas();
#ifdef RECOVERY
        run recovery()
#else
        run quorum(0); run quorum(1); run quorum(2)
#endif
    }
}
