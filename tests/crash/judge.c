/* SPDX-License-Identifier: Apache-2.0 */
/* Judges the result of a verb (verbs.h): the old state, the new one, or neither, and which temporaries are cleaned. */
#include "verbs_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdpck/check.h>

#include "tree.h"

static const struct model *new_model(const struct verb *v, const struct ground *g)
{
    return v->kind == VERB_EXPORT_LORA ? &g->adapter_is : &g->is;
}
static const struct model *old_model(const struct verb *v, const struct ground *g)
{
    return (v->old_from != NULL ? v->old_is_adapter : v->kind == VERB_EXPORT_LORA) ? &g->adapter_was : &g->was;
}

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
    char *path = tree_path(out, "adapter_config.json"),
         *own =
             tree_path(g->top, new ? "new-lora/adapter/adapter_config.json" : "old-lora/adapter/adapter_config.json");
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
    bool of_old = strcmp(who, "old") == 0 && v->old_from != NULL;
    if (of_old ? v->old_is_adapter : v->kind == VERB_EXPORT_LORA)
        return has_adapter_config(g, out, strcmp(who, "new") == 0);
    if (of_old ? !v->old_is_folder : !verb_is_folder(v)) /* a checkpoint contains a hash of it, a file does not */
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

enum verb_state verb_state(const struct verb *v, const struct ground *g, const char *root, bool cleaned,
                           const char **why)
{
    struct fsdpck_error err = { 0 };
    const struct fsdpck_options opt = verb_options(NULL, 1);
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
    } else if (verifies(out, &opt)) { /* left-overs are no damage */
        const char *differs = model_differs(new_model(v, g), src, &err);
        if (differs == NULL && v->reference != (fsdpck_source_base(src) != NULL))
            snprintf(what, sizeof what, "its base is not named");
        else if (differs == NULL && (!strict || has_config(v, g, out, "new")))
            state = STATE_NEW;
        else if (differs != NULL && model_differs(old_model(v, g), src, &err) == NULL &&
                 (!strict || has_config(v, g, out, "old")))
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
    char *names = ground_names(root);
    bool same = strcmp(names, state == STATE_NEW ? g->new_names : g->old_names) == 0;
    free(names);
    return same;
}

static const char *other_boot;

static int open_other_boot(void *ctx, const char *path, int flags, unsigned mode)
{
    return fsdpck_io_posix.open(ctx, strcmp(path, "/proc/sys/kernel/random/boot_id") == 0 ? other_boot : path, flags,
                                mode);
}

static void count(void *ctx, const struct fsdpck_leftover *l)
{
    struct verb_leftovers *seen = ctx;
    seen->nfound++;
    seen->nalive += l->alive;
    seen->nremoved += l->removed;
}

int verb_clean(const struct verb *v, const struct ground *g, const char *root, bool remove, bool rebooted,
               struct verb_leftovers *seen, struct fsdpck_error *err)
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
    int rc = fsdpck_leftovers(out, remove ? FSDPCK_CLEAN_DEAD : FSDPCK_CLEAN_NOTHING, &opt, count, seen, err);
    free(out);
    return rc;
}
