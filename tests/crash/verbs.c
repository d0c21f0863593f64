/* Runs whole verbs and judges what they leave (verbs.h). Uses the public side of the library only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "verbs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdpck/check.h>
#include <fsdpck/export.h>
#include <fsdpck/lora.h>

#include "base/hash.h"
#include "ranks.h"
#include "tree.h"

enum { OLD_RANKS = 3, CUT_NBYTES = 160 << 10 };
#define MEMORY_NBYTES (16ull << 20) /* one worker a thread */

/* Fsyncs that no crash needs: the folder's own after its assets were written (the commit does it again), and the one after which an exchange is
 * undone where it fails. An adapter's folder has nothing written to it between the two, so either will do; and as
 * its files keep their names, none of the old one's is removed in place, and the fsync after that has nothing to do. */
enum { SPARE_FOLDER = 1 << 4, SPARE_UNDO = 1 << 2, SPARE_ONE_OF_TWO = 1 << 3 | 1 << 4, SPARE_IN_PLACE = 1 << 3 | 1 << 8 };

const struct verb verbs[] = {
    { .name = "convert", .kind = VERB_CONVERT, .nranks = 2 },
    { .name = "convert --force", .kind = VERB_CONVERT, .nranks = 2, .old = true },
    { .name = "convert --force, in steps", .kind = VERB_CONVERT, .nranks = 2, .old = true, .no_exchange = true },
    { .name = "convert --force, in place", .kind = VERB_CONVERT, .nranks = 2, .old = true, .mount = true },
    { .name = "convert --compress", .kind = VERB_CONVERT, .nranks = 2, .compress = true },
    { .name = "reshard", .kind = VERB_RESHARD, .nranks = 2 },
    { .name = "reshard --compress --force, in place", .kind = VERB_RESHARD, .nranks = 2, .old = true, .mount = true, .compress = true },
    { .name = "reshard, with a base", .kind = VERB_RESHARD, .nranks = 2, .reference = true },
    { .name = "export", .kind = VERB_EXPORT_FOLDER, .nranks = 1, .spare_fsyncs = SPARE_FOLDER },
    { .name = "export --force", .kind = VERB_EXPORT_FOLDER, .nranks = 1, .old = true, .spare_fsyncs = SPARE_FOLDER },
    { .name = "export --force, in place", .kind = VERB_EXPORT_FOLDER, .nranks = 1, .old = true, .mount = true, .spare_fsyncs = SPARE_FOLDER },
    { .name = "export to a file", .kind = VERB_EXPORT_FILE, .nranks = 1 },
    { .name = "export to a file, --force", .kind = VERB_EXPORT_FILE, .nranks = 1, .old = true, .spare_fsyncs = SPARE_UNDO },
    { .name = "export-lora", .kind = VERB_EXPORT_LORA, .nranks = 1, .spare_fsyncs = SPARE_ONE_OF_TWO },
    { .name = "export-lora --force, in place", .kind = VERB_EXPORT_LORA, .nranks = 1, .old = true, .mount = true, .spare_fsyncs = SPARE_IN_PLACE },
    { .name = "merge-lora", .kind = VERB_MERGE_LORA, .nranks = 1, .spare_fsyncs = SPARE_FOLDER },
    { .name = "merge-lora --force", .kind = VERB_MERGE_LORA, .nranks = 1, .old = true, .spare_fsyncs = SPARE_FOLDER },
    { .name = "save", .kind = VERB_SAVE, .nranks = 2 },
    { .name = "save, with a base", .kind = VERB_SAVE, .nranks = 2, .old = true, .reference = true },
    { .name = "save over an old one", .kind = VERB_SAVE, .nranks = 3, .old = true },
    { .name = "save in place", .kind = VERB_SAVE, .nranks = 2, .old = true, .mount = true },
};
const size_t nverbs = sizeof verbs / sizeof verbs[0];

uint32_t verb_writers(const struct verb *v) { return v->kind == VERB_SAVE ? v->nranks : 1; }
const char *verb_out(const struct verb *v) { return v->kind == VERB_EXPORT_FILE ? "out.safetensors" : "out"; }

