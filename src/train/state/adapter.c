/* SPDX-License-Identifier: Apache-2.0 */
/* Writes adapter_model.safetensors with the export of libfsdpck, and adapter_config.json with the keys of PEFT. Builds
 * them in a temporary folder and renames it when it is complete. */
#include "state/adapter.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fsdpck/export.h>
#include <fsdpck/lora.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rank/files.h"
#include "state/card.h"
#include "state/card_pictures.h"
#include "text/file.h"

static json_t *patterns_of(const struct train_pattern *p, size_t n, bool whole)
{
    json_t *object = json_object();
    for (size_t i = 0; i < n; i++)
        json_object_set_new(object, p[i].regex,
                            whole || p[i].value == (double)(json_int_t)p[i].value ? json_integer((json_int_t)p[i].value)
                                                                                  : json_real(p[i].value));
    return object;
}

static void add_names(void *ctx, const struct linear *const *layers, int n)
{
    for (int i = 0; i < n; i++)
        if (layers[i]->r && !layers[i]->bare)
            json_object_set_new(ctx, strrchr(layers[i]->path, '.') + 1, json_true());
}

static void add_paths(void *ctx, const struct linear *const *layers, int n)
{
    for (int i = 0; i < n; i++)
        if (layers[i]->r)
            json_object_set_new(ctx, layers[i]->path, json_true());
}

/* As PEFT writes "all-linear": the names of the modules, in order. Those of FLUX.2 are whole paths, because the last
 * name of some, "0", is that of blocks too. */
static json_t *all_linear_of(const struct layout *l)
{
    json_t *names = json_object(), *list = json_array();
    layout_each(l, l->flux2 ? add_paths : add_names, names);
    if (l->flux2)
        add_paths(names, (const struct linear *[]){ &l->embed, &l->head }, 2);
    const char *least;
    do {
        const char *name;
        json_t *value;
        least = NULL;
        json_object_foreach (names, name, value)
            least = !least || strcmp(name, least) < 0 ? name : least;
        if (least) {
            json_array_append_new(list, json_string(least));
            json_object_del(names, least);
        }
    } while (least);
    json_decref(names);
    return list;
}

static json_t *names_of(const char *const *names, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_string(names[i]));
    return list;
}

static json_t *targets_of(const struct job *job)
{
    const struct train_lora_config *lora = &job->config->lora;
    if (lora->target_regex)
        return json_string(lora->target_regex);
    if (lora->all_linear)
        return all_linear_of(&job->layout);
    return names_of(lora->target_names, lora->ntarget_names);
}

static json_t *number(double value)
{
    return fabs(value) < 0x1p53 && value == trunc(value) ? json_integer((json_int_t)value) : json_real(value);
}

/* The keys that every PEFT since 0.5 reads, but target_modules. The defaults of the other keys match this trainer. */
static json_t *settings_of(const struct train_config *c)
{
    json_t *o = json_object();
    json_object_set_new(o, "alpha_pattern", patterns_of(c->lora.alpha_pattern, c->lora.nalpha_pattern, false));
    json_object_set_new(o, "base_model_name_or_path", json_string(c->model));
    json_object_set_new(o, "bias", json_string("none"));
    json_object_set_new(o, "fan_in_fan_out", json_false());
    json_object_set_new(o, "inference_mode", json_true());
    json_object_set_new(o, "init_lora_weights", json_true());
    json_object_set_new(o, "lora_alpha", number(c->lora.alpha));
    json_object_set_new(o, "lora_dropout", json_real(c->lora.dropout));
    json_object_set_new(o, "modules_to_save",
                        c->lora.nmodules_to_save ? names_of(c->lora.modules_to_save, c->lora.nmodules_to_save)
                                                 : json_null());
    json_object_set_new(o, "peft_type", json_string("LORA"));
    json_object_set_new(o, "r", json_integer((json_int_t)c->lora.r));
    json_object_set_new(o, "rank_pattern", patterns_of(c->lora.rank_pattern, c->lora.nrank_pattern, true));
    if (c->lora.ntarget_parameters) { /* the version says in which order B has the experts */
        json_object_set_new(o, "peft_version", json_string(FSDPCK_LORA_FUSED_VERSION));
        json_object_set_new(o, "target_parameters", names_of(c->lora.target_parameters, c->lora.ntarget_parameters));
    }
    json_object_set_new(o, "task_type", c->pipeline ? json_null() : json_string("CAUSAL_LM"));
    json_object_set_new(o, "use_dora", json_boolean(c->lora.use_dora));
    json_object_set_new(o, "use_rslora", json_boolean(c->lora.use_rslora));
    return o;
}

