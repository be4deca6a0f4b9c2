/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gets.h - answers memcached's GETs over UDP from the table (table.h): `get KEY\r\n` in one
 * datagram, if the reply is one datagram of at most IB_BOX_GET_REPLY_MAX_BYTES. Everything else
 * passes to the process, unchanged.
 *
 * A reply is the node's own copy of the item, as at the process's local ports: it may be stale.
 * Items expire by the log's time, at which the process removes them from the table.
 *
 * The reply is first made in scratch memory of this CPU, and the frame is changed only once the
 * sequence words have shown that the copy is whole.
 */
#ifndef INBAND_BOX_GETS_H
#define INBAND_BOX_GETS_H

#include "../ground/seqlock.h"
#include "text.h"

_Static_assert((int)IB_BOX_SET_HEADERS_BYTES >= (int)IB_XDP_FRAME_LEN_BYTES, "the headers fit");

IB_REGISTERS(ib_table_map, struct ib_box_chunk);

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, ib_u32);
    __type(value, struct ib_box_get_scratch);
} ib_get_scratch_map SEC(".maps");

IB_INLINE struct ib_box_get_scratch *ib_box_get_scratch(void) {
    ib_u32 zero = 0;
    return bpf_map_lookup_elem(&ib_get_scratch_map, &zero);
}

IB_INLINE struct ib_box_chunk *ib_box_chunk(ib_u64 number) {
    ib_u32 at = (ib_u32)number;
    return number >> 32 ? NULL : bpf_map_lookup_elem(&ib_table_map, &at);
}

IB_INLINE ib_u32 ib_box_digits(ib_u32 number) {
    ib_u32 digits = 1, limit = 9;
    IB_BOX_UNROLL for (ib_u32 i = 1; i < IB_BOX_GET_DIGITS_MAX; i++) {
        digits += ib_box_is_above(number, limit);
        limit = limit * 10 + 9;
    }
    return digits;
}

/* Writes a number of IB_BOX_GET_DIGITS_MAX digits that ends before `end`. The leading zeros are
 * overwritten by the text before it, which is written later. */
IB_INLINE void ib_box_put_digits(struct ib_box_get_scratch *s, ib_u32 end, ib_u32 number) {
    ib_u8 *to = IB_BOX_IN_REPLY(s, end - IB_BOX_GET_DIGITS_MAX);
    IB_BOX_UNROLL for (ib_u32 i = IB_BOX_GET_DIGITS_MAX; i > 0; i--) {
        to[i - 1] = '0' + number % 10;
        number /= 10;
    }
}

/* The bits of a word of which the first `bytes`, at least one, belong to a key; all from 8 on. */
IB_INLINE ib_u64 ib_box_first_bytes(ib_u32 bytes) {
    ib_u64 above = ib_box_is_above(bytes, 7);
    return (~0ULL >> ((8 - bytes) * 8 & 63)) | -above;
}

/* Whether a byte of the word is at most a space: no byte of a key is. */
IB_INLINE int ib_box_has_space(ib_u64 word) {
    return ((word - 0x2121212121212121ULL) & ~word & 0x8080808080808080ULL) != 0;
}

/* The sum of `len_bytes`, whose last word is padded with zeros. */
IB_INLINE ib_u32 ib_box_sum_part(ib_u8 *bytes, ib_u32 len_bytes, ib_u32 sum) {
    ib_u64 whole = (len_bytes + 3) & ~3U;
    __asm__ volatile("if %0 <= %1 goto +1\n%0 = %1" : "+r"(whole) : "i"(IB_BOX_GET_SUM_PART_BYTES));
    return (ib_u32)bpf_csum_diff(NULL, 0, (__be32 *)bytes, (ib_u32)whole, sum);
}

IB_INLINE ib_u32 ib_box_fold(ib_u64 sum) {
    sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    return (ib_u32)((sum & 0xffff) + (sum >> 16));
}

