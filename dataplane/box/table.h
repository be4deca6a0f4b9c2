/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table.h - the layout of the table of items, which the process writes (inband-box: store/), and
 * which readers in user space and the packet program read without locks. Rust sees it through
 * bindgen.
 *
 * The table is an array of chunks of 32 words: the header, then the buckets, then the items. A
 * bucket is a sequence word, odd while the bucket changes, and the link of its first item. A link
 * is the number of an item's chunk plus one; 0: none.
 */
#ifndef INBAND_BOX_TABLE_H
#define INBAND_BOX_TABLE_H

#include "../ground/siphash.h"

enum ib_box_table {
    IB_BOX_CHUNK_WORDS = 32,
    IB_BOX_BUCKET_WORDS = 2,
    IB_BOX_CHUNK_BUCKETS = IB_BOX_CHUNK_WORDS / IB_BOX_BUCKET_WORDS,
    /* Words before the bytes of key and value: in an item's first chunk, and in later ones. */
    IB_BOX_ITEM_WORDS = 9,
    IB_BOX_NEXT_WORDS = 2,
    IB_BOX_KEY_LEN_MAX_BYTES = 250, /* as in memcached */
    IB_BOX_KEY_ROOM_BYTES = 256,    /* of a buffer with a key that is hashed */
};

/* The words of the header. Those from `replaced` on, which every reader needs, have cache lines of
 * their own. */
enum ib_box_table_header {
    IB_BOX_T_MAGIC = 0,
    IB_BOX_T_APPLIED = 1,
    IB_BOX_T_TIME_MS = 2,
    IB_BOX_T_ITEMS = 3,
    IB_BOX_T_CHUNKS_USED = 4,
    IB_BOX_T_REPLACED = 8, /* the sequence word of the whole table: odd while it is replaced */
    IB_BOX_T_BUCKETS_LOG2 = 9,
    IB_BOX_T_CHUNKS = 10,
    IB_BOX_T_HASH_KEY = 11, /* two words */
};

/* The words of an item's first chunk; a later chunk has only the first two. */
enum ib_box_item {
    IB_BOX_I_NEXT = 0,   /* the link of the next chunk */
    IB_BOX_I_READ_S = 1, /* written by readers; so no chunk stores anything else there */
    IB_BOX_I_HASH = 2,
    IB_BOX_I_LENGTHS = 3, /* of the value; in the high half, of the key */
    IB_BOX_I_FLAGS = 4,   /* the first of four words of metadata; the client's flags: low half */
    IB_BOX_I_LINK = 8,    /* the bucket's next item */
};

#define IB_BOX_TABLE_MAGIC 0x4942424f58544232ULL /* "IBBOXTB2" */

struct ib_box_chunk {
    ib_u64 word[IB_BOX_CHUNK_WORDS];
};

/* The key of a table's hash, drawn when the table is created: who does not know it cannot choose
 * keys that share a bucket. */
struct ib_box_hash_key {
    ib_u64 k0, k1;
};

/*
 * SipHash-2-4 of a key of 1 to IB_BOX_KEY_LEN_MAX_BYTES bytes in a buffer of IB_BOX_KEY_ROOM_BYTES.
 * The highest bits choose the bucket.
 */
IB_INLINE ib_u64 ib_box_hash_of(struct ib_box_hash_key hash_key, const ib_u8 *key,
                                ib_u32 len_bytes) {
    struct ib_sip s = ib_sip_begin(hash_key.k0, hash_key.k1);
    ib_u32 left = len_bytes;
    IB_LOOP
    for (ib_u32 i = 0; i < IB_BOX_KEY_LEN_MAX_BYTES / 8; i++) {
        if (left < 8)
            break;
        ib_sip_word(&s, ib_sum_word(key));
        key += 8;
        left -= 8;
    }
    /* Without a branch: the bytes behind the key are shifted out. */
    ib_u64 last = ib_sum_word(key) & ((1ULL << 8 * (left & 7)) - 1);
    return ib_sip_end(&s, (ib_u64)len_bytes << 56 | last);
}

#endif
