/* SPDX-License-Identifier: Apache-2.0 */
#include "init_pictures.h"

#include <stdio.h>
#include <string.h>
#include <train/image.h>

#include "common/text.h"

/* Steps and rate of ai-toolkit and diffusers; the modules that diffusers adapts by default, but for the outputs of the
 * single blocks, which no name reaches that does not reach a list of modules too. */
json_t *init_pictures_config(const struct init_pictures *p)
{
    json_t *config =
        json_pack("{s:s,s:s,s:s,s:{s:s},s:{s:i,s:f,s:n},s:{s:i,s:i,s:[s,s,s,s,s]},s:{s:i,s:I,s:f},s:{s:s},s:{s:i}}",
                  "//", p->comment, "model", p->model, "output_dir", p->output_dir, "data", "train", p->data, "image",
                  "resolution", 512, "caption_dropout_rate", 0.05, "trigger_word", "lora", "r", 16, "lora_alpha", 16,
                  "target_modules", "to_q", "to_k", "to_v", "to_out.0", "to_qkv_mlp_proj", "train", "max_steps", 1000,
                  "global_batch_size", (json_int_t)p->batch, "learning_rate", 1e-4, "fsdp", "activation_checkpointing",
                  p->recompute ? "block" : "none", "checkpoint", "save_steps", 250);
    if (config && p->prompt)
        json_object_set_new(config, "sample", json_pack("{s:i,s:[s]}", "every", 250, "prompts", p->prompt));
    return config;
}

/* Ends the list at the first caption. */
static int take_caption(void *ctx, const struct image_listed *one, struct fsdpck_error *err)
{
    char **caption = ctx;
    if (!*one->caption)
        return 0;
    *caption = strdup(one->caption);
    return fsdpck_error_set(err, FSDPCK_ERR_STOPPED, NULL, "stopped");
}

char *init_pictures_caption(const char *pipeline, const char *data)
{
    struct fsdpck_error ignored = { 0 }; /* the plan says what is wrong with the pictures */
    char *caption = NULL;
    const struct image_survey survey = { .each = take_caption, .ctx = &caption };
    image_survey(pipeline, data, &survey, &ignored);
    return caption;
}

void init_pictures_say(const struct init_pictures *p, const struct train_plan *plan)
{
    char memory[TEXT_NBYTES];
    printf(": %llu picture%s of up to %llu tokens with their text, %llu step%s of %llu picture%s; %s in all ranks "
           "together\n",
           (unsigned long long)plan->ndocs, fsdpck_plural(plan->ndocs), (unsigned long long)plan->longest_ntok,
           (unsigned long long)plan->nsteps, fsdpck_plural(plan->nsteps), (unsigned long long)p->batch,
           fsdpck_plural(p->batch), text_bytes(plan->all_ranks_nbytes, memory));
    puts("image.trigger_word may name what the pictures show; the pictures are encoded when the run starts");
}