/* Adds the sum of a request's or a reply's text. */
IB_INLINE ib_u32 ib_box_text_sum(ib_u8 *text, ib_u32 len_bytes, ib_u32 sum) {
    IB_LOOP
    for (ib_u32 at = 0; at < IB_BOX_GET_REPLY_MAX_BYTES; at += IB_BOX_GET_SUM_PART_BYTES) {
        if (at >= len_bytes)
            break;
        sum = ib_box_sum_part(text + at, len_bytes - at, sum);
    }
    return sum;
}

/* The sum of the pseudo header. */
IB_INLINE ib_u64 ib_box_pseudo_sum(const struct iphdr *ip, ib_u16 udp_len) {
    return (ib_u64)ip->saddr + ip->daddr + bpf_htons(IPPROTO_UDP) + udp_len;
}

/*
 * Reads the request at the frame's UDP payload into the scratch memory, and checks it. Returns 0
 * if it is for the process.
 *
 * A packet that was created on this machine may carry an unfinished checksum, which is the sum of
 * the pseudo header.
 */
__attribute__((noinline)) int ib_box_get_request(struct xdp_md *ctx) {
    const ib_u8 *data = (const ib_u8 *)(long)ctx->data;
    const ib_u8 *end = (const ib_u8 *)(long)ctx->data_end;
    struct ib_box_get_scratch *s = ib_box_get_scratch();
    if (!s || data + IB_XDP_FRAME_LEN_BYTES > end)
        return 0;
    const struct udphdr *udp = IB_UDP(data);
    ib_u32 ip_len_bytes = bpf_ntohs(IB_IP(data)->tot_len);
    ib_u32 udp_len_bytes = bpf_ntohs(udp->len);
    ib_u32 len_bytes = udp_len_bytes - sizeof(struct udphdr);
    if (sizeof(struct iphdr) + udp_len_bytes != ip_len_bytes ||
        ETH_HLEN + ip_len_bytes > ib_bytes_between(data, end) ||
        len_bytes <= IB_BOX_GET_COMMAND_BYTES + IB_BOX_GET_END_BYTES ||
        len_bytes > IB_BOX_GET_REQUEST_MAX_BYTES)
        return 0;
    ib_u64 pseudo = ib_box_pseudo_sum(IB_IP(data), udp->len), check = udp->check;
    ib_u64 ports = (ib_u64)udp->source + udp->dest + udp->len;
    if (bpf_xdp_load_bytes(ctx, IB_XDP_FRAME_LEN_BYTES, s->request,
                           IB_COPY_LEN(len_bytes, IB_BOX_GET_REQUEST_MAX_BYTES)))
        return 0;
    IB_BOX_WORD64(IB_BOX_IN_REQUEST(s, len_bytes)) = 0;
    if (check != 0 && check != ib_box_fold(pseudo)) {
        ib_u64 sum = pseudo + ports + check + ib_box_sum_part(s->request, len_bytes, 0);
        if (ib_box_fold(sum) != 0xffff)
            return 0;
    }
    /* One datagram of one, "get ", and a line's end. */
    if (!ib_box_is_whole(s) || IB_BOX_WORD32(s->request + IB_BOX_GET_FRAME_BYTES) != 0x20746567 ||
        IB_BOX_WORD16(IB_BOX_IN_REQUEST(s, len_bytes - IB_BOX_GET_END_BYTES)) != 0x0a0d)
        return 0;
    ib_u32 left = len_bytes - IB_BOX_GET_COMMAND_BYTES - IB_BOX_GET_END_BYTES;
    s->key_len_bytes = left;
    IB_HIDE(left);
    IB_LOOP
    for (ib_u32 i = 0; i < IB_BOX_KEY_ROOM_BYTES; i += 8) {
        ib_u64 word = IB_BOX_WORD64(s->request + IB_BOX_GET_COMMAND_BYTES + i);
        if (ib_box_has_space(word | ~ib_box_first_bytes(left)))
            return 0;
        if (left <= 8)
            break;
        left -= 8;
    }
    return 1;
}

