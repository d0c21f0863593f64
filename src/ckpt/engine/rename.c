/* SPDX-License-Identifier: Apache-2.0 */
/* Changes names without losing the nesting of PyTorch's state dicts. It handles one name at a time, and knows no
 * source. */
#include "engine/rename.h"

#include <stdio.h>
#include <string.h>

const char *fsdpck_key_text(const struct fsdpck_key *key, char buf[24])
{
    if (key->str)
        return key->str;
    snprintf(buf, 24, "%llu", (unsigned long long)key->position);
    return buf;
}

/* If `text` begins with the key and a dot, returns the rest; otherwise NULL. */
static const char *after_key(const char *text, const struct fsdpck_key *key)
{
    char buf[24];
    const char *k = fsdpck_key_text(key, buf);
    size_t n = strlen(k);
    return strncmp(text, k, n) == 0 && text[n] == '.' ? text + n + 1 : NULL;
}

uint32_t fsdpck_named_in_tree(const struct fsdpck_named *n, const char *tree)
{
    char buf[24];
    for (uint32_t i = 0; i + 1 < n->npath; i++) {
        if (strcmp(tree, fsdpck_key_text(&n->path[i], buf)) == 0)
            return i + 1;
        if (!(tree = after_key(tree, &n->path[i])))
            return 0;
    }
    return 0;
}

static char *join(struct fsdpck_arena *a, const struct fsdpck_key *path, uint32_t npath, struct fsdpck_error *err)
{
    char buf[24];
    size_t nbytes = 0;
    for (uint32_t i = 0; i < npath; i++)
        nbytes += strlen(fsdpck_key_text(&path[i], buf)) + 1;
    char *name = fsdpck_arena_alloc(a, nbytes + 1, err), *at = name;
    for (uint32_t i = 0; name && i < npath; i++) {
        if (i)
            *at++ = '.';
        at = stpcpy(at, fsdpck_key_text(&path[i], buf));
    }
    return name;
}

static bool is_joined(const struct fsdpck_named *n)
{
    char buf[24];
    const char *rest = n->name;
    for (uint32_t i = 0; i + 1 < n->npath; i++)
        if (!(rest = after_key(rest, &n->path[i])))
            return false;
    return strcmp(rest, fsdpck_key_text(&n->path[n->npath - 1], buf)) == 0;
}

/* Makes the name its only key. */
static int set_single(struct fsdpck_arena *a, struct fsdpck_named *out, const char *name, struct fsdpck_error *err)
{
    struct fsdpck_key *key = name ? fsdpck_arena_array(a, 1, sizeof *key, err) : NULL;
    if (!key)
        return FSDPCK_ERR_NOMEM;
    key->str = name;
    *out = (struct fsdpck_named){ name, key, 1 };
    return 0;
}

int fsdpck_named_drop(struct fsdpck_arena *a, struct fsdpck_named *n, uint32_t nkeys, struct fsdpck_error *err)
{
    if (nkeys == 0)
        return 0;
    n->path += nkeys;
    n->npath -= nkeys;
    if (n->npath > 1 || !n->path->str)
        n->name = join(a, n->path, n->npath, err);
    else
        n->name = n->path->str;
    return n->name ? 0 : FSDPCK_ERR_NOMEM;
}

static char *concat(struct fsdpck_arena *a, const char *s, size_t nbytes, const char *t, struct fsdpck_error *err)
{
    char *both = fsdpck_arena_alloc(a, nbytes + strlen(t) + 1, err);
    if (both) {
        memcpy(both, s, nbytes);
        strcpy(both + nbytes, t);
    }
    return both;
}

/* Replaces keys [keep, next) and the first nbytes_in bytes of key `next` by `to`. */
static int replace_keys(struct fsdpck_arena *a, struct fsdpck_named *n, uint32_t keep, uint32_t next, size_t nbytes_in,
                        const char *to, struct fsdpck_error *err)
{
    struct fsdpck_key *path = fsdpck_arena_array(a, (size_t)n->npath + 1, sizeof *path, err);
    char buf[24];
    size_t to_nbytes = strlen(to);
    uint32_t npath = keep;
    if (!path)
        return FSDPCK_ERR_NOMEM;
    memcpy(path, n->path, keep * sizeof *path);
    if (next > keep && nbytes_in == 0 && to_nbytes > 1 && to[to_nbytes - 1] == '.') { /* whole keys by a whole key */
        if (!(path[npath++].str = fsdpck_arena_strndup(a, to, to_nbytes - 1, err)))
            return FSDPCK_ERR_NOMEM;
    } else if (nbytes_in || to_nbytes) {
        if (!(path[npath++].str = concat(a, to, to_nbytes, fsdpck_key_text(&n->path[next], buf) + nbytes_in, err)))
            return FSDPCK_ERR_NOMEM;
        next++;
    }
    memcpy(path + npath, n->path + next, (n->npath - next) * sizeof *path);
    n->path = path;
    n->npath = npath + n->npath - next;
    n->name = join(a, n->path, n->npath, err);
    return n->name ? 0 : FSDPCK_ERR_NOMEM;
}

int fsdpck_named_replace_prefix(struct fsdpck_arena *a, struct fsdpck_named *n, const char *from, const char *to,
                                struct fsdpck_error *err)
{
    uint32_t keep = 0, next;
    const char *from_rest, *to_rest;
    if (!is_joined(n))
        return set_single(a, n, concat(a, to, strlen(to), n->name + strlen(from), err), err);
    while (keep + 1 < n->npath && (from_rest = after_key(from, &n->path[keep])) &&
           (to_rest = after_key(to, &n->path[keep]))) {
        from = from_rest;
        to = to_rest;
        keep++;
    }
    for (next = keep; next + 1 < n->npath && (from_rest = after_key(from, &n->path[next])); next++)
        from = from_rest;
    return replace_keys(a, n, keep, next, strlen(from), to, err);
}

int fsdpck_named_sibling(struct fsdpck_arena *a, const struct fsdpck_named *n, const char *name,
                         struct fsdpck_named *out, struct fsdpck_error *err)
{
    const char *rest = name;
    for (uint32_t i = 0; rest && i + 1 < n->npath; i++)
        rest = after_key(rest, &n->path[i]);
    const char *copy = fsdpck_arena_strndup(a, name, strlen(name), err);
    if (!rest || !copy)
        return set_single(a, out, copy, err);
    struct fsdpck_key *path = fsdpck_arena_array(a, n->npath, sizeof *path, err);
    if (!path)
        return FSDPCK_ERR_NOMEM;
    memcpy(path, n->path, n->npath * sizeof *path);
    path[n->npath - 1] = (struct fsdpck_key){ copy + (rest - name), 0 };
    *out = (struct fsdpck_named){ copy, path, n->npath };
    return 0;
}
