/* SPDX-License-Identifier: Apache-2.0 */
/* The form's table of keys, the planner's verdict, and the chat. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <train/config.h>
#include <unistd.h>

#include "common/json_out.h"
#include "ui/child.h"
#include "ui/draft.h"
#include "ui/http.h"
#include "ui/jobs.h"

/* PROMPT_NBYTES: less than a pipe holds. MOST_CHATS: limit, because each chat loads a model. */
enum {
    PLAN_SECONDS = 60,
    PLAN_NBYTES = 4 << 20,
    PROMPT_NBYTES = 60000,
    MOST_CHATS = 2,
    LOOK_MS = 500,
    MOST_TOKENS = 4096
};

/* ---- keys */

static json_t *key_json(size_t i)
{
    struct train_config_key key;
    train_config_key(i, &key);
    return json_pack("{s:s, s:s, s:s?, s:s, s:s, s:b, s:b}", "name", key.name, "doc", key.doc, "choices", key.choices,
                     "values", key.values, "default", key.default_value, "required", key.required, "nullable",
                     key.nullable);
}

static json_t *section_json(size_t i)
{
    const char *doc, *name = train_config_section(i, &doc);
    json_t *keys = json_array();
    for (size_t k = 0; k < train_config_nkeys(); k++) {
        struct train_config_key key;
        train_config_key(k, &key);
        if (train_config_is_in(key.name, name))
            json_out_append(keys, key_json(k));
    }
    return json_pack("{s:s, s:s, s:o}", "name", name, "doc", doc, "keys", keys);
}

static struct MHD_Response *list_keys(struct request *r, unsigned *status)
{
    (void)r;
    json_t *sections = json_array();
    for (size_t i = 0; i < train_config_nsections(); i++)
        json_out_append(sections, section_json(i));
    return http_json(json_pack("{s:o}", "sections", sections), status);
}

/* ---- plan */

/* Writes a file that lives as long as the request. */
static int write_temporary(const struct ui *ui, const char *text, char path[PATH_MAX], struct fsdpck_error *err)
{
    snprintf(path, PATH_MAX, "%.4000s/plan-XXXXXX", ui->state);
    const int fd = mkostemp(path, O_CLOEXEC);
    const bool written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    const int why = errno;
    if (fd >= 0)
        close(fd);
    return written ? 0 : fsdpck_error_sys(err, why, path, "write");
}

/* "fsdptrain: /path/plan-Ab12Cd: text" becomes "text". */
static const char *without_path(const char *said, const char *path)
{
    const char *at = strstr(said, path);
    if (at && strncmp(at + strlen(path), ": ", 2) == 0)
        return at + strlen(path) + 2;
    return strncmp(said, "fsdptrain: ", 11) == 0 ? said + 11 : said;
}

/* MemAvailable of the kernel, in bytes; 0: unknown. */
static json_int_t free_memory(void)
{
    char line[200];
    long long kib = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lld kB", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib * 1024;
}

/* A config that is being typed is often wrong. This is a result (status 200), so browsers log no error. */
static struct MHD_Response *refused(const char *why, unsigned *status)
{
    return http_json(json_pack("{s:o}", "refused", json_out_text(why)), status);
}

static struct MHD_Response *planned(const char *text, bool gpu, unsigned *status)
{
    json_t *o = json_loads(text, 0, NULL);
    json_out_put(o, "free_bytes", gpu ? json_null() : json_integer(free_memory()));
    return http_json(o, status);
}

/* { "config": { … }, "ranks": …, "devices": [ … ] }: as `fsdptrain plan --json`, and "free_bytes" of the host. */
static struct MHD_Response *plan(struct request *r, unsigned *status)
{
    struct draft draft = { 0 };
    struct fsdpck_error err = { 0 };
    char path[PATH_MAX] = "", ranks[16], *out = NULL, *said = NULL;
    json_out_put(r->json, "name", json_string("plan"));
    int rc = draft_read(r->ui, r->json, r->ui->cwd, &draft, &err);
    if (!rc)
        rc = write_temporary(r->ui, draft.config, path, &err);
    const bool gpu = !rc && strstr(draft.devices, "cuda:");
    snprintf(ranks, sizeof ranks, "%u", draft.job.ranks);
    const char *argv[] = { r->ui->program,       "plan",   path,      "--ranks", ranks, "--device",
                           gpu ? "cuda" : "cpu", "--json", "--quiet", NULL };
    const int code = rc ? -1 : child_ask(argv, r->ui->cwd, PLAN_NBYTES, PLAN_SECONDS, &out, &said, &err);
    draft_free(&draft);
    if (*path)
        unlink(path);
    char why[1400];
    struct MHD_Response *answer = rc || code < 0 ? refused(fsdpck_error_format(&err, why, sizeof why), status)
                                  : code         ? refused(said ? without_path(said, path) : "", status)
                                                 : planned(out, gpu, status);
    free(out);
    free(said);
    return answer;
}

/* ---- chat */

struct chat {
    struct ui *ui;
    struct child child;
    char said[2000]; /* end of its standard error; sent if it generates nothing */
    size_t nsaid;
    bool ended;
};

static void drop_chat(void *ctx)
{
    struct chat *c = ctx;
    child_end(&c->child);
    pthread_mutex_lock(&c->ui->mutex);
    c->ui->nchats--;
    pthread_mutex_unlock(&c->ui->mutex);
    free(c);
}

static void keep_errors(struct chat *c)
{
    char piece[500];
    const ssize_t n = read(c->child.errors, piece, sizeof piece);
    if (n <= 0) {
        close(c->child.errors);
        c->child.errors = -1;
        return;
    }
    if (c->nsaid + (size_t)n >= sizeof c->said) {
        memmove(c->said, c->said + c->nsaid / 2, c->nsaid - c->nsaid / 2);
        c->nsaid -= c->nsaid / 2;
    }
    memcpy(c->said + c->nsaid, piece, (size_t)n);
    c->nsaid += (size_t)n;
}