static json_t *config_of(const struct job *job)
{
    json_t *o = settings_of(job->config);
    json_object_set_new(o, "target_modules", targets_of(job));
    if (job->layout.flux2) /* as PEFT says which model of another library it is */
        json_object_set_new(o, "auto_mapping",
                            json_pack("{s:s, s:s}", "base_model_class", "Flux2Transformer2DModel", "parent_library",
                                      "diffusers.models.transformers.transformer_flux2"));
    return o;
}

char *adapter_config(const struct job *job)
{
    json_t *o = config_of(job);
    char *text = o ? json_dumps(o, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    json_decref(o);
    return text;
}

/* diffusers reads the folder, but takes these settings from the header of its file; without them, it takes alpha to be
 * the rank. */
static char *settings_for_diffusers(const struct job *job)
{
    static const char *const keys[] = { "r",          "lora_alpha", "alpha_pattern", "rank_pattern", "target_modules",
                                        "use_rslora", "use_dora" };
    json_t *all = config_of(job), *o = json_object();
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char name[64];
        snprintf(name, sizeof name, "transformer.%s", keys[i]);
        json_object_set(o, name, json_object_get(all, keys[i]));
    }
    char *text = json_dumps(o, JSON_INDENT(2) | JSON_SORT_KEYS);
    json_decref(all);
    json_decref(o);
    return text;
}

static int sync_path(const char *path, struct fsdpck_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC),
        rc = fd < 0 || fsync(fd) ? fsdpck_error_sys(err, errno, path, "fsync") : 0;
    if (fd >= 0)
        close(fd);
    return rc;
}

static int write_config(const struct job *job, const char *folder, struct fsdpck_error *err)
{
    char path[FILES_PATH];
    int rc = files_join(path, folder, "adapter_config.json", err);
    if (rc)
        return rc;
    json_t *o = config_of(job);
    int failed = json_dump_file(o, path, JSON_INDENT(2) | JSON_SORT_KEYS);
    json_decref(o);
    return failed ? fsdpck_error_sys(err, errno ? errno : EIO, path, "write") : sync_path(path, err);
}

static bool is_ours(const char *name)
{
    return strcmp(name, "adapter_model.safetensors") == 0 || strcmp(name, "adapter_config.json") == 0 ||
           strcmp(name, "README.md") == 0;
}

/* A picture of the card is kept if the new folder has none of its name: it may be the user's. */
static bool moves_along(const char *to, const char *name)
{
    char moved[FILES_PATH];
    return to && files_join(moved, to, name, NULL) == 0 && access(moved, F_OK) != 0;
}

/* Removes our files and then the folder. Moves files of others to `to`; with NULL they remain, and so does the
 * folder. */
static void remove_folder(const char *folder, const char *to)
{
    char path[FILES_PATH], moved[FILES_PATH];
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 || files_join(path, folder, e->d_name, NULL))
            continue;
        if (is_ours(e->d_name) || (card_picture_is(e->d_name) && !moves_along(to, e->d_name)))
            unlink(path);
        else if (moves_along(to, e->d_name) && files_join(moved, to, e->d_name, NULL) == 0)
            rename(path, moved);
    }
    if (dir)
        closedir(dir);
    rmdir(folder);
}

/* Moves the old folder aside until the new one has its name. */
static int put_in_place(const char *folder, const char *out, struct fsdpck_error *err)
{
    char old[FILES_PATH + 8];
    snprintf(old, sizeof old, "%s.old", out);
    remove_folder(old, access(out, F_OK) == 0 ? out : folder); /* left over from a run that was killed here */
    bool replaces = rename(out, old) == 0;
    if (rename(folder, out)) {
        int failed = errno;
        if (replaces)
            rename(old, out);
        return fsdpck_error_sys(err, failed, out, "rename");
    }
    if (replaces)
        remove_folder(old, out);
    return 0;
}

