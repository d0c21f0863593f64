/* A file of data in memory: as it is, or out of gzip or Zstandard, told by its first bytes. Knows nothing of what is in it. */
#ifndef TRAIN_DATA_FILE_H
#define TRAIN_DATA_FILE_H

#include <fsdpck/error.h>

/* free(*out). What a file unpacks to is bounded by what the two formats can reach. */
int data_file_read(const char *path, char **out, size_t *nbytes, struct fsdpck_error *err);
/* Its first line, without the line's end; free(*out). */
int data_file_first_line(const char *path, char **out, size_t *nbytes, struct fsdpck_error *err);
/* XXH3 of the file as it lies on disk, chained to *hash. */
int data_file_hash(const char *path, uint64_t *hash, struct fsdpck_error *err);

#endif
