/* SPDX-License-Identifier: Apache-2.0 */
/* Calls and answers of the Tinker API, above libmicrohttpd: routes, bodies (JSON, protobuf, zstd), keys, and calls that
 * wait for a future. */
#ifndef SERVE_CALL_H
#define SERVE_CALL_H

#include <microhttpd.h>

#include "serve/service.h"

enum { CALL_PARTS = 4 };

struct route;

struct call {
    struct service *service;
    struct MHD_Connection *connection;
    const struct route *route;
    char *url;               /* owned, cut into: */
    char *parts[CALL_PARTS]; /* the segments of the path that match "*" */
    char *body;              /* owned */
    size_t nbytes, capacity;
    json_t *json; /* the body of a POST, parsed; owned */
    unsigned refused;
    const char *why;
    /* A call that waits: */
    struct future *awaits; /* borrowed; NULL: none */
    time_t until;          /* monotonic */
    struct call *next;     /* in service->parked */
};

/* "*" in a path matches a segment. */
struct route {
    const char *method, *path;
    /* Under the mutex. Returns the answer and sets *status if it is not 200; NULL with call->awaits set: the call
     * waits, and is made anew when the future is done or time is up. */
    struct MHD_Response *(*handle)(struct call *c, unsigned *status);
    bool open;     /* needs no key */
    bool protobuf; /* the body is not JSON */
};

/* Tables; each ends with path NULL. */
extern const struct route routes_sessions[], routes_models[], routes_saves[], routes_passes[], routes_samplers[],
    routes_futures[], routes_rest[];

struct MHD_Response *call_json(json_t *json, unsigned *status); /* json is released */
struct MHD_Response *call_nothing(unsigned *status);            /* 204 */
/* {"detail": …} */
struct MHD_Response *call_refuse(unsigned *status, unsigned code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* A user's mistake is 400 or 404, never a code that the SDK repeats. */
struct MHD_Response *call_error(unsigned *status, const struct fsdpck_error *err);
/* Bytes, compressed if the client takes zstd. */
struct MHD_Response *call_bytes(struct call *c, const char *bytes, size_t nbytes, const char *type);
/* {"request_id": …} */
struct MHD_Response *call_future(const struct future *f, unsigned *status);

/* Members of the body; NULL or `otherwise`: missing, or of another type. */
const char *call_text(const struct call *c, const char *key);
int64_t call_integer(const json_t *o, const char *key, int64_t otherwise);
double call_number(const json_t *o, const char *key, double otherwise);
bool call_bool(const json_t *o, const char *key, bool otherwise);
int64_t call_query(const struct call *c, const char *key, int64_t otherwise);
/* ttl_seconds of a body: *out 0 if there is none; false: it is out of range. */
bool call_ttl(const json_t *o, int64_t *out);
uint64_t call_hash(const struct call *c); /* of the body */

/* Wakes the calls that wait for a future; NULL: all whose time is up, or all if the service ends. */
void call_wake(struct service *s, const struct future *f);

enum MHD_Result call_answer(void *service, struct MHD_Connection *connection, const char *url, const char *method,
                            const char *version, const char *upload, size_t *nupload, void **con);
void call_completed(void *service, struct MHD_Connection *connection, void **con, enum MHD_RequestTerminationCode code);

#endif
