/* SPDX-License-Identifier: Apache-2.0 */
/* Streams the bytes of a data file: plain, or unpacked from gzip or Zstandard (detected from the first bytes). Converts
 * a JSON array (packed or not) to lines, one per element. Memory holds one window, whatever the size of the unpacked
 * file. Knows nothing of lines otherwise. Not thread-safe. */
#ifndef TRAIN_DATA_STREAM_H
#define TRAIN_DATA_STREAM_H

#include <fsdpck/error.h>

struct data_stream;

/* path must outlive the stream. */
int data_stream_open(const char *path, struct data_stream **out, struct fsdpck_error *err);
void data_stream_close(struct data_stream *s); /* NULL does nothing */
/* The next bytes, valid until the next call. *nbytes is 0 at the end. */
int data_stream_peek(struct data_stream *s, const char **bytes, size_t *nbytes, struct fsdpck_error *err);
void data_stream_consume(struct data_stream *s, size_t nbytes); /* consumes bytes that peek returned */
uint64_t data_stream_at(const struct data_stream *s);           /* number of unpacked bytes consumed */
/* True for a packed file or an array, which can only be read sequentially. Other files can be read from any offset. */
bool data_stream_is_packed(const struct data_stream *s);
uint64_t data_stream_nbytes(const struct data_stream *s);    /* size of the file on disk */
uint64_t data_stream_packed_at(const struct data_stream *s); /* packed: bytes of the file consumed */
int data_stream_seek(struct data_stream *s, uint64_t offset, struct fsdpck_error *err);

#endif
