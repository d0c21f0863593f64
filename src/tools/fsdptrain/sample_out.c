/* SPDX-License-Identifier: Apache-2.0 */
/* Prints text as soon as its characters are complete, so that it grows visibly. Rates go to stderr. */
#include "sample_out.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/json_out.h"
#include "common/text.h"

struct sample_out {
    const struct tokenizer *tokenizer;
    struct token_text *text;
    bool quiet, titled, complete, terminal;
    size_t prompt, nprompt;
    uint32_t number;
    json_t *samples, *prompt_ids; /* NULL: without --json */
};

int sample_out_new(const struct tokenizer *t, bool json, bool quiet, bool titled, struct sample_out **out,
                   struct fsdpck_error *err)
{
    struct sample_out *o = calloc(1, sizeof *o);
    *out = o;
    if (!o)
        return fsdpck_error_nomem(err, sizeof *o);
    o->tokenizer = t;
    o->quiet = quiet;
    o->titled = titled;
    o->complete = true;
    o->terminal = isatty(STDOUT_FILENO);
    o->samples = json ? json_array() : NULL;
    return token_text_new(t, true, &o->text, err);
}

static json_t *list_of(struct sample_out *o, const uint32_t *ids, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        o->complete &= json_out_append(list, json_out_u64(ids[i]));
    return list;
}

void sample_out_begin(struct sample_out *o, size_t prompt, uint32_t number, const struct token_list *ids)
{
    if (o->titled && !o->samples)
        printf("%s== prompt %zu, sample %u ==\n", prompt || number ? "\n" : "", prompt + 1, number + 1);
    o->prompt = prompt;
    o->number = number;
    o->nprompt = ids->count;
    json_decref(o->prompt_ids);
    o->prompt_ids = o->samples ? list_of(o, ids->ids, ids->count) : NULL;
}

/* A file or pipe gets the bytes unchanged; on a terminal, control characters are escaped. */
static void put_text(const struct sample_out *o, const char *text, size_t nbytes)
{
    if (o->terminal)
        text_print_block(stdout, text, nbytes);
    else
        fwrite(text, 1, nbytes, stdout);
}

int sample_out_token(struct sample_out *o, uint32_t id, struct fsdpck_error *err)
{
    const char *text;
    size_t nbytes;
    if (o->samples)
        return 0;
    int rc = token_text_add(o->text, id, &text, &nbytes, err);
    if (!rc && nbytes) {
        put_text(o, text, nbytes);
        fflush(stdout);
    }
    return rc;
}

static int keep(struct sample_out *o, const struct sampled *done, double prompt_seconds, double seconds,
                struct fsdpck_error *err)
{
    char *text;
    size_t nbytes;
    json_t *sample = json_object();
    int rc = tokenizer_decode(o->tokenizer, done->ids, done->count, true, &text, &nbytes, err);
    o->complete &= json_out_put(sample, "prompt", json_out_u64(o->prompt));
    o->complete &= json_out_put(sample, "sample", json_out_u64(o->number));
    o->complete &= json_out_put(sample, "prompt_ids", json_incref(o->prompt_ids));
    o->complete &= json_out_put(sample, "ids", list_of(o, done->ids, done->count));
    o->complete &= json_out_put(sample, "text", rc ? NULL : json_stringn(text, nbytes));
    o->complete &= json_out_put(sample, "finish_reason", json_out_text(done->stopped ? "stop" : "length"));
    o->complete &= json_out_put(sample, "prompt_seconds", json_out_double(prompt_seconds));
    o->complete &= json_out_put(sample, "seconds", json_out_double(seconds));
    o->complete &= json_out_append(o->samples, sample);
    if (!rc)
        free(text);
    return rc;
}

int sample_out_end(struct sample_out *o, const struct sampled *done, double prompt_seconds, double seconds,
                   struct fsdpck_error *err)
{
    const char *text;
    size_t nbytes;
    if (o->samples)
        return keep(o, done, prompt_seconds, seconds, err);
    int rc = token_text_end(o->text, &text, &nbytes, err);
    if (rc)
        return rc;
    put_text(o, text, nbytes);
    putchar('\n');
    fflush(stdout);
    if (!o->quiet && done->count > 1)
        fprintf(stderr, "fsdptrain: %zu token%s of prompt in %.2f s, then %zu tokens%s, %.1f a second\n", o->nprompt,
                fsdpck_plural(o->nprompt), prompt_seconds, done->count, done->stopped ? " with the stop token" : "",
                (double)(done->count - 1) / seconds);
    return 0;
}

int sample_out_finish(struct sample_out *o, bool complete)
{
    int status = EXIT_DONE;
    if (!o)
        return status;
    if (complete && o->samples) {
        json_t *all = json_object();
        o->complete &= json_out_put(all, "samples", json_incref(o->samples));
        status = json_out_print(all, o->complete, EXIT_DONE);
    }
    token_text_free(o->text);
    json_decref(o->samples);
    json_decref(o->prompt_ids);
    free(o);
    return status;
}
