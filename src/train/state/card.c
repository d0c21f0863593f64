/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the facts of the run: base, data, hyperparameters, and the last line of the metrics. The card contains a
 * marker. A README without the marker belongs to the user and is left unchanged. */
#include "state/card.h"

#include <errno.h>
#include <fcntl.h>
#include <fsdpck/fsdpck.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rank/files.h"
#include "rank/schedule.h"
#include "state/card_pictures.h"
#include "text/file.h"

static const char mark[] =
    "<!-- written by fsdptrain, anew with each export; without this line the file is yours and stays -->";

enum { MOST = 16 << 20, TAIL = 1 << 16 };

/* A path "…/models--ORG--NAME/snapshots/…" in the Hugging Face cache gives ORG/NAME; any other path is used as it is,
 * like PEFT does. */
static void name_base(const char *model, char *name, size_t nbytes)
{
    const char *at = strstr(model, "/models--"), *end = at ? strstr(at, "/snapshots/") : NULL,
               *dashes = at ? strstr(at + 9, "--") : NULL;
    if (end && dashes && dashes < end)
        snprintf(name, nbytes, "%.*s/%.*s", (int)(dashes - at - 9), at + 9, (int)(end - dashes - 2), dashes + 2);
    else
        snprintf(name, nbytes, "%s", model);
}

/* A JSON string is a valid YAML string. */
static void put_quoted(FILE *f, const char *before, const char *text)
{
    json_t *value = json_string(text);
    char *quoted = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    fprintf(f, "%s%s\n", before, quoted ? quoted : "\"?\"");
    free(quoted);
    json_decref(value);
}

static void put_front(FILE *f, const struct job *job, uint64_t step, const char *folder, const char *base)
{
    const struct train_config *c = job->config;
    char tag[FILES_PATH + 32];
    snprintf(tag, sizeof tag, "base_model:adapter:%s", base);
    fputs("---\n", f);
    put_quoted(f, "base_model: ", base);
    if (c->pipeline && c->image.trigger_word)
        put_quoted(f, "instance_prompt: ", c->image.trigger_word);
    fprintf(f, "library_name: %s\npipeline_tag: %s\ntags:\n", c->pipeline ? "diffusers" : "peft",
            c->pipeline ? "text-to-image" : "text-generation");
    put_quoted(f, "- ", tag);
    fprintf(f, "- lora\n- %s\n", c->pipeline ? "diffusers" : "transformers");
    if (c->pipeline)
        card_pictures_put(f, job, step, folder);
    fputs("---\n", f);
}

/* The metrics of this step, from the end of the file; NULL: not found. */
static json_t *find_metrics(const struct job *job, uint64_t step)
{
    char path[FILES_PATH], *tail = malloc(TAIL + 1);
    json_t *found = NULL;
    FILE *f =
        tail && files_join(path, job->config->output_dir, job->config->log.jsonl, NULL) == 0 ? fopen(path, "re") : NULL;
    if (f && fseek(f, -TAIL, SEEK_END) != 0)
        rewind(f);
    size_t n = f ? fread(tail, 1, TAIL, f) : 0;
    if (tail)
        tail[n] = '\0';
    for (char *save = NULL, *line = n ? strtok_r(tail, "\n", &save) : NULL; line; line = strtok_r(NULL, "\n", &save)) {
        json_t *one = json_loads(line, 0, NULL);
        bool wanted = json_integer_value(json_object_get(one, "step")) == (json_int_t)step;
        json_decref(wanted ? found : one);
        found = wanted ? one : found;
    }
    if (f)
        fclose(f);
    free(tail);
    return found;
}

static void put_results(FILE *f, const struct job *job, uint64_t step)
{
    static const struct {
        const char *key, *name;
    } rows[] = { { "loss", "training loss, last step" },
                 { "grad_norm", "gradient norm, last step" },
                 { "eval_loss", "evaluation loss, at the end" } };
    json_t *m = find_metrics(job, step);
    fprintf(f, "## Results\n\n| | |\n|---|---|\n| steps | %llu of %llu |\n", (unsigned long long)step,
            (unsigned long long)job->nsteps);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const json_t *value = json_object_get(m, rows[i].key);
        if (json_is_number(value))
            fprintf(f, "| %s | %.6g |\n", rows[i].name, json_number_value(value));
    }
    fputc('\n', f);
    json_decref(m);
}

static void put_data(FILE *f, const struct job *job)
{
    const struct train_config *c = job->config;
    struct train_data_facts data;
    char loss_on[TRAIN_WORD_NBYTES];
    data_describe(job->data, &data);
    fputs("## Data\n\n", f);
    for (size_t i = 0; i < c->data.nfiles; i++)
        put_quoted(f, "- ", c->data.files[i].path);
    for (size_t i = 0; i < c->data.neval_files; i++)
        put_quoted(f, "- evaluated on ", c->data.eval_files[i].path);
    if (c->pipeline) {
        fprintf(f, "\n%llu picture%s, each resolution, repeat and flip counted.\n\n", (unsigned long long)data.ndocs,
                fsdpck_plural(data.ndocs));
        return;
    }
    fprintf(f, "\n%llu document%s, %llu token%s, %llu of them supervised (loss on: %s), in rows of %llu token%s%s.\n\n",
            (unsigned long long)data.ndocs, fsdpck_plural(data.ndocs), (unsigned long long)data.ntok,
            fsdpck_plural(data.ntok), (unsigned long long)data.nsupervised,
            train_config_word("data.loss_on", c->data.loss_on, loss_on), (unsigned long long)c->data.seq_len,
            fsdpck_plural(c->data.seq_len), c->data.packing ? ", packed" : "");
}

