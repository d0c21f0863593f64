/* SPDX-License-Identifier: Apache-2.0 */
/* Finds in adapter_config.json what the programs that load adapters refuse, and what they ignore. */
#include <string.h>

#include "doctor/checks.h"

enum { VLLM = 1, LLAMA_CPP = 2, PEFT_0_5 = 4 };

static const struct {
    const char *word, *name;
    unsigned bit;
} consumers[] = {
    { "vllm", "vLLM", VLLM },
    { "llama.cpp", "llama.cpp", LLAMA_CPP },
    { "peft-0.5", "PEFT 0.5", PEFT_0_5 },
};
enum { NCONSUMERS = sizeof consumers / sizeof *consumers };

static const struct feature {
    const char *key, *what;
    unsigned refused, ignored;
    const char *mend; /* NULL: merge-lora */
} features[] = {
    { "use_dora", "DoRA", VLLM | LLAMA_CPP | PEFT_0_5, 0, NULL },
    { "use_rslora", "rsLoRA's scaling", PEFT_0_5, LLAMA_CPP, NULL },
    { "lora_bias", "biases of lora_B", VLLM | LLAMA_CPP | PEFT_0_5, 0, NULL },
    { "layer_replication", "replicated layers", VLLM | LLAMA_CPP | PEFT_0_5, 0,
      "for these programs, merge it with PEFT: merge_and_unload()" },
    { "alora_invocation_tokens", "an activated LoRA", VLLM | PEFT_0_5, 0,
      "serve it with PEFT: merged, it would always be active" },
    { "modules_to_save", "whole modules", VLLM | LLAMA_CPP, 0, NULL },
    { "trainable_token_indices", "trained tokens", VLLM | LLAMA_CPP | PEFT_0_5, 0, NULL },
    { "alpha_pattern", "scalings by module", 0, LLAMA_CPP | PEFT_0_5, NULL },
    { "target_parameters", "parameters as targets", LLAMA_CPP | PEFT_0_5, 0, NULL },
};

static bool is_set(const json_t *v)
{
    return v && !json_is_null(v) && !json_is_false(v) && !(json_is_object(v) && json_object_size(v) == 0) &&
           !(json_is_array(v) && json_array_size(v) == 0);
}

/* The initialisations that change the base's weights need a conversion by PEFT before anything else may load them. */
static bool changes_base(const json_t *config)
{
    static const char *const inits[] = { "pissa", "olora", "corda", "loftq", "lora_ga" };
    const char *init = json_string_value(json_object_get(config, "init_lora_weights"));
    for (size_t i = 0; init && i < sizeof inits / sizeof *inits; i++)
        if (strncasecmp(init, inits[i], strlen(inits[i])) == 0)
            return true;
    return false;
}

static void say_names(unsigned bits, const char *verb, char *out, size_t nbytes)
{
    size_t used = strlen(out);
    const char *sep = used ? "; " : "";
    for (int i = 0; i < NCONSUMERS && used < nbytes; i++)
        if (bits & consumers[i].bit) {
            used += (size_t)snprintf(out + used, nbytes - used, "%s%s", sep, consumers[i].name);
            sep = ", ";
        }
    if (bits && used < nbytes)
        snprintf(out + used, nbytes - used, " %s", verb);
}

static void report(struct doctor *d, const char *key, const char *what, unsigned refused, unsigned ignored,
                   const char *mend)
{
    struct doctor_words w;
    char who[200] = "";
    say_names(refused, "would refuse it", who, sizeof who);
    say_names(ignored, "would ignore it", who, sizeof who);
    doctor_say(w.found, "%s", what);
    doctor_say(w.expected, "a program that knows it: %s", who);
    if (mend)
        doctor_say(w.mend, "%s", mend);
    else
        doctor_say(w.mend, "for these programs: fsdpck merge-lora BASE '%s' OUT", d->model->in_quotes);
    fsdpck_doctor_report(d, d->consumer ? FSDPCK_SEVERITY_ERROR : FSDPCK_SEVERITY_NOTE, "adapter_config.json", key, &w);
}

/* Without a word: of vLLM, which most adapters are served by. */
static unsigned bits_of(const char *word)
{
    unsigned bits = 0;
    for (int i = 0; word && i < NCONSUMERS; i++)
        if (strcmp(consumers[i].word, word) == 0)
            bits |= consumers[i].bit;
    return word ? bits : VLLM;
}

bool fsdpck_doctor_is_consumer(const char *word)
{
    return bits_of(word) != 0;
}

/* vLLM makes room for adapters of up to this rank. */
static void check_rank(struct doctor *d, const json_t *config)
{
    enum { MAX_RANK = 512 };
    const json_t *r = json_object_get(config, "r");
    char what[80];
    if (!json_is_integer(r) || json_integer_value(r) <= MAX_RANK)
        return;
    snprintf(what, sizeof what, "rank %" JSON_INTEGER_FORMAT ", above %d", json_integer_value(r), MAX_RANK);
    report(d, "r", what, VLLM, 0, NULL);
}

bool fsdpck_doctor_consumer(struct doctor *d)
{
    const json_t *config = d->model->json[DOCTOR_ADAPTER];
    unsigned bits = bits_of(d->consumer);
    for (size_t i = 0; i < sizeof features / sizeof *features; i++) {
        const struct feature *f = &features[i];
        if (is_set(json_object_get(config, f->key)) && (f->refused | f->ignored) & bits)
            report(d, f->key, f->what, f->refused & bits, f->ignored & bits, f->mend);
    }
    if (bits & VLLM)
        check_rank(d, config);
    if (changes_base(config) && bits & (VLLM | LLAMA_CPP))
        report(d, "init_lora_weights", "an initialisation that took a part out of the base's weights", bits & VLLM,
               bits & LLAMA_CPP,
               "convert it with PEFT: save_pretrained(…, path_initial_model_for_weight_conversion=…)");
    return config != NULL;
}
