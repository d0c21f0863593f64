/* SPDX-License-Identifier: Apache-2.0 */
/* Downloads: regular files below the output_dir of a run. Symbolic links and ".." are never followed. */
#ifndef UI_BENEATH_H
#define UI_BENEATH_H

#include <jansson.h>
#include <sys/stat.h>

/* [{ "name": "adapter/adapter_config.json", "bytes": … }], sorted by name, at most 4,000; without caches. NULL:
 * out of memory. */
json_t *beneath_list(const char *folder);
/* Opens a regular file; returns -1 if there is none. */
int beneath_open(const char *folder, const char *name, struct stat *st);

#endif
