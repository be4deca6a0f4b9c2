/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keys.h - authentication of packets that enter and leave a process, with the same code as in the
 * kernel.
 */
#ifndef INBAND_GROUND_NATIVE_KEYS_H
#define INBAND_GROUND_NATIVE_KEYS_H

#include "../auth.h"

/* Sets key_id and tag of the packet whose header is at `packet`. */
void ib_keys_sign(const struct ib_keys *keys, ib_u8 *packet);

/* The checksum of the value of len_bytes at `value`. */
ib_u32 ib_checksum_of(const ib_u8 *value, ib_u32 len_bytes);

/* SipHash-2-4 of len_bytes at `bytes`. */
ib_u64 ib_siphash(ib_u64 k0, ib_u64 k1, const ib_u8 *bytes, ib_u64 len_bytes);

/* The name of a reason of the ground; NULL if the number is unknown. Static, never freed. */
const char *ib_ground_reason_name(unsigned int reason);

#endif
