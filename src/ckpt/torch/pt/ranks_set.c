/* SPDX-License-Identifier: Apache-2.0 */
#include "torch/pt/ranks_set.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/ioutil.h"

enum { MAX_KINDS = 256 }; /* items of one checkpoint */

/* ---- names ---- */

/* What a file's name says. */
struct name {
    size_t nbytes;         /* of the kind, with which it begins */
    uint64_t rank, nranks; /* nranks 0: not said */
};

/* Parses decimal digits at *s and advances *s; false if there are none, or too many. */
static bool take_number(const char **s, uint64_t *out)
{
    const char *begin = *s;
    for (*out = 0; **s >= '0' && **s <= '9' && *out <= FSDPCK_MAX_RANKS; ++*s)
        *out = *out * 10 + (uint64_t)(**s - '0');
    return *s > begin && *out <= FSDPCK_MAX_RANKS;
}

static bool take_text(const char **s, const char *text)
{
    size_t n = strlen(text);
    bool there = !strncmp(*s, text, n);
    *s += there ? n : 0;
    return there;
}

/* model_world_size_N_rank_R.pt */
static bool parse_world(const char *file, struct name *out)
{
    static const char *const kinds[] = { "model", "optim", "extra_state" };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const char *s = file;
        out->nbytes = strlen(kinds[i]);
        if (take_text(&s, kinds[i]) && take_text(&s, "_world_size_") && take_number(&s, &out->nranks) &&
            take_text(&s, "_rank_") && take_number(&s, &out->rank) && !strcmp(s, ".pt"))
            return true;
    }
    return false;
}

/* ITEM_R.pt */
static bool parse_item(const char *file, struct name *out)
{
    const char *last = strrchr(file, '_'), *s = last ? last + 1 : "";
    out->nbytes = last ? (size_t)(last - file) : 0;
    out->nranks = 0;
    return out->nbytes > 0 && file[0] != '.' && take_number(&s, &out->rank) && !strcmp(s, ".pt");
}

bool fsdpck_ranks_is(const char *name)
{
    struct name n;
    return parse_world(name, &n) && n.nbytes == strlen("model");
}

bool fsdpck_ranks_are_items(char *const *names, size_t count)
{
    struct name n;
    size_t nfirst = 0;
    bool metadata = false;
    for (size_t i = 0; i < count; i++) {
        const size_t nbytes = strlen(names[i]);
        metadata |= strcmp(names[i], "metadata.pkl") == 0;
        if (nbytes < 3 || strcmp(names[i] + nbytes - 3, ".pt") != 0)
            continue;
        if (!parse_item(names[i], &n))
            return false;
        nfirst += n.rank == 0;
    }
    return nfirst > 1 || (nfirst == 1 && metadata);
}

/* ---- the set ---- */

static struct ranks_kind *kind_at(const struct ranks_set *s, size_t i)
{
    return (struct ranks_kind *)s->kinds.data + i;
}

/* Returns the kind of a file, new or known; NULL after a failure. */
static struct ranks_kind *find_kind(struct ranks_set *s, const char *name, size_t nbytes, struct fsdpck_error *err)
{
    for (size_t i = 0; i < s->kinds.count; i++)
        if (strlen(kind_at(s, i)->name) == nbytes && memcmp(kind_at(s, i)->name, name, nbytes) == 0)
            return kind_at(s, i);
    if (s->kinds.count == MAX_KINDS) {
        fsdpck_error_set(err, FSDPCK_ERR_LIMIT, s->folder, "holds files of more than %d items", MAX_KINDS);
        return NULL;
    }
    char *copy = fsdpck_arena_strndup(&s->arena, name, nbytes, err);
    const char **files = copy ? fsdpck_arena_array(&s->arena, s->nranks, sizeof *files, err) : NULL;
    struct ranks_kind *k = files ? fsdpck_vec_push(&s->kinds, err) : NULL;
    if (!k)
        return NULL;
    memset(files, 0, s->nranks * sizeof *files);
    const bool same = !strcmp(copy, "model") || !strncmp(copy, "optim", strlen("optim"));
    *k = (struct ranks_kind){ .name = copy, .per_rank = !same, .files = files };
    return k;
}

/* first: of the files that gave the number of ranks. */
static int list_file(struct ranks_set *s, const char *file, const struct name *n, const char *first,
                     struct fsdpck_error *err)
{
    if (n->nranks && n->nranks != s->nranks)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, s->folder, "holds files of two worlds: '%s' and '%s'", first,
                                file);
    if (n->rank >= s->nranks)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, s->folder,
                                "holds '%s', and a world of %" PRIu64 " ranks has no rank %" PRIu64, file, s->nranks,
                                n->rank);
    struct ranks_kind *k = find_kind(s, file, n->nbytes, err);
    if (!k)
        return err->code;
    if (k->files[n->rank])
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, s->folder, "holds rank %" PRIu64 " twice: '%s' and '%s'",
                                n->rank, k->files[n->rank], file);
    k->files[n->rank] = file;
    return 0;
}

static int check_all_there(const struct ranks_set *s, bool worlds, struct fsdpck_error *err)
{
    for (size_t i = 0; i < s->kinds.count; i++)
        for (uint64_t rank = 0; rank < s->nranks; rank++) {
            char wanted[300];
            if (kind_at(s, i)->files[rank])
                continue;
            if (worlds)
                snprintf(wanted, sizeof wanted, "%s_world_size_%" PRIu64 "_rank_%" PRIu64, kind_at(s, i)->name,
                         s->nranks, rank);
            else
                snprintf(wanted, sizeof wanted, "%s_%" PRIu64, kind_at(s, i)->name, rank);
            return fsdpck_error_set(err, FSDPCK_ERR_MISSING, s->folder,
                                    "rank %" PRIu64 " is missing: '%s.pt' is not there", rank, wanted);
        }
    return 0;
}

int fsdpck_ranks_set_list(struct ranks_set *s, const struct fsdpck_source *src, struct fsdpck_error *err)
{
    const char *first = NULL;
    struct name n;
    bool worlds = false;
    *s = (struct ranks_set){ .folder = src->path, .kinds = FSDPCK_VEC(struct ranks_kind) };
    int rc = fsdpck_list_sorted(src->io, src->path, &s->names, &s->nnames, err);
    for (size_t i = 0; i < s->nnames && !worlds; i++)
        if ((worlds = parse_world(s->names[i], &n))) {
            first = s->names[i];
            s->nranks = n.nranks;
        }
    bool (*parse)(const char *, struct name *) = worlds ? parse_world : parse_item;
    for (size_t i = 0; i < s->nnames && !worlds; i++)
        if (parse(s->names[i], &n) && n.rank >= s->nranks)
            s->nranks = n.rank + 1;
    for (size_t i = 0; i < s->nnames && !rc; i++)
        if (parse(s->names[i], &n))
            rc = list_file(s, s->names[i], &n, first, err);
    if (!rc && !s->kinds.count)
        rc = fsdpck_error_set(err, FSDPCK_ERR_MISSING, src->path,
                              "has no file model_world_size_N_rank_R.pt, and none of an item, ITEM_R.pt");
    return rc ? rc : check_all_there(s, worlds, err);
}

void fsdpck_ranks_set_free(struct ranks_set *s)
{
    fsdpck_list_free(s->names, s->nnames);
    fsdpck_vec_free(&s->kinds);
    fsdpck_arena_free(&s->arena);
}
