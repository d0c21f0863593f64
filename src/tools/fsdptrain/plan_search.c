/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the candidates of a search, and the settings to take over. */
#include "plan_search.h"

#include <stdio.h>

#include "common/command.h"
#include "common/json_out.h"
#include "common/text.h"

static const char *strategy_of(const struct train_candidate *c, char word[TRAIN_WORD_NBYTES])
{
    return train_config_word("fsdp.sharding_strategy", c->strategy, word);
}

static const char *recompute_of(const struct train_candidate *c, char word[TRAIN_WORD_NBYTES])
{
    return train_config_word("fsdp.activation_checkpointing", c->checkpointing, word);
}

static void print_candidate(const struct train_search *s, const struct train_candidate *c)
{
    char strategy[TRAIN_WORD_NBYTES], recompute[TRAIN_WORD_NBYTES], nbytes[TEXT_NBYTES];
    printf("%-18s %-9s %8llu ", strategy_of(c, strategy), recompute_of(c, recompute), (unsigned long long)c->prefetch);
    if (s->keys & TRAIN_AUTO_MICRO_BATCH)
        printf("%11llu ", (unsigned long long)c->micro_batch_size);
    if (s->keys & TRAIN_AUTO_OFFLOAD)
        printf("%-10s ", train_offload_word(c->offload));
    if (c->valid)
        printf(" %10s %10.3g s %10.3g s  ", text_bytes(c->peak_nbytes, nbytes), c->step_seconds, c->exposed_seconds);
    else
        printf(" %10s %12s %12s  ", "-", "-", "-");
    text_print(stdout, c->why);
    putchar('\n');
}

/* As options of a command. */
static void print_choice(unsigned keys, const struct train_config *config, const struct train_candidate *c)
{
    char strategy[TRAIN_WORD_NBYTES], recompute[TRAIN_WORD_NBYTES];
    printf("--set fsdp.activation_checkpointing=%s", recompute_of(c, recompute));
    if (keys & TRAIN_AUTO_STRATEGY)
        printf(" --set fsdp.sharding_strategy=%s --set fsdp.forward_prefetch=%llu --set fsdp.backward_prefetch=%llu",
               strategy_of(c, strategy), (unsigned long long)c->prefetch, (unsigned long long)c->prefetch);
    if (keys & TRAIN_AUTO_MICRO_BATCH)
        printf(" --set train.micro_batch_size=%llu", (unsigned long long)c->micro_batch_size);
    if (keys & TRAIN_AUTO_OFFLOAD && !c->offload)
        printf(" --set fsdp.offload=null");
    if (keys & TRAIN_AUTO_OFFLOAD && c->offload) {
        printf(" --set fsdp.offload=");
        text_print_word(stdout, config->fsdp.offload_here);
        printf("%s%s", c->offload >= TRAIN_OFFLOAD_GRADIENTS ? " --set fsdp.offload_gradients=true" : "",
               c->offload >= TRAIN_OFFLOAD_PARAMETERS ? " --set fsdp.offload_params=true" : "");
    }
    putchar('\n');
}

static void print_all(const struct train_config *config, const struct train_search *s)
{
    char nbytes[TEXT_NBYTES];
    printf("%-18s %-9s %8s %s%s %10s %12s %12s  %s\n", "strategy", "recompute", "prefetch",
           s->keys & TRAIN_AUTO_MICRO_BATCH ? "micro-batch " : "", s->keys & TRAIN_AUTO_OFFLOAD ? "offload    " : "",
           "a rank", "a step", "exposed", "why");
    for (size_t i = 0; i < s->ncandidates; i++)
        print_candidate(s, &s->candidates[i]);
    if (s->limit_nbytes)
        printf("\na rank may take %s\n", text_bytes(s->limit_nbytes, nbytes));
    if (s->chosen == s->ncandidates)
        puts("nothing fits: take more ranks, a smaller data.seq_len or a smaller train.micro_batch_size");
    else
        print_choice(s->keys, config, &s->candidates[s->chosen]);
}

static json_t *json_of(const struct train_candidate *c)
{
    char strategy[TRAIN_WORD_NBYTES], recompute[TRAIN_WORD_NBYTES];
    json_t *o = json_pack("{s:s, s:s, s:s, s:I, s:I, s:b, s:b, s:s}", "offload", train_offload_word(c->offload),
                          "sharding_strategy", strategy_of(c, strategy), "activation_checkpointing",
                          recompute_of(c, recompute), "prefetch", (json_int_t)c->prefetch, "micro_batch_size",
                          (json_int_t)c->micro_batch_size, "valid", c->valid, "fits", c->fits, "why", c->why);
    bool ok = o != NULL;
    if (!ok || !c->valid)
        return o;
    ok = json_out_put(o, "peak_bytes", json_out_u64(c->peak_nbytes));
    ok &= json_out_put(o, "blocks_recomputed", json_out_u64(c->nrecomputed));
    ok &= json_out_put(o, "step_seconds", json_real(c->step_seconds));
    ok &= json_out_put(o, "exposed_seconds", json_real(c->exposed_seconds));
    if (ok)
        return o;
    json_decref(o);
    return NULL;
}

static int print_json(const struct train_search *s, int done)
{
    json_t *o = json_object(), *list = json_array();
    bool complete = true;
    for (size_t i = 0; i < s->ncandidates; i++)
        complete &= json_out_append(list, json_of(&s->candidates[i]));
    complete &= json_out_put(o, "limit_bytes", s->limit_nbytes ? json_out_u64(s->limit_nbytes) : json_null());
    complete &=
        json_out_put(o, "chosen", s->chosen < s->ncandidates ? json_integer((json_int_t)s->chosen) : json_null());
    complete &= json_out_put(o, "candidates", list);
    return json_out_print(o, complete, done);
}

int plan_search(const struct train_config *config, const struct train_options *opt, bool json, struct fsdpck_error *err)
{
    struct train_search s;
    if (train_search(config, opt, &s, err))
        return EXIT_SYSTEM;
    const int done = s.chosen < s.ncandidates ? EXIT_DONE : EXIT_NO;
    if (json)
        return print_json(&s, done);
    print_all(config, &s);
    return done;
}
