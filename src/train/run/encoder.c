/* SPDX-License-Identifier: Apache-2.0 */
#include "run/encoder.h"

#include <train/image.h>

#include "comm/comm_mpi.h"
#include "image/encode.h"
#include "image/vae_work.h"
#include "rank/memory.h"
#include "run/agree.h"

static struct sampler_options options_of(const struct job *job)
{
    return (struct sampler_options){ .dtype = job->config->dtype.param == TRAIN_BF16 ? "bf16" : "fp32",
                                     .nthreads = job->nthreads,
                                     .device = job->opt->device,
                                     .module = job->opt->module,
                                     .vae_tiling = job->config->image.vae_tiling,
                                     .fs = job->fs };
}

/* The encoder for the ranks of the job. */
static int describe(const struct job *job, struct text_encoder *out, struct fsdpck_error *err)
{
    const struct encoding *e = job->encoding;
    const struct sampler_options opt = options_of(job);
    int rc = text_encoder_describe(&e->pipeline, &opt, e->ntext, job, out, err);
    const int64_t width = text_encoder_width(out);
    return rc || width == e->text_width
               ? rc
               : fsdpck_error_set(err, FSDPCK_ERR_FORMAT, e->pipeline.folder,
                                  "the text encoder gives %lld features, and the transformer takes %lld",
                                  (long long)width, (long long)e->text_width);
}

int encoder_check(const struct job *job, struct fsdpck_error *err)
{
    struct text_encoder texts;
    int rc = describe(job, &texts, err);
    text_encoder_close(&texts);
    return rc;
}

int encoder_open(const struct job *job, struct job_status *job_status, struct encoder *out, struct fsdpck_error *err)
{
    *out = (struct encoder){ 0 };
    if (!job->encoding || job->encoding->complete)
        return 0;
    int rc = describe(job, &out->texts, err);
    if (rc || job->opt->launched_nranks)
        return rc;
    return comm_world_new(job->nranks, job_comm_sizes(&out->texts.whole.job), job_status, &out->world, err);
}

void encoder_unmap(struct encoder *e)
{
    comm_world_free(e->world);
    e->world = NULL;
}

void encoder_close(struct encoder *e)
{
    encoder_unmap(e);
    text_encoder_close(&e->texts);
}

static void encoded(void *ctx, uint64_t done, uint64_t total)
{
    const struct train_options *opt = ctx;
    opt->phase(opt->ctx, TRAIN_ENCODING, done, total);
}

/* Launched ranks share memory for the encoder only if it is used. */
static int embed(const struct encode *work, struct encoder *e, const struct job *job, struct comm *comm,
                 struct fsdpck_error *err)
{
    const struct job *of_encoder = &e->texts.whole.job;
    if (!work->encoding->texts.nmissing)
        return 0;
    if (!job->opt->launched_nranks)
        return encode_texts(work, &e->texts, comm, err);
    int rc = comm_mpi_share_memory(comm, job_comm_sizes(of_encoder), err);
    if (!rc)
        rc = encode_texts(work, &e->texts, comm, err);
    if (!rc)
        comm_mpi_unshare_memory(comm);
    return rc;
}

static int run(struct encoder *e, const struct job *job, struct comm *comm, struct fsdpck_error *err)
{
    const struct train_options *opt = job->opt;
    const struct encode work = { .encoding = job->encoding,
                                 .options = options_of(job),
                                 .local = opt->launched_nlocal ? opt->launched_local : comm->rank,
                                 .progress = opt->phase ? encoded : NULL,
                                 .ctx = (void *)opt };
    e->texts.whole.job.fs = job->fs; /* of rank 0 with notes, of others without */
    comm_at(comm, 0, "encoding");
    int rc = agree_on_encoding(comm, job, err);
    if (!rc)
        rc = encoding_find(job->encoding, comm, err);
    if (!rc)
        rc = embed(&work, e, job, comm, err);
    return rc ? rc : encode_pictures(&work, comm, err);
}

int encoder_run(struct encoder *e, const struct job *job, uint32_t rank, struct comm *launched,
                struct fsdpck_error *err)
{
    struct comm *comm = launched;
    if (!job->encoding || job->encoding->complete)
        return 0;
    int rc = launched ? 0 : comm_world_join(e->world, rank, &comm, err);
    if (!rc)
        rc = run(e, job, comm, err);
    if (comm && comm != launched)
        comm->ops->free(comm);
    if (!rc)
        encoder_close(e);
    return rc;
}

/* The rank's part of the encoder, the groups that it gathers, and a text. */
static int count_texts(const struct job *job, const struct rank_device *where, uint64_t *nbytes,
                       struct fsdpck_error *err)
{
    const struct compute_device on = { where->device, where->index, 1 };
    const bool apart = where->device->separate_memory;
    struct text_encoder e;
    struct compute *c = NULL;
    struct memory_sizes sizes;
    int rc = describe(job, &e, err);
    const struct job *j = &e.whole.job;
    if (!rc)
        rc = compute_new(&j->model, &j->layout, j->config, j->micro_ntok, 1, &on, &c, err);
    if (!rc)
        rc = memory_count(j, apart, device_is_linked(where, job->nranks), c, &sizes, err);
    if (!rc)
        *nbytes = memory_sum(&sizes) + (apart ? 0 : job_rest_nbytes(j));
    compute_free(c);
    text_encoder_close(&e);
    return rc;
}

static int count_pictures(const struct job *job, uint64_t *nbytes, struct fsdpck_error *err)
{
    const struct sampler_options opt = options_of(job);
    int64_t height, width;
    encoding_largest(job->encoding, &height, &width);
    return vae_count(&job->encoding->pipeline, true, vae_work_dtype(&opt), opt.vae_tiling, &opt.fs, height / IMAGE_UNIT,
                     width / IMAGE_UNIT, nbytes, err);
}

int encoder_count(const struct job *job, const struct rank_device *where, uint64_t *nbytes, struct fsdpck_error *err)
{
    uint64_t ntexts, npictures, of_texts = 0, of_pictures = 0;
    encoding_count(job->encoding, &ntexts, &npictures);
    int rc = ntexts ? count_texts(job, where, &of_texts, err) : 0;
    if (!rc && npictures)
        rc = count_pictures(job, &of_pictures, err);
    *nbytes = of_texts > of_pictures ? of_texts : of_pictures;
    return rc;
}
