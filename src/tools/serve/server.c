/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the state, the base and the port, and serves until a signal asks to stop. */
#include "serve/server.h"

#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/stop.h"
#include "serve/call.h"
#include "ui/listen.h"

enum { TICK_MS = 500, SWEEP_SECONDS = 30, MOST_CONNECTIONS = 8192, KEPT_FILES = 256, IDLE_SECONDS = 300 };

uint64_t service_random(void)
{
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        random = (uint64_t)time(NULL);
    return random;
}

/* ---- Open and close */

static int choose_name(struct service *s, struct fsdpck_error *err)
{
    if (s->opt->name) {
        snprintf(s->name, sizeof s->name, "%s", s->opt->name);
        return 0;
    }
    char *path = realpath(s->opt->model, NULL);
    if (!path)
        return fsdpck_error_set(err, FSDPCK_ERR_MISSING, s->opt->model, "there is no such folder");
    snprintf(s->name, sizeof s->name, "%s", path);
    free(path);
    return 0;
}

/* Without a tokenizer, texts cannot stop a sample: a client that asks for it is told. */
static void open_tokenizer(struct service *s)
{
    char path[STORE_PATH];
    struct fsdpck_error ignored = { 0 };
    snprintf(path, sizeof path, "%.4000s/tokenizer.json", s->opt->model);
    if (access(path, F_OK) == 0 && tokenizer_open(path, &s->tokenizer, &ignored))
        s->tokenizer = NULL;
}

static int open_engine(struct service *s, const struct fsdpck_options *fs, struct fsdpck_error *err)
{
    const struct service_options *opt = s->opt;
    const struct serve_options engine = { .model = opt->model,
                                          .dtype = opt->dtype,
                                          .nranks = opt->nranks,
                                          .nthreads = opt->nthreads,
                                          .seq_len = opt->seq_len,
                                          .max_rank = opt->max_rank,
                                          .recompute = opt->recompute,
                                          .kv_nbytes = opt->kv_nbytes,
                                          .fs = *fs };
    int rc = sample_rule_read(opt->model, fs, &s->rule, err);
    if (!rc)
        rc = serve_open(&engine, &s->engine, err);
    if (!rc)
        s->facts = serve_facts(s->engine);
    return rc;
}

static void init(struct service *s)
{
    pthread_mutexattr_t recursive;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&s->mutex, &recursive);
    pthread_mutexattr_destroy(&recursive);
    snprintf(s->nonce, sizeof s->nonce, "%012llx", (unsigned long long)(service_random() & 0xffffffffffff));
    for (size_t i = 0; i + sizeof(uint64_t) <= sizeof s->secret; i += sizeof(uint64_t)) {
        const uint64_t random = service_random();
        memcpy(s->secret + i, &random, sizeof random);
    }
}

/* Ranks may still complete futures until the engine has closed; then nothing uses what is freed. */
static void close_all(struct service *s)
{
    serve_close(s->engine);
    for (size_t i = 0; i < s->nfutures; i++)
        if (s->futures[i]) {
            free(s->futures[i]->body);
            free(s->futures[i]);
        }
    free(s->futures);
    tokenizer_close(s->tokenizer);
    store_close(&s->store);
    pthread_mutex_destroy(&s->mutex);
    free(s);
}

/* ---- Serving */

static void say_start(const struct service *s)
{
    printf("fsdptrain serve: %s, %.2f GiB, %u rank%s of %u thread%s, sequences of up to %lld tokens, adapters of rank "
           "up to %lld, %.2f GiB for keys and values\n"
           "fsdptrain serve: http://%s (TINKER_BASE_URL), state in %s\n",
           s->name, (double)s->facts.base_nbytes / 1073741824.0, s->facts.nranks, fsdpck_plural(s->facts.nranks),
           s->facts.nthreads, fsdpck_plural(s->facts.nthreads), (long long)s->facts.seq_len,
           (long long)s->facts.max_rank, (double)s->facts.kv_nbytes / 1073741824.0, s->address, s->store.dir);
    fflush(stdout);
}

static void tick(struct service *s, time_t *swept)
{
    const time_t now = service_now();
    pthread_mutex_lock(&s->mutex);
    call_wake(s, NULL);
    sessions_sweep(s, now);
    futures_sweep(s, now);
    if (now - *swept >= SWEEP_SECONDS) {
        store_sweep(&s->store, time(NULL));
        *swept = now;
    }
    pthread_mutex_unlock(&s->mutex);
}

/* Clients may hold a connection for each sample. */
static unsigned raise_limit(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files))
        return MOST_CONNECTIONS / 16;
    files.rlim_cur = files.rlim_max < MOST_CONNECTIONS + KEPT_FILES ? files.rlim_max : MOST_CONNECTIONS + KEPT_FILES;
    setrlimit(RLIMIT_NOFILE, &files);
    return files.rlim_cur > 2 * KEPT_FILES ? (unsigned)files.rlim_cur - KEPT_FILES : (unsigned)files.rlim_cur / 2;
}

/* Before the model is loaded: a port that is taken is told at once, and clients may connect and wait. */
static int open_port(struct service *s, int *fd, struct fsdpck_error *err)
{
    const char *address = s->opt->listen ? s->opt->listen : "127.0.0.1";
    uint32_t port = s->opt->port;
    int rc = listen_address(address, &port, fd, err);
    snprintf(s->address, sizeof s->address, strchr(address, ':') ? "[%.150s]:%u" : "%.150s:%u", address, port);
    return rc;
}

/* Takes fd over. */
static int serve(struct service *s, int fd, struct fsdpck_error *err)
{
    const struct timespec pause = { 0, TICK_MS * 1000000L };
    time_t swept = 0;
    struct MHD_Daemon *daemon = MHD_start_daemon(
        MHD_USE_AUTO_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, call_answer, s,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, raise_limit(), MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)IDLE_SECONDS, MHD_OPTION_NOTIFY_COMPLETED, call_completed, s, MHD_OPTION_END);
    if (!daemon) {
        close(fd);
        return fsdpck_error_set(err, FSDPCK_ERR_IO, "the server", "it cannot be started");
    }
    say_start(s);
    while (!stop_signal) {
        nanosleep(&pause, NULL);
        tick(s, &swept);
    }
    pthread_mutex_lock(&s->mutex);
    s->ends = true;
    call_wake(s, NULL);
    pthread_mutex_unlock(&s->mutex);
    MHD_stop_daemon(daemon);
    while (s->sessions)
        session_end(s, s->sessions);
    return 0;
}

int service_run(const struct service_options *opt, const struct fsdpck_options *fs, struct fsdpck_error *err)
{
    struct service *s = calloc(1, sizeof *s);
    if (!s)
        return fsdpck_error_nomem(err, sizeof *s);
    int fd = -1;
    s->opt = opt;
    init(s);
    int rc = choose_name(s, err);
    if (!rc)
        rc = store_open(&s->store, opt->state, err);
    if (!rc)
        rc = open_port(s, &fd, err);
    if (!rc)
        rc = open_engine(s, fs, err);
    if (!rc) {
        open_tokenizer(s);
        rc = serve(s, fd, err);
    } else if (fd >= 0) {
        close(fd);
    }
    close_all(s);
    return rc;
}
