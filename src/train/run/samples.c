/* SPDX-License-Identifier: Apache-2.0 */
/* Distributes prompts over ranks in waves. All ranks take part in each forward pass, because it gathers parameters.
 * Between two passes, one sum distributes the token that each rank has chosen: all ranks learn when a wave is over, and
 * rank 0 collects the text. */
#include "run/samples.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <train/sample.h>
#include <xxhash.h>

#include "model/decode.h"
#include "rank/files.h"
#include "rank/gather.h"
#include "rank/memory.h"
#include "run/picture_samples.h"
#include "run/tracker.h"
#include "sample/choose.h"

enum { MOST_NEW = 128, SHOWN = 400 };

struct samples {
    struct picture_samples *pictures; /* NULL: they are texts, and the rest is set */
    struct chat *chat;                /* NULL: the prompts are token ids, and there is no tokenizer */
    struct sample_rule rule;
    struct token_list *prompts, *texts; /* (n); texts: the last samples */
    size_t n, longest;
    uint64_t every;
    bool dated;
};

/* Parses {"input_ids": […]}, as in data.train. */
static int take_ids(const json_t *ids, struct token_list *list, struct fsdpck_error *err)
{
    size_t n = json_array_size(ids);
    list->ids = calloc(n + 1, sizeof *list->ids);
    if (!list->ids)
        return fsdpck_error_nomem(err, n * sizeof *list->ids);
    for (size_t i = 0; i < n; i++) {
        json_int_t id = json_integer_value(json_array_get(ids, i));
        if (!json_is_integer(json_array_get(ids, i)) || id < 0 || id > INT32_MAX)
            return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                    "key 'sample.prompts': 'input_ids' is a list of tokens' numbers");
        list->ids[list->count++] = (uint32_t)id;
    }
    return 0;
}

/* An object holds one prompt. Messages may come with tools; names that begin with // are comments. */
static int check_keys(json_t *prompt, size_t number, struct fsdpck_error *err)
{
    static const char *const kinds[] = { "messages", "prompt", "text", "input_ids" };
    const char *key;
    json_t *value;
    int nkinds = 0;
    json_object_foreach (prompt, key, value) {
        bool known = strncmp(key, "//", 2) == 0 || (strcmp(key, "tools") == 0 && json_object_get(prompt, "messages"));
        for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
            known |= strcmp(key, kinds[i]) == 0;
            nkinds += strcmp(key, kinds[i]) == 0;
        }
        if (!known)
            return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                    "key 'sample.prompts': prompt %zu: '%.100s' is none of messages (with tools), "
                                    "prompt, text, input_ids",
                                    number, key);
    }
    return nkinds < 2 ? 0
                      : fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                         "key 'sample.prompts': prompt %zu: it holds %d prompts, one is wanted", number,
                                         nkinds);
}

static int take_prompt(struct samples *s, json_t *prompt, int64_t nvocab, struct token_list *list,
                       struct fsdpck_error *err)
{
    const json_t *ids = json_object_get(prompt, "input_ids");
    struct fsdpck_error why = { 0 };
    char what[1400];
    int rc =
        ids ? take_ids(ids, list, &why) : sample_prompt_encode(s->chat, prompt, chat_has_template(s->chat), list, &why);
    if (rc)
        return fsdpck_error_set(err, rc, NULL, "key 'sample.prompts': prompt %zu: %.600s",
                                (size_t)(list - s->prompts) + 1, fsdpck_error_format(&why, what, sizeof what));
    for (size_t i = 0; i < list->count; i++) {
        if (list->ids[i] >= (uint64_t)nvocab)
            return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                    "key 'sample.prompts': token %u is none of the model's %lld", list->ids[i],
                                    (long long)nvocab);
    }
    if (list->count == 0 || list->count > INT32_MAX / 2)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "key 'sample.prompts': prompt %zu has %zu tokens",
                                (size_t)(list - s->prompts) + 1, list->count);
    s->longest = list->count > s->longest ? list->count : s->longest;
    return 0;
}

static bool all_ids(const json_t *prompts)
{
    for (size_t i = 0; i < json_array_size(prompts); i++) {
        if (!json_object_get(json_array_get(prompts, i), "input_ids"))
            return false;
    }
    return true;
}