/* Copies the words of a chunk from `first` on. */
#define IB_BOX_COPY_WORDS(to, chunk, first)                                                        \
    do {                                                                                           \
        ib_u64 *words = (ib_u64 *)(to);                                                            \
        IB_BOX_UNROLL for (ib_u32 i = first; i < IB_BOX_CHUNK_WORDS; i++) words[i - first] =       \
            IB_LOAD(&(chunk)->word[i]);                                                            \
    } while (0)

/*
 * Copies key and value of the item in `first` so that the value begins at `value_at` of the reply.
 * Returns 0 if the chunks are not an item's.
 */
IB_INLINE int ib_box_get_copy(struct ib_box_get_scratch *s, const struct ib_box_chunk *first,
                              ib_u64 first_item, ib_u32 key_at, ib_u32 len_bytes) {
    const struct ib_box_chunk *chunk = first;
    ib_u8 *to = s->reply + IB_BOX_GET_AT(key_at, IB_BOX_GET_TEXT_MASK);
    IB_RACE_WINDOW();
    IB_BOX_COPY_WORDS(to, chunk, IB_BOX_ITEM_WORDS);
    ib_u32 copied = IB_BOX_FIRST_BYTES;
    IB_LOOP
    for (ib_u32 n = 1; n < IB_BOX_GET_CHUNKS_MAX; n++) {
        if (copied >= len_bytes)
            return 1;
        ib_u64 link = IB_LOAD(&chunk->word[IB_BOX_I_NEXT]);
        chunk = link ? ib_box_chunk(first_item + link - 1) : NULL;
        if (!chunk)
            return 0;
        IB_RACE_WINDOW();
        IB_BOX_COPY_WORDS(to + copied, chunk, IB_BOX_NEXT_WORDS);
        copied += IB_BOX_MORE_BYTES;
    }
    return copied >= len_bytes;
}

/* The result of one look at the table. */
enum ib_box_look { IB_BOX_LOOK_AGAIN = 0 /* otherwise a reason */ };

