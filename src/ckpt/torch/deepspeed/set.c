/* SPDX-License-Identifier: Apache-2.0 */
#include "torch/deepspeed/set.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"

enum { MAX_TAG_NBYTES = 255 };

enum file_kind { OTHER, STATES, RANK_STATES, OPTIM, EXPERT, PIPELINE };

/* What a file's name says. */
struct name {
    uint64_t rank, part; /* part: the model-parallel rank */
    bool in_layer;
    uint64_t layer, expert;
};

static bool take(const char **s, const char *text)
{
    size_t n = strlen(text);
    bool there = strncmp(*s, text, n) == 0;
    *s += there ? n : 0;
    return there;
}

static bool take_number(const char **s, uint64_t *out)
{
    const char *begin = *s;
    for (*out = 0; **s >= '0' && **s <= '9' && *out <= FSDPCK_MAX_RANKS; ++*s)
        *out = *out * 10 + (uint64_t)(**s - '0');
    return *s > begin && *out <= FSDPCK_MAX_RANKS;
}

/* expert_E_mp_rank_MM_model_states.pt, with layer_L_ before it if there are several layers of experts; and
 * layer_LL-model_MM-model_states.pt of a pipeline. */
static enum file_kind parse_split(const char *s, struct name *n)
{
    n->in_layer = take(&s, "layer_");
    if (n->in_layer && !take_number(&s, &n->layer))
        return OTHER;
    if (n->in_layer && take(&s, "-model_"))
        return PIPELINE;
    return (!n->in_layer || take(&s, "_")) && take(&s, "expert_") && take_number(&s, &n->expert) &&
                   take(&s, "_mp_rank_") && take_number(&s, &n->part) && strcmp(s, "_model_states.pt") == 0
               ? EXPERT
               : OTHER;
}

static enum file_kind parse(const char *name, struct name *n)
{
    const char *s = name;
    *n = (struct name){ .rank = 0 };
    if (strncmp(name, "layer_", 6) == 0 || strncmp(name, "expert_", 7) == 0)
        return parse_split(name, n);
    if (take(&s, "mp_rank_"))
        return take_number(&s, &n->part) && strcmp(s, "_model_states.pt") == 0 ? STATES : OTHER;
    if (!take(&s, "bf16_"))
        take(&s, "fp16_");
    if (!take(&s, "zero_pp_rank_") || !take_number(&s, &n->rank) || !take(&s, "_mp_rank_") ||
        !take_number(&s, &n->part))
        return OTHER;
    if (strcmp(s, "_optim_states.pt") == 0)
        return OPTIM;
    return strcmp(s, "_model_states.pt") == 0 && strncmp(name, "zero", 4) == 0 ? RANK_STATES : OTHER;
}

bool fsdpck_deepspeed_is(const char *name)
{
    struct name n;
    enum file_kind kind = parse(name, &n);
    return kind == STATES || kind == RANK_STATES;
}

/* ---- the folder ---- */

static bool has_states(char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (fsdpck_deepspeed_is(names[i]))
            return true;
    return false;
}

bool fsdpck_deepspeed_names_tag(const char *name)
{
    return strcmp(name, "latest") == 0 || strcmp(name, "latest_universal") == 0;
}

/* Returns the folder that the file `latest` names, if it holds model states. */
static char *read_tag(const struct fsdpck_source *src, const char *folder, const char *latest)
{
    struct fsdpck_error ignored = { 0 };
    char *path = fsdpck_path_join(folder, latest, &ignored), *tag = NULL, *below = NULL, **names = NULL;
    uint64_t nbytes = 0;
    size_t count = 0;
    if (path && fsdpck_is_file(src->io, path) &&
        fsdpck_read_file(src->io, path, MAX_TAG_NBYTES, &tag, &nbytes, &ignored) == 0) {
        tag[strcspn(tag, "\r\n")] = '\0';
        if (*tag && !strchr(tag, '/') && fsdpck_path_is_plain(tag))
            below = fsdpck_path_join(folder, tag, &ignored);
    }
    if (below && (fsdpck_list_sorted(src->io, below, &names, &count, &ignored) != 0 || !has_states(names, count))) {
        free(below);
        below = NULL;
    }
    fsdpck_list_free(names, count);
    free(tag);
    free(path);
    return below;
}

char *fsdpck_deepspeed_tag(const struct fsdpck_source *src, const char *folder)
{
    char *below = read_tag(src, folder, "latest");
    return below ? below : read_tag(src, folder, "latest_universal");
}

/* ---- the files ---- */

static int put(const struct ds_set *s, const char **files, uint64_t i, const char *name, struct fsdpck_error *err)
{
    if (files[i])
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, s->folder, "holds rank %" PRIu64 " twice: '%s' and '%s'", i,
                                files[i], name);
    files[i] = name;
    return 0;
}

/* Slices are joined where DeepSpeed has done it: it knows along which dimension each parameter is cut. */
static int refuse_part(const struct ds_set *s, const char *name, enum file_kind kind, struct fsdpck_error *err)
{
    fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, s->folder,
                     "holds '%s', a part of a model that is cut by %s: such parts are not joined", name,
                     kind == PIPELINE ? "a pipeline" : "tensor parallelism");
    fsdpck_error_hint(err, kind == PIPELINE
                               ? "save it without a pipeline"
                               : "make a universal checkpoint of it: python -m "
                                 "deepspeed.checkpoint.ds_to_universal --input_folder … --output_folder …");
    return err->code;
}