/* Reads texts, their rule and the tokenizer. */
static int open_texts(struct samples *s, const struct train_config *config, int64_t nvocab,
                      const struct fsdpck_options *fs, struct fsdpck_error *err)
{
    const json_t *prompts = config->sample.prompts;
    struct fsdpck_error none = { 0 };
    s->n = json_array_size(prompts);
    s->prompts = calloc(s->n, sizeof *s->prompts);
    s->texts = calloc(s->n, sizeof *s->texts);
    int rc = 0;
    for (size_t i = 0; i < s->n && !rc; i++)
        rc = check_keys(json_array_get(prompts, i), i + 1, err);
    if (!rc)
        rc = s->prompts && s->texts ? sample_rule_read(config->model, fs, &s->rule, err)
                                    : fsdpck_error_nomem(err, s->n * sizeof *s->prompts);
    s->rule.temperature = 0; /* greedy, so that steps can be compared */
    s->rule.max_new_tokens = MOST_NEW;
    if (!rc && chat_open(config->model, &s->chat, all_ids(prompts) ? &none : err) && !all_ids(prompts))
        rc = err ? err->code : FSDPCK_ERR_MISSING;
    if (!rc && s->chat)
        rc = chat_set_date(s->chat, config->data.date, err);
    s->dated = !rc && s->chat && !all_ids(prompts) && chat_asks_date(s->chat);
    for (size_t i = 0; i < s->n && !rc; i++)
        rc = take_prompt(s, json_array_get(prompts, i), nvocab, &s->prompts[i], err);
    return rc;
}

int samples_open(const struct train_config *config, int64_t nvocab, const struct fsdpck_options *fs,
                 struct samples **out, struct fsdpck_error *err)
{
    *out = NULL;
    if (json_array_size(config->sample.prompts) == 0)
        return 0;
    struct samples *s = calloc(1, sizeof *s);
    if (!s)
        return fsdpck_error_nomem(err, sizeof *s);
    s->every = config->sample.every;
    int rc =
        config->pipeline ? picture_samples_open(config, fs, &s->pictures, err) : open_texts(s, config, nvocab, fs, err);
    if (rc)
        samples_free(s);
    else
        *out = s;
    return rc;
}

void samples_free(struct samples *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n && s->prompts && s->texts; i++) {
        token_list_free(&s->prompts[i]);
        token_list_free(&s->texts[i]);
    }
    free(s->prompts);
    free(s->texts);
    chat_close(s->chat);
    picture_samples_free(s->pictures);
    free(s);
}

struct picture_samples *samples_of_pictures(const struct samples *s)
{
    return s ? s->pictures : NULL;
}

bool samples_are_dated(const struct samples *s)
{
    return s && s->dated;
}

uint64_t samples_hash(const struct samples *s)
{
    uint64_t hash = s ? s->every : 0;
    if (s && s->pictures)
        return hash + picture_samples_hash(s->pictures);
    for (size_t i = 0; s && i < s->n; i++)
        hash = XXH3_64bits_withSeed(s->prompts[i].ids, s->prompts[i].count * sizeof *s->prompts[i].ids, hash + 1);
    return s ? XXH3_64bits_withSeed(s->rule.stops, s->rule.nstops * sizeof *s->rule.stops, hash) : 0;
}

void samples_lengths(const struct samples *s, int64_t *prompt, int64_t *most)
{
    *prompt = s ? (int64_t)s->longest : 0;
    *most = s && s->n ? (int64_t)s->longest + MOST_NEW : 0;
}

/* A rank's message between two forward passes: token + 1, or 0 at the end of its text; plus this flag if its run was
 * asked to stop. */
static const uint64_t stopping = (uint64_t)1 << 40;

/* A wave of prompts on this rank. */
struct wave {
    struct rank *r;
    struct samples *s;
    struct decode *decode;
    struct choose *choose;
    size_t first, number; /* indices of the wave's first prompt, and of this rank's prompt */
    bool growing;         /* this rank's text has not ended */
    bool *begun;          /* a forward pass has run since the parameters changed */
};

