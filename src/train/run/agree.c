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
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "image/encoding.h"
#include "rank/files.h"
#include "rank/gather.h"
#include "run/build_id.h"
#include "run/samples.h"
#include "state/sources.h"
#include "state/state.h"

/* all: (COMM_MAX_SUM) the words of all ranks. *other: the first rank whose word differs from rank 0's, or nranks. */
static int find_other(struct comm *c, uint64_t mine, uint64_t *all, uint32_t *other, struct fsdpck_error *err)
{
    memset(all, 0, COMM_MAX_SUM * sizeof *all);
    all[c->rank] = mine;
    int rc = c->ops->sum_u64(c, all, c->nranks, err);
    for (*other = 0; *other < c->nranks && all[*other] == all[0];)
        ++*other;
    return rc;
}

/* "rank 1 (on host 'node2')", or "rank 1" where the host is not known. */
static const char *name_of(const struct comm *c, uint32_t rank, char *text, size_t nbytes)
{
    const char *host = job_status_host(c->job_status, rank);
    int n = snprintf(text, nbytes, "rank %u", rank);
    if (host[0])
        snprintf(text + n, nbytes - (size_t)n, " (on host '%s')", host);
    return text;
}

static int same_for_all(struct comm *comm, const char *what, uint64_t mine, struct fsdpck_error *err)
{
    uint64_t all[COMM_MAX_SUM];
    uint32_t other;
    int rc = find_other(comm, mine, all, &other, err);
    char name[96];
    if (!rc && other < comm->nranks)
        rc = fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "%s does not have the same %s as rank 0",
                              name_of(comm, other, name, sizeof name), what);
    return rc;
}

static int same_everywhere(struct rank *r, const char *what, uint64_t mine, struct fsdpck_error *err)
{
    return same_for_all(r->comm, what, mine, err);
}

static int same_weights(struct rank *r, struct fsdpck_error *err)
{
    uint64_t hash = 0;
    int rc = r->job->opt->launched_nranks ? sources_hash(r->job, &hash, err) : 0;
    return rc ? rc : same_everywhere(r, "weights in model or lora.init_adapter", hash, err);
}

/* The date is that of the host unless data.date or a checkpoint sets it. */
static int same_date(struct rank *r, struct fsdpck_error *err)
{
    const char *date = r->job->date;
    int rc = same_everywhere(r, "date in the data", XXH3_64bits(date, strlen(date)), err);
    if (rc == FSDPCK_ERR_USAGE)
        fsdpck_error_hint(err, "key data.date sets it; the clocks or time zones of the hosts differ");
    return rc;
}

/* Clocks that differ do not affect the run, but the times in logs and files. */
static int note_clocks(struct rank *r, struct fsdpck_error *err)
{
    enum { APART_SECONDS = 60 };
    uint64_t times[COMM_MAX_SUM] = { 0 };
    const struct fsdpck_options *fs = &r->job->fs;
    char name[96], line[256];
    times[r->comm->rank] = (uint64_t)time(NULL);
    int rc = r->comm->ops->sum_u64(r->comm, times, r->comm->nranks, err);
    for (uint32_t i = 1; i < r->comm->nranks && !rc && fs->note; i++) {
        const int64_t ahead = (int64_t)(times[i] - times[0]);
        if (ahead > -APART_SECONDS && ahead < APART_SECONDS)
            continue;
        snprintf(line, sizeof line, "the clock of %s is %lld seconds %s that of rank 0",
                 name_of(r->comm, i, name, sizeof name), (long long)(ahead < 0 ? -ahead : ahead),
                 ahead < 0 ? "behind" : "ahead of");
        fs->note(fs->ctx, line);
        break;
    }
    return rc;
}

static int create_token(const char *path, struct fsdpck_error *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return fsdpck_error_sys(err, errno, path, "create");
    close(fd);
    return 0;
}

/* Rank 0 creates a file with a random name; every rank checks that it exists. */
static int check_output_dir_is_shared(struct comm *comm, const struct job *job, struct fsdpck_error *err)
{
    const char *folder = job->config->output_dir;
    char path[FILES_PATH], name[40], blind_rank[96];
    uint64_t token = 0, sees[COMM_MAX_SUM];
    uint32_t blind;
    int rc = 0, mine = 0;
    if (comm->rank == 0 && getrandom(&token, sizeof token, 0) != (ssize_t)sizeof token)
        rc = fsdpck_error_sys(err, errno, NULL, "getrandom");
    if (!rc)
        rc = comm->ops->sum_u64(comm, &token, 1, err);
    snprintf(name, sizeof name, ".rank0-%016" PRIx64, token);
    if (!rc)
        rc = files_join(path, folder, name, err);
    if (!rc && comm->rank == 0)
        mine = create_token(path, err);
    if (!rc)
        rc = comm->ops->barrier(comm, "look at output_dir", err);
    if (rc)
        return rc;
    rc = find_other(comm, access(path, F_OK) == 0, sees, &blind, err);
    if (comm->rank == 0)
        unlink(path);
    if (!rc && blind < comm->nranks)
        rc = fsdpck_error_set(err, FSDPCK_ERR_IO, folder,
                              "%s does not see what rank 0 writes to output_dir: every rank needs the same "
                              "folder, as on a file system that "
                              "the hosts share",
                              name_of(comm, blind, blind_rank, sizeof blind_rank));
    return rc ? rc : mine;
}

