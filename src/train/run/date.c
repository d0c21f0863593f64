/* SPDX-License-Identifier: Apache-2.0 */
#include "run/date.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <train/chat.h>
#include <unistd.h>

#include "rank/files.h"
#include "state/state.h"

/* The date in a checkpoint's data. Returns false if the checkpoint cannot be opened, or if its data shows none. */
static bool read_checkpoint(const char *path, char date[DATE_NBYTES])
{
    struct fsdpck_error ignored = { 0 }; /* a later check decides whether the run may resume from it */
    struct fsdpck_source *src;
    bool found =
        fsdpck_source_open(path, "fsdpck", NULL, &src, &ignored) == 0 && state_read_date(src, date, DATE_NBYTES);
    fsdpck_source_close(src);
    return found;
}

static bool read_newest(const struct train_config *config, char date[DATE_NBYTES])
{
    struct fsdpck_error ignored = { 0 };
    uint64_t *steps = NULL;
    size_t count = 0;
    char path[FILES_PATH];
    bool found = false;
    int rc = files_list_checkpoints(config, &steps, &count, &ignored);
    for (size_t i = 0; !rc && i < count && !found; i++)
        found = files_checkpoint_path(config, steps[i], path, &ignored) == 0 && read_checkpoint(path, date);
    free(steps);
    return found;
}

static bool read_kept(const struct train_config *config, char date[DATE_NBYTES])
{
    struct fsdpck_error ignored = { 0 };
    time_t day;
    char path[FILES_PATH];
    FILE *f = files_join(path, config->output_dir, "cache/date", &ignored) == 0 ? fopen(path, "re") : NULL;
    bool found = f && fgets(date, DATE_NBYTES, f) && strlen(date) == 11 && date[10] == '\n';
    if (f)
        fclose(f);
    date[10] = '\0';
    return found && chat_read_date(date, &day, &ignored) == 0;
}

int date_choose(const struct train_config *config, const struct train_options *opt, char date[DATE_NBYTES],
                struct fsdpck_error *err)
{
    const char *resume = opt->resume ? opt->resume : "auto";
    bool automatic = strcmp(resume, "auto") == 0, never = strcmp(resume, "never") == 0;
    time_t now = time(NULL);
    struct tm day = { 0 };
    if (config->data.date) {
        struct fsdpck_error why = { 0 };
        if (chat_read_date(config->data.date, &now, &why))
            return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "key 'data.date': %s", why.message);
        memcpy(date, config->data.date, 11);
        return 0;
    }
    if ((!automatic && !never && read_checkpoint(resume, date)) ||
        (automatic && (read_newest(config, date) || read_kept(config, date))))
        return 0;
    localtime_r(&now, &day);
    strftime(date, DATE_NBYTES, "%Y-%m-%d", &day);
    return 0;
}

int date_keep(const struct job *job, struct fsdpck_error *err)
{
    char folder[FILES_PATH], path[FILES_PATH], temporary[FILES_PATH + 32];
    int rc = files_join(folder, job->config->output_dir, "cache", err);
    if (!rc)
        rc = files_join(path, folder, "date", err);
    if (rc || !job->date[0] || job->first != 0)
        return rc;
    if (mkdir(folder, 0777) && errno != EEXIST) /* tokenized data has no cache folder */
        return fsdpck_error_sys(err, errno, folder, "mkdir");
    snprintf(temporary, sizeof temporary, "%s.tmp-%ld", path, (long)getpid());
    FILE *f = fopen(temporary, "we");
    bool failed = !f || fprintf(f, "%s\n", job->date) < 0;
    if (f)
        failed |= fclose(f) != 0;
    if (failed || rename(temporary, path)) {
        rc = fsdpck_error_sys(err, errno, path, "write");
        unlink(temporary);
    }
    return rc;
}
