/* SPDX-License-Identifier: Apache-2.0 */
/* The newest save of Megatron-core's: latest_checkpointed_iteration.txt, beside the folders, holds its number. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "torch/dcp/common.h"

enum { MAX_LINE_NBYTES = 255 };

void fsdpck_megatron_folder(const char *line, char *out, size_t nbytes)
{
    if (*line && strspn(line, "0123456789") == strlen(line) && strlen(line) < 19)
        snprintf(out, nbytes, "iter_%07llu", strtoull(line, NULL, 10));
    else
        snprintf(out, nbytes, "%s", line);
}

char *fsdpck_megatron_latest(const struct fsdpck_io *io, const char *path)
{
    struct fsdpck_error ignored = { 0 };
    char *file = fsdpck_path_join(path, FSDPCK_MEGATRON_LATEST, &ignored), *text = NULL, *out = NULL, *below = NULL;
    char folder[MAX_LINE_NBYTES + 16] = "";
    uint64_t nbytes = 0;
    if (file && fsdpck_is_file(io, file) &&
        fsdpck_read_file(io, file, MAX_LINE_NBYTES, &text, &nbytes, &ignored) == 0) {
        text[strcspn(text, " \r\n")] = '\0';
        if (*text && !strchr(text, '/') && fsdpck_path_is_plain(text)) {
            fsdpck_megatron_folder(text, folder, sizeof folder);
            below = fsdpck_path_join(path, folder, &ignored);
        }
    }
    if (below && fsdpck_is_directory(io, below))
        out = strdup(folder);
    free(below);
    free(text);
    free(file);
    return out;
}
