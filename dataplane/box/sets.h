/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sets.h - where this node leads, makes records of memcached's SETs over UDP without the process:
 * `set KEY FLAGS EXPTIME BYTES\r\n` and its data in one datagram, if the command fits one record.
 * Everything else is for the process.
 *
 * Before including this file a backend defines
 *   ib_box_arrived                             the type of a request that has arrived
 *   ib_box_request_copy(arrived, at, to, len, max)
 *                                              copies 1 to `max` bytes of it; nonzero: it failed
 *   ib_box_get_scratch()                       the scratch memory, with the request; or NULL
 */
#ifndef INBAND_BOX_SETS_H
#define INBAND_BOX_SETS_H

#include "msg.h"
#include "registers.h"
#include "text.h"

#ifdef __bpf__
/* A global function, which the verifier walks only once. */
#define IB_BOX_PART __attribute__((noinline))
#else
#define IB_BOX_PART static
#endif

enum ib_box_sets {
    IB_BOX_SET_REQUEST_MAX_BYTES = 1400, /* as in the process */
    /* "KEY FLAGS EXPTIME BYTES\r": numbers of ten, ten, and four digits. */
    IB_BOX_SET_LINE_MAX_BYTES = IB_BOX_KEY_LEN_MAX_BYTES + 28,
    IB_BOX_SET_DIGITS_MAX = 10,
    IB_BOX_SET_VARINT_BYTES = 5,
    IB_BOX_SET_LENGTH_BYTES = 4, /* before each command (command.rs) */
    IB_BOX_SET_STORE = 1,        /* Command::Store and Mode::Set there */
    IB_BOX_SET_MODE = 0,
    IB_BOX_SET_REST_BYTES = 3, /* no cas, two flags that are off */
    IB_BOX_SET_EXPTIME_MAX_S = 0x7fffffff,
};

#define IB_BOX_SET_NO_NUMBER (~0ULL)

/* Finds the ends of the line's words, which one space separates. Returns 0 if it has not four.
 * Their number is in memory, so that the verifier does not follow it. */
IB_BOX_PART int ib_box_set_words(void) {
    struct ib_box_get_scratch *s = ib_box_get_scratch();
    if (!s)
        return 0;
    s->set.words = 0;
    IB_LOOP
    for (ib_u32 i = 0; i < IB_BOX_SET_LINE_MAX_BYTES; i++) {
        ib_u32 byte = s->request[IB_BOX_GET_COMMAND_BYTES + i];
        ib_u64 words = IB_LOAD(&s->set.words);
        s->set.word_end[words & 3] = i;
        if (byte > ' ')
            continue;
        if (byte != ' ')
            return byte == '\r' && words == 3;
        s->set.words = words + 1;
    }
    return 0;
}

/* The number between two places of the line, or IB_BOX_SET_NO_NUMBER, into the scratch memory. */
IB_BOX_PART int ib_box_set_number(ib_u32 from, ib_u32 to) {
    struct ib_box_get_scratch *s = ib_box_get_scratch();
    if (!s)
        return 0;
    const ib_u8 *text = IB_BOX_IN_REQUEST(s, IB_BOX_GET_COMMAND_BYTES + from);
    ib_u32 len = to - from;
    ib_u64 number = 0, bad = ib_box_is_above(len, IB_BOX_SET_DIGITS_MAX) | (len == 0);
    IB_BOX_UNROLL for (ib_u32 i = 0; i < IB_BOX_SET_DIGITS_MAX; i++) {
        ib_u32 digit = (ib_u32)text[i] - '0';
        ib_u64 is_within = ib_box_is_above(len, i);
        bad |= is_within & ib_box_is_above(digit, 9);
        number += (number * 9 + digit) & -is_within;
    }
    s->set.number = number | -bad;
    return 0;
}

/* Writes a number as the command's encoding has it, and returns its length. What follows is written
 * later. */
