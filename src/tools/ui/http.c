/* SPDX-License-Identifier: Apache-2.0 */
#include "ui/http.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "common/json_out.h"

/* BODY_NBYTES: a config with thousands of prompts; FILE_NBYTES: a data set. */
enum { BODY_NBYTES = 4 << 20 };
#define FILE_NBYTES (2ULL << 30)

/* ---- answers */

void http_secure(struct MHD_Response *answer)
{
    MHD_add_response_header(answer, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(answer, "Referrer-Policy", "no-referrer");
    MHD_add_response_header(answer, "Cross-Origin-Resource-Policy", "same-origin");
}

struct MHD_Response *http_json(json_t *json, unsigned *status)
{
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    if (!text)
        return http_refuse(status, MHD_HTTP_INTERNAL_SERVER_ERROR, "out of memory");
    struct MHD_Response *answer = MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE);
    MHD_add_response_header(answer, "Content-Type", "application/json");
    MHD_add_response_header(answer, "Cache-Control", "no-store");
    return answer;
}

struct MHD_Response *http_done(unsigned *status)
{
    return http_json(json_object(), status);
}

struct MHD_Response *http_refuse(unsigned *status, unsigned code, const char *format, ...)
{
    char text[2000];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    *status = code;
    json_t *o = json_pack("{s:o}", "error", json_out_text(text));
    if (o)
        return http_json(o, status);
    return MHD_create_response_from_buffer(2, (char[]){ "{}" }, MHD_RESPMEM_MUST_COPY);
}

struct MHD_Response *http_error(unsigned *status, const struct fsdpck_error *err)
{
    char text[1400];
    const unsigned code = err->code == FSDPCK_ERR_MISSING  ? MHD_HTTP_NOT_FOUND
                          : err->code == FSDPCK_ERR_EXISTS ? MHD_HTTP_CONFLICT
                          : err->code == FSDPCK_ERR_USAGE || err->code == FSDPCK_ERR_FORMAT
                              ? MHD_HTTP_BAD_REQUEST
                              : MHD_HTTP_INTERNAL_SERVER_ERROR;
    return http_refuse(status, code, "%s", fsdpck_error_format(err, text, sizeof text));
}

/* ---- what a request says */

const char *http_query_text(const struct request *r, const char *name)
{
    const char *text = NULL;
    size_t n = 0;
    MHD_lookup_connection_value_n(r->connection, MHD_GET_ARGUMENT_KIND, name, strlen(name), &text, &n);
    return text && strlen(text) == n ? text : NULL; /* values with a zero byte are refused */
}

int64_t http_query(const struct request *r, const char *name, int64_t otherwise)
{
    const char *text = http_query_text(r, name);
    char *end;
    errno = 0;
    const long long value = text && *text ? strtoll(text, &end, 10) : 0;
    return text && *text && !*end && !errno && value >= 0 ? value : otherwise;
}

static const char *header(struct MHD_Connection *c, const char *name)
{
    return MHD_lookup_connection_value(c, MHD_HEADER_KIND, name);
}

/* ---- routes */

/* Matches a path; fills *id and *rest. */
static bool matches(const char *pattern, const char *path, int64_t *id, const char **rest)
{
    while (*pattern) {
        if (*pattern == '*') {
            *rest = path;
            return *path;
        }
        if (*pattern == '#') {
            const size_t n = strspn(path, "0123456789");
            if (n == 0 || n > 15)
                return false;
            *id = strtoll(path, NULL, 10);
            path += n;
            pattern++;
        } else if (*pattern++ != *path++) {
            return false;
        }
    }
    return *path == '\0';
}

/* *known: the path exists, perhaps with another method. */
static const struct route *find(const char *method, const char *path, int64_t *id, const char **rest, bool *known)
{
    static const struct route *const tables[] = { routes_static, routes_jobs,   routes_run,
                                                  routes_tools,  routes_chat,   routes_data,
                                                  routes_found,  routes_stream, routes_tenants };
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        for (const struct route *r = tables[i]; r->path; r++) {
            if (!matches(r->path, path, id, rest))
                continue;
            *known = true;
            if (strcmp(r->method, method) == 0)
                return r;
        }
    }
    return NULL;
}

static void refuse_early(struct request *r, unsigned code, const char *why)
{
    r->refused = code;
    r->why = why;
}

