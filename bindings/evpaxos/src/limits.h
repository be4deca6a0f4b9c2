/* Limits of libevpaxos; docs/limits.md lists them. */
#ifndef EVPAXOS_LIMITS_H
#define EVPAXOS_LIMITS_H

#include <inband.h>

/* Length of a value that a program submits. */
#define VALUE_LEN_MAX_BYTES (256 << 10)

/* A longer value is submitted in parts of this length: what fits in one packet at the smallest
   cluster.mtu, 1280. */
#define WHOLE_LEN_MAX_BYTES (INBAND_VALUE_LEN_MAX_BYTES - (1500 - 1280))
#define PARTS_MAX 256

/* Parts of incomplete values. Those of the oldest one are forgotten. Each of MAX_N_OF_PROPOSERS
   proposers has INBAND_WINDOW_VALUES parts in flight, and submits them in order. */
#define PARTS_LEN_MAX_BYTES (16 << 20)

/* Decided values that wait for the event_base. The host waits while there are as many. */
#define DELIVERIES_MAX 16384
#define DELIVERIES_LEN_MAX_BYTES (64 << 20)

/* Delivered in one turn of the event_base, so that its other events get theirs. */
#define DELIVERIES_PER_TURN 256

/* Values that wait to be submitted. At the limit clients are not read from, and what the program
   itself submits is refused. */
#define SUBMISSIONS_MAX 65536
#define SUBMISSIONS_LEN_MAX_BYTES (64 << 20)

/* Connections of clients to one proposer. */
#define CLIENTS_MAX 1024

/* A position: most of it is the sessions' table. */
#define POSITION_LEN_MAX_BYTES (64 << 20)

/* How long a learner waits for a proposer's position. */
#define POSITION_TIMEOUT_S 1

/* A host with a file for its position notes one every so many values, until the program has stored
   its state. Of more than SAMPLES_MAX, every other one is forgotten. */
#define SAMPLE_EVERY_VALUES 1024
#define SAMPLES_MAX 64

/* Decided values that a replica or proposer keeps for learners without a host: as many as it keeps for
   other hosts, unless their configuration says otherwise. */
#define HISTORY_VALUES_MAX 65536
#define HISTORY_LEN_MAX_BYTES (64 << 20)

/* Bytes that a learner has not received yet; the rest waits in the history. */
#define LEARNER_OUTPUT_MAX_BYTES (256 << 10)

/* A proposer tells learners this often that it is alive; after SILENCE_S they try another one. */
#define ALIVE_INTERVAL_S 1
#define SILENCE_S 3

/* Before a learner tries the next proposer. */
#define RECONNECT_MS 100

/* Lines inband-learner of one file. */
#define LEARNERS_MAX 64

/* Length of a line of the configuration. */
#define LINE_LEN_MAX_BYTES 4096

#endif /* EVPAXOS_LIMITS_H */
