/* Limits of libevpaxos; docs/limits.md lists them. */
#ifndef EVPAXOS_LIMITS_H
#define EVPAXOS_LIMITS_H

#include <inband.h>

/* Length of a value that a program submits. */
#define VALUE_LEN_MAX_BYTES INBAND_VALUE_LEN_MAX_BYTES

/* Decided values that wait for the event_base. The host waits while there are as many. */
#define DELIVERIES_MAX 16384

/* Delivered in one turn of the event_base, so that its other events get theirs. */
#define DELIVERIES_PER_TURN 256

/* Values that wait to be submitted. At the limit clients are not read from, and what the program
   itself submits is refused. */
#define SUBMISSIONS_MAX 65536

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

/* Lines inband-learner of one file. */
#define LEARNERS_MAX 64

/* Length of a line of the configuration. */
#define LINE_LEN_MAX_BYTES 4096

#endif /* EVPAXOS_LIMITS_H */
