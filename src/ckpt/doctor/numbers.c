/* SPDX-License-Identifier: Apache-2.0 */
#include "doctor/numbers.h"

#include <inttypes.h>
#include <stdio.h>

uint64_t fsdpck_doctor_list_missing(const bool *there, uint64_t first, uint64_t count, char *out, size_t nbytes)
{
    uint64_t n = 0;
    size_t used = 0;
    bool cut = false;
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t begin = i;
        if (there[i])
            continue;
        while (i + 1 < count && !there[i + 1])
            i++;
        n += i - begin + 1;
        cut = used + 64 > nbytes;
        if (cut)
            continue;
        used += (size_t)snprintf(out + used, nbytes - used, "%s%" PRIu64, used ? ", " : "", first + begin);
        if (i > begin)
            used += (size_t)snprintf(out + used, nbytes - used, "-%" PRIu64, first + i);
    }
    if (cut)
        snprintf(out + used, nbytes - used, ", …");
    return n;
}
