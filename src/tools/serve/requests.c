/* SPDX-License-Identifier: Apache-2.0 */
/* Requests on their way to the ranks and back. Those of a model go in the order of their seq_id, whatever order they
 * arrive in. */
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "serve/service.h"

void request_free(struct request *r)
{
    if (!r)
        return;
    if (r->drop)
        r->drop(r);
    if (r->task.kind == SERVE_SAMPLE)
        serve_sample_free(&r->task.sample);
    free(r->path);
    free(r);
}

/* Called by a rank. */
static void done(struct serve_task *t)
{
    struct request *r = t->ctx;
    struct service *s = r->service;
    pthread_mutex_lock(&s->mutex);
    if (t->err.code)
        future_fail_with(s, r->future, &t->err);
    else
        r->answer(r);
    pthread_mutex_unlock(&s->mutex);
    request_free(r);
}

struct request *request_new(struct service *s, enum serve_kind kind, struct serve_adapter *adapter,
                            void (*answer)(struct request *r))
{
    struct request *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->service = s;
    r->task.kind = kind;
    r->task.adapter = adapter;
    r->task.done = done;
    r->task.ctx = r;
    r->answer = answer;
    return r;
}

void request_submit(struct request *r)
{
    serve_submit(r->service->engine, &r->task);
}

/* Submits those whose turn it is. */
static void drain(struct model *m)
{
    while (m->waiting && m->waiting->seq == m->next_seq) {
        struct request *r = m->waiting;
        m->waiting = r->next;
        m->next_seq++;
        if (r->refused)
            request_free(r);
        else
            request_submit(r);
    }
}

void request_submit_in_order(struct model *m, struct request *r)
{
    struct request **at = &m->waiting;
    while (*at && (*at)->seq < r->seq)
        at = &(*at)->next;
    r->next = *at;
    *at = r;
    snprintf(r->id, sizeof r->id, "%s", m->id);
    drain(m);
}

struct model *request_model(struct request *r)
{
    return model_find(r->service, r->id);
}