static bool is_folder(const struct verb *v) { return v->kind == VERB_EXPORT_FOLDER || v->kind == VERB_MERGE_LORA; }
static bool is_export(const struct verb *v) { return is_folder(v) || v->kind == VERB_EXPORT_FILE; }
static const struct model *new_model(const struct verb *v, const struct ground *g) { return v->kind == VERB_EXPORT_LORA ? &g->adapter_is : &g->is; }
static const struct model *old_model(const struct verb *v, const struct ground *g) { return v->kind == VERB_EXPORT_LORA ? &g->adapter_was : &g->was; }

void verb_fail(const struct verb *v, const char *root, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    char *names = tree_names(root);
    print_error("%s: %s; there is:\n%s", v->name, text, names);
    free(names);
    fail();
}

/* ---- models and sources */

static void make_numbers(struct model_tensor *t, float first)
{
    for (uint64_t i = 0; i < t->nelem; i++) {
        float v = first + (float)i;
        memcpy(t->data + i * sizeof v, &v, sizeof v);
    }
}

/* An adapter under the names that it will have in PEFT's file; for the tensor t2 of make_model, and where `first` is 0 one that changes nothing. */
static void make_adapter(struct model *m, float first)
{
    uint64_t seed = 1;
    struct model_tensor *a = model_add(m, &seed, FSDPCK_FLOAT32, 2, (uint64_t[]){ 2, 3 }), *b;
    make_numbers(a, first + 1);
    snprintf(a->name, sizeof a->name, "base_model.model.t2.lora_A.weight");
    b = model_add(m, &seed, FSDPCK_FLOAT32, 2, (uint64_t[]){ 5, 2 });
    make_numbers(b, first);
    if (first == 0)
        memset(b->data, 0, b->nbytes);
    snprintf(b->name, sizeof b->name, "base_model.model.t2.lora_B.weight");
}

/* One tensor that fills a direct write even in one piece, one whose halves are over the size that is aligned, and small ones. */
static void make_model(struct model *m, uint64_t seed)
{
    model_add(m, &seed, FSDPCK_FLOAT32, 2, (uint64_t[]){ 34, 1024 });
    model_add(m, &seed, FSDPCK_BFLOAT16, 2, (uint64_t[]){ 75, 1024 });
    make_numbers(model_add(m, &seed, FSDPCK_FLOAT32, 2, (uint64_t[]){ 5, 3 }), (float)seed); /* no NaN: a merge may quieten those */
    model_add(m, &seed, FSDPCK_FLOAT32, 0, NULL);
    model_add(m, &seed, FSDPCK_INT64, 1, (uint64_t[]){ 7 });
}

static struct fsdpck_options options(const struct fsdpck_io *io, unsigned nthreads)
{
    nthreads = nthreads > 0 ? nthreads : 1;
    return (struct fsdpck_options){ .io = io, .nthreads = nthreads, .memory_nbytes = nthreads * MEMORY_NBYTES };
}

static void must_do(int code, const struct fsdpck_error *err)
{
    if (code == 0)
        return;
    print_error("%s: %s\n", err->file, err->message);
    abort();
}

static int convert(const char *from, const char *out, uint32_t nranks, bool force, bool compress, const struct fsdpck_options *opt, struct fsdpck_error *err)
{
    static const char *const whole[] = { RANKS_REPLICATED };
    struct fsdpck_convert_request req = { .out = out, .mesh = { .ndim = 1, .names = { "shard" }, .sizes = { nranks } }, .replicate = whole,
                                          .nreplicate = 1, .force = force, .compress = compress };
    struct fsdpck_source *src = NULL;
    int rc = fsdpck_source_open(from, NULL, opt, &src, err);
    if (rc == 0)
        rc = fsdpck_convert(src, &req, opt, NULL, err);
    fsdpck_source_close(src);
    return rc;
}

