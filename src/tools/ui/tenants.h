/* SPDX-License-Identifier: Apache-2.0 */
/* The folders of the tenants of a run: output_dir/tenants/NAME. */
#ifndef UI_TENANTS_H
#define UI_TENANTS_H

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>

/* The folder of a tenant that has begun; false if the run has none of this name. name: may be NULL. */
bool tenant_folder(const json_t *job, const char *name, char path[PATH_MAX]);
/* The names of all that have begun, in order; those that the run has no more are among them. The caller owns the list.
 */
json_t *tenant_names(const json_t *job);

#endif
