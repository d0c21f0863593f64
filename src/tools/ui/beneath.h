/* SPDX-License-Identifier: Apache-2.0 */
/* Files of a run that may be downloaded: those beneath its output_dir, and nothing that a link or ".." leads to. */
#ifndef UI_BENEATH_H
#define UI_BENEATH_H

#include <jansson.h>
#include <sys/stat.h>

/* [{ "name": "adapter/adapter_config.json", "bytes": … }], by name, at most some thousands; caches are left out. NULL:
 * out of memory. */
json_t *beneath_list(const char *folder);
/* Opens a regular file; -1: there is none. */
int beneath_open(const char *folder, const char *name, struct stat *st);

#endif
