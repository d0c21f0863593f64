/* Packs documents into rows of seq_len tokens: longest first, each into the row that it fills best. Done once; epochs shuffle rows. */
#include "data/data_impl.h"

#include <stdio.h>
#include <stdlib.h>

/* Rows by what they have left, as linked lists: row i's successor is next[i], the list of rows with r left begins at head[r]. */
struct bins {
    int64_t *head; /* (seq_len + 1), -1: none */
    int64_t *next; /* (ndocs) */
    int64_t *row;  /* (ndocs) row of each document, -1: left out */
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

/* Too long: the rest is cut off. Without a supervised token: trains nothing. Both are counted and said. */
static void cut(struct data *d, uint32_t seq_len, const struct train_config *config, const struct fsdpck_options *opt)
{
    size_t ncut = 0, nempty = 0;
    char line[400];
    for (size_t i = 0; i < d->ndocs; i++) {
        struct document *doc = &d->docs[i];
        ncut += doc->ntok > seq_len;
        doc->ntok = doc->ntok > seq_len ? seq_len : doc->ntok;
        doc->nsupervised = 0;
        for (uint32_t t = 1; t < doc->ntok; t++)
            doc->nsupervised += d->labels[doc->first + t] >= 0;
        nempty += doc->nsupervised == 0;
    }
    snprintf(line, sizeof line, "%.200s: %zu of %zu documents cut at data.seq_len (%u tokens), %zu left out (no supervised token)", config->data.train,
             ncut, d->ndocs, seq_len, nempty);
    if (opt && opt->note && ncut + nempty)
        opt->note(opt->ctx, line);
}

/* Members of each row, in the order of the file. */
static int collect(struct data *d, const struct bins *b, struct fsdpck_error *err)
{
    size_t *count = calloc(b->nrows + 1, sizeof *count), at = 0;
    uint32_t *members = calloc(d->ndocs + 1, sizeof *members);
    if (!count || !members || !data_grow((void **)&d->groups.at, &d->groups.capacity, b->nrows + 1, sizeof *d->groups.at)) {
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

int data_pack(struct data *d, const struct train_config *config, const struct fsdpck_options *opt, struct fsdpck_error *err)
{
    struct bins b = { .seq_len = (uint32_t)config->data.seq_len };
    uint32_t *order = calloc(d->ndocs, sizeof *order);
    b.head = malloc((b.seq_len + 1u) * sizeof *b.head);
    b.next = calloc(d->ndocs, sizeof *b.next);
    b.row = calloc(d->ndocs, sizeof *b.row);
    int rc = order && b.head && b.next && b.row ? 0 : fsdpck_error_nomem(err, d->ndocs * sizeof *order);
    if (!rc) {
        cut(d, b.seq_len, config, opt);
        for (uint32_t i = 0; i < d->ndocs; i++)
            order[i] = i;
        for (uint32_t r = 0; r <= b.seq_len; r++)
            b.head[r] = -1;
        qsort_r(order, d->ndocs, sizeof *order, longest_first, d->docs);
        for (size_t i = 0; i < d->ndocs; i++) {
            const struct document *doc = &d->docs[order[i]];
            b.row[order[i]] = doc->nsupervised ? place(&b, doc->ntok, config->data.packing) : -1;
        }
        rc = b.nrows ? collect(d, &b, err) : fsdpck_error_set(err, FSDPCK_ERR_FORMAT, config->data.train, "no document has a supervised token");
    }
    free(order);
    free(b.head);
    free(b.next);
    free(b.row);
    return rc;
}
