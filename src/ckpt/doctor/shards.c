/* SPDX-License-Identifier: Apache-2.0 */
#include "doctor/shards.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/suffix.h"
#include "doctor/numbers.h"

enum { MAX_SHARDS = 4096 };

/* Reads "NAME-00002-of-00003.safetensors". */
static bool parse(const char *name, uint64_t *number, uint64_t *total)
{
    const char *of = strstr(name, "-of-"), *dash = of;
    char *end;
    if (!of || !ends_with(name, ".safetensors"))
        return false;
    while (dash > name && dash[-1] >= '0' && dash[-1] <= '9')
        dash--;
    if (dash == of || dash == name || dash[-1] != '-' || of[4] < '0' || of[4] > '9')
        return false;
    *number = strtoull(dash, NULL, 10);
    *total = strtoull(of + 4, &end, 10);
    return strcmp(end, ".safetensors") == 0 && *total > 0 && *total <= MAX_SHARDS;
}

void fsdpck_doctor_shards_read(char *const *names, size_t nnames, struct doctor_shards *out)
{
    bool there[MAX_SHARDS] = { false };
    uint64_t number, total;
    *out = (struct doctor_shards){ 0 };
    for (size_t i = 0; i < nnames; i++) {
        const char *name = names[i];
        if (!parse(name, &number, &total))
            continue;
        if (out->nfiles++ == 0) {
            out->total = total;
            out->first = name;
        }
        if (total != out->total)
            out->odd = name;
        else if (number > 0 && number <= total)
            there[number - 1] = true;
    }
    out->nmissing = fsdpck_doctor_list_missing(there, 1, out->total, out->missing, sizeof out->missing);
}
