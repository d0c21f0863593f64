/* SPDX-License-Identifier: Apache-2.0 */
/* Rates of this machine: from the file that keeps them, or measured, and kept for the next time. */
#include "price/rates_cache.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

enum { PATH = 4096, LINE = PATH + 300 };
/* Rates measured while others wanted a larger part of the processors are measured again. */
static const double busy_machine = 0.25;

static void tell(const struct train_options *opt, const char *line)
{
    if (opt->note)
        opt->note(opt->ctx, line);
}

/* The folder may be several levels below one that exists. */
static void make_folder(const char *folder)
{
    char path[PATH];
    size_t n = strlen(folder);
    if (n >= sizeof path)
        return;
    for (size_t i = 1; i <= n; i++) {
        if (folder[i] != '/' && folder[i] != '\0')
            continue;
        memcpy(path, folder, i);
        path[i] = '\0';
        mkdir(path, 0777); /* if it fails, the file cannot be written either, and that is told */
    }
}

/* Measures and keeps. Not to be able to keep them is no failure. */
static int measure(const struct train_options *opt, const char *path, struct rates *out, struct fsdpck_error *err)
{
    struct fsdpck_error why = { 0 };
    char line[LINE], text[PATH];
    make_folder(opt->cache);
    int rc = rates_measure(opt->cache, out, err);
    if (rc)
        return rc;
    if (rates_write(path, out, &why)) {
        snprintf(line, sizeof line, "the rates of this machine are measured anew each time: %s",
                 fsdpck_error_format(&why, text, sizeof text));
        tell(opt, line);
    }
    return 0;
}

/* True if others kept the machine busy when it was measured, and less so now. */
static bool is_calmer(const struct rates *kept)
{
    return kept->busy > busy_machine && rates_busy() < kept->busy / 2;
}

static int read_kept(const struct train_options *opt, struct rates *out, struct fsdpck_error *err)
{
    struct fsdpck_error why = { 0 };
    char machine[RATES_MACHINE], path[PATH], line[LINE], text[PATH];
    rates_describe_machine(machine);
    const int n = snprintf(path, sizeof path, "%s/rates-%016llx.json", opt->cache,
                           (unsigned long long)XXH3_64bits(machine, strlen(machine)));
    if (n < 0 || n >= (int)sizeof path)
        return rates_measure(opt->cache, out, err);
    if (rates_read(path, out, &why) == 0 && strcmp(out->machine, machine) == 0 && !is_calmer(out))
        return 0;
    if (why.code && why.code != FSDPCK_ERR_MISSING) {
        snprintf(line, sizeof line, "the rates of this machine are measured again: %s",
                 fsdpck_error_format(&why, text, sizeof text));
        tell(opt, line);
    }
    return measure(opt, path, out, err);
}

int rates_get(const struct train_options *opt, struct rates *out, bool *found, struct fsdpck_error *err)
{
    *found = opt->rates || opt->cache;
    if (opt->rates)
        return rates_read(opt->rates, out, err);
    return opt->cache ? read_kept(opt, out, err) : 0;
}
