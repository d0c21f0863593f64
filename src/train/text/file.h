/* Small files, whole. */
#ifndef TRAIN_TEXT_FILE_H
#define TRAIN_TEXT_FILE_H

#include <fsdpck/error.h>

/* The bytes of a file of at most max_nbytes, with a NUL behind them; free(). On failure *out is NULL. */
int text_file_read(const char *path, size_t max_nbytes, char **out, size_t *nbytes, struct fsdpck_error *err);

#endif
