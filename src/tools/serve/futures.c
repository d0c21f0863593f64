/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/call.h"
#include "serve/service.h"

enum { KEEP_SECONDS = 600 }; /* a result, after it was fetched */

time_t service_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1;
}

static bool grow(void **array, size_t *capacity, size_t wanted, size_t item_nbytes)
{
    if (wanted <= *capacity)
        return true;
    const size_t n = wanted + wanted / 2 + 8;
    void *grown = realloc(*array, n * item_nbytes);
    if (!grown)
        return false;
    *array = grown;
    *capacity = n;
    return true;
}

struct future *future_new(struct service *s)
{
    struct future *f = calloc(1, sizeof *f);
    if (!f || !grow((void **)&s->futures, &s->futures_capacity, s->nfutures + 1, sizeof(struct future *))) {
        free(f);
        return NULL;
    }
    snprintf(f->id, sizeof f->id, "%s-%zu", s->nonce, s->nfutures);
    s->futures[s->nfutures++] = f;
    return f;
}

struct future *future_find(struct service *s, const char *id)
{
    const char *number = strchr(id, '-');
    char *end;
    const unsigned long long i = number ? strtoull(number + 1, &end, 10) : 0;
    struct future *f = number && i < s->nfutures ? s->futures[i] : NULL;
    return f && strcmp(f->id, id) == 0 ? f : NULL;
}

static void free_future(struct service *s, struct future *f)
{
    s->futures[strtoull(strchr(f->id, '-') + 1, NULL, 10)] = NULL;
    free(f->body);
    free(f);
}

static void end(struct service *s, struct future *f)
{
    f->done = true;
    f->ended = service_now();
    call_wake(s, f);
    if (f->orphaned)
        free_future(s, f);
}

void future_complete(struct service *s, struct future *f, char *body, size_t nbytes, bool protobuf)
{
    if (!body) {
        future_fail(s, f, false, "out of memory");
        return;
    }
    f->body = body;
    f->nbytes = nbytes;
    f->protobuf = protobuf;
    end(s, f);
}

void future_complete_json(struct service *s, struct future *f, json_t *json)
{
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(json);
    future_complete(s, f, text, text ? strlen(text) : 0, false);
}

void future_fail(struct service *s, struct future *f, bool users_fault, const char *message)
{
    f->body = strdup(message);
    f->nbytes = f->body ? strlen(f->body) : 0;
    f->failed = true;
    f->users_fault = users_fault;
    end(s, f);
}

void future_fail_with(struct service *s, struct future *f, const struct fsdpck_error *err)
{
    char text[1400];
    const int exit_code = fsdpck_error_exit_code(err->code);
    future_fail(s, f, exit_code == 2 || exit_code == 3, fsdpck_error_format(err, text, sizeof text));
}

void future_orphan(struct service *s, struct future *f)
{
    f->orphaned = true;
    if (f->done)
        free_future(s, f);
}

void futures_sweep(struct service *s, time_t now)
{
    for (size_t i = 0; i < s->nfutures; i++) {
        struct future *f = s->futures[i];
        if (!f || !f->fetched || now - f->fetched < KEEP_SECONDS || !f->body)
            continue;
        free(f->body);
        f->body = NULL;
        f->nbytes = 0;
    }
}

/* ---- numbers */

/* The place of a number, or where it would be. */
static size_t place_of(const struct numbers *n, uint64_t number)
{
    size_t low = 0, end = n->n;
    while (low < end) {
        const size_t middle = low + (end - low) / 2;
        if (n->list[middle].number < number)
            low = middle + 1;
        else
            end = middle;
    }
    return low;
}

const struct numbered *numbers_find(const struct numbers *n, uint64_t number)
{
    const size_t i = place_of(n, number);
    return i < n->n && n->list[i].number == number ? &n->list[i] : NULL;
}

bool numbers_add(struct numbers *n, struct numbered one)
{
    const size_t i = place_of(n, one.number);
    if (!grow((void **)&n->list, &n->capacity, n->n + 1, sizeof *n->list))
        return false;
    memmove(&n->list[i + 1], &n->list[i], (n->n++ - i) * sizeof *n->list);
    n->list[i] = one;
    return true;
}

void numbers_free(struct service *s, struct numbers *n)
{
    for (size_t i = 0; i < n->n; i++)
        if (n->list[i].future)
            future_orphan(s, n->list[i].future);
    free(n->list);
    *n = (struct numbers){ 0 };
}
