/* SPDX-License-Identifier: Apache-2.0 */
#include "ui/places.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Makes a folder and those above it. */
static int make_folder(const char *path, mode_t mode, struct fsdpck_error *err)
{
    char part[PATH_MAX];
    snprintf(part, sizeof part, "%s", path);
    for (char *at = part + 1; *at; at++) {
        if (*at != '/')
            continue;
        *at = '\0';
        mkdir(part, mode);
        *at = '/';
    }
    struct stat st;
    if ((mkdir(part, mode) && errno != EEXIST) || stat(part, &st))
        return fsdpck_error_sys(err, errno, path, "create");
    return S_ISDIR(st.st_mode) ? 0 : fsdpck_error_set(err, FSDPCK_ERR_USAGE, path, "this is no folder");
}

static int find_state(const struct ui_options *opt, struct ui *ui, struct fsdpck_error *err)
{
    const char *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char path[PATH_MAX];
    if (!opt->state && !(xdg && *xdg == '/') && !(home && *home))
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, "--state", "there is no $HOME: name a folder for the queue");
    if (opt->state)
        snprintf(path, sizeof path, "%s", opt->state);
    else if (xdg && *xdg == '/')
        snprintf(path, sizeof path, "%s/fsdpck/ui", xdg);
    else
        snprintf(path, sizeof path, "%s/.local/state/fsdpck/ui", home);
    if (!ui_absolute(ui->cwd, path, ui->state) || strlen(ui->state) > 3800)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, "--state", "the path is too long");
    snprintf(path, sizeof path, "%.4000s/jobs", ui->state);
    return make_folder(path, 0700, err);
}

/* One server for a queue. The lock is held until the process ends. */
static int lock_state(const struct ui *ui, struct fsdpck_error *err)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.4000s/lock", ui->state);
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return fsdpck_error_sys(err, errno, path, "open");
    if (flock(fd, LOCK_EX | LOCK_NB)) {
        close(fd);
        fsdpck_error_set(err, FSDPCK_ERR_EXISTS, ui->state, "another `fsdptrain ui` serves this queue");
        fsdpck_error_hint(err, "--state DIR names another");
        return err->code;
    }
    return 0;
}

int places_find(const struct ui_options *opt, struct ui *ui, struct fsdpck_error *err)
{
    const ssize_t n = readlink("/proc/self/exe", ui->program, sizeof ui->program - 1);
    if (n < 0 || !getcwd(ui->cwd, sizeof ui->cwd))
        return fsdpck_error_sys(err, errno, "this program", "find");
    ui->program[n] = '\0';
    const char *slash = strrchr(ui->program, '/');
    snprintf(ui->fsdpck, sizeof ui->fsdpck, "%.*s/fsdpck", (int)(slash - ui->program), ui->program);
    if (!ui_absolute(ui->cwd, opt->dir, ui->dir) || strlen(ui->dir) > 3800)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, "--dir", "the path is too long");
    int rc = make_folder(ui->dir, 0777, err);
    if (!rc)
        rc = find_state(opt, ui, err);
    return rc ? rc : lock_state(ui, err);
}