static int export(const char *from, const char *out, bool force, const struct fsdpck_options *opt, struct fsdpck_error *err)
{
    const struct fsdpck_export_request req = { .out = out, .max_shard_nbytes = CUT_NBYTES, .force = force };
    struct fsdpck_source *src = NULL;
    int rc = fsdpck_source_open(from, NULL, opt, &src, err);
    if (rc == 0)
        rc = fsdpck_export(src, &req, opt, NULL, err);
    fsdpck_source_close(src);
    return rc;
}

/* The new adapter's scaling, and the old one's: adapter_config.json tells them apart. */
static const struct fsdpck_lora_choice scaling = { .has_alpha = true, .alpha = 2 }, old_scaling = { .has_alpha = true, .alpha = 3 };

static int export_lora(const char *from, const char *out, const struct fsdpck_lora_choice *choice, bool force, const struct fsdpck_options *opt, struct fsdpck_error *err)
{
    const struct fsdpck_export_lora_request req = { .out = out, .choice = *choice, .force = force };
    struct fsdpck_source *src = NULL;
    int rc = fsdpck_source_open(from, NULL, opt, &src, err);
    if (rc == 0)
        rc = fsdpck_export_lora(src, &req, opt, NULL, err);
    fsdpck_source_close(src);
    return rc;
}

static int merge_lora(const char *from, const char *adapter, const char *out, bool force, const struct fsdpck_options *opt, struct fsdpck_error *err)
{
    const struct fsdpck_merge_lora_request req = { .out = out, .choice = scaling, .max_shard_nbytes = CUT_NBYTES, .force = force };
    struct fsdpck_source *base = NULL, *lora = NULL;
    int rc = fsdpck_source_open(from, NULL, opt, &base, err);
    if (rc == 0)
        rc = fsdpck_source_open(adapter, NULL, opt, &lora, err);
    if (rc == 0)
        rc = fsdpck_merge_lora(base, lora, &req, opt, NULL, err);
    fsdpck_source_close(base);
    fsdpck_source_close(lora);
    return rc;
}

/* The adapter as a file, which is returned, and as a folder. */
static char *make_adapter_sources(const char *top, const char *name, const struct model *m, const struct fsdpck_lora_choice *choice)
{
    struct fsdpck_error err = { 0 };
    const struct fsdpck_io io = model_fast_io();
    const struct fsdpck_options opt = options(&io, 1);
    char *dir = tree_path(top, name), *out = tree_path(dir, "adapter");
    tree_dir(top, name);
    char *file = tree_path(dir, "lora.safetensors");
    model_write_safetensors(m, file);
    must_do(export_lora(file, out, choice, false, &opt, &err), &err);
    free(out);
    free(dir);
    return file;
}

/* A folder of the model, a checkpoint, and exports of it; the first two are returned. */
static void make_sources(const char *top, const char *who, const struct model *m, char **folder, char **checkpoint)
{
    struct fsdpck_error err = { 0 };
    const struct fsdpck_io io = model_fast_io();
    const struct fsdpck_options opt = options(&io, 1);
    char *dir = tree_path(top, who), config[64];
    snprintf(config, sizeof config, "{\"who\": \"%s\"}", who);
    tree_dir(dir, "folder");
    *folder = tree_path(dir, "folder");
    *checkpoint = tree_path(dir, "checkpoint");
    tree_file(*folder, "config.json", config);
    char *file = tree_path(*folder, "model.safetensors"), *exported = tree_path(dir, "export"), *one = tree_path(dir, "one.safetensors");
    model_write_safetensors(m, file);
    must_do(convert(*folder, *checkpoint, OLD_RANKS, false, false, &opt, &err), &err);
    must_do(export(*checkpoint, exported, false, &opt, &err), &err);
    must_do(export(*checkpoint, one, false, &opt, &err), &err);
    free(one);
    free(exported);
    free(file);
    free(dir);
}

