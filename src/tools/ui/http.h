/* SPDX-License-Identifier: Apache-2.0 */
/* Requests and answers, above libmicrohttpd: routes, bodies, headers. */
#ifndef UI_HTTP_H
#define UI_HTTP_H

#include <jansson.h>
#include <microhttpd.h>

#include "ui/ui.h"

struct request {
    struct ui *ui;
    struct MHD_Connection *connection;
    const struct route *route;
    int64_t id;       /* the number in the path, or 0 */
    const char *rest; /* of the path, for a route that ends in "*" */
    char *body;       /* owned */
    size_t nbytes;
    int sink; /* the file that a large body goes to; -1: none */
    char sink_path[PATH_MAX];
    json_t *json;     /* the body, parsed; owned */
    unsigned refused; /* HTTP status of an error found before the body was read */
    const char *why;
};

/* "#" in a path matches a whole number, a final "*" the rest. */
struct route {
    const char *method, *path;
    /* Returns the answer and sets *status if it is not 200; NULL: out of memory. */
    struct MHD_Response *(*handle)(struct request *r, unsigned *status);
    bool open;  /* needs no token */
    bool files; /* the body is a file and is written to r->sink */
};

/* Tables of the api_*.c; each ends with path NULL. */
extern const struct route routes_chat[], routes_jobs[], routes_run[], routes_tools[], routes_data[], routes_found[],
    routes_static[], routes_stream[], routes_tenants[];

/* Answers with JSON, which is released. */
struct MHD_Response *http_json(json_t *json, unsigned *status);
struct MHD_Response *http_done(unsigned *status); /* {} */
/* {"error": …} with this HTTP status. */
struct MHD_Response *http_refuse(unsigned *status, unsigned code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
struct MHD_Response *http_error(unsigned *status, const struct fsdpck_error *err);
/* Adds the headers that every answer has. */
void http_secure(struct MHD_Response *answer);

/* An argument of the query as a number; `otherwise` if it is absent or not a number. */
int64_t http_query(const struct request *r, const char *name, int64_t otherwise);
const char *http_query_text(const struct request *r, const char *name); /* NULL: missing */

enum MHD_Result http_answer(void *ui, struct MHD_Connection *connection, const char *url, const char *method,
                            const char *version, const char *upload, size_t *nupload, void **con);
void http_completed(void *ui, struct MHD_Connection *connection, void **con, enum MHD_RequestTerminationCode code);

#endif