/* Makes the reply in the scratch memory. Returns its reason, or IB_BOX_LOOK_AGAIN. */
__attribute__((noinline)) int ib_box_get_look(void) {
    struct ib_box_get_scratch *s = ib_box_get_scratch();
    struct ib_box_chunk *header = ib_box_chunk(0);
    if (!s || !header || IB_LOAD(&header->word[IB_BOX_T_MAGIC]) != IB_BOX_TABLE_MAGIC)
        return IB_R_gets_busy;
    ib_u64 replaced = IB_LOAD(&header->word[IB_BOX_T_REPLACED]);
    ib_u32 log2 = (ib_u32)header->word[IB_BOX_T_BUCKETS_LOG2] & 63;
    ib_u64 number = s->hash >> ((64 - log2) & 63);
    ib_u64 first_item = 1 + (1ULL << log2) / IB_BOX_CHUNK_BUCKETS;
    struct ib_box_chunk *buckets = ib_box_chunk(1 + number / IB_BOX_CHUNK_BUCKETS);
    if (!buckets || replaced & 1)
        return IB_R_gets_busy;
    ib_u32 word = (ib_u32)(number & (IB_BOX_CHUNK_BUCKETS - 1)) * IB_BOX_BUCKET_WORDS;
    const ib_u64 *bucket = &buckets->word[word];
    ib_u64 before = IB_LOAD(bucket);
    if (before & 1)
        return IB_BOX_LOOK_AGAIN;
    IB_LOADS_IN_ORDER();
    ib_u64 link = IB_LOAD(bucket + 1);
    struct ib_box_chunk *item = NULL;
    IB_LOOP
    for (ib_u32 i = 0; i < IB_BOX_GET_ITEMS_MAX; i++) {
        if (!link)
            break;
        item = ib_box_chunk(first_item + link - 1);
        if (!item)
            return IB_BOX_LOOK_AGAIN;
        if (IB_LOAD(&item->word[IB_BOX_I_HASH]) == s->hash)
            break;
        link = IB_LOAD(&item->word[IB_BOX_I_LINK]);
        item = NULL;
    }
    if (!item) {
        if (link)
            return IB_R_gets_busy;
        IB_LOADS_IN_ORDER();
        if (IB_LOAD(bucket) != before || IB_LOAD(&header->word[IB_BOX_T_REPLACED]) != replaced)
            return IB_BOX_LOOK_AGAIN;
        return IB_R_gets_miss;
    }
    ib_u64 lengths = IB_LOAD(&item->word[IB_BOX_I_LENGTHS]);
    ib_u32 flags = (ib_u32)IB_LOAD(&item->word[IB_BOX_I_FLAGS]);
    ib_u32 key_len_bytes = s->key_len_bytes, value_len_bytes = (ib_u32)lengths;
    if (lengths >> 32 != key_len_bytes || key_len_bytes > IB_BOX_KEY_LEN_MAX_BYTES)
        return IB_R_gets_busy; /* another key with the same hash, or a torn look */
    ib_u32 digits = ib_box_digits(value_len_bytes);
    ib_u32 text_bytes = 4 + ib_box_digits(flags) + digits;
    /* "VALUE KEY FLAGS LENGTH\r\n" and "\r\nEND\r\n" */
    ib_u32 value_at = IB_BOX_GET_FRAME_BYTES + 6 + key_len_bytes + text_bytes;
    if (value_len_bytes > IB_BOX_GET_REPLY_MAX_BYTES ||
        value_at + value_len_bytes + 7 > IB_BOX_GET_REPLY_MAX_BYTES)
        return IB_R_gets_long;
    if (!ib_box_get_copy(s, item, first_item, value_at - key_len_bytes,
                         key_len_bytes + value_len_bytes))
        return IB_BOX_LOOK_AGAIN;
#ifndef IB_MUTANT_TORN
    IB_LOADS_IN_ORDER();
    if (IB_LOAD(bucket) != before || IB_LOAD(&header->word[IB_BOX_T_REPLACED]) != replaced)
        return IB_BOX_LOOK_AGAIN;
#endif
    ib_u32 left = key_len_bytes;
    IB_HIDE(left); /* so that nothing is learnt about the key's length in the loop */
    const ib_u8 *found = s->reply + IB_BOX_GET_AT(value_at - key_len_bytes, IB_BOX_GET_TEXT_MASK);
    IB_LOOP
    for (ib_u32 i = 0; i < IB_BOX_KEY_ROOM_BYTES; i += 8) {
        ib_u64 asked = IB_BOX_WORD64(s->request + IB_BOX_GET_COMMAND_BYTES + i);
        if ((IB_BOX_WORD64(found + i) ^ asked) & ib_box_first_bytes(left))
            return IB_R_gets_busy;
        if (left <= 8)
            break;
        left -= 8;
    }
    /* From the end, because of the leading zeros. */
    IB_BOX_WORD16(IB_BOX_IN_REPLY(s, value_at - 2)) = 0x0a0d;
    ib_box_put_digits(s, value_at - 2, value_len_bytes);
    ib_box_put_digits(s, value_at - 3 - digits, flags);
    *IB_BOX_IN_REPLY(s, value_at - 3 - digits) = ' ';
    left = key_len_bytes;
    IB_HIDE(left);
    IB_LOOP
    for (ib_u32 i = 0; i < IB_BOX_KEY_ROOM_BYTES; i += 8) {
        ib_u64 mask = ib_box_first_bytes(left);
        ib_u64 *to = &IB_BOX_WORD64(s->reply + IB_BOX_GET_FRAME_BYTES + 6 + i);
        ib_u64 asked = IB_BOX_WORD64(s->request + IB_BOX_GET_COMMAND_BYTES + i);
        *to = (asked & mask) | (*to & ~mask);
        if (left <= 8)
            break;
        left -= 8;
    }
    *IB_BOX_IN_REPLY(s, IB_BOX_GET_FRAME_BYTES + 6 + key_len_bytes) = ' ';
    IB_BOX_WORD64(s->reply) = IB_BOX_WORD64(s->request);
    __builtin_memcpy(s->reply + IB_BOX_GET_FRAME_BYTES, "VALUE ", 6);
    ib_u8 *behind = IB_BOX_IN_REPLY(s, value_at + value_len_bytes);
    IB_BOX_WORD64(behind) = 0x0a0d444e450a0dULL; /* "\r\nEND\r\n" */
    IB_BOX_WORD32(behind + 8) = 0;
    s->reply_len_bytes = value_at + value_len_bytes + 7;
    /* The mark is this node's own, and no chunk has anything else there. */
    ib_u64 now_s = IB_LOAD(&header->word[IB_BOX_T_TIME_MS]) / 1000;
    ib_u64 *read_s = &item->word[IB_BOX_I_READ_S];
    if (IB_LOAD(read_s) != now_s && now_s)
        *(volatile ib_u64 *)read_s = now_s;
    return IB_R_gets_hit;
}