/* A checkpoint that names the new folder as its base, by its first tensor. */
static void refer(struct ground *g)
{
    const struct fsdpck_options opt = options(NULL, 1);
    const struct verb_how how = { 0 };
    struct verb_result result = { 0 };
    const struct model_tensor *t = &g->is.tensors[0];
    struct fsdpck_content content = { 0 };
    for (uint64_t row = 0; row < t->shape[0]; row++)
        fsdpck_content_add_row(&content, t->data + row * (t->nbytes / t->shape[0]), t->nbytes / t->shape[0], row);
    g->base_tensor = (struct fsdpck_base_tensor){ .name = t->name, .dtype = t->dtype, .ndim = t->ndim, .shape = t->shape };
    fsdpck_content_store(&content, g->base_tensor.content);
    g->base = (struct fsdpck_base){ .path = g->folder, .tensors = &g->base_tensor, .ntensors = 1 };
    g->referring = tree_path(g->top, "referring");
    ranks_save(&g->is, g->referring, g->folder, &g->base, OLD_RANKS, &opt, &how, &result);
    for (int i = 0; i < OLD_RANKS; i++)
        must_do(result.code[i], &result.err[i]);
}

void ground_new(struct ground *g)
{
    char *folder, *checkpoint;
    memset(g, 0, sizeof *g);
    g->top = tree_new();
    g->root = tree_path(g->top, "root");
    g->crash = tree_path(g->top, "crash");
    g->boot = tree_path(g->top, "boot_id");
    tree_file(g->top, "boot_id", "22222222-2222-4222-9222-222222222222\n");
    make_model(&g->was, 1);
    make_model(&g->is, 2);
    make_sources(g->top, "old", &g->was, &folder, &checkpoint);
    make_sources(g->top, "new", &g->is, &g->folder, &g->checkpoint);
    free(folder);
    free(checkpoint);
    refer(g);
    struct model zero = { 0 };
    make_adapter(&g->adapter_was, 10);
    make_adapter(&g->adapter_is, 20);
    make_adapter(&zero, 0);
    free(make_adapter_sources(g->top, "old-lora", &g->adapter_was, &old_scaling));
    g->adapter = make_adapter_sources(g->top, "new-lora", &g->adapter_is, &scaling);
    g->no_change = make_adapter_sources(g->top, "zero-lora", &zero, &scaling);
    model_free(&zero);
}

void ground_free(struct ground *g)
{
    tree_remove(g->top);
    free(g->top);
    free(g->root);
    free(g->crash);
    free(g->boot);
    free(g->folder);
    free(g->checkpoint);
    free(g->referring);
    free(g->out);
    free(g->old_names);
    free(g->new_names);
    model_free(&g->was);
    model_free(&g->is);
    free(g->adapter);
    free(g->no_change);
    model_free(&g->adapter_was);
    model_free(&g->adapter_is);
}

struct ground ground;

int group_set_up(void **state)
{
    (void)state;
    ground_new(&ground);
    return 0;
}

int group_tear_down(void **state)
{
    (void)state;
    ground_free(&ground);
    return 0;
}

void ground_reset(const struct ground *g, const struct verb *v)
{
    tree_remove(g->root);
    tree_dir(g->top, "root");
    if (!v->old)
        return;
    char *from = tree_path(g->top, v->kind == VERB_EXPORT_FILE ? "old/one.safetensors" : v->kind == VERB_EXPORT_LORA ? "old-lora/adapter" : is_export(v) ? "old/export" : "old/checkpoint");
    char *to = tree_path(g->root, verb_out(v));
    tree_copy(from, to);
    free(from);
    free(to);
}

/* Save ids differ from run to run. */
static char *names_of(const char *root)
{
    uint8_t uuid[16];
    char *names = tree_names(root), text[37];
    for (char *p = names; strlen(p) >= 36; p++) {
        snprintf(text, sizeof text, "%s", p);
        if (fsdpck_uuid_parse(text, uuid)) {
            p[0] = 'U';
            memmove(p + 1, p + 36, strlen(p + 36) + 1);
        }
    }
    return names;
}

