/* SPDX-License-Identifier: Apache-2.0 */
#include "ui/devices.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/json_out.h"

enum { MOST_GPUS = 64 };

static bool add_device(struct ui *ui, const char *kind, const char *number)
{
    char name[32];
    snprintf(name, sizeof name, "%s:%.10s", kind, number);
    return json_out_append(ui->devices, json_string(name));
}

/* Adds every GPU that has a device file. */
static bool find_gpus(struct ui *ui)
{
    char number[16], path[64];
    bool ok = true;
    for (int i = 0; i < MOST_GPUS && ok; i++) {
        snprintf(number, sizeof number, "%d", i);
        snprintf(path, sizeof path, "/dev/nvidia%s", number);
        if (access(path, F_OK) == 0)
            ok = add_device(ui, "cuda", number);
    }
    return ok;
}

/* Adds the GPUs of --gpus. Sets *err if a value is not a number, or is repeated. */
static bool take_gpus(struct ui *ui, const struct strings *gpus, struct fsdpck_error *err)
{
    bool ok = true;
    for (size_t i = 0; i < gpus->count && ok; i++) {
        const char *number = gpus->at[i];
        const size_t n = strlen(number);
        bool wrong = n == 0 || n > 4 || strspn(number, "0123456789") != n || (n > 1 && number[0] == '0');
        for (size_t k = 0; k < i; k++)
            wrong |= strcmp(gpus->at[k], number) == 0;
        if (wrong)
            fsdpck_error_set(err, FSDPCK_ERR_USAGE, "--gpus", "found '%s', wanted different whole numbers, or none",
                             number);
        ok = !wrong && add_device(ui, "cuda", number);
    }
    return ok;
}

int devices_find(const struct ui_options *opt, struct ui *ui, struct fsdpck_error *err)
{
    char number[16];
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    const bool none = opt->gpus.count == 1 && strcmp(opt->gpus.at[0], "none") == 0;
    ui->nprocessors = n > 0 ? (uint32_t)n : 1;
    ui->devices = json_array();
    bool ok = ui->devices;
    if (ok && !none)
        ok = opt->gpus.count ? take_gpus(ui, &opt->gpus, err) : find_gpus(ui);
    for (uint32_t i = 0; i < ui->nslots && ok; i++) {
        snprintf(number, sizeof number, "%u", i);
        ok = add_device(ui, "cpu", number);
    }
    return ok ? 0 : err->code ? err->code : fsdpck_error_nomem(err, 1);
}