static bool server_stops(struct ui *ui)
{
    pthread_mutex_lock(&ui->mutex);
    const bool stops = ui->stops;
    pthread_mutex_unlock(&ui->mutex);
    return stops;
}

/* Sends the text as it grows. If the program generates nothing, sends its error instead. */
static ssize_t read_chat(void *ctx, uint64_t at, char *buf, size_t most)
{
    struct chat *c = ctx;
    while (!c->ended) {
        struct pollfd fds[] = { { c->child.out, POLLIN, 0 }, { c->child.errors, POLLIN, 0 } };
        if (poll(fds, 2, LOOK_MS) < 0 || server_stops(c->ui))
            return MHD_CONTENT_READER_END_WITH_ERROR;
        if (fds[1].revents)
            keep_errors(c);
        if (!fds[0].revents)
            continue;
        const ssize_t n = read(c->child.out, buf, most);
        if (n > 0)
            return n;
        c->ended = true;
    }
    while (at == 0 && c->child.errors >= 0)
        keep_errors(c);
    if (at || !c->nsaid)
        return MHD_CONTENT_READER_END_OF_STREAM;
    const size_t n = c->nsaid < most ? c->nsaid : most;
    memcpy(buf, c->said, n);
    c->nsaid = 0;
    return (ssize_t)n;
}

/* Chooses the model to sample from: the base, the base with the adapter, or the trained model. */
static bool choose_model(const json_t *job, bool trained, char model[PATH_MAX], char adapter[PATH_MAX])
{
    json_t *config = json_loads(job_text(job, "config"), 0, NULL);
    const bool lora = json_is_object(json_object_get(config, "lora"));
    const char *folder = job_text(job, "output_dir");
    int n = trained && !lora ? snprintf(model, PATH_MAX, "%s/model", folder)
                             : snprintf(model, PATH_MAX, "%s", job_text(config, "model"));
    const int k = trained && lora ? snprintf(adapter, PATH_MAX, "%s/adapter", folder) : 0;
    json_decref(config);
    return n > 0 && n < PATH_MAX && k >= 0 && k < PATH_MAX;
}

static bool enter_chat(struct ui *ui)
{
    pthread_mutex_lock(&ui->mutex);
    const bool free = ui->nchats < MOST_CHATS;
    ui->nchats += free;
    pthread_mutex_unlock(&ui->mutex);
    return free;
}

static struct MHD_Response *start_chat(struct request *r, const json_t *job, unsigned *status)
{
    char model[PATH_MAX], adapter[PATH_MAX] = "", tokens[16], seed[24], temperature[32];
    struct fsdpck_error err = { 0 };
    const char *prompt = json_string_value(json_object_get(r->json, "prompt"));
    const json_int_t most = json_integer_value(json_object_get(r->json, "max_new_tokens"));
    if (!prompt || !*prompt || strlen(prompt) > PROMPT_NBYTES)
        return http_refuse(status, MHD_HTTP_BAD_REQUEST, "prompt: a text of 1 to 60000 bytes is wanted");
    if (!choose_model(job, json_is_true(json_object_get(r->json, "trained")), model, adapter))
        return http_refuse(status, MHD_HTTP_BAD_REQUEST, "the path is too long");
    snprintf(tokens, sizeof tokens, "%d", most < 1 ? 64 : most > MOST_TOKENS ? MOST_TOKENS : (int)most);
    snprintf(seed, sizeof seed, "%lld", (long long)json_integer_value(json_object_get(r->json, "seed")));
    snprintf(temperature, sizeof temperature, "%g", json_number_value(json_object_get(r->json, "temperature")));
    const char *argv[16] = { r->ui->program, "sample", model, "--quiet",       "--max-new-tokens",
                             tokens,         "--seed", seed,  "--temperature", temperature };
    size_t n = 10;
    if (json_is_true(json_object_get(r->json, "chat")))
        argv[n++] = "--chat";
    if (*adapter) {
        argv[n++] = "--adapter";
        argv[n++] = adapter;
    }
    if (!enter_chat(r->ui))
        return http_refuse(status, MHD_HTTP_TOO_MANY_REQUESTS, "two texts are being generated; wait for one");
    struct chat *c = calloc(1, sizeof *c);
    if (!c || child_start(argv, job_text(job, "cwd"), prompt, &c->child, &err)) {
        pthread_mutex_lock(&r->ui->mutex);
        r->ui->nchats--;
        pthread_mutex_unlock(&r->ui->mutex);
        free(c);
        return c ? http_error(status, &err) : NULL;
    }
    c->ui = r->ui;
    struct MHD_Response *answer = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 4096, read_chat, c, drop_chat);
    MHD_add_response_header(answer, "Content-Type", "text/plain; charset=utf-8");
    return answer;
}

/* { "job": …, "prompt": …, "chat": true, "trained": true, "max_new_tokens": …, "temperature": …, "seed": … } */
static struct MHD_Response *chat(struct request *r, unsigned *status)
{
    struct fsdpck_error err = { 0 };
    json_t *job = jobs_get(r->ui->sql, r->id, &err);
    struct MHD_Response *answer = job ? start_chat(r, job, status) : http_error(status, &err);
    json_decref(job);
    return answer;
}

const struct route routes_tools[] = {
    { .method = "GET", .path = "/api/keys", .handle = list_keys },
    { .method = "POST", .path = "/api/plan", .handle = plan },
    { .method = "POST", .path = "/api/jobs/#/chat", .handle = chat },
    { .path = NULL },
};