void ground_set_up(struct ground *g, const struct verb *v)
{
    struct faulty *f[VERB_MAX_RANKS];
    struct verb_how how = { .force = v->old };
    struct verb_result result;
    const char *why;
    free(g->out);
    free(g->old_names);
    free(g->new_names);
    g->out = tree_path(g->root, verb_out(v));
    ground_reset(g, v);
    g->old_names = names_of(g->root);
    verb_tables(v, g, f, &how);
    verb_run(v, g, &how, &result);
    for (uint32_t i = 0; i < verb_writers(v); i++) {
        if (result.code[i] != 0)
            verb_fail(v, g->root, "rank %u: %s: %s", i, result.err[i].file, result.err[i].message);
        g->nops[i] = faulty_nops(f[i]);
    }
    g->new_names = names_of(g->root);
    if (verb_state(v, g, g->root, true, &why) != STATE_NEW)
        verb_fail(v, g->root, "without any fault it does not end in the new state: %s", why);
    verb_tables_free(f);
}

/* ---- running */

void verb_tables(const struct verb *v, const struct ground *g, struct faulty **f, struct verb_how *how)
{
    for (uint32_t i = 0; i < VERB_MAX_RANKS; i++) {
        f[i] = i < verb_writers(v) ? faulty_new(g->root) : NULL;
        if (f[i] == NULL)
            continue;
        if (v->mount)
            faulty_other_device(f[i], g->out);
        if (v->no_exchange)
            faulty_no_exchange(f[i]);
        how->io[i] = faulty_io(f[i]);
    }
}

void verb_tables_free(struct faulty **f)
{
    for (int i = 0; i < VERB_MAX_RANKS; i++)
        faulty_free(f[i]);
}

void verb_run(const struct verb *v, const struct ground *g, const struct verb_how *how, struct verb_result *result)
{
    const struct fsdpck_options opt = options(how->io[0], how->nthreads);
    const char *out = g->out;
    memset(result, 0, sizeof *result);
    if (v->kind == VERB_SAVE)
        ranks_save(&g->is, out, g->folder, v->reference ? &g->base : NULL, v->nranks, &opt, how, result);
    else if (v->kind == VERB_EXPORT_LORA)
        result->code[0] = export_lora(g->adapter, out, &scaling, how->force, &opt, &result->err[0]);
    else if (v->kind == VERB_MERGE_LORA)
        result->code[0] = merge_lora(g->checkpoint, g->no_change, out, how->force, &opt, &result->err[0]);
    else if (is_export(v))
        result->code[0] = export(g->checkpoint, out, how->force, &opt, &result->err[0]);
    else
        result->code[0] = convert(v->reference ? g->referring : v->kind == VERB_RESHARD ? g->checkpoint : g->folder, out, v->nranks, how->force, v->compress, &opt,
                                  &result->err[0]);
}

bool verb_run_killed(const struct verb *v, const struct ground *g, uint32_t rank, unsigned n, unsigned nthreads, bool force)
{
    struct faulty *f[VERB_MAX_RANKS];
    struct verb_how how = { .nthreads = nthreads, .force = force };
    struct verb_result result;
    verb_tables(v, g, f, &how);
    faulty_kill_at(f[rank], n);
    how.mortal[rank] = f[rank];
    verb_run(v, g, &how, &result);
    bool killed = faulty_hit(f[rank]);
    verb_tables_free(f);
    return killed;
}

/* ---- judging */

static char what[1536];

static void keep_problem(void *ctx, const struct fsdpck_problem *p)
{
    (void)ctx;
    snprintf(what, sizeof what, "%s@%llu: %s", p->file, (unsigned long long)p->offset, p->what);
}

static bool verifies(const char *out, const struct fsdpck_options *opt)
{
    struct fsdpck_error err = { 0 };
    struct fsdpck_verify_result result;
    if (fsdpck_verify(out, NULL, false, opt, keep_problem, NULL, &result, &err) != 0) {
        snprintf(what, sizeof what, "verify: %s: %s", err.file, err.message);
        return false;
    }
    return result.nproblems == 0;
}

