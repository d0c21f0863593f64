/* Failures on demand. In a file of its own: the library that stands for NCCL has one too. */
#include "hosted.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void hosted_die(const char *call, const char *what)
{
    fprintf(stderr, "hosted: %s: %s\n", call, what);
    abort();
}

int hosted_fails(const char *name, int device)
{
    static uint64_t ncalls;
    const char *asked = getenv("FSDPTRAIN_HOSTED_FAIL");
    char wanted[64];
    unsigned long long nth;
    int code, where = -1;
    if (!asked)
        return 0;
    if (sscanf(asked, "%63s %llu %d %d", wanted, &nth, &code, &where) < 3)
        hosted_die("FSDPTRAIN_HOSTED_FAIL", "'NAME COUNT CODE [DEVICE]' is wanted");
    if (strcmp(name, wanted) != 0 || (where >= 0 && where != device))
        return 0;
    return __atomic_add_fetch(&ncalls, 1, __ATOMIC_RELAXED) == nth ? code : 0;
}