static void check(struct request *r, const char *method, bool known)
{
    struct MHD_Connection *c = r->connection;
    const struct guard_headers h = { header(c, "Host"), header(c, "Origin"), header(c, "Sec-Fetch-Site"),
                                     header(c, "Authorization"), header(c, "Content-Type") };
    const char *length = header(c, "Content-Length"), *why = NULL;
    const bool changes = strcmp(method, "GET") != 0;
    const unsigned code = guard_check(&r->ui->guard, &h, changes, r->route && r->route->open, &why);
    const unsigned long long most = r->route && r->route->files ? FILE_NBYTES : BODY_NBYTES;
    if (code)
        refuse_early(r, code, why);
    else if (!r->route)
        refuse_early(r, known ? MHD_HTTP_METHOD_NOT_ALLOWED : MHD_HTTP_NOT_FOUND,
                     known ? "this address has no such method" : "there is nothing at this address");
    else if (length && strtoull(length, NULL, 10) > most)
        refuse_early(r, MHD_HTTP_CONTENT_TOO_LARGE, "the body is too large");
}

static struct request *begin(struct ui *ui, struct MHD_Connection *connection, const char *url, const char *method)
{
    bool known = false;
    struct request *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->ui = ui;
    r->connection = connection;
    r->sink = -1;
    r->route = find(method, url, &r->id, &r->rest, &known);
    if (r->rest) /* the URL may be freed before the answer is made */
        r->rest = strdup(r->rest);
    check(r, method, known);
    if (!r->refused && r->route->files) {
        snprintf(r->sink_path, sizeof r->sink_path, "%.4000s/.upload-XXXXXX", ui->dir);
        r->sink = mkostemp(r->sink_path, O_CLOEXEC);
        if (r->sink < 0 || flock(r->sink, LOCK_EX | LOCK_NB)) /* see leftovers.c */
            refuse_early(r, MHD_HTTP_INTERNAL_SERVER_ERROR, "the folder of the runs cannot be written");
    }
    return r;
}

/* ---- bodies */

static void take(struct request *r, const char *piece, size_t n)
{
    const unsigned long long most = r->sink >= 0 ? FILE_NBYTES : BODY_NBYTES;
    if (r->refused)
        return;
    if (r->nbytes + n > most) {
        refuse_early(r, MHD_HTTP_CONTENT_TOO_LARGE, "the body is too large");
        return;
    }
    if (r->sink >= 0) {
        if (write(r->sink, piece, n) != (ssize_t)n)
            refuse_early(r, MHD_HTTP_INSUFFICIENT_STORAGE, "the file cannot be written");
    } else {
        char *grown = realloc(r->body, r->nbytes + n + 1);
        if (!grown) {
            refuse_early(r, MHD_HTTP_INTERNAL_SERVER_ERROR, "out of memory");
            return;
        }
        r->body = grown;
        memcpy(grown + r->nbytes, piece, n);
    }
    r->nbytes += n;
}

static void parse_body(struct request *r)
{
    json_error_t why;
    if (r->refused || r->sink >= 0 || strcmp(r->route->method, "GET") == 0)
        return;
    r->json = json_loadb(r->body ? r->body : "", r->nbytes, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(r->json))
        refuse_early(r, MHD_HTTP_BAD_REQUEST, "the body is no JSON object");
}

static enum MHD_Result answer(struct request *r)
{
    unsigned status = MHD_HTTP_OK;
    parse_body(r);
    struct MHD_Response *made =
        r->refused ? http_refuse(&status, r->refused, "%s", r->why) : r->route->handle(r, &status);
    if (!made)
        made = http_refuse(&status, MHD_HTTP_INTERNAL_SERVER_ERROR, "out of memory");
    if (!made)
        return MHD_NO;
    http_secure(made);
    const enum MHD_Result queued = MHD_queue_response(r->connection, status, made);
    MHD_destroy_response(made);
    return queued;
}

/* Called for the headers, for each piece of the body, and at its end. */
enum MHD_Result http_answer(void *ui, struct MHD_Connection *connection, const char *url, const char *method,
                            const char *version, const char *upload, size_t *nupload, void **con)
{
    struct request *r = *con;
    (void)version;
    if (!r) {
        *con = r = begin(ui, connection, url, method);
        /* Refuse before the body arrives. */
        return !r ? MHD_NO : r->refused ? answer(r) : MHD_YES;
    }
    if (*nupload == 0)
        return answer(r);
    take(r, upload, *nupload);
    *nupload = 0;
    return MHD_YES;
}

void http_completed(void *ui, struct MHD_Connection *connection, void **con, enum MHD_RequestTerminationCode code)
{
    struct request *r = *con;
    (void)ui;
    (void)connection;
    (void)code;
    if (!r)
        return;
    if (r->sink >= 0) {
        close(r->sink);
        unlink(r->sink_path);
    }
    free((char *)r->rest);
    free(r->body);
    json_decref(r->json);
    free(r);
    *con = NULL;
}
