/* SPDX-License-Identifier: Apache-2.0 */
/* Writes pickles (protocol 2) of values that were read from one. */
#include "torch/pt/value.h"

#include <inttypes.h>
#include <string.h>

#include "torch/pickle/write.h"

struct writer {
    const struct fsdpck_pickle *p;
    struct fsdpck_text *out;
    uint64_t max_nbytes;
    const char *file;
    struct fsdpck_error *err;
};

static int write_value(struct writer *w, fsdpck_node n);

static void put(struct writer *w, const char *op)
{
    fsdpck_text_add(w->out, op, strlen(op));
}

static void put_le32(struct writer *w, size_t value)
{
    uint8_t b[4];
    fsdpck_put32(b, (uint32_t)value);
    fsdpck_text_add(w->out, b, sizeof b);
}

static void write_int(struct writer *w, fsdpck_node n)
{
    int64_t v = 0;
    uint8_t b[FSDPCK_PICKLE_INT_MAX] = { 0x8a, 8 };
    fsdpck_pickle_int(w->p, n, &v);
    if (v < 0)
        fsdpck_put64(b + 2, (uint64_t)v); /* LONG1 */
    fsdpck_text_add(w->out, b, v < 0 ? 10 : fsdpck_pickle_put_int(b, (uint64_t)v));
}

static void write_long(struct writer *w, fsdpck_node n)
{
    size_t nbytes;
    const char *bytes = fsdpck_pickle_text(w->p, n, &nbytes);
    uint8_t length = (uint8_t)nbytes;
    put(w, nbytes < 256 ? "\x8a" : "\x8b");
    if (nbytes < 256)
        fsdpck_text_add(w->out, &length, 1);
    else
        put_le32(w, nbytes);
    fsdpck_text_add(w->out, bytes, nbytes);
}

static void write_float(struct writer *w, fsdpck_node n)
{
    double v = 0;
    uint64_t bits;
    uint8_t b[9] = { 'G' };
    fsdpck_pickle_float(w->p, n, &v);
    memcpy(&bits, &v, sizeof bits);
    for (int i = 0; i < 8; i++)
        b[1 + i] = (uint8_t)(bits >> (56 - 8 * i));
    fsdpck_text_add(w->out, b, sizeof b);
}

static void write_string(struct writer *w, fsdpck_node n)
{
    size_t nbytes;
    const char *text = fsdpck_pickle_text(w->p, n, &nbytes);
    put(w, "X");
    put_le32(w, nbytes);
    fsdpck_text_add(w->out, text, nbytes);
}

/* Protocol 2 has no bytes. As Python does, write a string of as many characters and its encoding. */
static void write_bytes(struct writer *w, fsdpck_node n)
{
    size_t nbytes, wide = 0;
    const uint8_t *bytes = (const uint8_t *)fsdpck_pickle_text(w->p, n, &nbytes);
    for (size_t i = 0; i < nbytes; i++)
        wide += bytes[i] >= 0x80;
    put(w, "c_codecs\nencode\n(X");
    put_le32(w, nbytes + wide);
    for (size_t i = 0; i < nbytes; i++) {
        uint8_t utf8[2] = { (uint8_t)(0xc0 | bytes[i] >> 6), (uint8_t)(0x80 | (bytes[i] & 0x3f)) };
        fsdpck_text_add(w->out, bytes[i] < 0x80 ? &bytes[i] : utf8, bytes[i] < 0x80 ? 1 : 2);
    }
    put(w, "X\x06");
    fsdpck_text_add(w->out, "\0\0\0latin1tR", 11);
}

static int write_members(struct writer *w, fsdpck_node n, const char *begin, const char *end)
{
    int rc = 0;
    put(w, begin);
    for (size_t i = 0; !rc && i < fsdpck_pickle_count(w->p, n); i++)
        rc = write_value(w, fsdpck_pickle_child(w->p, n, i));
    put(w, end);
    return rc;
}

/* "module name" as GLOBAL's two lines. */
static void write_global(struct writer *w, fsdpck_node n)
{
    const char *text = fsdpck_pickle_text(w->p, n, NULL), *space = strchr(text, ' ');
    put(w, "c");
    fsdpck_text_add(w->out, text, (size_t)(space - text));
    put(w, "\n");
    put(w, space + 1);
    put(w, "\n");
}

static int write_made(struct writer *w, fsdpck_node n)
{
    bool call = fsdpck_pickle_type(w->p, n) == FSDPCK_PICKLE_CALL;
    fsdpck_node state = fsdpck_pickle_state(w->p, n);
    int rc = write_members(w, n, "", call ? "R" : "\x81");
    if (rc || state == FSDPCK_NO_NODE)
        return rc;
    rc = write_value(w, state);
    put(w, "b");
    return rc;
}

static int write_value(struct writer *w, fsdpck_node n)
{
    int64_t flag = 0;
    if (w->out->nbytes > w->max_nbytes)
        return fsdpck_error_set(w->err, FSDPCK_ERR_LIMIT, w->file,
                                "its value is larger than the %" PRIu64 " bytes that the pickle could back",
                                w->max_nbytes);
    switch (fsdpck_pickle_type(w->p, n)) {
    case FSDPCK_PICKLE_NONE: put(w, "N"); return 0;
    case FSDPCK_PICKLE_BOOL:
        fsdpck_pickle_int(w->p, n, &flag);
        put(w, flag ? "\x88" : "\x89");
        return 0;
    case FSDPCK_PICKLE_INT: write_int(w, n); return 0;
    case FSDPCK_PICKLE_BIGINT: write_long(w, n); return 0;
    case FSDPCK_PICKLE_FLOAT: write_float(w, n); return 0;
    case FSDPCK_PICKLE_STRING: write_string(w, n); return 0;
    case FSDPCK_PICKLE_BYTES: write_bytes(w, n); return 0;
    case FSDPCK_PICKLE_TUPLE: return write_members(w, n, "(", "t");
    case FSDPCK_PICKLE_LIST: return write_members(w, n, "](", "e");
    case FSDPCK_PICKLE_SET: return write_members(w, n, "c__builtin__\nset\n(](", "etR");
    case FSDPCK_PICKLE_DICT: return write_members(w, n, "}(", "u");
    case FSDPCK_PICKLE_GLOBAL: write_global(w, n); return 0;
    case FSDPCK_PICKLE_CALL:
    case FSDPCK_PICKLE_OBJECT: return write_made(w, n);
    case FSDPCK_PICKLE_PERSISTENT: break;
    }
    return fsdpck_error_set(w->err, FSDPCK_ERR_UNSUPPORTED, w->file,
                            "its value holds a tensor inside an object, which is not read");
}

int fsdpck_pt_value(const struct fsdpck_pickle *p, fsdpck_node n, uint64_t max_nbytes, const char *file,
                    struct fsdpck_text *out, struct fsdpck_error *err)
{
    struct writer w = { .p = p, .out = out, .max_nbytes = max_nbytes, .file = file, .err = err };
    put(&w, "\x80\x02");
    int rc = write_value(&w, n);
    put(&w, ".");
    return rc ? rc : fsdpck_text_check(out, err);
}
