/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdpck ls` as text: a header, then a table of tensors. It must not open or check anything. */
#include "ls.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <fsdpck/base.h>
#include <fsdpck/fsdpck.h>

#include "common/text.h"

enum {
    SHOWN = 8,
    NAME_WIDTH = 60,
    SHAPE = 128,
    PLACEMENT = 256
}; /* SHOWN: most files, items and assets listed; --json lists all */

bool ls_listed(const struct fsdpck_tensor *t, const char *glob)
{
    return !glob || fsdpck_glob_match(glob, t->name);
}

static bool known_mesh(const struct fsdpck_mesh *const *meshes, size_t count, const struct fsdpck_mesh *mesh)
{
    for (size_t i = 0; i < count; i++) {
        if (meshes[i] == mesh)
            return true;
    }
    return false;
}

bool ls_meshes(const struct fsdpck_source *src, const struct fsdpck_mesh ***out, size_t *count)
{
    const size_t ntensors = fsdpck_source_ntensors(src);
    const struct fsdpck_mesh **meshes = calloc(ntensors + 1, sizeof *meshes);
    size_t n = 0;
    for (size_t i = 0; i < ntensors && meshes; i++) {
        const struct fsdpck_mesh *mesh = fsdpck_source_tensor(src, i)->mesh;
        if (mesh && !known_mesh(meshes, n, mesh))
            meshes[n++] = mesh;
    }
    *out = meshes;
    *count = n;
    return meshes != NULL;
}

static void print_meshes(const struct fsdpck_source *src)
{
    const struct fsdpck_mesh **meshes = NULL;
    size_t count = 0;
    if (!ls_meshes(src, &meshes, &count))
        return;
    for (size_t i = 0; i < count; i++) {
        fputs("mesh       ", stdout);
        for (uint32_t d = 0; d < meshes[i]->ndim; d++) {
            text_print(stdout, meshes[i]->names[d]);
            printf("=%" PRIu32 "%s", meshes[i]->sizes[d], d + 1 < meshes[i]->ndim ? "," : "\n");
        }
    }
    free(meshes);
}

uint64_t ls_payload_nbytes(const struct fsdpck_source *src)
{
    uint64_t nbytes = 0;
    for (size_t i = 0; i < fsdpck_source_ntensors(src); i++) {
        const struct fsdpck_tensor *t = fsdpck_source_tensor(src, i);
        nbytes += t->alias_of < 0 ? t->nbytes : 0;
    }
    return nbytes;
}

double ls_ratio(const struct fsdpck_source *src)
{
    uint64_t payload = ls_payload_nbytes(src), nbytes = 0;
    for (size_t i = 0; i < fsdpck_source_nfiles(src); i++)
        nbytes += fsdpck_source_file(src, i)->nbytes;
    return payload ? (double)nbytes / (double)payload : 1;
}

static void print_content(const struct fsdpck_source *src)
{
    char tensors[TEXT_NBYTES], nbytes[TEXT_NBYTES];
    printf("content    %s, %s", text_count(fsdpck_source_ntensors(src), "tensor", tensors),
           text_bytes(ls_payload_nbytes(src), nbytes));
    if (fsdpck_source_is_compressed(src))
        printf(", compressed: the files have %.3f of that", ls_ratio(src));
    putchar('\n');
}

static void print_entry(const char *label, size_t i, size_t count, const char *name, uint64_t nbytes, int64_t rank)
{
    char size[TEXT_NBYTES];
    if (i > SHOWN)
        return;
    printf("%-10s ", i ? "" : label);
    if (i == SHOWN) {
        printf("… and %zu more\n", count - SHOWN);
        return;
    }
    text_print(stdout, name);
    printf("  %s", text_bytes(nbytes, size));
    if (rank >= 0)
        printf("  rank %" PRId64, rank);
    putchar('\n');
}

static void print_base(const struct fsdpck_base *base)
{
    char tensors[TEXT_NBYTES];
    if (!base)
        return;
    fputs("base       ", stdout);
    text_print(stdout, base->path);
    printf(", %s, by reference%s%s%s\n", text_count(base->ntensors, "tensor", tensors), base->held ? ", held " : "",
           base->held ? base->held : "", access(base->path, F_OK) == 0 ? "" : ": it is not there");
}

void ls_text_header(const struct fsdpck_source *src)
{
    const char *kind = fsdpck_source_kind(src), *save_id = fsdpck_source_save_id(src),
               *state = fsdpck_source_state(src);
    text_print(stdout, fsdpck_source_path(src));
    if (strcmp(kind, "fsdpck") == 0)
        printf("\nkind       fsdpck, format version %d\n", FSDPCK_FORMAT_VERSION);
    else
        printf("\nkind       %s\n", kind);
    if (save_id)
        printf("save id    %s\n", save_id);
    if (fsdpck_source_nranks(src))
        printf("ranks      %" PRIu64 "\n", fsdpck_source_nranks(src));
    print_meshes(src);
    print_content(src);
    if (state) {
        fputs("state      ", stdout);
        text_print(stdout, state);
        putchar('\n');
    }
    print_base(fsdpck_source_base(src));
    for (size_t i = 0, n = fsdpck_source_nitems(src); i < n; i++)
        print_entry("items", i, n, fsdpck_source_item(src, i)->name, fsdpck_source_item(src, i)->nbytes, -1);
    for (size_t i = 0, n = fsdpck_source_nassets(src); i < n; i++)
        print_entry("assets", i, n, fsdpck_source_asset(src, i)->path, fsdpck_source_asset(src, i)->nbytes, -1);
    for (size_t i = 0, n = fsdpck_source_nfiles(src); i < n; i++) {
        const struct fsdpck_file *f = fsdpck_source_file(src, i);
        print_entry("files", i, n, f->name, f->nbytes, f->rank);
    }
}

void ls_text_leftover(void *ctx, const struct fsdpck_leftover *l)
{
    (void)ctx;
    fputs("left over  ", stdout);
    text_print(stdout, l->path);
    fputs(": ", stdout);
    text_print(stdout, l->why);
    putchar('\n');
}

static void print_placement(const struct fsdpck_source *src, const struct fsdpck_tensor *t)
{
    char one[48], all[PLACEMENT];
    size_t at = 0;
    if (t->alias_of >= 0) {
        fputs("= ", stdout);
        text_print(stdout, fsdpck_source_tensor(src, (size_t)t->alias_of)->name);
        return;
    }
    if (!t->mesh || !t->placements) {
        putchar('-');
        return;
    }
    all[0] = '\0';
    for (uint32_t d = 0; d < t->mesh->ndim && at < sizeof all; d++)
        at += (size_t)snprintf(all + at, sizeof all - at, "%s%s", d ? ", " : "",
                               fsdpck_placement_format(&t->placements[d], one, sizeof one));
    fputs(all, stdout);
}

struct widths {
    size_t name, dtype, shape;
};

static void widen(size_t *width, size_t found, size_t most)
{
    if (found > *width)
        *width = found < most ? found : most;
}

static struct widths measure(const struct fsdpck_source *src, const char *glob)
{
    struct widths w = { sizeof "tensor" - 1, sizeof "dtype" - 1, sizeof "shape" - 1 };
    char shape[SHAPE];
    for (size_t i = 0; i < fsdpck_source_ntensors(src); i++) {
        const struct fsdpck_tensor *t = fsdpck_source_tensor(src, i);
        if (!ls_listed(t, glob))
            continue;
        widen(&w.name, text_width(t->name), NAME_WIDTH);
        widen(&w.dtype, strlen(fsdpck_dtype_info(t->dtype)->name), SHAPE);
        widen(&w.shape, text_width(text_shape(t->ndim, t->shape, shape, sizeof shape)), SHAPE);
    }
    return w;
}

void ls_text_tensors(const struct fsdpck_source *src, const char *glob)
{
    char shape[SHAPE];
    struct widths w = measure(src, glob);
    printf("\n%-*s  %-*s  %-*s  placement\n", (int)w.name, "tensor", (int)w.dtype, "dtype", (int)w.shape, "shape");
    for (size_t i = 0; i < fsdpck_source_ntensors(src); i++) {
        const struct fsdpck_tensor *t = fsdpck_source_tensor(src, i);
        if (!ls_listed(t, glob))
            continue;
        text_print_padded(stdout, t->name, w.name);
        printf("  %-*s  ", (int)w.dtype, fsdpck_dtype_info(t->dtype)->name);
        text_print_padded(stdout, text_shape(t->ndim, t->shape, shape, sizeof shape), w.shape);
        fputs("  ", stdout);
        print_placement(src, t);
        putchar('\n');
    }
}
