/* SPDX-License-Identifier: Apache-2.0 */
#include "state/card_pictures.h"

#include <ctype.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <train/history.h>

#include "rank/files.h"
#include "text/file.h"
#include "text/new_file.h"
#include "text/trigger.h"

#define MOST_NBYTES ((size_t)1 << 28)

bool card_picture_is(const char *name)
{
    char *end;
    if (strncmp(name, "image_", 6) != 0 || !isdigit((unsigned char)name[6]))
        return false;
    strtoull(name + 6, &end, 10);
    return strcmp(end, ".png") == 0;
}

struct content {
    const char *bytes;
    size_t nbytes;
};

static bool put(FILE *f, const void *ctx)
{
    const struct content *c = ctx;
    return fwrite(c->bytes, 1, c->nbytes, f) == c->nbytes;
}

static bool copy(const char *from, const char *to)
{
    char *bytes;
    size_t nbytes;
    if (text_file_read(from, MOST_NBYTES, &bytes, &nbytes, NULL))
        return false;
    const struct content content = { bytes, nbytes };
    const bool copied = new_file_write(to, put, &content, NULL) == 0;
    free(bytes);
    return copied;
}

/* The picture of prompt i, counted from 0, at this step. */
static bool copy_picture(const struct job *job, uint64_t step, size_t i, const char *folder, char name[32])
{
    char drawn[TRAIN_DRAWN_NAME], samples[FILES_PATH], from[FILES_PATH], to[FILES_PATH];
    train_drawn_name(&(struct train_drawn){ .step = step, .prompt = i + 1 }, drawn);
    snprintf(name, 32, "image_%zu.png", i);
    return !files_join(samples, job->config->output_dir, "samples", NULL) && !files_join(from, samples, drawn, NULL) &&
           !files_join(to, folder, name, NULL) && copy(from, to);
}

/* The prompt as a string of YAML, which one of JSON is. Owned. */
static char *quoted_prompt(const json_t *prompt, const char *word)
{
    const char *text = json_string_value(json_is_object(prompt) ? json_object_get(prompt, "prompt") : prompt);
    char *whole = trigger_put(text ? text : "", word, false);
    json_t *value = whole ? json_string(whole) : NULL;
    char *quoted = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    json_decref(value);
    free(whole);
    return quoted;
}

void card_pictures_put(FILE *f, const struct job *job, uint64_t step, const char *folder)
{
    const struct train_config *c = job->config;
    const uint64_t every = c->sample.every, last = step == job->nsteps || !every ? step : step - step % every;
    const json_t *prompt;
    bool any = false;
    size_t i;
    json_array_foreach (c->sample.prompts, i, prompt) {
        char name[32],
            *quoted = copy_picture(job, last, i, folder, name) ? quoted_prompt(prompt, c->image.trigger_word) : NULL;
        if (!quoted)
            continue;
        fprintf(f, "%s- text: %s\n  output:\n    url: %s\n", any ? "" : "widget:\n", quoted, name);
        any = true;
        free(quoted);
    }
}
