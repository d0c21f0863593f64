/* SPDX-License-Identifier: Apache-2.0 */
/* What TRL and axolotl add to a Trainer's arguments: the data, the loss, the adapter. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "import/trainer.h"

static void put_taken(struct importer *im, const char *key, const char *to, json_t *value)
{
    if (import_put(im, key, to, value))
        import_taken(im, key);
}

void trainer_dataset(struct importer *im, const char *key, const json_t *value)
{
    const char *path = json_string_value(value);
    struct stat st;
    if (path && stat(path, &st) == 0 && S_ISREG(st.st_mode))
        put_taken(im, key, "data.train", json_string(path));
    else
        import_note(im, key, value, "no file here; save the data set as JSONL and give it as DATA");
}

/* What a data set has beside its path. Rows of these types are seen as such. */
static void note_members(struct importer *im, const char *key, const json_t *set)
{
    static const char *const known[][2] = { { "type", "alpaca" }, { "type", "chat_template" }, { "type", "completion" },
                                            { "split", "train" }, { "ds_type", "json" },       { "path", NULL } };
    const char *name;
    json_t *value;
    json_object_foreach ((json_t *)set, name, value) {
        const char *text = json_string_value(value);
        char inner[200];
        bool idle = json_is_null(value);
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
            idle |= strcmp(name, known[i][0]) == 0 && (!known[i][1] || (text && strcmp(text, known[i][1]) == 0));
        snprintf(inner, sizeof inner, "%.50s.%.140s", key, name);
        if (!idle)
            import_note(im, inner, value,
                        "not taken over: the form of a row is seen from the data, and data.columns names its columns");
    }
}

/* A list of {path}. One local file is taken over. */
void trainer_datasets(struct importer *im, const char *key, const json_t *value)
{
    const json_t *one = json_array_size(value) == 1 ? json_array_get(value, 0) : NULL;
    if (json_is_array(value) && json_array_size(value) == 0)
        import_unneeded(im, key);
    else if (one && json_is_string(json_object_get(one, "path")))
        trainer_dataset(im, key, json_object_get(one, "path")), note_members(im, key, one);
    else
        import_note(im, key, value, "name the files, with a weight for each, in data.train");
}

void trainer_text_field(struct importer *im, const char *key, const json_t *value)
{
    const char *name = json_string_value(value);
    if (name && strcmp(name, "text") == 0)
        import_unneeded(im, key);
    else
        put_taken(im, key, "data.columns", json_pack("{s:O}", "text", value));
}

void trainer_assistant_loss(struct importer *im, const char *key, const json_t *value)
{
    if (import_is_true(value))
        put_taken(im, key, "data.loss_on", json_string("assistant"));
    else if (import_is_true(import_get(im, "completion_only_loss")))
        import_unneeded(im, key);
    else {
        put_taken(im, key, "data.loss_on", json_string("all"));
        if (!import_get(im, "completion_only_loss"))
            import_note(im, "completion_only_loss", NULL,
                        "left out; TRL then trains rows of prompt and completion on the completion: set data.loss_on "
                        "to completion for these");
    }
}

void trainer_completion_loss(struct importer *im, const char *key, const json_t *value)
{
    if (import_is_true(value))
        put_taken(im, key, "data.loss_on", json_string("completion"));
    else
        import_unneeded(im, key);
}

/* axolotl: false masks the turns of the user. */
void trainer_train_on_inputs(struct importer *im, const char *key, const json_t *value)
{
    put_taken(im, key, "data.loss_on", json_string(import_is_true(value) ? "all" : "assistant"));
}

/* True if the file trains an adapter. */
static bool has_adapter(const struct importer *im)
{
    return import_is_true(import_get(im, "use_peft")) || json_is_string(import_get(im, "adapter"));
}

static void train_all(struct importer *im)
{
    if (!json_object_get(im->config, "lora"))
        json_object_set_new(im->config, "lora", json_null());
}