int adapter_export(const struct job *job, uint64_t step, const char *checkpoint, const char *out,
                   struct fsdpck_error *err)
{
    char folder[FILES_PATH + 8], file[FILES_PATH];
    struct fsdpck_source *src = NULL;
    snprintf(folder, sizeof folder, "%s.tmp", out);
    int rc = files_join(file, folder, "adapter_model.safetensors", err);
    if (rc)
        return rc;
    remove_folder(folder, NULL);
    if (mkdir(folder, 0777) && errno != EEXIST) /* exists if it holds files of others; these move along */
        return fsdpck_error_sys(err, errno, folder, "mkdir");
    char *settings = job->config->pipeline ? settings_for_diffusers(job) : NULL;
    if (job->config->pipeline && !settings)
        return fsdpck_error_nomem(err, sizeof *settings);
    const struct fsdpck_export_request req = { .out = file,
                                               .select = { .tree = "model" },
                                               .force = true,
                                               .metadata_key = settings ? "lora_adapter_metadata" : NULL,
                                               .metadata_value = settings };
    rc = fsdpck_source_open(checkpoint, "fsdpck", &job->fs, &src, err);
    if (!rc)
        rc = fsdpck_export(src, &req, &job->fs, NULL, err);
    fsdpck_source_close(src);
    free(settings);
    if (!rc)
        rc = write_config(job, folder, err);
    if (!rc && job->data)
        rc = card_write(job, step, folder, out, err);
    if (!rc)
        rc = sync_path(folder, err);
    if (!rc)
        rc = put_in_place(folder, out, err);
    if (rc)
        remove_folder(folder, NULL);
    return rc;
}

/* Keys that change the maths and that this trainer does not support: the value must be the one that disables them. */
static bool is_off(const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_string(value) && strcmp(json_string_value(value), "none") == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

/* Rejects values that change the meaning of A and B, or of copies. */
static int check_meaning(const json_t *theirs, const char *path, struct fsdpck_error *err)
{
    static const char *const moved[] = { "pissa", "olora", "corda", "lora_ga", "loftq" };
    const char *init = json_string_value(json_object_get(theirs, "init_lora_weights"));
    for (size_t i = 0; init && i < sizeof moved / sizeof *moved; i++)
        if (strncmp(init, moved[i], strlen(moved[i])) == 0) {
            fsdpck_error_set(
                err, FSDPCK_ERR_UNSUPPORTED, path,
                "key 'init_lora_weights' is \"%.40s\": it changes the base's weights, so that the adapter fits no "
                "published base",
                init);
            fsdpck_error_hint(
                err, "let PEFT convert it first: save_pretrained(path_initial_model_for_weight_conversion=...)");
            return err->code;
        }
    if (!is_off(json_object_get(theirs, "ensure_weight_tying")) && !is_off(json_object_get(theirs, "modules_to_save")))
        return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, path,
                                "key 'ensure_weight_tying' is not supported with modules_to_save: copies are not tied");
    return 0;
}

/* The factors of all experts lie in more than one order in files of the same names. */
static int check_writer(const json_t *theirs, const char *path, struct fsdpck_error *err)
{
    const char *writer = json_string_value(json_object_get(theirs, "peft_version"));
    if (is_off(json_object_get(theirs, "target_parameters")) || (writer && !fsdpck_lora_writer_swaps(writer)))
        return 0;
    fsdpck_error_set(
        err, FSDPCK_ERR_UNSUPPORTED, path,
        "key 'target_parameters': the adapter was written by %s%.40s; the form of PEFT " FSDPCK_LORA_FUSED_VERSION
        " and later is supported",
        writer ? "PEFT " : "no known release of PEFT", writer ? writer : "");
    fsdpck_error_hint(err, "fsdpck export-lora --style peft-fused writes it so");
    return err->code;
}

bool adapter_is_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static int read_of_file(const char *file, char path[ADAPTER_PATH], json_t **out, struct fsdpck_error *err)
{
    struct fsdpck_source *src;
    char *text;
    int rc = fsdpck_lora_open_file(file, NULL, &src, &text, err);
    if (!rc && !(*out = json_loads(text, 0, NULL)))
        rc = fsdpck_error_nomem(err, strlen(text));
    snprintf(path, ADAPTER_PATH, "%s", file);
    fsdpck_source_close(src);
    free(text);
    return rc;
}

