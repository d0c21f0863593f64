/* SPDX-License-Identifier: Apache-2.0 */
/* Tries a model on a prompt: `fsdptrain sample` writes a text, or draws a picture, as long as somebody waits for it. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <train/image.h>
#include <unistd.h>

#include "ui/child.h"
#include "ui/http.h"
#include "ui/jobs.h"

/* PROMPT_NBYTES: less than a pipe holds. MOST_CHATS: limit, because each one loads a model. */
enum { PROMPT_NBYTES = 60000, MOST_CHATS = 2, LOOK_MS = 500, MOST_TOKENS = 4096, MOST_STEPS = 1000 };

/* `fsdptrain sample` at work. */
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

/* Sends the output as it grows. If the program generates nothing, sends its error instead. */
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

struct model_of_job {
    json_t *config; /* of the job; owned */
    char folder[PATH_MAX], adapter[PATH_MAX];
};

/* Chooses the model to sample from: the base, the base with the adapter, or the trained model. False: a path is too
 * long. */
static bool choose_model(const json_t *job, bool trained, struct model_of_job *out)
{
    out->config = json_loads(job_text(job, "config"), 0, NULL);
    const bool lora = json_is_object(json_object_get(out->config, "lora"));
    const char *folder = job_text(job, "output_dir");
    const int n = trained && !lora ? snprintf(out->folder, PATH_MAX, "%s/model", folder)
                                   : snprintf(out->folder, PATH_MAX, "%s", job_text(out->config, "model"));
    const int k = trained && lora ? snprintf(out->adapter, PATH_MAX, "%s/adapter", folder) : 0;
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

/* Answers with what the program makes of the prompt. argv ends with NULL. */
static struct MHD_Response *start(struct request *r, const json_t *job, const char *const *argv, const char *prompt,
                                  const char *type, unsigned *status)
{
    struct fsdpck_error err = { 0 };
    if (!enter_chat(r->ui))
        return http_refuse(status, MHD_HTTP_TOO_MANY_REQUESTS, "two prompts are being answered; wait for one");
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
    MHD_add_response_header(answer, "Content-Type", type);
    return answer;
}

/* The request's prompt, or NULL, and *answer is the refusal. */
static const char *prompt_of(const struct request *r, unsigned *status, struct MHD_Response **answer)
{
    const char *prompt = json_string_value(json_object_get(r->json, "prompt"));
    if (prompt && *prompt && strlen(prompt) <= PROMPT_NBYTES)
        return prompt;
    *answer = http_refuse(status, MHD_HTTP_BAD_REQUEST, "prompt: a text of 1 to 60000 bytes is wanted");
    return NULL;
}

static struct MHD_Response *write_text(struct request *r, const json_t *job, const struct model_of_job *model,
                                       const char *prompt, unsigned *status)
{
    char tokens[16], seed[24], temperature[32];
    const json_int_t most = json_integer_value(json_object_get(r->json, "max_new_tokens"));
    snprintf(tokens, sizeof tokens, "%d", most < 1 ? 64 : most > MOST_TOKENS ? MOST_TOKENS : (int)most);
    snprintf(seed, sizeof seed, "%lld", (long long)json_integer_value(json_object_get(r->json, "seed")));
    snprintf(temperature, sizeof temperature, "%g", json_number_value(json_object_get(r->json, "temperature")));
    const char *argv[16] = { r->ui->program, "sample", model->folder, "--quiet",       "--max-new-tokens",
                             tokens,         "--seed", seed,          "--temperature", temperature };
    size_t n = 10;
    if (json_is_true(json_object_get(r->json, "chat")))
        argv[n++] = "--chat";
    if (*model->adapter) {
        argv[n++] = "--adapter";
        argv[n++] = model->adapter;
    }
    return start(r, job, argv, prompt, "text/plain; charset=utf-8", status);
}

/* A whole number of the request from 1 to most, or the default. */
static json_int_t number_of(const struct request *r, const char *key, json_int_t most, json_int_t usual)
{
    const json_int_t given = json_integer_value(json_object_get(r->json, key));
    return given < 1 ? usual : given > most ? most : given;
}

/* Texts are embedded, and large pictures decoded, as in the run. */
static struct MHD_Response *draw(struct request *r, const json_t *job, const struct model_of_job *model,
                                 const char *prompt, unsigned *status)
{
    char size[48], steps[24], seed[24], tokens[24];
    const json_t *image = json_object_get(model->config, "image");
    const json_int_t most = json_integer_value(json_object_get(image, "max_sequence_length"));
    snprintf(size, sizeof size, "%lldx%lld", (long long)number_of(r, "width", IMAGE_MOST, IMAGE_DEFAULT_RESOLUTION),
             (long long)number_of(r, "height", IMAGE_MOST, IMAGE_DEFAULT_RESOLUTION));
    snprintf(steps, sizeof steps, "%lld", (long long)number_of(r, "steps", MOST_STEPS, 0));
    snprintf(seed, sizeof seed, "%lld", (long long)json_integer_value(json_object_get(r->json, "seed")));
    snprintf(tokens, sizeof tokens, "%lld", (long long)(most > 0 ? most : IMAGE_DEFAULT_TOKENS));
    const char *argv[20] = { r->ui->program, "sample", model->folder,           "--quiet", "--out", "-", "--size", size,
                             "--seed",       seed,     "--max-sequence-length", tokens };
    size_t n = 12;
    if (strcmp(steps, "0") != 0) {
        argv[n++] = "--steps";
        argv[n++] = steps;
    }
    if (json_is_true(json_object_get(image, "vae_tiling")))
        argv[n++] = "--vae-tiling";
    if (*model->adapter) {
        argv[n++] = "--adapter";
        argv[n++] = model->adapter;
    }
    return start(r, job, argv, prompt, "application/octet-stream", status);
}

typedef struct MHD_Response *answer_fn(struct request *r, const json_t *job, const struct model_of_job *model,
                                       const char *prompt, unsigned *status);

static struct MHD_Response *answer_with(answer_fn *how, struct request *r, unsigned *status)
{
    struct fsdpck_error err = { 0 };
    struct MHD_Response *answer = NULL;
    const char *prompt = prompt_of(r, status, &answer);
    json_t *job = prompt ? jobs_get(r->ui->sql, r->id, &err) : NULL;
    struct model_of_job model = { 0 };
    if (prompt && !job)
        answer = http_error(status, &err);
    else if (job && !choose_model(job, json_is_true(json_object_get(r->json, "trained")), &model))
        answer = http_refuse(status, MHD_HTTP_BAD_REQUEST, "the path is too long");
    else if (job)
        answer = how(r, job, &model, prompt, status);
    json_decref(model.config);
    json_decref(job);
    return answer;
}

/* { "prompt": …, "chat": true, "trained": true, "max_new_tokens": …, "temperature": …, "seed": … }: text. */
static struct MHD_Response *chat(struct request *r, unsigned *status)
{
    return answer_with(write_text, r, status);
}

/* { "prompt": …, "trained": true, "width": …, "height": …, "steps": …, "seed": … }: a PNG, or the text of an error. */
static struct MHD_Response *draw_picture(struct request *r, unsigned *status)
{
    return answer_with(draw, r, status);
}

const struct route routes_chat[] = {
    { .method = "POST", .path = "/api/jobs/#/chat", .handle = chat },
    { .method = "POST", .path = "/api/jobs/#/draw", .handle = draw_picture },
    { .path = NULL },
};
