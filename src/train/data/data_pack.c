/* SPDX-License-Identifier: Apache-2.0 */
/* Packs documents into rows of seq_len tokens: longest first, each into the row that leaves the least space. Packs
 * once; each epoch shuffles the rows. */
#include "data/data_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rows by free space, as linked lists: head[r] is the first row with r tokens free; next[i] follows row i. */
struct bins {
    int64_t *head; /* (seq_len + 1), -1: none */
    int64_t *next; /* (ndocs) */
    int64_t *row;  /* (ndocs) row of each document, -1: dropped */
    size_t nrows;
    uint32_t seq_len;
};

static int longest_first(const void *a, const void *b, void *ctx)
{
    const struct document *docs = ctx;
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    if (docs[x].ntok != docs[y].ntok)
        return docs[x].ntok > docs[y].ntok ? -1 : 1;
    return x < y ? -1 : 1;
}

static int64_t place(struct bins *b, uint32_t ntok, bool packing)
{
    uint32_t left = ntok;
    while (packing && left <= b->seq_len && b->head[left] < 0)
        left++;
    int64_t row = packing && left <= b->seq_len ? b->head[left] : -1;
    if (row < 0) {
        row = (int64_t)b->nrows++;
        left = b->seq_len;
    } else {
        b->head[left] = b->next[row];
    }
    b->next[row] = b->head[left - ntok];
    b->head[left - ntok] = row;
    return row;
}

struct left_out {
    size_t ncut, ndropped, nempty;
};

static void note(const struct left_out *n, const struct data *d, const struct train_config *config,
                 const struct fsdpck_options *opt)
{
    char line[480], cut[120] = "", dropped[120] = "", empty[80] = "";
    if (!opt || !opt->note || n->ncut + n->ndropped + n->nempty == 0)
        return;
    if (n->ncut)
        snprintf(cut, sizeof cut, " %zu cut at data.seq_len (%llu token%s)", n->ncut,
                 (unsigned long long)config->data.seq_len, fsdpck_plural(config->data.seq_len));
    if (n->ndropped)
        snprintf(dropped, sizeof dropped, " %zu left out (longer than data.seq_len, %llu token%s: data.too_long)",
                 n->ndropped, (unsigned long long)config->data.seq_len, fsdpck_plural(config->data.seq_len));
    if (n->nempty)
        snprintf(empty, sizeof empty, "%s %zu left out (no supervised token)", n->ncut || n->ndropped ? "," : "",
                 n->nempty);
    snprintf(line, sizeof line, "%.200s: of %zu document%s%s%s%s", config->data.train, d->ndocs,
             fsdpck_plural(d->ndocs), cut, dropped, empty);
    opt->note(opt->ctx, line);
}

static void cut(struct document *doc, uint32_t seq_len)
{
    doc->ntok = seq_len;
    doc->nsupervised = 0;
    for (uint32_t t = 1; t < seq_len; t++)
        doc->nsupervised += doc->labels[t] >= 0;
}

/* Truncates documents that are too long, or drops them (data.too_long) by setting nsupervised to 0. Documents without a
 * supervised token are dropped. Reports the counts. */
static void fit(struct data *d, const struct train_config *config, const struct fsdpck_options *opt)
{
    struct left_out n = { 0 };
    bool drop = config->data.too_long == TRAIN_TOO_LONG_DROP;
    for (size_t i = 0; i < d->ndocs; i++) {
        struct document *doc = &d->docs[i];
        bool long_one = doc->ntok > config->data.seq_len;
        if (long_one)
            cut(doc, (uint32_t)config->data.seq_len);
        if (long_one && drop)
            doc->nsupervised = 0;
        n.ncut += long_one && !drop;
        n.ndropped += long_one && drop;
        n.nempty += doc->nsupervised == 0 && !(long_one && drop);
    }
    note(&n, d, config, opt);
}

/* Lists the documents of each row, in the order of the file. */
static int collect(struct data *d, const struct bins *b, struct fsdpck_error *err)
{
    size_t *count = calloc(b->nrows + 1, sizeof *count), at = 0;
    uint32_t *members = calloc(d->ndocs + 1, sizeof *members);
    if (!count || !members || !grow((void **)&d->groups.at, &d->groups.capacity, b->nrows + 1, sizeof *d->groups.at)) {
        free(count);
        free(members);
        return fsdpck_error_nomem(err, d->ndocs * sizeof *members);
    }
    for (size_t i = 0; i < d->ndocs; i++)
        count[b->row[i] < 0 ? b->nrows : (size_t)b->row[i]]++;
    for (size_t r = 0; r < b->nrows; r++) {
        d->groups.at[r] = at;
        at += count[r];
        count[r] = d->groups.at[r];
    }
    d->groups.at[b->nrows] = at;
    for (size_t i = 0; i < d->ndocs; i++) {
        if (b->row[i] >= 0)
            members[count[b->row[i]]++] = (uint32_t)i;
    }
    free(count);
    d->groups.count = b->nrows;
    d->members = members;
    d->nmembers = at;
    return 0;
}

int data_pack(struct data *d, const struct train_config *config, const struct fsdpck_options *opt,
              struct fsdpck_error *err)
{
    struct bins b = { .seq_len = (uint32_t)config->data.seq_len };
    uint32_t *order = calloc(d->ndocs, sizeof *order);
    b.head = malloc((b.seq_len + 1u) * sizeof *b.head);
    b.next = calloc(d->ndocs, sizeof *b.next);
    b.row = calloc(d->ndocs, sizeof *b.row);
    int rc = order && b.head && b.next && b.row ? 0 : fsdpck_error_nomem(err, d->ndocs * sizeof *order);
    if (!rc) {
        fit(d, config, opt);
        for (uint32_t i = 0; i < d->ndocs; i++)
            order[i] = i;
        for (uint32_t r = 0; r <= b.seq_len; r++)
            b.head[r] = -1;
        qsort_r(order, d->ndocs, sizeof *order, longest_first, d->docs);
        for (size_t i = 0; i < d->ndocs; i++) {
            const struct document *doc = &d->docs[order[i]];
            b.row[order[i]] = doc->nsupervised ? place(&b, doc->ntok, config->data.packing) : -1;
        }
        rc = b.nrows
                 ? collect(d, &b, err)
                 : fsdpck_error_set(err, FSDPCK_ERR_FORMAT, config->data.train, "no document %shas a supervised token",
                                    config->data.too_long == TRAIN_TOO_LONG_DROP ? "that fits into data.seq_len " : "");
    }
    free(order);
    free(b.head);
    free(b.next);
    free(b.row);
    return rc;
}