IB_INLINE ib_u32 ib_box_set_varint(struct ib_box_get_scratch *s, ib_u32 at, ib_u32 number) {
    ib_u8 *to = IB_BOX_IN_REPLY(s, at);
    ib_u32 len_bytes = 1;
    IB_BOX_UNROLL for (ib_u32 i = 0; i < IB_BOX_SET_VARINT_BYTES; i++) {
        ib_u32 goes_on = i + 1 < IB_BOX_SET_VARINT_BYTES
                             ? ib_box_is_above(number, (1U << (7 * (i + 1) & 31)) - 1)
                             : 0;
        to[i] = (ib_u8)((number >> (7 * i) & 127) | goes_on << 7);
        len_bytes += goes_on;
    }
    return len_bytes;
}

/* Makes the record's value from the request. Returns 0 if it is for the process. */
IB_BOX_PART int ib_box_set_record(ib_box_arrived *arrived) {
    struct ib_box_get_scratch *s = ib_box_get_scratch();
    if (!s)
        return 0;
    ib_u32 key_len_bytes = s->set.word_end[0], line_end = s->set.word_end[3];
    ib_box_set_number(key_len_bytes + 1, s->set.word_end[1]);
    ib_u64 flags = s->set.number;
    ib_box_set_number(s->set.word_end[1] + 1, s->set.word_end[2]);
    ib_u64 exptime_s = s->set.number;
    ib_box_set_number(s->set.word_end[2] + 1, line_end);
    ib_u64 value_len_bytes = s->set.number;
    ib_u32 value_at = IB_BOX_GET_COMMAND_BYTES + line_end + 2;
    if (key_len_bytes == 0 || key_len_bytes > IB_BOX_KEY_LEN_MAX_BYTES || flags >> 32 ||
        exptime_s > IB_BOX_SET_EXPTIME_MAX_S || value_len_bytes > IB_BOX_RECORD_LEN_MAX_BYTES ||
        value_at + value_len_bytes + 2 != s->set.request_len_bytes ||
        IB_BOX_WORD16(IB_BOX_IN_REQUEST(s, value_at - 2)) != 0x0a0d ||
        IB_BOX_WORD16(IB_BOX_IN_REQUEST(s, value_at + value_len_bytes)) != 0x0a0d)
        return 0;
    s->reply[IB_BOX_SET_LENGTH_BYTES] = IB_BOX_SET_STORE;
    s->reply[IB_BOX_SET_LENGTH_BYTES + 1] = IB_BOX_SET_MODE;
    ib_u32 at = IB_BOX_SET_LENGTH_BYTES + 2;
    at += ib_box_set_varint(s, at, key_len_bytes);
    if (ib_box_request_copy(arrived, IB_BOX_GET_COMMAND_BYTES, IB_BOX_IN_REPLY(s, at),
                            key_len_bytes, IB_BOX_KEY_LEN_MAX_BYTES))
        return 0;
    at += key_len_bytes;
    at += ib_box_set_varint(s, at, (ib_u32)value_len_bytes);
    if (value_len_bytes && ib_box_request_copy(arrived, value_at, IB_BOX_IN_REPLY(s, at),
                                               value_len_bytes, IB_BOX_RECORD_LEN_MAX_BYTES))
        return 0;
    at += (ib_u32)value_len_bytes;
    at += ib_box_set_varint(s, at, (ib_u32)flags);
    at += ib_box_set_varint(s, at, (ib_u32)exptime_s << 1); /* zigzag */
    IB_BOX_WORD32(IB_BOX_IN_REPLY(s, at)) = 0;
    at += IB_BOX_SET_REST_BYTES;
    IB_BOX_WORD32(s->reply) = at - IB_BOX_SET_LENGTH_BYTES;
    s->set.record_len_bytes = at;
    return at <= IB_BOX_RECORD_LEN_MAX_BYTES;
}

/* Makes a SUBMIT's message of the record, but for its digest, and notes the request's id. */
IB_INLINE void ib_box_set_submit(const struct ib_box_get_scratch *s, ib_u16 own,
                                 struct ib_box_client *client, struct ib_box_msg *m) {
    client->request = IB_BOX_WORD16(s->request);
    m->is_own_set = 1;
    m->type = IB_BOX_SUBMIT;
    m->node = own;
    m->origin = IB_BOX_ORIGIN_ROLE;
    m->value_len_bytes = (ib_u16)s->set.record_len_bytes;
}

#endif
