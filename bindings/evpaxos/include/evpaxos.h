/*
 * evpaxos.h - the API of libpaxos 3's libevpaxos, over Inband.
 *
 * Programs written for libpaxos 3 (github.com/sciascid/libpaxos) include this file, as they did
 * before. README.md says what works, what differs and what does not.
 */
#ifndef EVPAXOS_H
#define EVPAXOS_H

#include "evpaxos/config.h"
#include "evpaxos/paxos.h"

#endif /* EVPAXOS_H */