/* Hash of the schedule of collectives: the gathers, and how gradients are exchanged. */
static uint64_t collectives(const struct rank *r)
{
    const uint64_t words[] = { gather_hash(r->gather), r->job->mesh.nkept, r->job->layout.grads_by_group, r->nslices,
                               r->job->config->train.accumulation };
    return XXH3_64bits(words, sizeof words);
}

/* Hash of the evaluation data and interval. */
static uint64_t evaluation(const struct job *job)
{
    const uint64_t words[] = { job->eval ? data_fingerprint(job->eval) : 0, job->config->train.eval_steps };
    return XXH3_64bits(words, sizeof words);
}

int agree_on_build(struct comm *comm, struct fsdpck_error *err)
{
    uint64_t builds[COMM_MAX_SUM];
    char name[96];
    uint32_t other;
    int rc = find_other(comm, build_id(), builds, &other, err);
    if (rc || other == comm->nranks)
        return rc;
    fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, NULL, "%s runs another build of fsdptrain than rank 0",
                     name_of(comm, other, name, sizeof name));
    fsdpck_error_hint(err, "install the same build on all hosts; fsdptrain --version tells versions apart");
    return err->code;
}

static int agree_on_experts(struct comm *comm, const struct job *job, struct fsdpck_error *err)
{
    uint64_t all[COMM_MAX_SUM];
    uint32_t other;
    int rc = find_other(comm, job->config->fsdp.expert_parallel, all, &other, err);
    if (rc || other == comm->nranks)
        return rc;
    return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                            "key 'fsdp.expert_parallel': that of rank %u is %llu, and that of rank 0 %llu", other,
                            (unsigned long long)all[other], (unsigned long long)all[0]);
}

int agree_on_mesh(struct comm *comm, const struct job *job, struct fsdpck_error *err)
{
    uint64_t nshards[COMM_MAX_SUM], hash = 0, hashes[COMM_MAX_SUM];
    uint32_t other;
    int rc = agree_on_experts(comm, job, err);
    if (rc)
        return rc;
    for (size_t i = 0; i < job->layout.nparams; i++)
        hash = XXH3_64bits_withSeed(&job->layout.params[i].nshards, sizeof job->layout.params[i].nshards, hash);
    rc = find_other(comm, job->mesh.nshards, nshards, &other, err);
    if (!rc && other == comm->nranks)
        rc = find_other(comm, hash, hashes, &other, err);
    if (rc || other == comm->nranks)
        return rc;
    if (nshards[other] == nshards[0])
        fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "fsdp.policy gives other shard groups to rank %u than to rank 0",
                         other);
    else
        fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                         "the shard groups of rank %u have %u rank%s, and those of rank 0 %u", other,
                         (unsigned)nshards[other], fsdpck_plural(nshards[other]), (unsigned)nshards[0]);
    fsdpck_error_hint(err, "give all ranks the same config; hosts with different numbers of ranks need "
                           "fsdp.dp_shard_size");
    return err->code;
}

int agree_on_encoding(struct comm *comm, const struct job *job, struct fsdpck_error *err)
{
    int rc = check_output_dir_is_shared(comm, job, err);
    return rc ? rc : same_for_all(comm, "pictures and texts to encode", encoding_hash(job->encoding), err);
}

int agree(struct rank *r, const char *resume, struct fsdpck_error *err)
{
    const char *slash = resume ? strrchr(resume, '/') : NULL,
               *start = slash    ? slash
                        : resume ? resume
                                 : ""; /* compare names only: hosts may mount the folder at different paths */
    comm_at(r->comm, 0, "agreement on the run");
    int rc = check_output_dir_is_shared(r->comm, r->job, err);
    if (!rc)
        rc = note_clocks(r, err);
    if (!rc)
        rc = same_everywhere(r, "config.json of the model", state_model_fingerprint(r->job), err);
    if (!rc)
        rc = same_weights(r, err);
    if (!rc)
        rc = same_date(r, err);
    if (!rc)
        rc = same_everywhere(r, "data (data.train, its tokenizer or chat template)", data_content(r->job->data), err);
    if (!rc)
        rc = same_everywhere(r, "config", state_fingerprint(r->job), err);
    if (!rc)
        rc = same_everywhere(r, "data.eval or train.eval_steps", evaluation(r->job), err);
    if (!rc)
        rc = same_everywhere(r, "sample.prompts or sample.every", samples_hash(r->job->samples), err);
    if (!rc)
        rc = same_everywhere(r, "number of steps", r->job->nsteps, err);
    if (!rc)
        rc = same_everywhere(r, "checkpoint to go on from", XXH3_64bits(start, strlen(start)), err);
    if (!rc)
        rc = same_everywhere(r, "fsdp.policy", gather_policy(r->gather), err);
    if (!rc)
        rc = same_everywhere(r, "fsdp.auto_wrap_policy or fsdp.min_num_params", gather_units(r->gather), err);
    return rc ? rc : same_everywhere(r, "schedule of collectives", collectives(r), err);
}
