/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the rows of tokens that the base's tokenizer does not have, and all weights: was anything trained? */
#include <inttypes.h>
#include <string.h>

#include "doctor/checks.h"
#include "doctor/reads.h"
#include "doctor/tokens.h"

/* Ids of new tokens. */
struct new_ids {
    uint64_t begin, end;
};

/* Counts the ids of a folder's tokenizer; 0: it has none that can be read. */
static uint64_t count_ids(struct doctor *d, const struct doctor_model *m)
{
    struct fsdpck_error why = { 0 };
    struct doctor_tokens t;
    bool found;
    int rc = fsdpck_doctor_tokens_read(m, &t, &found, &why);
    uint64_t count = rc || !found ? 0 : t.count;
    fsdpck_doctor_tokens_free(&t);
    if (rc == FSDPCK_ERR_NOMEM)
        *d->err = why;
    return count;
}

static bool is_table(const struct doctor_tensor *t)
{
    return t && t->ndim == 2 && t->shape[1] > 0 && fsdpck_dtype_info(t->dtype)->kind == FSDPCK_KIND_FLOAT;
}

/* Returns what all new rows have in common, as a clause, or NULL. */
static const char *what_rows_share(struct doctor *d, struct doctor_reads *own, struct doctor_reads *base,
                                   const struct doctor_tensor *t, const struct doctor_tensor *old, struct new_ids ids)
{
    const uint64_t width = t->shape[1];
    const bool comparable = is_table(old) && old->dtype == t->dtype && old->shape[1] == width;
    struct fsdpck_hash128 first, row, before;
    bool equal = ids.end - ids.begin > 1, kept = comparable && ids.end <= old->shape[0];
    for (uint64_t i = ids.begin; i < ids.end && (equal || kept); i++) {
        if (!fsdpck_doctor_hash(d, own, t, i * width, (i + 1) * width, &row) ||
            (kept && !fsdpck_doctor_hash(d, base, old, i * width, (i + 1) * width, &before)))
            return NULL;
        first = i == ids.begin ? row : first;
        equal = equal && fsdpck_hash_equal(&row, &first);
        kept = kept && fsdpck_hash_equal(&row, &before);
    }
    return kept ? "as the base has them for no token" : equal ? "all equal" : NULL;
}

static void check_table(struct doctor *d, struct doctor_reads *own, struct doctor_reads *base, const char *name,
                        struct new_ids ids)
{
    const struct doctor_tensor *t = fsdpck_doctor_find(d->model, name), *old = fsdpck_doctor_find(d->base, name);
    struct doctor_words w;
    if (!is_table(t) || ids.end > t->shape[0])
        return;
    const char *shared = what_rows_share(d, own, base, t, old, ids);
    if (!shared)
        return;
    doctor_say(w.found, "the rows %" PRIu64 " to %" PRIu64 " of the tokens that the base does not have %s", ids.begin,
               ids.end - 1, shared);
    doctor_say(w.expected, "trained rows: with these, the model cannot tell the new tokens apart, or never met them");
    doctor_say(w.mend, "train the embedding and the head with the new tokens (PEFT: modules_to_save or "
                       "trainable_token_indices), or take the base's tokenizer");
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_WARNING, doctor_files(d->model)[t->file].name, t->name, &w);
}

bool fsdpck_doctor_new_rows(struct doctor *d)
{
    static const char *const tables[] = { "model.embed_tokens.weight", "model.language_model.embed_tokens.weight",
                                          "lm_head.weight" };
    const struct new_ids ids = { count_ids(d, d->base), count_ids(d, d->model) };
    struct doctor_reads own = { 0 }, base = { 0 };
    if (!ids.begin || !ids.end)
        return false;
    bool decided = fsdpck_doctor_reads_begin(d, d->model, &own) && fsdpck_doctor_reads_begin(d, d->base, &base);
    for (size_t i = 0; decided && ids.begin < ids.end && i < sizeof tables / sizeof *tables; i++)
        check_table(d, &own, &base, tables[i], ids);
    fsdpck_doctor_reads_end(&own);
    fsdpck_doctor_reads_end(&base);
    return decided;
}

/* ---- all tensors ---- */

static bool is_same(struct doctor *d, struct doctor_reads *own, struct doctor_reads *base,
                    const struct doctor_tensor *t, const struct doctor_tensor *b)
{
    struct fsdpck_hash128 hash, before;
    const uint64_t nelem = t->nbytes / fsdpck_dtype_info(t->dtype)->nbytes;
    return t->dtype == b->dtype && t->nbytes == b->nbytes &&
           (nelem == 0 || (fsdpck_doctor_hash(d, own, t, 0, nelem, &hash) &&
                           fsdpck_doctor_hash(d, base, b, 0, nelem, &before) && fsdpck_hash_equal(&hash, &before)));
}

/* Reads until the first tensor that differs. */
bool fsdpck_doctor_unchanged(struct doctor *d)
{
    struct doctor_reads own = { 0 }, base = { 0 };
    struct doctor_words w;
    if (count_ids(d, d->base) != count_ids(d, d->model))
        return false; /* new tokens: the check of their rows has said it */
    bool decided = fsdpck_doctor_reads_begin(d, d->model, &own) && fsdpck_doctor_reads_begin(d, d->base, &base);
    bool same = decided;
    for (size_t i = 0; same && i < d->model->tensors.count && !d->err->code; i++) {
        const struct doctor_tensor *t = &doctor_tensors(d->model)[i], *b = fsdpck_doctor_find(d->base, t->name);
        same = b && is_same(d, &own, &base, t, b);
    }
    fsdpck_doctor_reads_end(&own);
    fsdpck_doctor_reads_end(&base);
    if (same && !d->err->code && d->model->tensors.count) {
        doctor_say(w.found, "the base's bits in all %zu tensors", d->model->tensors.count);
        doctor_say(w.expected, "trained weights, if this is a fine-tune: such a save wrote its base");
        doctor_say(w.mend, "save the trained weights: gathered from all ranks, and adapters merged");
        fsdpck_doctor_report(d, FSDPCK_SEVERITY_NOTE, "", "", &w);
    }
    return decided;
}
