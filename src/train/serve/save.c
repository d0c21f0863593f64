/* SPDX-License-Identifier: Apache-2.0 */
/* An adapter in files: a checkpoint as a run writes it (src/ckpt/FORMAT.md), which names the base and can be verified,
 * or the folder that PEFT loads. */
#include <errno.h>
#include <fsdpck/check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rank/files.h"
#include "serve/serve_impl.h"
#include "state/adapter.h"
#include "state/checkpoint.h"

static const char trainer[] = "fsdptrain serve";

/* Copies the state on the host, so that the checkpoint is of one moment. */
static int copy_state(const struct rank *r, float *const trees[CHECKPOINT_TREES], struct fsdpck_error *err)
{
    checkpoint_copy(r, r->compute->stream, trees);
    return compute_sync(r->compute, err);
}

static char *state_of(const struct rank *r)
{
    json_t *o = json_pack("{s:s, s:I}", "trainer", trainer, "updates", (json_int_t)r->updates);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    return text;
}

static int write_checkpoint(const struct held *h, const char *path, const struct serve_save *x,
                            struct fsdpck_error *err)
{
    const struct rank *r = h->beside.rank;
    const size_t nelem = (size_t)h->job.layout.own_nelem;
    const struct checkpoint_write_options how = { .values_only = !x->optimizer, .force = x->force };
    float *memory = calloc(CHECKPOINT_TREES * nelem + 1, sizeof *memory);
    float *const trees[CHECKPOINT_TREES] = { memory, memory + nelem, memory + 2 * nelem };
    struct checkpoint_list *list = NULL;
    char *state = state_of(r);
    int rc = memory && state ? copy_state(r, trees, err) : fsdpck_error_nomem(err, CHECKPOINT_TREES * nelem * 4);
    if (!rc)
        rc = checkpoint_list_new(r, trees, &list, err);
    if (!rc)
        rc = checkpoint_write_as(list, &how, r->comm, &h->job, path, state, &h->job.fs, err);
    checkpoint_list_free(list);
    free(memory);
    free(state);
    return rc;
}

/* By way of a checkpoint, which the export reads. */
static int write_peft(const struct held *h, const struct serve_save *x, struct fsdpck_error *err)
{
    char path[FILES_PATH];
    struct fsdpck_error ignored = { 0 };
    const struct serve_save values = { .force = true };
    if ((size_t)snprintf(path, sizeof path, "%s.values", x->path) >= sizeof path)
        return fsdpck_error_sys(err, ENAMETOOLONG, x->path, "save");
    int rc = write_checkpoint(h, path, &values, err);
    if (!rc)
        rc = adapter_export(&h->job, h->beside.rank->updates, path, x->path, err);
    if (access(path, F_OK) == 0)
        fsdpck_remove(path, &h->job.fs, &ignored);
    return rc;
}

int save_run(struct lane *lane, struct serve_task *t)
{
    struct held *h = t->adapter->held;
    rank_beside_use(&h->beside, lane->compute);
    return t->save.peft ? write_peft(h, &t->save, &t->err) : write_checkpoint(h, t->save.path, &t->save, &t->err);
}

static int read_updates(const struct fsdpck_source *src, uint64_t *updates, struct fsdpck_error *err)
{
    const char *text = fsdpck_source_state(src);
    json_t *o = text ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;
    const char *who = json_string_value(json_object_get(o, "trainer"));
    const json_int_t n = json_integer_value(json_object_get(o, "updates"));
    int rc = who && strcmp(who, trainer) == 0 && n >= 0
                 ? 0
                 : fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, fsdpck_source_path(src),
                                    "it has no state of an optimizer that a server wrote");
    json_decref(o);
    *updates = rc ? 0 : (uint64_t)n;
    return rc;
}

int save_read(struct held *h, const char *path, struct fsdpck_error *err)
{
    struct rank *r = h->beside.rank;
    struct fsdpck_source *src = NULL;
    char index[FILES_PATH];
    int rc = files_join(index, path, "index.json", err);
    if (!rc && access(index, F_OK) != 0)
        rc = fsdpck_error_set(err, FSDPCK_ERR_USAGE, path,
                              "a PEFT folder has no state of an optimizer: load it without");
    if (!rc)
        rc = fsdpck_source_open(path, "fsdpck", &h->job.fs, &src, err);
    if (!rc)
        rc = read_updates(src, &r->updates, err);
    if (!rc)
        rc = checkpoint_check_tensors(&h->job, src, err);
    if (!rc)
        rc = checkpoint_read(r, src, err);
    fsdpck_source_close(src);
    r->step = r->updates;
    return rc ? rc : rank_publish(r, false, err);
}
