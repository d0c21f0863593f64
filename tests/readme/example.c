/* One rank of a job that starts up on a "meta device": it reads its own slices of every tensor, straight into memory, and nothing else. */
#include <fsdpck/fsdpck.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct slices { /* what this rank holds: one read a tensor */
    struct fsdpck_read *reads;
    size_t count;
    const struct fsdpck_tensor *tensor; /* being placed */
};

/* A box of the logical tensor that FSDP2 gives this rank. */
static int add_box(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    struct slices *s = ctx;
    const struct fsdpck_tensor *t = s->tensor;
    uint64_t nbytes = fsdpck_dtype_info(t->dtype)->nbytes, *box = malloc(2 * (t->ndim + 1) * sizeof *box);
    for (uint32_t d = 0; d < t->ndim; d++) {
        box[d] = offset[d];
        box[t->ndim + d] = size[d];
        nbytes *= size[d];
    }
    s->reads[s->count++] = (struct fsdpck_read){ .tensor = t, .offset = box, .size = box + t->ndim, .dst = malloc(nbytes) };
    return 0;
}

static int fail(const struct fsdpck_error *err)
{
    char line[2048];
    fprintf(stderr, "%s\n", fsdpck_error_format(err, line, sizeof line));
    return fsdpck_error_exit_code(err->code);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return fprintf(stderr, "usage: example MODEL RANK NRANKS\n"), 2;
    uint32_t rank = (uint32_t)atoi(argv[2]), nranks = (uint32_t)atoi(argv[3]);
    const struct fsdpck_mesh mesh = { .ndim = 1, .names = { "shard" }, .sizes = { nranks } };
    struct fsdpck_error err = { 0 };
    struct fsdpck_source *model;
    struct fsdpck_plan plan;

    if (fsdpck_source_open(argv[1], NULL, NULL, &model, &err) != 0) /* reads metadata only */
        return fail(&err);
    struct slices mine = { .reads = calloc(fsdpck_source_ntensors(model), sizeof *mine.reads) };
    for (size_t i = 0; i < fsdpck_source_ntensors(model); i++) {
        mine.tensor = fsdpck_source_tensor(model, i);
        const struct fsdpck_placement placement = { .kind = mine.tensor->ndim ? FSDPCK_SHARD : FSDPCK_REPLICATE, .dim = 0 };
        if (mine.tensor->alias_of < 0) /* tied weights are stored, and read, once */
            fsdpck_placement_boxes(&mesh, &placement, mine.tensor->ndim, mine.tensor->shape, &rank, add_box, &mine);
    }
    if (fsdpck_source_plan(model, mine.reads, mine.count, &plan, &err) != 0 ||
        fsdpck_source_read(model, mine.reads, mine.count, &err) != 0) /* verified; threads share the work */
        return fail(&err);
    printf("rank %u of %u: %zu slices, %llu bytes from %llu files\n", rank, nranks, mine.count, (unsigned long long)plan.needed_nbytes,
           (unsigned long long)plan.nfiles);
    fsdpck_source_close(model);
    return 0; /* mine.reads[i].dst now holds the rows of mine.reads[i].tensor */
}
