/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes a file in pieces. */
#include "data/data_hash.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
#include <xxhash.h>

#include "text/file.h"

int data_file_hash(const char *path, uint64_t *hash, struct fsdpck_error *err)
{
    enum { CHUNK = 1 << 20 };
    uint64_t nbytes;
    int fd, rc = text_file_open(path, &fd, &nbytes, err);
    char *chunk = malloc(CHUNK);
    XXH3_state_t *state = XXH3_createState();
    ssize_t n = 1;
    if (!rc && (!chunk || !state))
        rc = fsdpck_error_nomem(err, CHUNK);
    if (!rc)
        XXH3_64bits_reset_withSeed(state, *hash);
    while (!rc && n) {
        n = read(fd, chunk, CHUNK);
        if (n > 0)
            XXH3_64bits_update(state, chunk, (size_t)n);
        else if (n < 0 && errno != EINTR)
            rc = fsdpck_error_sys(err, errno, path, "read");
    }
    if (!rc)
        *hash = XXH3_64bits_digest(state);
    if (fd >= 0)
        close(fd);
    XXH3_freeState(state);
    free(chunk);
    return rc;
}