/* Experts are numbered from 0 on, in each layer, and so are their layers. */
static int check_expert(const struct ds_set *s, const struct name *n, struct fsdpck_error *err)
{
    char wanted[120], layer[32] = "";
    uint64_t expert = n->expert, in = n->layer;
    if (!expert && !in)
        return 0;
    if (expert)
        expert--;
    else
        in--;
    if (n->in_layer)
        snprintf(layer, sizeof layer, "layer_%" PRIu64 "_", in);
    snprintf(wanted, sizeof wanted, "%sexpert_%" PRIu64 "_mp_rank_00_model_states.pt", layer, expert);
    for (size_t i = 0; i < s->nnames; i++)
        if (strcmp(s->names[i], wanted) == 0)
            return 0;
    return fsdpck_error_set(err, FSDPCK_ERR_MISSING, s->folder, "holds files of other experts, and not '%s'", wanted);
}

static int count_files(struct ds_set *s, struct fsdpck_error *err)
{
    uint64_t nstates = 0, nparts = 1, noptim = 0;
    struct name n;
    bool whole = false;
    for (size_t i = 0; i < s->nnames; i++) {
        enum file_kind kind = parse(s->names[i], &n);
        if (kind == PIPELINE || (n.part > 0 && kind != OTHER && !(kind == STATES && s->universal)))
            return refuse_part(s, s->names[i], kind, err);
        whole |= kind == STATES;
        s->stage3 |= kind == RANK_STATES;
        if (kind == STATES && n.part >= nparts)
            nparts = n.part + 1;
        if (kind == RANK_STATES && n.rank >= nstates)
            nstates = n.rank + 1;
        if (kind == OPTIM && n.rank >= noptim)
            noptim = n.rank + 1;
        if (kind == EXPERT && check_expert(s, &n, err) != 0)
            return err->code;
        s->nexperts += kind == EXPERT;
    }
    if (whole && s->stage3)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, s->folder,
                                "holds model states of ZeRO-3 and of another stage: files of two saves");
    s->sliced = nparts > 1;
    s->nstates = (uint32_t)(s->stage3 ? nstates : nparts);
    s->nranks = (uint32_t)noptim;
    if (s->nexperts && (s->stage3 || s->universal))
        return fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, s->folder,
                                "holds files of experts beside %s, which are not read together",
                                s->stage3 ? "model states of ZeRO-3" : "'" FSDPCK_DS_UNIVERSAL "/'");
    if (s->universal && noptim)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, s->folder,
                                "holds partitions and '" FSDPCK_DS_UNIVERSAL "/': files of two saves");
    if (s->stage3 && !s->universal && nstates != noptim)
        return fsdpck_error_set(err, FSDPCK_ERR_MISSING, s->folder,
                                "holds model states of %" PRIu64 " rank%s and partitions of %" PRIu64
                                ": the weights of ZeRO-3 are in the partitions of all ranks",
                                nstates, fsdpck_plural(nstates), noptim);
    return 0;
}

static int check_all_there(const struct ds_set *s, const char **files, uint32_t count, const char *what,
                           struct fsdpck_error *err)
{
    for (uint32_t i = 0; i < count; i++)
        if (!files[i])
            return fsdpck_error_set(err, FSDPCK_ERR_MISSING, s->folder,
                                    "rank %u is missing: its %s file is not there, that of rank %u is", i, what,
                                    count - 1);
    return 0;
}

int fsdpck_ds_set_list(struct ds_set *s, const struct fsdpck_source *src, struct fsdpck_error *err)
{
    struct name n;
    uint32_t nexperts = 0;
    if (!(s->folder = fsdpck_deepspeed_tag(src, src->path)) && !(s->folder = strdup(src->path)))
        return fsdpck_error_nomem(err, strlen(src->path));
    int rc = fsdpck_list_sorted(src->io, s->folder, &s->names, &s->nnames, err);
    if (!rc && !has_states(s->names, s->nnames))
        rc = fsdpck_error_set(err, FSDPCK_ERR_MISSING, s->folder, "has no file of DeepSpeed's model states");
    for (size_t i = 0; !rc && i < s->nnames; i++)
        s->universal |= strcmp(s->names[i], FSDPCK_DS_UNIVERSAL) == 0;
    if (rc || (rc = count_files(s, err)))
        return rc;
    s->states = calloc(s->nstates, sizeof *s->states);
    s->optim = calloc(s->nranks ? s->nranks : 1, sizeof *s->optim);
    s->experts = calloc(s->nexperts ? s->nexperts : 1, sizeof *s->experts);
    if (!s->states || !s->optim || !s->experts)
        return fsdpck_error_nomem(err, s->nranks * sizeof *s->optim);
    for (size_t i = 0; !rc && i < s->nnames; i++) {
        enum file_kind kind = parse(s->names[i], &n);
        if (kind == STATES || kind == RANK_STATES)
            rc = put(s, s->states, kind == STATES ? n.part : n.rank, s->names[i], err);
        else if (kind == OPTIM)
            rc = put(s, s->optim, n.rank, s->names[i], err);
        else if (kind == EXPERT)
            s->experts[nexperts++] = s->names[i];
    }
    if (!rc)
        rc = check_all_there(s, s->states, s->nstates, "model_states", err);
    return rc ? rc : check_all_there(s, s->optim, s->nranks, "optim_states", err);
}

void fsdpck_ds_set_free(struct ds_set *s)
{
    fsdpck_list_free(s->names, s->nnames);
    free(s->folder);
    free(s->states);
    free(s->optim);
    free(s->experts);
}
