/* SPDX-License-Identifier: Apache-2.0 */
/* Streams the bytes of a data file: plain, or unpacked from gzip or Zstandard, detected from the first bytes. Of one
 * JSON array (packed or not) it makes lines, one for each element. Memory holds one window, whatever the size of the
 * unpacked file. Knows nothing of lines. For one thread at a time. */
#ifndef TRAIN_DATA_STREAM_H
#define TRAIN_DATA_STREAM_H

#include <fsdpck/error.h>

struct data_stream;

/* path must outlive the stream. */
int data_stream_open(const char *path, struct data_stream **out, struct fsdpck_error *err);
void data_stream_close(struct data_stream *s); /* NULL does nothing */
/* What comes next, borrowed until the next call: *nbytes of it, 0 at the end. */
int data_stream_peek(struct data_stream *s, const char **bytes, size_t *nbytes, struct fsdpck_error *err);
void data_stream_consume(struct data_stream *s, size_t nbytes); /* of what peek gave */
uint64_t data_stream_at(const struct data_stream *s);           /* unpacked bytes consumed */
/* Packed, or an array: read from front to back only. A file that is neither knows its size, and can be read from
 * anywhere. */
bool data_stream_is_packed(const struct data_stream *s);
uint64_t data_stream_nbytes(const struct data_stream *s);    /* as it lies there */
uint64_t data_stream_packed_at(const struct data_stream *s); /* of them consumed, where it is packed */
int data_stream_seek(struct data_stream *s, uint64_t offset, struct fsdpck_error *err);

#endif
