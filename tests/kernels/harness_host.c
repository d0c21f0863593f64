/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of tests whose device reads the host's. */
#include "harness.h"

#include <stdlib.h>

void *must_alloc(size_t nbytes)
{
    void *p = aligned_alloc(64, (nbytes + 64) / 64 * 64);
    assert_non_null(p);
    return p;
}

void must_free(void *p)
{
    free(p);
}
