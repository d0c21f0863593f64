/* SPDX-License-Identifier: Apache-2.0 */
/* Splits names at their dots. PEFT's parameters are PyTorch attributes, which cannot contain a dot, so the parts are
 * unambiguous. Drops the parts that wrappers (FSDP, torch.compile, DDP, activation checkpointing, PEFT itself) insert.
 * Knows no tensors. */
#include "lora/names.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_PARTS = 128 };

struct name_parts {
    const char *at[MAX_PARTS];
    size_t count;
};

static bool is_one_of(const char *s, const char *const *words)
{
    for (; *words; words++)
        if (strcmp(s, *words) == 0)
            return true;
    return false;
}

static void drop(struct name_parts *p, size_t first, size_t n)
{
    memmove(p->at + first, p->at + first + n, (p->count - first - n) * sizeof *p->at);
    p->count -= n;
}

/* Cuts the copy at its dots. */
static bool split(char *copy, struct name_parts *p)
{
    for (char *dot = copy; copy; copy = dot ? dot + 1 : NULL) {
        if (p->count == MAX_PARTS)
            return false;
        if ((dot = strchr(copy, '.')))
            *dot = '\0';
        p->at[p->count++] = copy;
    }
    return true;
}

static void drop_wrappers(struct name_parts *p)
{
    static const char *const anywhere[] = { "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module",
                                            "_ddp_wrapped_module", NULL };
    for (size_t i = 0; i + 1 < p->count;)
        if (is_one_of(p->at[i], anywhere))
            drop(p, i, 1);
        else
            i++;
    while (p->count > 1 && strcmp(p->at[0], "module") == 0) /* DDP; deeper down it may be a module's own name */
        drop(p, 0, 1);
    for (size_t i = 0; i + 2 < p->count; i++) /* the parts before PEFT's own wrapper contain it */
        if (strcmp(p->at[i], "base_model") == 0 && strcmp(p->at[i + 1], "model") == 0) {
            drop(p, 0, i + 2);
            return;
        }
}

static const char *join(struct fsdpck_arena *a, const struct name_parts *p, size_t first, size_t end,
                        struct fsdpck_error *err)
{
    size_t nbytes = 1;
    for (size_t i = first; i < end; i++)
        nbytes += strlen(p->at[i]) + 1;
    char *text = fsdpck_arena_alloc(a, nbytes, err), *to = text;
    for (size_t i = first; text && i < end; i++) {
        if (i > first)
            *to++ = '.';
        to = stpcpy(to, p->at[i]);
    }
    return text;
}

/* Parses the parts after the adapter's own part: [adapter] [ending]. Sets *adapter; returns whether no part is left. */
static bool take_tail(const struct name_parts *p, size_t at, const char *ending, bool may_lack_ending,
                      const char **adapter)
{
    size_t n = p->count - at;
    bool ends = n && strcmp(p->at[p->count - 1], ending) == 0;
    if (ends)
        n--;
    else if (!may_lack_ending)
        return false;
    *adapter = n ? p->at[at] : "";
    return n <= 1;
}

/* Returns true if the name continues after an adapter's parameter: optimizers name their state this way. */
static bool is_optimizer_state(const struct name_parts *p, size_t at)
{
    for (size_t i = at; i + 1 < p->count && i < at + 2; i++)
        if (strcmp(p->at[i], "weight") == 0 || strcmp(p->at[i], "bias") == 0)
            return true;
    return false;
}

static enum fsdpck_lora_role role_of_pair(const struct name_parts *p, size_t i, const char **adapter)
{
    bool b = p->at[i][5] == 'B';
    if (take_tail(p, i + 1, "weight", false, adapter))
        return b ? LORA_B : LORA_A;
    if (b && take_tail(p, i + 1, "bias", false, adapter))
        return LORA_B_BIAS;
    return is_optimizer_state(p, i + 1) ? LORA_STATE : LORA_UNKNOWN;
}

static enum fsdpck_lora_role role_of_embedding(const struct name_parts *p, size_t i, const char **adapter)
{
    *adapter = p->count == i + 2 ? p->at[i + 1] : "";
    if (p->count > i + 2)
        return LORA_STATE;
    return p->at[i][15] == 'B' ? LORA_EMBEDDING_B : LORA_EMBEDDING_A;
}

static bool begins(const char *s, const char *with)
{
    return strncmp(s, with, strlen(with)) == 0;
}

/* The parts of a name: module [0, at), PEFT's own [at, leaf), leaf [leaf, end). */
struct name_sections {
    size_t at, leaf, end;
    const char *adapter;
};

static enum fsdpck_lora_role role_of_tokens(const struct name_parts *p, size_t i, struct name_sections *to)
{
    to->leaf = i;
    to->end = i + 1;
    to->adapter = p->count > i + 1 ? p->at[i + 1] : "";
    return p->count <= i + 2 ? LORA_TOKENS : LORA_STATE;
}

/* With LoRA, trainable_token_indices wraps the embedding as token_adapter; without LoRA, the method is the layer
 * itself. */
static enum fsdpck_lora_role role_in_token_adapter(const struct name_parts *p, size_t i, struct name_sections *to)
{
    const char *next = i + 1 < p->count ? p->at[i + 1] : "";
    if (strcmp(next, "trainable_tokens_delta") == 0)
        return role_of_tokens(p, i + 1, to);
    to->leaf = i + 2;
    if (strcmp(next, "trainable_tokens_original") == 0)
        return LORA_ORIGINAL;
    return strcmp(next, "base_layer") == 0 && i + 2 < p->count ? LORA_BASE : LORA_UNKNOWN;
}

