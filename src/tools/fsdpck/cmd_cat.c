/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdpck cat`: prints one tensor, or a slice of it, as numbers or bytes. It streams, so the size does not matter. */
#include "commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/json_out.h"
#include "common/report.h"
#include "common/stop.h"
#include "array_out.h"
#include "tiled_read.h"
#include "source_arg.h"

/* SUMMARY_NELEM: on a terminal, larger tensors are abbreviated to their edges. */
enum {
    TEXT_TILE_NBYTES = 1 << 20,
    RAW_TILE_NBYTES = 16 << 20,
    MIN_RAW_TILE_NBYTES = 64 << 10,
    SUMMARY_NELEM = 1000,
    MAX_EDGE_NELEM = 1 << 16,
    OUTPUT_GONE = 1
};

struct cat_args {
    const char *slice;
    bool raw;
    struct common_args common;
    struct source_args source;
};

#define AT(field) .offset = offsetof(struct cat_args, field)

static const struct option show_options[] = {
    { .name = "slice",
      .type = OPTION_STRING,
      AT(slice),
      .value = "0:8,:",
      .help = "part of the tensor, in numpy's notation without steps" },
    { .name = "raw", .type = OPTION_FLAG, AT(raw), .help = "the bytes (little-endian, row-major) instead of numbers" },
};

struct cat {
    struct fsdpck_source *src;
    const struct fsdpck_tensor *tensor;
    struct slice box;
    struct array_out array;
    struct fsdpck_error *err;
    bool json, begun; /* begun: the JSON before the values is printed */
    bool whole;       /* one tile holds everything, so columns can be aligned */
};

/* Returns 0 to continue. main reports a failed write, once. */
static int after_write(struct fsdpck_error *err)
{
    if (stop_signal)
        return fsdpck_error_set(err, FSDPCK_ERR_STOPPED, NULL, "stopped");
    return ferror(stdout) ? OUTPUT_GONE : 0;
}

static int on_bytes(void *ctx, const void *data, uint64_t nelem)
{
    struct cat *c = ctx;
    fwrite(data, fsdpck_dtype_info(c->tensor->dtype)->nbytes, nelem, stdout);
    return after_write(c->err);
}

/* Prints the JSON up to the values, once the first values are read, so that a read error gives only an error object.
 * The values follow in tiles, because they may not fit in memory. */
static int begin_json(struct cat *c)
{
    if (!c->json || c->begun)
        return 0;
    c->begun = true;
    json_t *name = json_out_text(c->tensor->name), *shape = json_out_u64s(c->array.shape, c->array.ndim);
    bool ok = name && shape;
    if (ok) {
        fputs("{\"tensor\":", stdout);
        ok = json_out_write(name);
        printf(",\"dtype\":\"%s\",\"shape\":", fsdpck_dtype_info(c->tensor->dtype)->name);
        ok = json_out_write(shape) && ok;
        fputs(",\"values\":", stdout);
    }
    json_decref(name);
    json_decref(shape);
    return ok ? 0 : fsdpck_error_nomem(c->err, sizeof(json_t));
}

static int on_numbers(void *ctx, const void *data, uint64_t nelem)
{
    struct cat *c = ctx;
    int rc = begin_json(c);
    if (rc)
        return rc;
    if (c->whole && c->array.style == NUMBER_TEXT)
        array_out_measure(&c->array, data, nelem);
    array_out_print(&c->array, data, nelem);
    return after_write(c->err);
}

/* Marks the dimensions that a summary abbreviates. Returns the number of elements left. */
static uint64_t choose_cuts(const struct cat *c, bool cut[FSDPCK_MAX_DIMS])
{
    uint64_t nelem = 1;
    for (uint32_t d = 0; d < c->tensor->ndim; d++) {
        cut[d] = c->box.size[d] > 2 * ARRAY_EDGE;
        if (nelem <= MAX_EDGE_NELEM)
            nelem *= cut[d] ? 2 * ARRAY_EDGE : c->box.size[d];
    }
    return nelem;
}

static int print_summary(struct cat *c, const bool *cut, uint64_t nelem)
{
    uint32_t printed = 0;
    size_t nbytes = nelem * fsdpck_dtype_info(c->tensor->dtype)->nbytes;
    void *edges = malloc(nbytes);
    if (!edges)
        return fsdpck_error_nomem(c->err, nbytes);
    int rc = tiled_read_edges(c->src, c->tensor, &c->box, cut, ARRAY_EDGE, edges, c->err);
    for (uint32_t d = 0; d < c->tensor->ndim; d++) {
        if (c->box.dropped[d])
            continue;
        c->array.cut[printed] = cut[d];
        c->array.shape[printed++] = cut[d] ? 2 * ARRAY_EDGE : c->box.size[d];
    }
    if (!rc) {
        c->whole = true;
        rc = on_numbers(c, edges, nelem);
    }
    free(edges);
    return rc;
}

static int print_numbers(struct cat *c)
{
    bool cut[FSDPCK_MAX_DIMS];
    bool summary = c->array.style == NUMBER_TEXT && c->box.nelem > SUMMARY_NELEM && isatty(STDOUT_FILENO);
    uint64_t nelem = summary ? choose_cuts(c, cut) : 0;
    c->whole = c->box.nelem <= TEXT_TILE_NBYTES / fsdpck_dtype_info(c->tensor->dtype)->nbytes;
    int rc = summary && nelem <= MAX_EDGE_NELEM
                 ? print_summary(c, cut, nelem)
                 : tiled_read(c->src, c->tensor, &c->box, TEXT_TILE_NBYTES, on_numbers, c, c->err);
    if (!rc)
        rc = begin_json(c);
    if (!rc)
        array_out_finish(&c->array);
    return rc;
}

static void shape_result(struct cat *c)
{
    c->array = (struct array_out){ .dtype = c->tensor->dtype, .style = c->json ? NUMBER_JSON : NUMBER_TEXT };
    for (uint32_t d = 0; d < c->tensor->ndim; d++) {
        if (!c->box.dropped[d])
            c->array.shape[c->array.ndim++] = c->box.size[d];
    }
}

static int find_tensor(struct cat *c, const char *source, const char *name)
{
    const char *best = NULL;
    c->tensor = fsdpck_source_find(c->src, name);
    if (c->tensor)
        return 0;
    for (size_t i = 0; i < fsdpck_source_ntensors(c->src); i++) {
        const char *known = fsdpck_source_tensor(c->src, i)->name;
        if (!best || fsdpck_name_distance(name, known) < fsdpck_name_distance(name, best))
            best = known;
    }
    fsdpck_error_set(c->err, FSDPCK_ERR_USAGE, source, "found no tensor '%s'", name);
    if (best)
        fsdpck_error_hint(c->err, "the nearest name is '%s'; 'fsdpck ls' lists all", best);
    return FSDPCK_ERR_USAGE;
}

/* A quarter of the budget (the library has buffers too), but at least a hashed block: smaller tiles would read the
 * same bytes repeatedly. */
static uint64_t raw_tile_nbytes(uint64_t memory_nbytes)
{
    uint64_t quarter = memory_nbytes / 4;
    if (quarter == 0 || quarter > RAW_TILE_NBYTES)
        return RAW_TILE_NBYTES;
    return quarter < MIN_RAW_TILE_NBYTES ? MIN_RAW_TILE_NBYTES : quarter;
}

static int run(void *ctx, const char *const *at)
{
    const struct cat_args *args = ctx;
    struct fsdpck_error err = { 0 };
    struct report report = { 0 };
    struct fsdpck_options opt;
    struct cat cat = { .err = &err, .json = args->common.json };
    if (args->raw && args->common.json)
        return usage_error("cat prints either --raw or --json");
    if (args->raw && isatty(STDOUT_FILENO))
        return usage_error("cat --raw writes bytes, standard output is a terminal: send it to a file or a program");
    report_start(&report, &args->common, &opt);
    opt.progress = NULL; /* there would be one bar per tile, and the numbers show the progress */
    int rc = source_arg_open(at[0], &args->source, &opt, &cat.src, &err);
    if (!rc)
        rc = find_tensor(&cat, at[0], at[1]);
    if (!rc)
        rc = slice_parse(args->slice, cat.tensor, &cat.box, &err);
    if (!rc) {
        shape_result(&cat);
        rc = args->raw ? tiled_read(cat.src, cat.tensor, &cat.box, raw_tile_nbytes(args->common.memory_nbytes),
                                    on_bytes, &cat, &err)
                       : print_numbers(&cat);
    }
    if (!rc) /* for slices too: one CRC-32 covers the whole stored tensor */
        rc = fsdpck_source_check(cat.src, &err);
    if (!rc && !args->raw) /* after an error the object stays open, so that no reader accepts its values */
        puts(cat.json ? "}" : "");
    fsdpck_source_close(cat.src);
    return rc < 0 ? report_error(&report, &err) : EXIT_DONE;
}

int cmd_cat(const struct command *self, int argc, char **argv)
{
    struct cat_args args = { 0 };
    const struct option_group groups[] = {
        { "Show", show_options, sizeof show_options / sizeof show_options[0], &args },
        SHOWN_NAMES_GROUP(&args.source),
        VALUES_GROUP(&args.source),
        READ_GROUP(&args.source),
        COMMON_GROUP(&args.common),
    };
    const struct command_line line = {
        .command = self,
        .positionals = "SOURCE TENSOR",
        .groups = groups,
        .ngroups = sizeof groups / sizeof groups[0],
        .notes = "Numbers have as many digits as give the same bits back. On a terminal, more than 1000 elements "
                 "are summarised.",
        .examples = "fsdpck cat model/ model.norm.weight --slice 0:8",
    };
    return options_run(&line, argc, argv, run, &args);
}
