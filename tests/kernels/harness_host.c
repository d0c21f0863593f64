/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for tests whose device uses host memory. */
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
