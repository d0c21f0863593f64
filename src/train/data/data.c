/* SPDX-License-Identifier: Apache-2.0 */
/* Assigns documents to steps: as data.plan says, or by rows that are packed once and shuffled in each epoch. */
#include "data/data_impl.h"

#include <kernels/random.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

bool lists_end(struct lists *l, size_t at)
{
    if (!grow((void **)&l->at, &l->capacity, l->count + 2, sizeof *l->at))
        return false;
    l->at[0] = 0;
    l->at[++l->count] = at;
    return true;
}

void data_documents_fingerprint(struct data *d)
{
    XXH64_hash_t parts[] = {
        d->content[0],
        d->content[1],
        XXH3_64bits(d->members, d->nmembers * sizeof *d->members),
        XXH3_64bits(d->groups.at, (d->groups.count + 1) * sizeof *d->groups.at),
        d->planned ? XXH3_64bits(d->steps.at, (d->steps.count + 1) * sizeof *d->steps.at) : d->step_rows,
        d->planned ? 0 : d->micro_rows,
        d->seed,
    };
    d->fingerprint = XXH3_64bits(parts, sizeof parts);
}

void data_set_micro_rows(struct data *d, uint64_t nrows)
{
    d->micro_rows = d->pictures ? 1 : nrows;
    data_documents_fingerprint(d);
}

uint64_t data_content(const struct data *d)
{
    return XXH3_64bits(d->content, sizeof d->content);
}

bool data_is_dated(const struct data *d)
{
    return d->dated;
}

uint64_t data_fingerprint(const struct data *d)
{
    return d->fingerprint;
}

int data_nsteps(const struct data *d, const struct train_config *config, uint64_t *out, struct fsdpck_error *err)
{
    double epoch = d->planned ? (double)d->steps.count : (double)d->groups.count / (double)d->step_rows;
    *out = config->train.num_train_epochs > 0 ? (uint64_t)ceil(config->train.num_train_epochs * epoch)
                                              : config->train.max_steps;
    if (d->planned && *out > d->steps.count)
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, config->data.plan,
                                "it has %zu step%s, and train.max_steps asks for %llu", d->steps.count,
                                fsdpck_plural(d->steps.count), (unsigned long long)*out);
    return 0;
}

void data_describe(const struct data *d, struct train_data_facts *out)
{
    *out = (struct train_data_facts){ .ndocs = d->nmembers, .nrows = d->groups.count, .by_plan = d->planned };
    for (size_t i = 0; i < d->nmembers; i++) {
        const struct document *doc = &d->docs[d->members[i]];
        out->ntok += doc->ntok;
        out->nempty += doc->nsupervised == 0;
        out->nsupervised += doc->nsupervised;
        out->longest_ntok = doc->ntok > out->longest_ntok ? doc->ntok : out->longest_ntok;
    }
}

static int64_t group_tokens(const struct data *d, size_t group)
{
    int64_t n = 0;
    for (size_t i = d->groups.at[group]; i < d->groups.at[group + 1]; i++)
        n += d->docs[d->members[i]].ntok;
    return n;
}

void data_largest(const struct data *d, int64_t *ntok, size_t *ndocs)
{
    *ntok = 0;
    *ndocs = 0;
    for (size_t g = 0; g < d->groups.count; g++) {
        int64_t n = group_tokens(d, g);
        size_t docs = d->groups.at[g + 1] - d->groups.at[g];
        *ntok = n > *ntok ? n : *ntok;
        *ndocs = docs > *ndocs ? docs : *ndocs;
    }
    if (!d->planned) { /* all rows of a micro-batch might be the largest */
        *ntok *= (int64_t)d->micro_rows;
        *ndocs *= d->micro_rows;
    }
}

/* 64 random bits for swap number i of an epoch's shuffle. */
static uint64_t draw(const struct data *d, uint64_t epoch, uint64_t i)
{
    const uint32_t key[2] = { (uint32_t)d->seed, (uint32_t)(d->seed >> 32) };
    const uint32_t counter[4] = { (uint32_t)i, (uint32_t)(i >> 32), (uint32_t)epoch, XXH32("data.order", 10, 0) };
    uint32_t out[4];
    kern_philox4x32(counter, key, out);
    return (uint64_t)out[1] << 32 | out[0];
}

/* Fisher–Yates shuffle, from the back. */
static void shuffle(const struct data *d, uint64_t epoch)
{
    uint32_t *order = d->order->rows;
    for (size_t i = 0; i < d->groups.count; i++)
        order[i] = (uint32_t)i;
    for (size_t i = d->groups.count; i > 1; i--) {
        size_t j = draw(d, epoch, i) % i;
        uint32_t held = order[i - 1];
        order[i - 1] = order[j];
        order[j] = held;
    }
    d->order->epoch = epoch;
}

/* The two offsets that bound the documents of row `global` of the endless sequence. Shuffles when a new epoch
 * begins. */
