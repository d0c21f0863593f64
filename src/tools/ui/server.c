/* SPDX-License-Identifier: Apache-2.0 */
#include "ui/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <microhttpd.h>

#include "common/json_out.h"
#include "common/stop.h"
#include "ui/devices.h"
#include "ui/http.h"
#include "ui/leftovers.h"
#include "ui/listen.h"
#include "ui/places.h"
#include "ui/schedule.h"

enum { LOOK_MS = 500, MOST_CONNECTIONS = 256, IDLE_SECONDS = 120, MOST_SLOTS = 64 };

/* ---- token */

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

/* Schedules jobs until a signal arrives. */
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
    int rc = devices_find(opt, ui, err);
    if (!rc)
        rc = places_find(opt, ui, err);
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
