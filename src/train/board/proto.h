/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes messages of Protocol Buffers. It knows the wire format and no message. */
#ifndef TRAIN_PROTO_H
#define TRAIN_PROTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero-initialise. bytes: owned, released by proto_free(). */
struct proto {
    unsigned char *bytes;
    size_t nbytes, capacity;
    bool failed; /* out of memory: what was put is incomplete */
};

void proto_free(struct proto *p);
void proto_clear(struct proto *p); /* keeps the memory */

void proto_put_varint(struct proto *p, unsigned field, uint64_t value);
void proto_put_float(struct proto *p, unsigned field, float value);
void proto_put_double(struct proto *p, unsigned field, double value);
void proto_put_bytes(struct proto *p, unsigned field, const void *bytes, size_t nbytes);
void proto_put_text(struct proto *p, unsigned field, const char *text);

/* What is put between the two calls is a message in a field of the message around it. Returns the place that
 * proto_end() must get. */
size_t proto_begin(struct proto *p, unsigned field);
void proto_end(struct proto *p, size_t begun);

#endif