void trainer_use_peft(struct importer *im, const char *key, const json_t *value)
{
    if (!import_is_true(value))
        train_all(im);
    else if (!import_get(im, "lora_target_modules") && !import_get(im, "lora_target_parameters"))
        import_put_weak(im, key, "lora.target_modules", json_pack("[s,s]", "q_proj", "v_proj")); /* PEFT's default */
    import_taken(im, key);
}

void trainer_adapter(struct importer *im, const char *key, const json_t *value)
{
    char word[64];
    import_word(value, word);
    if (!has_adapter(im))
        train_all(im);
    if (has_adapter(im) && !json_is_string(value))
        import_refuse(im, key, "a name is wanted, as in adapter: lora");
    else if (strcmp(word, "QLORA") == 0)
        import_put_weak(im, key, "dtype.base", json_string("nf4"));
    else if (has_adapter(im) && strcmp(word, "LORA") != 0)
        import_refuse(im, key, "LoRA adapters are trained, and '%.60s' is none", json_string_value(value));
    import_taken(im, key);
}

void trainer_4bit(struct importer *im, const char *key, const json_t *value)
{
    if (!import_is_true(value))
        import_unneeded(im, key);
    else if (!has_adapter(im))
        import_note(im, key, value, "a quantized base is frozen, and no adapter is trained");
    else {
        import_put_weak(im, key, "dtype.base", json_string("nf4"));
        import_taken(im, key);
    }
}

/* lora_r, lora_alpha, …: the key of the same meaning in section lora. */
void trainer_lora(struct importer *im, const char *key, const json_t *value)
{
    static const char *const same[][2] = { { "lora_r", "lora.r" },
                                           { "lora_alpha", "lora.lora_alpha" },
                                           { "lora_dropout", "lora.lora_dropout" },
                                           { "lora_modules_to_save", "lora.modules_to_save" },
                                           { "use_rslora", "lora.use_rslora" },
                                           { "use_dora", "lora.use_dora" },
                                           { "peft_use_rslora", "lora.use_rslora" },
                                           { "peft_use_dora", "lora.use_dora" },
                                           { "lora_model_dir", "lora.init_adapter" } };
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        if (strcmp(key, same[i][0]) == 0 && has_adapter(im))
            put_taken(im, key, same[i][1], json_deep_copy(value));
        else if (strcmp(key, same[i][0]) == 0)
            import_unneeded(im, key);
    }
}

/* TRL takes a list of one name as that name. */
void trainer_target_modules(struct importer *im, const char *key, const json_t *value)
{
    const char *word = json_string_value(json_array_size(value) == 1 ? json_array_get(value, 0) : value);
    const bool all = word && strcmp(word, "all-linear") == 0;
    if (!has_adapter(im))
        import_unneeded(im, key);
    else
        put_taken(im, key, "lora.target_modules", all ? json_string(word) : json_deep_copy(value));
}

/* PEFT takes a model's usual modules, if it knows them, where only parameters are named. */
void trainer_target_parameters(struct importer *im, const char *key, const json_t *value)
{
    const bool modules = import_get(im, "lora_target_modules") || import_is_true(import_get(im, "lora_target_linear"));
    const bool one = json_is_string(value);
    if (!has_adapter(im) || (json_is_array(value) && json_array_size(value) == 0)) {
        import_unneeded(im, key);
        return;
    }
    put_taken(im, key, "lora.target_parameters", one ? json_pack("[O]", value) : json_deep_copy(value));
    if (modules)
        return;
    import_put_weak(im, key, "lora.target_modules", json_array());
    import_note(im, "lora_target_modules", NULL,
                "left out: parameters alone get adapters; of Mixtral, PEFT adapts q_proj and v_proj too");
}

void trainer_target_linear(struct importer *im, const char *key, const json_t *value)
{
    if (!has_adapter(im) || !import_is_true(value))
        import_unneeded(im, key);
    else
        put_taken(im, key, "lora.target_modules", json_string("all-linear"));
}