static bool has_adapter_config(const struct ground *g, const char *out, bool new)
{
    char *path = tree_path(out, "adapter_config.json"), *own = tree_path(g->top, new ? "new-lora/adapter/adapter_config.json" : "old-lora/adapter/adapter_config.json");
    char *dump = tree_dump(path), *want = tree_dump(own);
    bool same = strcmp(dump, want) == 0;
    if (!same)
        snprintf(what, sizeof what, "adapter_config.json is not that of the %s one", new ? "new" : "old");
    free(dump);
    free(want);
    free(path);
    free(own);
    return same;
}

static bool has_config(const struct verb *v, const struct ground *g, const char *out, const char *who)
{
    char want[64];
    if (v->kind == VERB_EXPORT_LORA)
        return has_adapter_config(g, out, strcmp(who, "new") == 0);
    if (!is_folder(v)) /* the checkpoint has its hash, a file has none */
        return true;
    snprintf(want, sizeof want, "={\"who\": \"%s\"}\n", who);
    char *path = tree_path(out, "config.json"), *dump = tree_dump(path);
    bool same = strcmp(dump, want) == 0;
    if (!same)
        snprintf(what, sizeof what, "config.json is not that of the %s one", who);
    free(dump);
    free(path);
    return same;
}

enum verb_state verb_state(const struct verb *v, const struct ground *g, const char *root, bool cleaned, const char **why)
{
    struct fsdpck_error err = { 0 };
    const struct fsdpck_options opt = options(NULL, 1);
    struct fsdpck_source *src = NULL;
    enum verb_state state = STATE_BROKEN;
    bool strict = cleaned || !v->mount;
    char *out = tree_path(root, verb_out(v));
    *why = what;
    what[0] = '\0';
    if (!tree_exists(root, verb_out(v))) {
        state = STATE_NONE;
    } else if (fsdpck_source_open(out, NULL, &opt, &src, &err) != 0) {
        snprintf(what, sizeof what, "%s: %s", err.file, err.message);
    } else if (!strict || verifies(out, &opt)) {
        const char *differs = model_differs(new_model(v, g), src, &err);
        if (differs == NULL && v->reference != (fsdpck_source_base(src) != NULL))
            snprintf(what, sizeof what, "its base is not named");
        else if (differs == NULL && (!strict || has_config(v, g, out, "new")))
            state = STATE_NEW;
        else if (differs != NULL && model_differs(old_model(v, g), src, &err) == NULL && (!strict || has_config(v, g, out, "old")))
            state = STATE_OLD;
        else if (differs != NULL)
            snprintf(what, sizeof what, "tensor '%s' is neither old nor new", differs);
    }
    fsdpck_source_close(src);
    free(out);
    return state;
}

bool verb_is_exactly(const struct ground *g, const char *root, enum verb_state state)
{
    char *names = names_of(root);
    bool same = strcmp(names, state == STATE_NEW ? g->new_names : g->old_names) == 0;
    free(names);
    return same;
}

/* ---- clearing up */

static const char *other_boot;

static int open_other_boot(void *ctx, const char *path, int flags, unsigned mode)
{
    return fsdpck_io_posix.open(ctx, strcmp(path, "/proc/sys/kernel/random/boot_id") == 0 ? other_boot : path, flags, mode);
}

static void count(void *ctx, const struct fsdpck_leftover *l)
{
    struct verb_leftovers *seen = ctx;
    seen->nfound++;
    seen->nalive += l->alive;
    seen->nremoved += l->removed;
}

int verb_clean(const struct verb *v, const struct ground *g, const char *root, bool remove, bool rebooted, struct verb_leftovers *seen,
               struct fsdpck_error *err)
{
    struct verb_leftovers none;
    struct fsdpck_io io = model_fast_io();
    const struct fsdpck_options opt = { .io = &io };
    char *out = tree_path(root, verb_out(v));
    seen = seen != NULL ? seen : &none;
    memset(seen, 0, sizeof *seen);
    if (rebooted) {
        other_boot = g->boot;
        io.open = open_other_boot;
    }
    int rc = fsdpck_leftovers(out, remove, &opt, count, seen, err);
    free(out);
    return rc;
}
