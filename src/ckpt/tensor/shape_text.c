/* SPDX-License-Identifier: Apache-2.0 */
/* Spells a shape for messages. */
#include "tensor/shape_text.h"

#include <inttypes.h>
#include <stdio.h>

const char *fsdpck_shape_text(const struct fsdpck_tensor *t, char *buf, size_t nbytes)
{
    size_t used = (size_t)snprintf(buf, nbytes, "[");
    for (uint32_t d = 0; d < t->ndim && used < nbytes; d++)
        used += (size_t)snprintf(buf + used, nbytes - used, "%s%" PRIu64, d ? ", " : "", t->shape[d]);
    if (used < nbytes)
        snprintf(buf + used, nbytes - used, "]");
    return buf;
}
