/* SPDX-License-Identifier: Apache-2.0 */
/* Reads JSONL goldens. */
#include "lines.h"

#include <stdio.h>
#include <stdlib.h>

json_t *lines_read(const char *folder, const char *name)
{
    char path[4096], *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    json_t *all = json_array();
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "re");
    while (f && (n = getline(&line, &capacity, f)) > 0) {
        json_t *o = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL);
        if (!o || json_array_append_new(all, o)) {
            fprintf(stderr, "%s: a line is no JSON\n", path);
            exit(1);
        }
    }
    if (!f || json_array_size(all) == 0) {
        fprintf(stderr, "%s: not there, or empty\n", path);
        exit(1);
    }
    free(line);
    fclose(f);
    return all;
}
