/* SPDX-License-Identifier: Apache-2.0 */
/* The sessions of the service, their models and samplers, and the futures of their requests. One thread answers
 * requests; ranks complete futures. All of it is under one mutex. */
#ifndef SERVE_SERVICE_H
#define SERVE_SERVICE_H

#include <jansson.h>
#include <pthread.h>
#include <time.h>
#include <train/serve.h>
#include <train/tokenizer.h>

#include "serve/serve_options.h"
#include "serve/store.h"

enum { ID_NBYTES = 80 };

struct call;

/* The result of a request, once it is there. */
struct future {
    char id[ID_NBYTES];
    bool done, failed, users_fault, protobuf;
    bool orphaned; /* nobody will ask for it: freed when it is done */
    char *body;    /* (nbytes) the result, or the message of the failure; owned */
    size_t nbytes;
    time_t ended, fetched; /* monotonic; 0: not yet */
};

/* Requests of a model, a sampler or a session by their numbers, so that a retry finds the first one. */
struct numbered {
    uint64_t number, hash; /* of the body */
    struct future *future; /* borrowed; NULL: the request was refused */
};
struct numbers {
    struct numbered *list; /* (n) ascending; owned */
    size_t n, capacity;
};

struct session {
    char id[ID_NBYTES];
    time_t seen; /* monotonic */
    json_t *metadata;
    struct numbers models; /* requests that made models */
    struct session *next;
};

struct request;

/* A training client. */
struct model {
    char id[ID_NBYTES]; /* SESSION:train:N, also the name of its run */
    struct session *session;
    struct serve_adapter *adapter;
    struct serve_lora lora;  /* from files: known when it has begun */
    struct numbers seen;     /* by seq_id */
    struct request *waiting; /* ascending by seq_id: an earlier one has not arrived */
    uint64_t next_seq;
    json_t *metadata;
    time_t last_request; /* by the calendar */
    struct model *next;
};

/* A sampling client. */
struct sampler {
    char id[ID_NBYTES]; /* SESSION:sample:N */
    struct session *session;
    struct serve_adapter *adapter;
    char *path; /* tinker://…; NULL: the base, or a snapshot without a name */
    struct numbers seen;
    struct sampler *next;
};

struct service {
    const struct service_options *opt;
    struct serve *engine;
    struct serve_facts facts;
    struct store store;
    char name[STORE_PATH], address[200]; /* of the model; "HOST:PORT" */
    struct sample_rule rule;             /* the model's own end tokens */
    struct tokenizer *tokenizer;         /* NULL: not opened, or the model has none */
    char nonce[20];                      /* of this process, in ids */
    unsigned char secret[192];           /* of this process, in addresses of exports */
    pthread_mutex_t mutex;               /* recursive */
    struct session *sessions;
    struct model *models;
    struct sampler *samplers;
    struct future **futures; /* (nfutures) by number; NULL: freed */
    size_t nfutures, futures_capacity;
    struct call *parked; /* calls that wait for a future */
    bool ends;
};

/* A task on its way through the ranks. */
struct request {
    struct serve_task task;
    struct service *service;
    struct future *future;
    char id[ID_NBYTES]; /* of the model: its session may have ended since */
    uint64_t seq;
    bool refused; /* uses its number up, and does nothing */
    /* Makes the result of a task that has succeeded, under the mutex: NULL: out of memory. */
    void (*answer)(struct request *r);
    void (*drop)(struct request *r); /* frees what it owns; may be NULL */
    void *own;
    char *path; /* tinker://…; owned */
    struct request *next;
};

/* ---- futures.c */

struct future *future_new(struct service *s); /* NULL: out of memory */
struct future *future_find(struct service *s, const char *id);
/* Completes a future, and wakes the calls that wait for it. body: owned afterwards; NULL: out of memory. */
void future_complete(struct service *s, struct future *f, char *body, size_t nbytes, bool protobuf);
void future_complete_json(struct service *s, struct future *f, json_t *json); /* json is released */
void future_fail(struct service *s, struct future *f, bool users_fault, const char *message);
void future_fail_with(struct service *s, struct future *f, const struct fsdpck_error *err);
void future_orphan(struct service *s, struct future *f);
/* Frees results that were fetched a while ago. */
void futures_sweep(struct service *s, time_t now);
const struct numbered *numbers_find(const struct numbers *n, uint64_t number);
bool numbers_add(struct numbers *n, struct numbered one);
void numbers_free(struct service *s, struct numbers *n); /* orphans its futures */

/* ---- requests.c */

/* A request for an adapter: to be filled, and given to request_submit(). NULL: out of memory. */
struct request *request_new(struct service *s, enum serve_kind kind, struct serve_adapter *adapter,
                            void (*answer)(struct request *r));
void request_free(struct request *r);
void request_submit(struct request *r);
/* The same, in the order of the model's requests. */
void request_submit_in_order(struct model *m, struct request *r);
/* The model whose request has succeeded, if it is there still. */
struct model *request_model(struct request *r);

/* ---- sessions.c */

struct session *session_find(struct service *s, const char *id);
struct model *model_find(struct service *s, const char *id);
struct sampler *sampler_find(struct service *s, const char *id);
/* Frees its models and samplers too. */
void session_end(struct service *s, struct session *one);
void sessions_sweep(struct service *s, time_t now);
/* NULL: out of memory. */
struct model *model_new(struct service *s, struct session *session, uint64_t number, struct fsdpck_error *err);
struct sampler *sampler_new(struct service *s, struct session *session, uint64_t number, struct serve_adapter *adapter,
                            const char *path);
time_t service_now(void); /* monotonic, never 0 */
uint64_t service_random(void);
/* Writes what the store keeps about a model's run. */
int model_record(struct service *s, const struct model *m, struct fsdpck_error *err);

#endif
