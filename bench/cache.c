/* SPDX-License-Identifier: Apache-2.0 */
/* Measures how building the token cache scales: cache MODEL DATA.jsonl WORKDIR [ROUNDS]. It builds with one thread,
 * then with as many threads and as many processes as there are processors, as `--ranks N` and mpirun do. The variants
 * alternate, each builds from scratch, and the best of ROUNDS (3) counts. Prints one line per variant; checks that the
 * files are equal. */
#include <glob.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "data/data.h"

struct variant {
    const char *name;
    unsigned nprocesses, nthreads; /* nthreads: per process */
    double best;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int open_data(const struct train_config *config, unsigned nthreads)
{
    const struct fsdpck_options opt = { .nthreads = nthreads };
    struct fsdpck_error err = { 0 };
    struct data *d;
    char line[2048];
    int rc = data_open(config, INT32_MAX, &opt, &d, &err);
    if (rc)
        fprintf(stderr, "%s\n", fsdpck_error_format(&err, line, sizeof line));
    data_close(d);
    return rc != 0;
}

static double build(const struct train_config *config, const struct variant *variant)
{
    double started = now();
    int failed = 0, status;
    for (unsigned i = 0; i < variant->nprocesses; i++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(open_data(config, variant->nthreads));
        failed |= pid < 0;
    }
    while (wait(&status) > 0)
        failed |= status;
    if (failed)
        exit(1);
    return now() - started;
}

static bool same_files(const char *a, const char *b)
{
    FILE *f = fopen(a, "rbe"), *g = fopen(b, "rbe");
    int c = 0, d = 0;
    while (f && g && c == d && c != EOF) {
        c = getc_unlocked(f);
        d = getc_unlocked(g);
    }
    bool same = f && g && c == d;
    if (f)
        fclose(f);
    if (g)
        fclose(g);
    return same;
}

/* Moves the cache to `kept`, so that the next build starts without one. *nbytes: its size. */
static bool move_cache(const char *folder, const char *kept, bool first, uint64_t *nbytes)
{
    char pattern[4200];
    glob_t found;
    struct stat st;
    snprintf(pattern, sizeof pattern, "%s/cache/tokens-*.bin", folder);
    if (glob(pattern, 0, NULL, &found) || found.gl_pathc != 1 || stat(found.gl_pathv[0], &st))
        return false;
    *nbytes = (uint64_t)st.st_size;
    bool same = first ? rename(found.gl_pathv[0], kept) == 0
                      : same_files(found.gl_pathv[0], kept) && unlink(found.gl_pathv[0]) == 0;
    globfree(&found);
    return same;
}

int main(int argc, char **argv)
{
    cpu_set_t set;
    if (argc < 4 || sched_getaffinity(0, sizeof set, &set))
        return fprintf(stderr, "usage: cache MODEL DATA.jsonl WORKDIR [ROUNDS]\n"), 2;
    unsigned n = (unsigned)CPU_COUNT(&set);
    const struct train_data_file file = { argv[2], 1 };
    char folder[4096], kept[4200];
    snprintf(folder, sizeof folder, "%s/cache-bench", argv[3]);
    snprintf(kept, sizeof kept, "%s/cache-bench.kept", argv[3]);
    const struct train_config config = {
        .model = argv[1],
        .output_dir = folder,
        .data = { .train = argv[2],
                  .files = &file,
                  .nfiles = 1,
                  .loss_on = CHAT_LOSS_ASSISTANT,
                  .on_bad_line = TRAIN_BAD_LINE_STOP,
                  .too_long = TRAIN_TOO_LONG_CUT,
                  .seq_len = 2048,
                  .packing = true },
        .train = { .micro_batch_size = 1, .global_batch_size = 1, .max_steps = 1 },
    };
    struct variant variants[] = { { "1 thread", 1, 1, 1e30 }, { "threads", 1, n, 1e30 }, { "processes", n, 1, 1e30 } };
    uint64_t nbytes = 0;
    for (int round = 0; round < (argc > 4 ? atoi(argv[4]) : 3); round++) {
        for (size_t i = 0; i < 3; i++) {
            double seconds = build(&config, &variants[i]);
            variants[i].best = seconds < variants[i].best ? seconds : variants[i].best;
            if (!move_cache(folder, kept, round == 0 && i == 0, &nbytes))
                return fprintf(stderr, "%s: other bytes than those of one thread\n", variants[i].name), 1;
        }
    }
    unlink(kept);
    for (size_t i = 0; i < 3; i++)
        printf("%-10s of %u  %8.3f s  %6.2f times one thread, %.2f of N\n", variants[i].name, i ? n : 1,
               variants[i].best, variants[0].best / variants[i].best,
               variants[0].best / variants[i].best / (i ? n : 1));
    printf("%.1f MB of cache, the same bytes each time\n", 1e-6 * (double)nbytes);
    return 0;
}