static int read_of_folder(const char *folder, char path[ADAPTER_PATH], json_t **out, struct fsdpck_error *err)
{
    int rc = files_join(path, folder, "assets/adapter_config.json", err);
    if (!rc && access(path, F_OK) != 0) /* not a checkpoint */
        rc = files_join(path, folder, "adapter_config.json", err);
    if (!rc && (rc = text_file_json(path, out, err)))
        fsdpck_error_hint(err, "an adapter is a PEFT folder, such as OUTPUT_DIR/adapter, a checkpoint of a LoRA run, "
                               "or of FLUX.2 one .safetensors file");
    return rc;
}

int adapter_config_read(const char *folder, char path[ADAPTER_PATH], json_t **out, struct fsdpck_error *err)
{
    static const char *const refused[] = { "bias",
                                           "fan_in_fan_out",
                                           "lora_bias",
                                           "layer_replication",
                                           "layers_to_transform",
                                           "layers_pattern",
                                           "trainable_token_indices",
                                           "use_qalora",
                                           "use_bdlora",
                                           "kasa_config",
                                           "velora_config",
                                           "monteclora_config",
                                           "arrow_config",
                                           "alora_invocation_tokens",
                                           "exclude_modules" };
    json_t *theirs = NULL;
    *out = NULL;
    int rc =
        adapter_is_file(folder) ? read_of_file(folder, path, &theirs, err) : read_of_folder(folder, path, &theirs, err);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0] && !rc; i++) {
        if (!is_off(json_object_get(theirs, refused[i])))
            rc = fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, path, "key '%s' is not supported", refused[i]);
    }
    if (!rc)
        rc = check_meaning(theirs, path, err);
    if (!rc)
        rc = check_writer(theirs, path, err);
    if (rc)
        json_decref(theirs);
    else
        *out = theirs;
    return rc;
}

int adapter_put_lora(const char *folder, json_t *root, struct fsdpck_error *err)
{
    static const char *const keys[] = { "r",
                                        "lora_alpha",
                                        "use_rslora",
                                        "target_modules",
                                        "target_parameters",
                                        "rank_pattern",
                                        "alpha_pattern",
                                        "modules_to_save",
                                        "use_dora" };
    char path[ADAPTER_PATH];
    json_t *theirs, *lora = json_pack("{s:s, s:i, s:i}", "init_adapter", folder, "r", 8, "lora_alpha", 8);
    int rc = lora ? adapter_config_read(folder, path, &theirs, err) : fsdpck_error_nomem(err, strlen(folder));
    if (rc) {
        json_decref(lora);
        return rc;
    }
    const char *type = json_string_value(json_object_get(theirs, "peft_type"));
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        json_t *value = json_object_get(theirs, keys[i]);
        if (value && !json_is_null(value))
            json_object_set(lora, keys[i], value);
    }
    if (type && strcmp(type, "LORA") != 0)
        rc = fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, path, "key 'peft_type' is \"%.40s\"; only LORA is supported",
                              type);
    else if (!json_object_get(lora, "target_modules") && json_object_get(lora, "target_parameters"))
        json_object_set_new(lora, "target_modules", json_array());
    else if (!json_object_get(lora, "target_modules"))
        rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, path, "key 'target_modules' is missing");
    json_decref(theirs);
    json_object_set_new(root, "lora", lora);
    return rc;
}

int adapter_check_start(const struct train_config *config, struct fsdpck_error *err)
{
    static const char *const same[] = { "r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern" };
    char path[ADAPTER_PATH];
    json_t *theirs;
    int rc = adapter_config_read(config->lora.init_adapter, path, &theirs, err);
    if (rc)
        return rc;
    json_t *ours = settings_of(config);
    for (size_t i = 0; i < sizeof same / sizeof same[0] && !rc; i++) {
        json_t *a = json_object_get(theirs, same[i]), *b = json_object_get(ours, same[i]);
        bool equal = json_is_number(a) && json_is_number(b) ? json_number_value(a) == json_number_value(b)
                                                            : json_equal(a, b) || (is_off(a) && is_off(b));
        if (!equal)
            rc = fsdpck_error_set(err, FSDPCK_ERR_USAGE, path, "its '%s' is not that of the config's lora.%s", same[i],
                                  same[i]);
    }
    json_decref(theirs);
    json_decref(ours);
    return rc;
}
