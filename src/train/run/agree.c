/* SPDX-License-Identifier: Apache-2.0 */
/* Compares hashes of the facts that ranks must share, and checks that all ranks see a file that rank 0 writes to
 * output_dir. Ranks of one supervisor share the facts by fork; ranks that a launcher started on other hosts may have
 * read other files. */
#include "run/agree.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include <xxhash.h>

#include "rank/files.h"
#include "rank/gather.h"
#include "run/samples.h"
#include "state/state.h"

/* *other: the first rank whose hash differs from rank 0's, or nranks. */
static int find_other(struct rank *r, uint64_t mine, uint32_t *other, struct fsdpck_error *err)
{
    uint64_t all[COMM_MAX_SUM] = { 0 };
    all[r->comm->rank] = mine;
    int rc = r->comm->ops->sum_u64(r->comm, all, r->comm->nranks, err);
    for (*other = 0; *other < r->comm->nranks && all[*other] == all[0];)
        ++*other;
    return rc;
}

static int same_everywhere(struct rank *r, const char *what, uint64_t mine, struct fsdpck_error *err)
{
    uint32_t other;
    int rc = find_other(r, mine, &other, err);
    if (!rc && other < r->comm->nranks)
        rc = fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "rank %u does not have the same %s as rank 0", other, what);
    return rc;
}

static int leave_token(const char *path, struct fsdpck_error *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return fsdpck_error_sys(err, errno, path, "create");
    close(fd);
    return 0;
}

/* Rank 0 creates a file with a random name; every rank checks that it exists. */
static int see_output_dir(struct rank *r, struct fsdpck_error *err)
{
    const char *folder = r->job->config->output_dir;
    char path[FILES_PATH], name[40];
    uint64_t token = 0;
    uint32_t blind;
    int rc = 0, mine = 0;
    if (r->comm->rank == 0 && getrandom(&token, sizeof token, 0) != (ssize_t)sizeof token)
        rc = fsdpck_error_sys(err, errno, NULL, "getrandom");
    if (!rc)
        rc = r->comm->ops->sum_u64(r->comm, &token, 1, err);
    snprintf(name, sizeof name, ".rank0-%016" PRIx64, token);
    if (!rc)
        rc = files_join(path, folder, name, err);
    if (!rc && r->comm->rank == 0)
        mine = leave_token(path, err);
    if (!rc)
        rc = r->comm->ops->barrier(r->comm, "look at output_dir", err);
    if (rc)
        return rc;
    rc = find_other(r, access(path, F_OK) == 0, &blind, err);
    if (r->comm->rank == 0)
        unlink(path);
    if (!rc && blind < r->comm->nranks)
        rc = fsdpck_error_set(err, FSDPCK_ERR_IO, folder,
                              "rank %u does not see what rank 0 writes to output_dir: every rank needs the same "
                              "folder, as on a file system that "
                              "the hosts share",
                              blind);
    return rc ? rc : mine;
}

/* Hash of the schedule of collectives: the gathers, and how gradients are exchanged. */
static uint64_t collectives(const struct rank *r)
{
    const uint64_t words[] = { gather_hash(r->gather), r->job->layout.grads_by_group, r->nslices,
                               r->job->config->train.accumulation };
    return XXH3_64bits(words, sizeof words);
}

/* Hash of the evaluation data and interval. */
static uint64_t evaluation(const struct job *job)
{
    const uint64_t words[] = { job->eval ? data_fingerprint(job->eval) : 0, job->config->train.eval_steps };
    return XXH3_64bits(words, sizeof words);
}

int agree(struct rank *r, const char *resume, struct fsdpck_error *err)
{
    const char *slash = resume ? strrchr(resume, '/') : NULL,
               *start = slash    ? slash
                        : resume ? resume
                                 : ""; /* compare names only: hosts may mount the folder at different paths */
    comm_at(r->comm, 0, "agreement on the run");
    int rc = see_output_dir(r, err);
    if (!rc)
        rc = same_everywhere(r, "config, model or data", state_fingerprint(r->job), err);
    if (!rc)
        rc = same_everywhere(r, "data.eval or train.eval_steps", evaluation(r->job), err);
    if (!rc)
        rc = same_everywhere(r, "sample.prompts or sample.every", samples_hash(r->job->samples), err);
    if (!rc)
        rc = same_everywhere(r, "number of steps", r->job->nsteps, err);
    if (!rc)
        rc = same_everywhere(r, "checkpoint to go on from", XXH3_64bits(start, strlen(start)), err);
    return rc ? rc : same_everywhere(r, "schedule of collectives", collectives(r), err);
}