/* Makes the frame as long as the reply, at its end or, if the driver has no room there, at its
 * beginning. */
IB_INLINE int ib_box_get_resize(struct xdp_md *ctx, ib_u32 len_bytes) {
    ib_u32 now_bytes = (ib_u32)bpf_xdp_get_buff_len(ctx);
    ib_u32 then_bytes = IB_XDP_FRAME_LEN_BYTES + len_bytes;
    if (then_bytes < now_bytes && then_bytes < IB_BOX_GET_FRAME_MIN_BYTES)
        then_bytes =
            now_bytes < IB_BOX_GET_FRAME_MIN_BYTES ? now_bytes : IB_BOX_GET_FRAME_MIN_BYTES;
    int more_bytes = (int)(then_bytes - now_bytes);
    if (more_bytes == 0 || bpf_xdp_adjust_tail(ctx, more_bytes) == 0)
        return 1;
    return more_bytes > 0 && more_bytes <= IB_BOX_GET_HEADROOM_BYTES &&
           bpf_xdp_adjust_head(ctx, -more_bytes) == 0;
}

/* Sends the reply in the scratch memory to the frame's sender. Returns XDP_PASS if there is no
 * room for it. */
__attribute__((noinline)) int ib_box_get_reply(struct xdp_md *ctx) {
    const ib_u8 *data = (const ib_u8 *)(long)ctx->data;
    struct ib_box_get_scratch *s = ib_box_get_scratch();
    if (!s || data + IB_XDP_FRAME_LEN_BYTES > (const ib_u8 *)(long)ctx->data_end)
        return XDP_PASS;
    ib_u32 len_bytes = s->reply_len_bytes;
    if (len_bytes < IB_BOX_GET_FRAME_BYTES || len_bytes > IB_BOX_GET_REPLY_MAX_BYTES)
        return XDP_PASS;
    struct ethhdr eth;
    __builtin_memcpy(eth.h_dest, IB_ETH(data)->h_source, ETH_ALEN);
    __builtin_memcpy(eth.h_source, IB_ETH(data)->h_dest, ETH_ALEN);
    ib_u32 from = IB_IP(data)->daddr, to = IB_IP(data)->saddr;
    ib_u16 from_port = IB_UDP(data)->dest, to_port = IB_UDP(data)->source;
    ib_u32 sum = ib_box_text_sum(s->reply, len_bytes, 0);
    if (!ib_box_get_resize(ctx, len_bytes))
        return XDP_PASS;
    ib_u8 *out = (ib_u8 *)(long)ctx->data;
    if (out + IB_XDP_FRAME_LEN_BYTES > (ib_u8 *)(long)ctx->data_end)
        return XDP_ABORTED;
    __builtin_memcpy(IB_ETH(out)->h_dest, eth.h_dest, ETH_ALEN);
    __builtin_memcpy(IB_ETH(out)->h_source, eth.h_source, ETH_ALEN);
    IB_ETH(out)->h_proto = bpf_htons(ETH_P_IP);
    struct iphdr *ip = IB_IP(out);
    *(ib_wire16 *)ip = bpf_htons(0x4500);
    ip->id = 0; /* allowed, as it must not be fragmented */
    ip->frag_off = bpf_htons(0x4000);
    ip->protocol = IPPROTO_UDP;
    ib_frame_sizes(out, len_bytes);
    ib_ip_address(ip, from, to);
    struct udphdr *udp = IB_UDP(out);
    udp->source = from_port;
    udp->dest = to_port;
    ib_u64 all = ib_box_pseudo_sum(ip, udp->len) + from_port + to_port + udp->len + sum;
    ib_u16 check = (ib_u16)~ib_box_fold(all);
    udp->check = check ? check : 0xffff;
    if (bpf_xdp_store_bytes(ctx, IB_XDP_FRAME_LEN_BYTES, s->reply,
                            IB_COPY_LEN(len_bytes, IB_BOX_GET_REPLY_MAX_BYTES)))
        return XDP_ABORTED;
    return XDP_TX;
}

