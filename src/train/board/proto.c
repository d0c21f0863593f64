/* SPDX-License-Identifier: Apache-2.0 */
#include "board/proto.h"

#include <stdlib.h>
#include <string.h>

#include "arrays/grow.h"

enum wire { VARINT = 0, EIGHT_BYTES = 1, LENGTH = 2, FOUR_BYTES = 5, MOST_VARINT = 10 };

void proto_free(struct proto *p)
{
    free(p->bytes);
    *p = (struct proto){ 0 };
}

void proto_clear(struct proto *p)
{
    p->nbytes = 0;
    p->failed = false;
}

static void append(struct proto *p, const void *bytes, size_t nbytes)
{
    if (p->failed || !grow((void **)&p->bytes, &p->capacity, p->nbytes + nbytes, 1)) {
        p->failed = true;
        return;
    }
    if (nbytes)
        memcpy(p->bytes + p->nbytes, bytes, nbytes);
    p->nbytes += nbytes;
}

/* Seven bits a byte, the lowest first; the highest bit says that another byte follows. */
static size_t varint(uint64_t value, unsigned char out[MOST_VARINT])
{
    size_t n = 0;
    for (; value >= 0x80; value >>= 7)
        out[n++] = (unsigned char)(value | 0x80);
    out[n++] = (unsigned char)value;
    return n;
}

static void append_varint(struct proto *p, uint64_t value)
{
    unsigned char bytes[MOST_VARINT];
    append(p, bytes, varint(value, bytes));
}

static void append_key(struct proto *p, unsigned field, enum wire type)
{
    append_varint(p, (uint64_t)field << 3 | type);
}

static void append_le(struct proto *p, uint64_t value, size_t nbytes)
{
    unsigned char bytes[8];
    for (size_t i = 0; i < nbytes; i++)
        bytes[i] = (unsigned char)(value >> 8 * i);
    append(p, bytes, nbytes);
}

void proto_put_varint(struct proto *p, unsigned field, uint64_t value)
{
    append_key(p, field, VARINT);
    append_varint(p, value);
}

void proto_put_float(struct proto *p, unsigned field, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    append_key(p, field, FOUR_BYTES);
    append_le(p, bits, sizeof bits);
}

void proto_put_double(struct proto *p, unsigned field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    append_key(p, field, EIGHT_BYTES);
    append_le(p, bits, sizeof bits);
}

void proto_put_bytes(struct proto *p, unsigned field, const void *bytes, size_t nbytes)
{
    append_key(p, field, LENGTH);
    append_varint(p, nbytes);
    append(p, bytes, nbytes);
}

void proto_put_text(struct proto *p, unsigned field, const char *text)
{
    proto_put_bytes(p, field, text, strlen(text));
}

size_t proto_begin(struct proto *p, unsigned field)
{
    append_key(p, field, LENGTH);
    return p->nbytes;
}

void proto_end(struct proto *p, size_t begun)
{
    unsigned char length[MOST_VARINT];
    const size_t nbytes = p->nbytes - begun, n = varint(nbytes, length);
    append(p, length, n); /* makes room */
    if (p->failed)
        return;
    memmove(p->bytes + begun + n, p->bytes + begun, nbytes);
    memcpy(p->bytes + begun, length, n);
}
