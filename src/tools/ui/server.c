/* SPDX-License-Identifier: Apache-2.0 */
#include "ui/server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <microhttpd.h>

#include "common/json_out.h"
#include "common/stop.h"
#include "ui/http.h"
#include "ui/leftovers.h"
#include "ui/listen.h"
#include "ui/schedule.h"

enum { LOOK_MS = 500, MOST_CONNECTIONS = 256, IDLE_SECONDS = 120, MOST_GPUS = 64, MOST_SLOTS = 64 };

/* ---- folders */

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

static int find_places(const struct ui_options *opt, struct ui *ui, struct fsdpck_error *err)
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

/* ---- devices, token */

static bool add_device(struct ui *ui, const char *kind, const char *number)
{
    char name[32];
    snprintf(name, sizeof name, "%s:%.10s", kind, number);
    return json_out_append(ui->devices, json_string(name));
}

/* All that have a device file. */
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

/* Those of --gpus. Sets *err if one is no number, or is named twice. */
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

static int find_devices(const struct ui_options *opt, struct ui *ui, struct fsdpck_error *err)
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

static int find_guard(const struct ui_options *opt, struct ui *ui, struct fsdpck_error *err)
{
    char path[PATH_MAX];
    const char *at = opt->listen;
    if (at && (strcmp(at, "0.0.0.0") == 0 || strcmp(at, "::") == 0)) {
        ui->guard.any_address = true;
        if (gethostname(ui->guard.host, sizeof ui->guard.host - 1))
            ui->guard.host[0] = '\0';
    } else if (at) {
        snprintf(ui->guard.host, sizeof ui->guard.host, strchr(at, ':') ? "[%.200s]" : "%.200s", at);
    }
    if (opt->token && strlen(opt->token) < 16)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, "--token", "16 characters or more are wanted");
    if (opt->token && strlen(opt->token) >= TOKEN_NBYTES)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, "--token", "it is too long");
    if (opt->token) {
        snprintf(ui->guard.token, sizeof ui->guard.token, "%s", opt->token);
        return 0;
    }
    snprintf(path, sizeof path, "%.4000s/token", ui->state);
    return guard_load_token(&ui->guard, path, err);
}

/* ---- serving */

/* Looks at the jobs until a signal comes. */
static void look_until_stopped(struct ui *ui)
{
    while (!stop_signal) {
        struct timespec until;
        schedule_look(ui);
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += LOOK_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        pthread_mutex_lock(&ui->mutex);
        ui->ticks++;
        pthread_cond_broadcast(&ui->changed);
        while (!ui->pokes && !stop_signal && !pthread_cond_timedwait(&ui->changed, &ui->mutex, &until))
            ;
        ui->pokes = false;
        pthread_mutex_unlock(&ui->mutex);
    }
    pthread_mutex_lock(&ui->mutex);
    ui->stops = true;
    pthread_cond_broadcast(&ui->changed);
    pthread_mutex_unlock(&ui->mutex);
}

static void say_address(const struct ui_options *opt, const struct ui *ui, uint32_t port)
{
    const char *host = !opt->listen ? "127.0.0.1" : *ui->guard.host ? ui->guard.host : "127.0.0.1";
    if (opt->socket)
        printf("fsdptrain ui: listening at %s; for another computer: ssh -L 8675:%s HOST, then "
               "http://localhost:8675/#%s\n",
               opt->socket, opt->socket, ui->guard.token);
    else
        printf("fsdptrain ui: http://%s:%u/#%s\n", host, port, ui->guard.token);
    fflush(stdout);
}

static int serve(const struct ui_options *opt, struct ui *ui, struct fsdpck_error *err)
{
    uint32_t port = opt->port;
    int fd = -1;
    int rc = opt->socket ? listen_path(opt->socket, &fd, err)
                         : listen_address(opt->listen ? opt->listen : "127.0.0.1", &port, &fd, err);
    if (rc)
        return rc;
    struct MHD_Daemon *daemon = MHD_start_daemon(
        MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL, 0, NULL, NULL, http_answer, ui,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)MOST_CONNECTIONS,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS, MHD_OPTION_THREAD_STACK_SIZE, (size_t)(512 << 10),
        MHD_OPTION_NOTIFY_COMPLETED, http_completed, NULL, MHD_OPTION_END);
    if (!daemon) {
        close(fd);
        return fsdpck_error_set(err, FSDPCK_ERR_IO, "the server", "it cannot be started");
    }
    say_address(opt, ui, port);
    look_until_stopped(ui);
    MHD_stop_daemon(daemon);
    if (opt->socket)
        unlink(opt->socket);
    return 0;
}

static void init_locks(struct ui *ui)
{
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&ui->mutex, NULL);
    pthread_mutex_init(&ui->tickets.mutex, NULL);
    pthread_cond_init(&ui->changed, &clock);
    pthread_condattr_destroy(&clock);
}

int server_run(const struct ui_options *opt, struct fsdpck_error *err)
{
    char path[PATH_MAX];
    struct ui *ui = calloc(1, sizeof *ui);
    if (!ui)
        return fsdpck_error_nomem(err, sizeof *ui);
    init_locks(ui);
    ui->nslots = opt->nslots > MOST_SLOTS ? MOST_SLOTS : opt->nslots;
    ui->progress = json_object();
    int rc = find_devices(opt, ui, err);
    if (!rc)
        rc = find_places(opt, ui, err);
    if (!rc)
        rc = find_guard(opt, ui, err);
    snprintf(path, sizeof path, "%.4000s/queue.sqlite", ui->state);
    if (!rc)
        rc = sql_open(path, &ui->sql, err);
    if (!rc)
        leftovers_remove(ui);
    if (!rc)
        rc = schedule_recover(ui, err);
    if (!rc)
        rc = serve(opt, ui, err);
    sql_close(ui->sql);
    json_decref(ui->devices);
    json_decref(ui->progress);
    free(ui);
    return rc;
}