/* Returns true if another adapter's parts follow: an adapter inside another's layer. */
static bool has_inner_adapter(const struct name_parts *p, size_t i)
{
    for (; i < p->count; i++)
        if (begins(p->at[i], "lora_") || begins(p->at[i], "trainable_tokens_"))
            return true;
    return false;
}

/* Returns true for a base_layer of fused experts, up to lora_A or lora_B: PEFT nests a wrapper for each parameter of a
 * module that is adapted, so these parts belong to the module's path. */
static bool is_nested_parameter(const struct name_parts *p, size_t i)
{
    size_t end = i, first = i;
    while (end < p->count && strcmp(p->at[end], "base_layer") == 0)
        end++;
    while (first && strcmp(p->at[first - 1], "base_layer") == 0)
        first--;
    return end > i && end < p->count && (strcmp(p->at[end], "lora_A") == 0 || strcmp(p->at[end], "lora_B") == 0) &&
           first && strcmp(p->at[first - 1], "experts") == 0;
}

/* Returns the role that part i gives to the name; PLAIN: none. */
static enum fsdpck_lora_role role_at(const struct name_parts *p, size_t i, struct name_sections *to)
{
    static const char *const pairs[] = { "lora_A", "lora_B", NULL }, *const embeddings[] = { "lora_embedding_A",
                                                                                             "lora_embedding_B", NULL };
    const char *part = p->at[i], **adapter = &to->adapter;
    bool last = i + 1 == p->count;
    *to = (struct name_sections){ .at = i, .leaf = i + 1, .end = p->count, .adapter = "" };
    if (is_one_of(part, pairs))
        return role_of_pair(p, i, adapter);
    if (is_one_of(part, embeddings))
        return role_of_embedding(p, i, adapter);
    if (strcmp(part, "lora_magnitude_vector") == 0)
        return take_tail(p, i + 1, "weight", true, adapter) ? LORA_MAGNITUDE
               : is_optimizer_state(p, i + 1)               ? LORA_STATE
                                                            : LORA_UNKNOWN;
    if (strcmp(part, "modules_to_save") == 0 && i + 2 < p->count) {
        *adapter = p->at[i + 1];
        to->leaf = i + 2;
        return LORA_SAVED;
    }
    if (strcmp(part, "token_adapter") == 0)
        return role_in_token_adapter(p, i, to);
    if (strcmp(part, "trainable_tokens_delta") == 0)
        return role_of_tokens(p, i, to);
    if (strcmp(part, "original_module") == 0 || strcmp(part, "trainable_tokens_original") == 0)
        return last ? LORA_PLAIN : LORA_ORIGINAL;
    if (is_nested_parameter(p, i))
        return LORA_PLAIN;
    if (strcmp(part, "base_layer") == 0)
        return last ? LORA_PLAIN : has_inner_adapter(p, i + 1) ? LORA_UNKNOWN : LORA_BASE;
    return begins(part, "lora_") ? LORA_UNKNOWN : LORA_PLAIN;
}

static int put_strings(struct fsdpck_arena *a, const struct name_parts *p, const struct name_sections *at,
                       struct fsdpck_lora_name *out, struct fsdpck_error *err)
{
    bool has_leaf = out->role <= LORA_BASE || out->role == LORA_SAVED || out->role == LORA_TOKENS;
    out->adapter = at->adapter;
    out->module = join(a, p, 0, at->at, err);
    if (has_leaf)
        out->leaf = join(a, p, at->leaf, at->end, err);
    if (out->role == LORA_BASE || out->role == LORA_TOKENS)
        out->between = join(a, p, at->at, at->leaf, err);
    return out->module && out->leaf && out->between ? 0 : FSDPCK_ERR_NOMEM;
}

int fsdpck_lora_name_parse(struct fsdpck_arena *a, const char *name, struct fsdpck_lora_name *out,
                           struct fsdpck_error *err)
{
    struct name_parts p = { .count = 0 };
    char *copy = fsdpck_arena_strndup(a, name, strlen(name), err);
    struct name_sections at = { 0 };
    size_t i = 0;
    *out = (struct fsdpck_lora_name){ .adapter = "", .between = "", .leaf = "" };
    if (!copy)
        return FSDPCK_ERR_NOMEM;
    if (!split(copy, &p)) {
        fsdpck_error_set(err, FSDPCK_ERR_LIMIT, NULL, "the name has more than %d parts", MAX_PARTS);
        fsdpck_error_tensor(err, name);
        return FSDPCK_ERR_LIMIT;
    }
    drop_wrappers(&p);
    while (i < p.count && (out->role = role_at(&p, i, &at)) == LORA_PLAIN)
        i++;
    if (out->role <= LORA_STATE) /* the last part is the parameter, the parts before it are its module */
        at = (struct name_sections){ .at = p.count - 1, .leaf = p.count - 1, .end = p.count, .adapter = "" };
    return put_strings(a, &p, &at, out, err);
}

bool fsdpck_lora_layer_find(const char *path, struct fsdpck_lora_layer *out)
{
    for (const char *s = path; *s;) {
        size_t n = strcspn(s, "."), digits = strspn(s, "0123456789");
        if (n && digits == n && n < 9) {
            *out = (struct fsdpck_lora_layer){ (size_t)(s - path), (size_t)(s - path) + n, strtol(s, NULL, 10) };
            return true;
        }
        s += n + (s[n] == '.');
    }
    return false;
}