/* The next forward pass; collective. */
static int forward(struct wave *w, uint64_t at, uint32_t token, const float **logits, struct fsdpck_error *err)
{
    const struct compute_hook hook = gather_hook(w->r->gather);
    const struct token_list *prompt = w->growing ? &w->s->prompts[w->number] : NULL;
    gather_begin(w->r->gather, !*w->begun, false);
    *w->begun = true;
    if (!w->growing)
        return compute_decode_skip(w->r->compute, &hook, err);
    return at == 0 ? decode_prompt(w->decode, &hook, (const int32_t *)prompt->ids, (int64_t)prompt->count, logits, err)
                   : decode_token(w->decode, &hook, (int32_t)token, logits, err);
}

/* Puts this rank's next token into messages[rank] and exchanges the messages. Non-finite logits end a text, not the
 * run. */
static int choose_next(struct wave *w, const float *logits, uint64_t at, uint32_t *token,
                       uint64_t messages[COMM_MAX_SUM], struct fsdpck_error *err)
{
    struct comm *comm = w->r->comm;
    struct fsdpck_error ignored = { 0 };
    memset(messages, 0, COMM_MAX_SUM * sizeof *messages);
    w->growing = w->growing && choose_token(w->choose, &w->s->rule, logits, 0, at, token, &ignored) == 0;
    messages[comm->rank] =
        (w->growing ? (uint64_t)*token + 1 : 0) | (job_status_stopping(comm->job_status) ? stopping : 0);
    w->growing = w->growing && !choose_is_stop(&w->s->rule, *token);
    return comm->ops->sum_u64(comm, messages, comm->nranks, err);
}

static int add_token(struct token_list *list, uint32_t id, struct fsdpck_error *err)
{
    if (!list->ids && !(list->ids = calloc(MOST_NEW, sizeof *list->ids)))
        return fsdpck_error_nomem(err, MOST_NEW * sizeof *list->ids);
    list->ids[list->count++] = id;
    return 0;
}

/* Appends all ranks' tokens to their texts. *go: some text continues; *stop: the run was asked to end. */
static int apply_messages(struct wave *w, const uint64_t *messages, bool *go, bool *stop, struct fsdpck_error *err)
{
    int rc = 0;
    *go = false;
    for (uint32_t q = 0; q < w->r->comm->nranks && !rc; q++) {
        uint32_t token = (uint32_t)((messages[q] & ~stopping) - 1);
        *stop |= (messages[q] & stopping) != 0;
        if (!(messages[q] & ~stopping))
            continue;
        rc = add_token(&w->s->texts[w->first + q], token, err);
        *go |= !choose_is_stop(&w->s->rule, token);
    }
    return rc;
}

static int run_wave(struct wave *w, bool *stop, struct fsdpck_error *err)
{
    const float *logits = NULL;
    uint64_t messages[COMM_MAX_SUM];
    uint32_t token = 0;
    bool go = true;
    int rc = 0;
    w->number = w->first + w->r->comm->rank;
    w->growing = w->number < w->s->n;
    if (w->growing)
        choose_begin(w->choose, w->s->prompts[w->number].ids, w->s->prompts[w->number].count);
    for (uint64_t at = 0; at < MOST_NEW && go && !*stop && !rc; at++) {
        rc = forward(w, at, token, &logits, err);
        if (!rc)
            rc = choose_next(w, logits, at, &token, messages, err);
        if (!rc)
            rc = apply_messages(w, messages, &go, stop, err);
    }
    return rc;
}

/* Decodes tokens to text (owned). Without a tokenizer, prints the ids. */
static int show(const struct samples *s, const struct token_list *list, char **text, size_t *nbytes,
                struct fsdpck_error *err)
{
    if (s->chat)
        return tokenizer_decode(chat_tokenizer(s->chat), list->ids, list->count, true, text, nbytes, err);
    size_t room = 12 * list->count + 1;
    *text = malloc(room);
    *nbytes = 0;
    if (!*text)
        return fsdpck_error_nomem(err, room);
    **text = '\0';
    for (size_t i = 0; i < list->count; i++)
        *nbytes += (size_t)snprintf(*text + *nbytes, room - *nbytes, "%s%u", i ? " " : "", list->ids[i]);
    return 0;
}

