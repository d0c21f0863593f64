/* SPDX-License-Identifier: Apache-2.0 */
/* What the rates of a machine depend on: its processor, how many of them a process may use, the kernels. */
#include <cpuid.h>
#include <fsdpck/source.h>
#include <kernels/stream.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "price/rates.h"

/* The name that the processor gives itself. */
static void processor_name(char name[49])
{
    unsigned words[12] = { 0 };
    for (unsigned i = 0; i < 3; i++)
        __get_cpuid(0x80000002 + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2], &words[4 * i + 3]);
    memcpy(name, words, sizeof words);
    name[48] = '\0';
}

void rates_describe_machine(char out[RATES_MACHINE])
{
    char name[49], kernels[KERN_MESSAGE_BYTES];
    unsigned signature = 0, b, c, d;
    processor_name(name);
    __get_cpuid(1, &signature, &b, &c, &d); /* family, model and stepping: virtual machines often have a short name */
    kern_cpu_describe(kernels);
    snprintf(out, RATES_MACHINE, "%s (%x), %u processors, %.120s", name, signature, fsdpck_processors(), kernels);
    for (char *s = out; *s; s++)
        *s = *s >= ' ' && *s <= '~' ? *s : '?';
}

double rates_busy(void)
{
    FILE *f = fopen("/proc/loadavg", "re");
    long nrunning = 1, nprocessor = sysconf(_SC_NPROCESSORS_ONLN);
    if (!f || fscanf(f, "%*f %*f %*f %ld/", &nrunning) != 1 || nrunning < 1)
        nrunning = 1; /* this thread */
    if (f)
        fclose(f);
    return nprocessor > 0 ? (double)(nrunning - 1) / (double)nprocessor : 0;
}
