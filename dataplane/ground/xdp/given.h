/* SPDX-License-Identifier: Apache-2.0 */
/* given.h - for tests: in builds with IB_GIVEN_ARRIVAL, the time and the random word are inputs. */
#ifndef INBAND_GROUND_XDP_GIVEN_H
#define INBAND_GROUND_XDP_GIVEN_H

#include "frame.h"

#ifdef IB_GIVEN_ARRIVAL
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, ib_u32);
    __type(value, struct ib_given);
} ib_given_map SEC(".maps");

IB_INLINE const struct ib_given *ib_given(void) {
    ib_u32 zero = 0;
    return bpf_map_lookup_elem(&ib_given_map, &zero);
}
#endif

#endif