static void note_text(const struct rank *r, size_t number, const char *text, size_t nbytes)
{
    char line[SHOWN + 120];
    if (!r->job->opt->note)
        return;
    int n = snprintf(line, sizeof line, "step %llu, sample %zu: %.*s%s", (unsigned long long)r->step, number + 1,
                     nbytes < SHOWN ? (int)nbytes : SHOWN, text, nbytes < SHOWN ? "" : " …");
    for (int i = 0; i < n && line[i]; i++)
        line[i] = line[i] == '\n' || line[i] == '\r' || line[i] == '\t' ? ' ' : line[i];
    r->job->opt->note(r->job->opt->ctx, line);
}

static int write_one(const struct rank *r, const struct samples *s, size_t i, FILE *f, struct fsdpck_error *err)
{
    char *prompt = NULL, *text = NULL;
    size_t nprompt = 0, ntext = 0;
    int rc = show(s, &s->prompts[i], &prompt, &nprompt, err);
    if (!rc)
        rc = show(s, &s->texts[i], &text, &ntext, err);
    if (!rc) {
        fprintf(f, "== prompt %zu ==\n%.*s\n== sample ==\n%.*s\n\n", i + 1, (int)nprompt, prompt, (int)ntext, text);
        note_text(r, i, text, ntext);
        tracker_sample(r->tracker, i, prompt, nprompt, text, ntext);
    }
    free(prompt);
    free(text);
    return rc;
}

static int write_file(const struct rank *r, const struct samples *s, struct fsdpck_error *err)
{
    char folder[FILES_PATH], path[FILES_PATH], name[40];
    int rc = files_join(folder, r->job->config->output_dir, "samples", err);
    snprintf(name, sizeof name, "step-%06llu.txt", (unsigned long long)r->step);
    if (!rc)
        rc = files_join(path, folder, name, err);
    if (!rc && mkdir(folder, 0777) && errno != EEXIST)
        rc = fsdpck_error_sys(err, errno, folder, "mkdir");
    FILE *f = rc ? NULL : fopen(path, "we");
    if (!rc && !f)
        rc = fsdpck_error_sys(err, errno, path, "create");
    for (size_t i = 0; i < s->n && !rc; i++)
        rc = write_one(r, s, i, f, err);
    if (f && fclose(f) && !rc)
        rc = fsdpck_error_sys(err, errno, path, "write");
    return rc;
}

/* If the samples cannot be written, warns; training continues. */
static void tell(const struct rank *r, const struct samples *s, bool stopped)
{
    struct fsdpck_error err = { 0 };
    char line[2400], text[2048];
    if (r->comm->rank != 0)
        return;
    snprintf(line, sizeof line, "the samples of step %llu are left out: the run stops", (unsigned long long)r->step);
    if (!stopped && write_file(r, s, &err))
        snprintf(line, sizeof line, "the samples of step %llu could not be written: %s", (unsigned long long)r->step,
                 fsdpck_error_format(&err, text, sizeof text));
    if ((stopped || err.code) && r->job->opt->note)
        r->job->opt->note(r->job->opt->ctx, line);
}

static int sample_texts(struct rank *r, struct fsdpck_error *err)
{
    struct samples *s = r->job->samples;
    bool begun = false, stop = false;
    struct wave w = { .r = r, .s = s, .begun = &begun };
    comm_at(r->comm, r->step, "sampling");
    int rc =
        decode_new(r->compute, (int64_t)s->longest, (int64_t)s->longest + MOST_NEW, r->memory->samples, &w.decode, err);
    if (!rc)
        rc = choose_new(r->job->model.nvocab, &w.choose, err);
    for (size_t i = 0; i < s->n; i++)
        s->texts[i].count = 0;
    for (w.first = 0; w.first < s->n && !rc && !stop; w.first += r->comm->nranks)
        rc = run_wave(&w, &stop, err);
    if (!rc)
        tell(r, s, stop);
    decode_free(w.decode);
    choose_free(w.choose);
    return rc;
}

int rank_sample(struct rank *r, struct fsdpck_error *err)
{
    struct picture_samples *pictures = samples_of_pictures(r->job->samples);
    return pictures ? picture_samples_draw(pictures, r, err) : sample_texts(r, err);
}