static const size_t *row_at(const struct data *d, uint64_t global)
{
    uint64_t epoch = global / d->groups.count;
    if (d->order->epoch != epoch)
        shuffle(d, epoch);
    return d->groups.at + d->order->rows[global % d->groups.count];
}

static void finish_micro(const struct data *d, struct step_plan *p, struct micro_batch *m)
{
    m->token0 = p->ntok;
    for (size_t i = 0; i < m->ndocs; i++) {
        m->ntok += d->docs[m->docs[i]].ntok;
        m->nsupervised += d->docs[m->docs[i]].nsupervised;
    }
    p->ntok += m->ntok;
    p->nsupervised += m->nsupervised;
}

static int plan_step(const struct data *d, uint64_t step, struct step_plan *p, struct fsdpck_error *err)
{
    size_t first = d->steps.at[step];
    p->nmicros = d->steps.at[step + 1] - first;
    p->micros = calloc(p->nmicros, sizeof *p->micros);
    if (!p->micros)
        return fsdpck_error_nomem(err, p->nmicros * sizeof *p->micros);
    for (size_t i = 0; i < p->nmicros; i++) {
        const size_t *at = d->groups.at + first + i;
        p->micros[i] = (struct micro_batch){ .docs = d->members + at[0], .ndocs = at[1] - at[0] };
        finish_micro(d, p, &p->micros[i]);
    }
    return 0;
}

/* Rows step·B … step·B + B-1 of the endless sequence of shuffled epochs. */
static int shuffled_step(const struct data *d, uint64_t step, struct step_plan *p, struct fsdpck_error *err)
{
    size_t ndocs = 0;
    for (size_t i = 0; i < d->step_rows; i++) {
        const size_t *at = row_at(d, step * d->step_rows + i);
        ndocs += at[1] - at[0];
    }
    p->nmicros = (d->step_rows + d->micro_rows - 1) / d->micro_rows;
    p->micros = calloc(p->nmicros, sizeof *p->micros);
    p->docs = calloc(ndocs, sizeof *p->docs);
    if (!p->micros || !p->docs)
        return fsdpck_error_nomem(err, ndocs * sizeof *p->docs);
    uint32_t *docs = p->docs;
    for (size_t i = 0; i < d->step_rows; i++) {
        const size_t *at = row_at(d, step * d->step_rows + i);
        struct micro_batch *m = &p->micros[i / d->micro_rows];
        if (i % d->micro_rows == 0)
            m->docs = docs;
        memcpy(docs, d->members + at[0], (at[1] - at[0]) * sizeof *docs);
        m->ndocs += at[1] - at[0];
        docs += at[1] - at[0];
    }
    for (size_t i = 0; i < p->nmicros; i++) {
        p->micros[i].number = i;
        finish_micro(d, p, &p->micros[i]);
    }
    return 0;
}

int data_step(const struct data *d, const struct train_config *config, uint64_t step, struct step_plan *out,
              struct fsdpck_error *err)
{
    *out = (struct step_plan){ 0 };
    int rc = d->planned ? plan_step(d, step, out, err) : shuffled_step(d, step, out, err);
    if (!rc && out->nsupervised == 0)
        rc = fsdpck_error_set(err, FSDPCK_ERR_FORMAT, d->planned ? config->data.plan : config->data.train,
                              "step %llu has no supervised token: its loss is not defined", (unsigned long long)step);
    return rc;
}

int data_all_rows(const struct data *d, struct step_plan *out, struct fsdpck_error *err)
{
    size_t nrows = d->groups.count;
    *out = (struct step_plan){ .nmicros = (nrows + d->micro_rows - 1) / d->micro_rows };
    out->micros = calloc(out->nmicros, sizeof *out->micros);
    if (!out->micros)
        return fsdpck_error_nomem(err, out->nmicros * sizeof *out->micros);
    for (size_t i = 0; i < out->nmicros; i++) { /* rows are concatenated */
        size_t first = i * d->micro_rows, end = nrows - first < d->micro_rows ? nrows : first + d->micro_rows;
        const size_t *at = d->groups.at;
        out->micros[i] = (struct micro_batch){ .docs = d->members + at[first], .ndocs = at[end] - at[first] };
        finish_micro(d, out, &out->micros[i]);
    }
    return 0;
}

void step_plan_free(struct step_plan *p)
{
    free(p->micros);
    free(p->docs);
    *p = (struct step_plan){ 0 };
}

void data_fill(const struct data *d, const struct micro_batch *m, int32_t *ids, int32_t *positions, int32_t *targets,
               int64_t *cu_seqlens)
{
    int64_t at = 0;
    cu_seqlens[0] = 0;
    for (size_t i = 0; i < m->ndocs; i++) {
        const struct document *doc = &d->docs[m->docs[i]];
        memcpy(ids + at, doc->ids, doc->ntok * sizeof *ids);
        for (uint32_t t = 0; t < doc->ntok; t++) {
            positions[at + t] = (int32_t)t;
            targets[at + t] = t + 1 < doc->ntok ? doc->labels[t + 1] : -1;
        }
        at += doc->ntok;
        cu_seqlens[i + 1] = at;
    }
}