/* Computes the hash of the request's key. Returns 0 if there is no table. */
__attribute__((noinline)) int ib_box_get_hash(void) {
    struct ib_box_get_scratch *s = ib_box_get_scratch();
    struct ib_box_chunk *header = ib_box_chunk(0);
    if (!s || !header)
        return 0;
    struct ib_box_hash_key key = {header->word[IB_BOX_T_HASH_KEY],
                                  header->word[IB_BOX_T_HASH_KEY + 1]};
    s->hash = ib_box_hash_of(key, s->request + IB_BOX_GET_COMMAND_BYTES, s->key_len_bytes);
    return 1;
}

/* Whether a frame that is not a node's is a whole datagram to this host's own hardware address: a
 * reply must not come from a group's. */
IB_INLINE int ib_box_is_datagram(const ib_u8 *data, const ib_u8 *end) {
    return data + IB_XDP_FRAME_LEN_BYTES <= end && !(IB_ETH(data)->h_dest[0] & 1) &&
           (IB_FRAME32(data, 12) & IB_IPV4_MASK) == IB_IPV4 &&
           (IB_FRAME32(data, 20) & IB_WHOLE_UDP_MASK) == IB_WHOLE_UDP;
}

/* Whether a datagram is for this port of ours; no port is 0. */
IB_INLINE int ib_box_is_to(const ib_u8 *data, ib_u32 address, ib_u16 port) {
    return port && IB_UDP(data)->dest == port && IB_IP(data)->daddr == address;
}

IB_INLINE int ib_box_is_from_client(const ib_u8 *data) {
    return (IB_IP(data)->saddr & ib_box_settings.from_mask) == ib_box_settings.from;
}

/* Answers a frame that is not a node's, or passes it. */
IB_INLINE int ib_box_get(struct xdp_md *ctx) {
    const ib_u8 *data = (const ib_u8 *)(long)ctx->data;
    const ib_u8 *end = (const ib_u8 *)(long)ctx->data_end;
    if (ib_settings.generic || !ib_box_is_datagram(data, end) ||
        !ib_box_is_to(data, ib_box_settings.local_address, ib_box_settings.local_port))
        return XDP_PASS;
    ib_u32 reason = IB_R_gets_other;
    if (ib_box_is_from_client(data) && ib_box_get_request(ctx) && ib_box_get_hash()) {
        reason = IB_BOX_LOOK_AGAIN;
        for (ib_u32 i = 0; i < IB_BOX_GET_TRIES_MAX && reason == IB_BOX_LOOK_AGAIN; i++)
            reason = (ib_u32)ib_box_get_look();
        if (reason == IB_BOX_LOOK_AGAIN)
            reason = IB_R_gets_busy;
    }
    int action = XDP_PASS;
    struct ib_box_get_scratch *s = ib_box_get_scratch();
    if (s && reason == IB_R_gets_miss) {
        IB_BOX_WORD64(s->reply) = IB_BOX_WORD64(s->request);
        IB_BOX_WORD64(s->reply + IB_BOX_GET_FRAME_BYTES) = 0x0a0d444e45ULL; /* "END\r\n" */
        s->reply_len_bytes = IB_BOX_GET_FRAME_BYTES + 5;
    }
    if (reason == IB_R_gets_miss || reason == IB_R_gets_hit) {
        action = ib_box_get_reply(ctx);
        if (action == XDP_PASS)
            reason = IB_R_gets_no_room;
    }
    ib_count_reason(reason);
    return action;
}

#endif
