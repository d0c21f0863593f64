/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what the ranks would read. It must not know how the plan was made. */
#include "plan_out.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/json_out.h"
#include "common/text.h"
#include "commands.h"

enum { MANY = 64, SHOWN = 8 }; /* with more than MANY ranks, only the first SHOWN get a line */

static uint64_t needed(const struct fsdpck_plan *p)
{
    return p->needed_nbytes;
}
static uint64_t read(const struct fsdpck_plan *p)
{
    return p->read_nbytes;
}
static uint64_t files(const struct fsdpck_plan *p)
{
    return p->nfiles;
}
static uint64_t runs(const struct fsdpck_plan *p)
{
    return p->nruns;
}
static uint64_t peak(const struct fsdpck_plan *p)
{
    return p->needed_nbytes + p->peak_nbytes;
}

/* summed: a total is meaningful. (Ranks share files, and memory is per rank.) */
static const struct column {
    const char *title, *key;
    uint64_t (*value)(const struct fsdpck_plan *p);
    bool bytes, summed;
} columns[] = {
    { "needed", "needed_bytes", needed, true, true },   { "read", "read_bytes", read, true, true },
    { "files", "files", files, false, false },          { "runs", "runs", runs, false, true },
    { "peak memory", "peak_bytes", peak, true, false },
};

enum { NCOLUMNS = sizeof columns / sizeof columns[0], WIDTH = 11 };

static void print_value(const struct column *c, uint64_t value)
{
    char text[TEXT_NBYTES];
    if (c->bytes)
        printf("  %*s", WIDTH, text_bytes(value, text));
    else
        printf("  %*" PRIu64, WIDTH, value);
}

static void print_title(void)
{
    printf("%-6s", "rank");
    for (size_t c = 0; c < NCOLUMNS; c++)
        printf("  %*s", WIDTH, columns[c].title);
    putchar('\n');
}

static void print_rank(const struct fsdpck_plan *plan, uint64_t rank)
{
    printf("%-6" PRIu64, rank);
    for (size_t c = 0; c < NCOLUMNS; c++)
        print_value(&columns[c], columns[c].value(plan));
    putchar('\n');
}

static void print_total(const struct fsdpck_plan *plans, uint64_t nranks)
{
    printf("%-6s", "total");
    for (size_t c = 0; c < NCOLUMNS; c++) {
        uint64_t sum = 0;
        for (uint64_t rank = 0; rank < nranks; rank++)
            sum += columns[c].value(&plans[rank]);
        if (columns[c].summed)
            print_value(&columns[c], sum);
        else if (c + 1 < NCOLUMNS)
            printf("  %*s", WIDTH, "");
    }
    putchar('\n');
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Prints the value at `position` in ascending order, for each column. values: room for (nranks). */
static void print_order(const char *label, const struct fsdpck_plan *plans, uint64_t nranks, uint64_t *values,
                        uint64_t position)
{
    printf("%-6s", label);
    for (size_t c = 0; c < NCOLUMNS; c++) {
        for (uint64_t rank = 0; rank < nranks; rank++)
            values[rank] = columns[c].value(&plans[rank]);
        qsort(values, nranks, sizeof *values, by_value);
        print_value(&columns[c], values[position]);
    }
    putchar('\n');
}

int plan_out_text(const struct fsdpck_plan *plans, uint64_t nranks)
{
    uint64_t shown = nranks > MANY ? SHOWN : nranks;
    print_title();
    for (uint64_t rank = 0; rank < shown; rank++)
        print_rank(&plans[rank], rank);
    if (shown < nranks) {
        uint64_t *values = calloc(nranks, sizeof *values);
        if (!values) {
            fputs("fsdpck: no memory to sort the ranks\n", stderr);
            return EXIT_SYSTEM;
        }
        printf("… and %" PRIu64 " more rank%s\n", nranks - shown, fsdpck_plural(nranks - shown));
        print_order("min", plans, nranks, values, 0);
        print_order("median", plans, nranks, values, nranks / 2);
        print_order("max", plans, nranks, values, nranks - 1);
        free(values);
    }
    print_total(plans, nranks);
    return EXIT_DONE;
}

int plan_out_json(const char *source, const struct fsdpck_mesh *mesh, const struct fsdpck_plan *plans, uint64_t nranks)
{
    json_t *o = json_object(), *ranks = json_array();
    bool ok = json_out_put(o, "source", json_out_text(source));
    ok = json_out_put(o, "mesh", json_out_mesh(mesh)) && ok;
    for (uint64_t rank = 0; rank < nranks && ok; rank++) {
        json_t *r = json_object();
        ok = json_out_put(r, "rank", json_out_u64(rank));
        for (size_t c = 0; c < NCOLUMNS; c++)
            ok = json_out_put(r, columns[c].key, json_out_u64(columns[c].value(&plans[rank]))) && ok;
        ok = json_out_append(ranks, r) && ok;
    }
    ok = json_out_put(o, "ranks", ranks) && ok;
    return json_out_print(o, ok, EXIT_DONE);
}
