/* SPDX-License-Identifier: Apache-2.0 */
/* Times what one rank of a job does at start-up: it opens a model, plans, and reads its slices into memory. Prints one
 * JSON object.
 *
 *     slices MODEL rows|columns|whole|plan|open RANK NRANKS [THREADS]
 *
 * rows: shard(0) of every tensor; columns: shard(1), or shard(0) of a vector; whole: everything; plan: plan rows, read
 * nothing; open: open only. The time includes allocating the memory and touching it for the first time. */
#include <fsdpck/fsdpck.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

struct slices {
    struct fsdpck_read *reads;
    size_t count;
    uint64_t *boxes;
    uint64_t nbytes;
    const struct fsdpck_tensor *tensor;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int fail(const struct fsdpck_error *err)
{
    char line[2048];
    fprintf(stderr, "slices: %s\n", fsdpck_error_format(err, line, sizeof line));
    return fsdpck_error_exit_code(err->code);
}

static int add_box(void *ctx, const uint64_t *offset, const uint64_t *size)
{
    struct slices *s = ctx;
    const struct fsdpck_tensor *t = s->tensor;
    uint64_t *box = s->boxes + s->count * 2 * FSDPCK_MAX_DIMS, nbytes = fsdpck_dtype_info(t->dtype)->nbytes;
    for (uint32_t d = 0; d < t->ndim; d++) {
        box[d] = offset[d];
        box[FSDPCK_MAX_DIMS + d] = size[d];
        nbytes *= size[d];
    }
    s->reads[s->count++] =
        (struct fsdpck_read){ .tensor = t, .offset = box, .size = box + FSDPCK_MAX_DIMS, .dst = (void *)s->nbytes };
    s->nbytes += (nbytes + 63) / 64 * 64;
    return 0;
}

static void place(struct slices *s, const struct fsdpck_source *src, const char *how, uint32_t rank, uint32_t nranks)
{
    const struct fsdpck_mesh mesh = { .ndim = 1, .names = { "shard" }, .sizes = { nranks } };
    for (size_t i = 0; i < fsdpck_source_ntensors(src); i++) {
        s->tensor = fsdpck_source_tensor(src, i);
        struct fsdpck_placement p = { .kind = FSDPCK_SHARD,
                                      .dim = strcmp(how, "columns") == 0 && s->tensor->ndim > 1 ? 1 : 0 };
        if (s->tensor->ndim == 0 || strcmp(how, "whole") == 0)
            p = (struct fsdpck_placement){ .kind = FSDPCK_REPLICATE };
        if (s->tensor->alias_of < 0)
            fsdpck_placement_boxes(&mesh, &p, s->tensor->ndim, s->tensor->shape, &rank, add_box, s);
    }
}

/* Bytes that this process read from the disk. */
static unsigned long long disk_nbytes(void)
{
    unsigned long long n = 0;
    char line[128];
    FILE *f = fopen("/proc/self/io", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "read_bytes: %llu", &n) == 1)
            break;
    if (f)
        fclose(f);
    return n;
}

/* Allocates memory for all slices as a trainer does, on huge pages if available. Reading touches it first. */
static void give_memory(struct slices *s)
{
    char *memory = mmap(NULL, s->nbytes + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(memory, s->nbytes + 1, MADV_HUGEPAGE);
    for (size_t i = 0; i < s->count; i++)
        s->reads[i].dst = memory + (size_t)s->reads[i].dst;
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return fprintf(stderr, "usage: slices MODEL rows|columns|whole|plan|open RANK NRANKS [THREADS]\n"), 2;
    struct fsdpck_options opt = { .nthreads = argc > 5 ? (unsigned)atoi(argv[5]) : 0 };
    struct fsdpck_error err = { 0 };
    struct fsdpck_source *src;
    struct fsdpck_plan plan = { 0 };
    double start = now(), open_s, plan_s = 0, read_s = 0;
    if (fsdpck_source_open(argv[1], NULL, &opt, &src, &err) != 0)
        return fail(&err);
    open_s = now() - start;
    if (strcmp(argv[2], "open") != 0) {
        size_t n = fsdpck_source_ntensors(src);
        struct slices s = { .reads = calloc(n, sizeof *s.reads),
                            .boxes = calloc(n, 2 * FSDPCK_MAX_DIMS * sizeof *s.boxes) };
        place(&s, src, argv[2], (uint32_t)atoi(argv[3]), (uint32_t)atoi(argv[4]));
        start = now();
        if (fsdpck_source_plan(src, s.reads, s.count, &plan, &err) != 0)
            return fail(&err);
        plan_s = now() - start;
        if (strcmp(argv[2], "plan") != 0) {
            start = now();
            give_memory(&s);
            if (fsdpck_source_read(src, s.reads, s.count, &err) != 0) /* plans again, within its time */
                return fail(&err);
            read_s = now() - start;
        }
    }
    printf("{\"open_s\":%.6f,\"plan_s\":%.6f,\"read_s\":%.6f,\"work_s\":%.6f,\"needed_bytes\":%llu,\"plan_bytes\":%llu,"
           "\"runs\":%llu,\"disk_bytes\":%llu}\n",
           open_s, plan_s, read_s, open_s + (read_s > 0 ? read_s : plan_s), (unsigned long long)plan.needed_nbytes,
           (unsigned long long)plan.read_nbytes, (unsigned long long)plan.nruns, disk_nbytes());
    fsdpck_source_close(src);
    return 0;
}
