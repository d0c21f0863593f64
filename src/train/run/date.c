/* SPDX-License-Identifier: Apache-2.0 */
#include "run/date.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <train/chat.h>
#include <unistd.h>

#include "rank/files.h"
#include "run/recall.h"
#include "state/state.h"

static bool read_date(const struct fsdpck_source *src, void *date)
{
    return state_read_date(src, date, DATE_NBYTES);
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
    const bool automatic = !opt->resume || strcmp(opt->resume, "auto") == 0;
    time_t now = time(NULL);
    struct tm day = { 0 };
    if (config->data.date) {
        struct fsdpck_error why = { 0 };
        if (chat_read_date(config->data.date, &now, &why))
            return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "key 'data.date': %s", why.message);
        memcpy(date, config->data.date, 11);
        return 0;
    }
    if (recall(config, opt, read_date, date) || (automatic && read_kept(config, date)))
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