static void put_targets(FILE *f, const struct train_lora_config *lora)
{
    fputs("| target_modules | ", f);
    if (lora->all_linear || lora->target_regex)
        fputs(lora->all_linear ? "all-linear" : lora->target_regex, f);
    for (size_t i = 0; i < lora->ntarget_names && !lora->all_linear && !lora->target_regex; i++)
        fprintf(f, "%s%s", i ? ", " : "", lora->target_names[i]);
    fputs(" |\n", f);
}

/* A row; nothing without names. */
static void put_names(FILE *f, const char *key, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        fprintf(f, i ? "%s%s" : "| %s | %s", i ? ", " : key, names[i]);
    if (n)
        fputs(" |\n", f);
}

static void put_settings(FILE *f, const struct job *job)
{
    const struct train_config *c = job->config;
    char word[TRAIN_WORD_NBYTES];
    const uint64_t warmup = schedule_warmup(c, job->nsteps);
    fprintf(f, "## Settings\n\n| | |\n|---|---|\n| r, lora_alpha, lora_dropout | %llu, %g, %g%s%s |\n",
            (unsigned long long)c->lora.r, c->lora.alpha, c->lora.dropout, c->lora.use_rslora ? ", rsLoRA" : "",
            c->lora.use_dora ? ", DoRA" : "");
    put_targets(f, &c->lora);
    put_names(f, "target_parameters", c->lora.target_parameters, c->lora.ntarget_parameters);
    put_names(f, "modules_to_save", c->lora.modules_to_save, c->lora.nmodules_to_save);
    fprintf(f, "| learning rate | %g, %s, %llu step%s of warmup |\n", c->train.learning_rate,
            train_config_word("train.lr_scheduler_type", c->train.scheduler, word), (unsigned long long)warmup,
            fsdpck_plural(warmup));
    fprintf(f, "| %s a step | %llu |\n", c->pipeline ? "pictures" : "rows",
            (unsigned long long)c->train.global_batch_size);
    fprintf(f, "| AdamW | betas %g and %g, epsilon %g, weight decay %g |\n", c->train.beta1, c->train.beta2,
            c->train.epsilon, c->train.weight_decay);
    fprintf(f, "| gradients clipped at | %g |\n| parameters trained | %lld in the adapter, %lld frozen |\n",
            c->train.max_grad_norm, (long long)job->layout.ntrained, (long long)job->layout.nfrozen);
    fprintf(f, "| precision, seed | %s, %llu |\n\n", train_config_word("dtype.param", c->dtype.param, word),
            (unsigned long long)c->seed);
}

/* diffusers refuses an adapter on proj_out under PEFT's names. */
static bool diffusers_loads(const struct layout *l)
{
    for (size_t i = 0; i < l->nparams; i++)
        if (l->params[i].trainable && strstr(l->params[i].name, "proj_out."))
            return false;
    return true;
}

static void put_use(FILE *f, const struct job *job, const char *base)
{
    fputs("## Use\n\n```python\n", f);
    if (!job->config->pipeline) {
        fputs("from peft import PeftModel\nfrom transformers import AutoModelForCausalLM\n\n", f);
        put_quoted(f, "base = ", base);
        fputs("model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), \"adapter\")\n```\n", f);
        return;
    }
    const bool loads = diffusers_loads(&job->layout);
    fprintf(f, "import torch\nfrom diffusers import Flux2KleinPipeline\n%s\n",
            loads ? "" : "from peft import PeftModel\n");
    put_quoted(f, "base = ", base);
    fputs("pipe = Flux2KleinPipeline.from_pretrained(base, dtype=torch.bfloat16)\n", f);
    fputs(loads ? "pipe.load_lora_weights(\"adapter\")\n"
                : "pipe.transformer = PeftModel.from_pretrained(pipe.transformer, \"adapter\").merge_and_unload()\n",
          f);
    const char *word = job->config->image.trigger_word;
    put_quoted(f, "prompt = ", word ? word : "");
    fputs("pipe(prompt).images[0].save(\"picture.png\")\n```\n", f);
}

static void put_card(FILE *f, const struct job *job, uint64_t step, const char *folder)
{
    const struct train_config *c = job->config;
    char base[FILES_PATH];
    name_base(c->pipeline ? c->pipeline : c->model, base, sizeof base);
    put_front(f, job, step, folder, base);
    fprintf(f, "%s\n\n# LoRA adapter\n\nFor `%s`, trained with fsdptrain %s.\n\n", mark, base, fsdpck_version());
    put_results(f, job, step);
    put_data(f, job);
    put_settings(f, job);
    put_use(f, job, base);
}

/* The README that the user wrote. Owned; NULL: none, or it has our marker. */
static char *users_own(const char *old, size_t *nbytes)
{
    char path[FILES_PATH], *text;
    if (files_join(path, old, "README.md", NULL) || text_file_read(path, MOST, &text, nbytes, NULL))
        return NULL;
    if (strstr(text, mark)) {
        free(text);
        return NULL;
    }
    return text;
}

int card_write(const struct job *job, uint64_t step, const char *folder, const char *old, struct fsdpck_error *err)
{
    char path[FILES_PATH];
    size_t nbytes = 0;
    int rc = files_join(path, folder, "README.md", err);
    FILE *f = rc ? NULL : fopen(path, "we");
    if (!f)
        return rc ? rc : fsdpck_error_sys(err, errno, path, "create");
    char *theirs = users_own(old, &nbytes);
    if (theirs)
        fwrite(theirs, 1, nbytes, f);
    else
        put_card(f, job, step, folder);
    bool failed = fflush(f) || ferror(f) || fsync(fileno(f));
    rc = failed ? fsdpck_error_sys(err, errno ? errno : EIO, path, "write") : 0;
    fclose(f);
    free(theirs);
    return rc;
}
