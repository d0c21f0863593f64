/* SPDX-License-Identifier: Apache-2.0 */
/* Accessors of the .metadata pickle, and error reporting, for all files that read it. */
#include "torch/dcp/reading.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int fsdpck_dcp_fail(const struct dcp_reading *r, int code, const char *name, const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    int rc = fsdpck_error_set(r->err, code, r->file, "%s", text);
    if (name)
        fsdpck_error_tensor(r->err, name);
    return rc;
}

bool fsdpck_dcp_is_a(const struct dcp_reading *r, fsdpck_node n, const char *class)
{
    const char *global = fsdpck_pickle_text(r->p, fsdpck_pickle_child(r->p, n, 0), NULL);
    const char *space = fsdpck_pickle_type(r->p, n) == FSDPCK_PICKLE_OBJECT && global ? strchr(global, ' ') : NULL;
    return space && !strcmp(space + 1, class);
}

fsdpck_node fsdpck_dcp_attribute(const struct dcp_reading *r, fsdpck_node object, const char *key)
{
    return fsdpck_pickle_get(r->p, fsdpck_pickle_state(r->p, object), key);
}

const char *fsdpck_dcp_text(const struct dcp_reading *r, fsdpck_node n)
{
    size_t nbytes;
    const char *s = fsdpck_pickle_type(r->p, n) == FSDPCK_PICKLE_STRING ? fsdpck_pickle_text(r->p, n, &nbytes) : NULL;
    return s && strlen(s) == nbytes ? s : NULL;
}

/* ---- one name ---- */
