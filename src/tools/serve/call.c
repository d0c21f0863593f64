/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/call.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include <zstd.h>

#include "common/json_out.h"

enum { BODY_NBYTES = 256 << 20, COMPRESSED_FROM = 1024, TTL_LEAST = 3600, TTL_MOST = 315576000 };

/* ---- answers */

static struct MHD_Response *answer_text(char *text)
{
    struct MHD_Response *answer = MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE);
    MHD_add_response_header(answer, "Content-Type", "application/json");
    return answer;
}

struct MHD_Response *call_json(json_t *json, unsigned *status)
{
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(json);
    return text ? answer_text(text) : call_refuse(status, MHD_HTTP_INTERNAL_SERVER_ERROR, "out of memory");
}

struct MHD_Response *call_nothing(unsigned *status)
{
    *status = MHD_HTTP_NO_CONTENT;
    return MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
}

struct MHD_Response *call_refuse(unsigned *status, unsigned code, const char *format, ...)
{
    char text[2000];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    *status = code;
    json_t *o = json_pack("{s:o}", "detail", json_out_text(text));
    char *json = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    return json ? answer_text(json)
                : MHD_create_response_from_buffer(17, (char[]){ "{\"detail\":\"none\"}" }, MHD_RESPMEM_MUST_COPY);
}

struct MHD_Response *call_error(unsigned *status, const struct fsdpck_error *err)
{
    char text[1400];
    const bool system = err->code == FSDPCK_ERR_IO;
    return call_refuse(status,
                       err->code == FSDPCK_ERR_MISSING ? MHD_HTTP_NOT_FOUND
                       : system                        ? MHD_HTTP_INTERNAL_SERVER_ERROR
                                                       : MHD_HTTP_BAD_REQUEST,
                       "%s", fsdpck_error_format(err, text, sizeof text));
}

static bool takes_zstd(const struct call *c)
{
    const char *accepted = MHD_lookup_connection_value(c->connection, MHD_HEADER_KIND, "Accept-Encoding");
    return accepted && strstr(accepted, "zstd");
}

struct MHD_Response *call_bytes(struct call *c, const char *bytes, size_t nbytes, const char *type)
{
    char *packed = nbytes >= COMPRESSED_FROM && takes_zstd(c) ? malloc(ZSTD_compressBound(nbytes)) : NULL;
    const size_t n = packed ? ZSTD_compress(packed, ZSTD_compressBound(nbytes), bytes, nbytes, 1) : 0;
    struct MHD_Response *answer;
    if (packed && !ZSTD_isError(n)) {
        answer = MHD_create_response_from_buffer(n, packed, MHD_RESPMEM_MUST_FREE);
        MHD_add_response_header(answer, "Content-Encoding", "zstd");
    } else {
        free(packed);
        answer = MHD_create_response_from_buffer(nbytes, (void *)bytes, MHD_RESPMEM_MUST_COPY);
    }
    MHD_add_response_header(answer, "Content-Type", type);
    return answer;
}

struct MHD_Response *call_future(const struct future *f, unsigned *status)
{
    return call_json(json_pack("{s:s}", "request_id", f->id), status);
}

/* ---- what a call says */

const char *call_text(const struct call *c, const char *key)
{
    return json_string_value(json_object_get(c->json, key));
}

int64_t call_integer(const json_t *o, const char *key, int64_t otherwise)
{
    const json_t *value = json_object_get(o, key);
    return json_is_integer(value) ? (int64_t)json_integer_value(value) : otherwise;
}

double call_number(const json_t *o, const char *key, double otherwise)
{
    const json_t *value = json_object_get(o, key);
    return json_is_number(value) ? json_number_value(value) : otherwise;
}

bool call_bool(const json_t *o, const char *key, bool otherwise)
{
    const json_t *value = json_object_get(o, key);
    return json_is_boolean(value) ? json_is_true(value) : otherwise;
}

int64_t call_query(const struct call *c, const char *key, int64_t otherwise)
{
    const char *text = MHD_lookup_connection_value(c->connection, MHD_GET_ARGUMENT_KIND, key);
    char *end;
    const long long value = text && *text ? strtoll(text, &end, 10) : 0;
    return text && *text && !*end && value >= 0 ? value : otherwise;
}

bool call_ttl(const json_t *o, int64_t *out)
{
    const json_t *value = json_object_get(o, "ttl_seconds");
    *out = 0;
    if (!value || json_is_null(value))
        return true;
    *out = json_integer_value(value);
    return json_is_integer(value) && *out >= TTL_LEAST && *out <= TTL_MOST;
}

uint64_t call_hash(const struct call *c)
{
    return XXH3_64bits(c->body, c->nbytes);
}

/* ---- routes */

/* Cuts url, a copy of the path, at the segments that match "*". */
static bool matches(const char *pattern, char *url, char *parts[CALL_PARTS])
{
    size_t n = 0;
    while (*pattern && *url) {
        if (*pattern == '*' && n < CALL_PARTS) {
            parts[n++] = url;
            url += strcspn(url, "/");
            pattern++;
        } else if (*pattern++ != *url++) {
            return false;
        }
    }
    if (*pattern || *url)
        return false;
    for (size_t i = 0; i < n; i++)
        parts[i][strcspn(parts[i], "/")] = '\0';
    return true;
}

/* *known: the path exists, perhaps with another method. */
static const struct route *find(struct call *c, const char *method, const char *path, bool *known)
{
    static const struct route *const tables[] = { routes_futures, routes_passes, routes_samplers, routes_sessions,
                                                  routes_models,  routes_saves,  routes_rest };
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        for (const struct route *r = tables[i]; r->path; r++) {
            char *url = strdup(path);
            if (!url || !matches(r->path, url, c->parts)) {
                free(url);
                continue;
            }
            *known = true;
            free(c->url);
            c->url = url;
            if (strcmp(r->method, method) == 0)
                return r;
        }
    }
    return NULL;
}

static void refuse_early(struct call *c, unsigned code, const char *why)
{
    c->refused = code;
    c->why = why;
}

static void check(struct call *c, bool known)
{
    const char *key = MHD_lookup_connection_value(c->connection, MHD_HEADER_KIND, "X-API-Key"),
               *wanted = c->service->opt->key;
    if (!c->route)
        refuse_early(c, known ? MHD_HTTP_METHOD_NOT_ALLOWED : MHD_HTTP_NOT_FOUND,
                     known ? "this address has no such method" : "there is nothing at this address");
    else if (!c->route->open && (!key || (wanted && strcmp(key, wanted) != 0)))
        refuse_early(c, MHD_HTTP_UNAUTHORIZED, key ? "the X-API-Key is another" : "there is no X-API-Key");
}

static struct call *begin(struct service *s, struct MHD_Connection *connection, const char *url, const char *method)
{
    bool known = false;
    struct call *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->service = s;
    c->connection = connection;
    c->route = find(c, method, url, &known);
    check(c, known);
    return c;
}

/* ---- bodies */

static void take(struct call *c, const char *piece, size_t n)
{
    if (c->refused)
        return;
    if (c->nbytes + n > BODY_NBYTES) {
        refuse_early(c, MHD_HTTP_BAD_REQUEST, "the body is larger than 256 MiB");
        return;
    }
    if (c->nbytes + n + 1 > c->capacity) {
        const size_t capacity = 2 * c->capacity + n + 1;
        char *grown = realloc(c->body, capacity);
        if (!grown) {
            refuse_early(c, MHD_HTTP_INTERNAL_SERVER_ERROR, "out of memory");
            return;
        }
        c->body = grown;
        c->capacity = capacity;
    }
    memcpy(c->body + c->nbytes, piece, n);
    c->nbytes += n;
}

/* Adds the content of a zstd frame to the body, which is empty. false: it is no whole frame. */
static bool add_unpacked(struct call *c, const char *packed, size_t nbytes)
{
    char piece[1 << 16];
    ZSTD_DStream *z = ZSTD_createDStream();
    ZSTD_inBuffer in = { packed, nbytes, 0 };
    ZSTD_outBuffer out = { piece, sizeof piece, 0 };
    size_t rest = 1;
    while (z && rest && !c->refused && (in.pos < in.size || out.pos == out.size)) {
        out.pos = 0;
        rest = ZSTD_decompressStream(z, &out, &in);
        if (ZSTD_isError(rest))
            break;
        take(c, piece, out.pos);
    }
    ZSTD_freeDStream(z);
    return z && rest == 0;
}

/* Replaces a compressed body. */
static void unpack(struct call *c)
{
    const char *encoding = MHD_lookup_connection_value(c->connection, MHD_HEADER_KIND, "Content-Encoding");
    char *packed = c->body;
    const size_t nbytes = c->nbytes;
    if (!encoding || strcmp(encoding, "identity") == 0 || c->refused)
        return;
    if (strcmp(encoding, "zstd") != 0) {
        refuse_early(c, MHD_HTTP_BAD_REQUEST, "the only Content-Encoding is zstd");
        return;
    }
    c->body = NULL;
    c->nbytes = c->capacity = 0;
    if (!add_unpacked(c, packed, nbytes) && !c->refused)
        refuse_early(c, MHD_HTTP_BAD_REQUEST, "the body is no whole zstd frame");
    free(packed);
}

static void parse(struct call *c)
{
    json_error_t why;
    unpack(c);
    if (c->refused || c->route->protobuf || strcmp(c->route->method, "GET") == 0 || c->nbytes == 0)
        return;
    c->json = json_loadb(c->body, c->nbytes, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(c->json))
        refuse_early(c, MHD_HTTP_BAD_REQUEST, "the body is no JSON object");
}

/* ---- waiting */

static void park(struct call *c)
{
    c->next = c->service->parked;
    c->service->parked = c;
    MHD_suspend_connection(c->connection);
}

void call_wake(struct service *s, const struct future *f)
{
    const time_t now = service_now();
    for (struct call **at = &s->parked, *c; (c = *at) != NULL;) {
        if (f ? c->awaits != f : !s->ends && now < c->until) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        MHD_resume_connection(c->connection);
    }
}

/* ---- the calls of libmicrohttpd */

static enum MHD_Result queue(struct call *c, struct MHD_Response *made, unsigned status)
{
    if (!made)
        made = call_refuse(&status, MHD_HTTP_INTERNAL_SERVER_ERROR, "out of memory");
    if (!made)
        return MHD_NO;
    const enum MHD_Result queued = MHD_queue_response(c->connection, status, made);
    MHD_destroy_response(made);
    return queued;
}

static enum MHD_Result answer(struct call *c)
{
    struct service *s = c->service;
    unsigned status = MHD_HTTP_OK;
    if (!c->awaits && !c->json)
        parse(c);
    if (c->refused) {
        struct MHD_Response *refusal = call_refuse(&status, c->refused, "%s", c->why);
        return queue(c, refusal, status);
    }
    pthread_mutex_lock(&s->mutex);
    c->awaits = NULL;
    struct MHD_Response *made = c->route->handle(c, &status);
    const bool waits = !made && c->awaits && !s->ends;
    if (waits)
        park(c);
    pthread_mutex_unlock(&s->mutex);
    return waits ? MHD_YES : queue(c, made, status);
}

/* Called for the headers, for each piece of the body, at its end, and when a call that waited goes on. */
enum MHD_Result call_answer(void *service, struct MHD_Connection *connection, const char *url, const char *method,
                            const char *version, const char *upload, size_t *nupload, void **con)
{
    struct call *c = *con;
    (void)version;
    if (!c) {
        *con = c = begin(service, connection, url, method);
        return c ? MHD_YES : MHD_NO;
    }
    if (*nupload == 0)
        return answer(c);
    take(c, upload, *nupload);
    *nupload = 0;
    return MHD_YES;
}

void call_completed(void *service, struct MHD_Connection *connection, void **con, enum MHD_RequestTerminationCode code)
{
    struct call *c = *con;
    struct service *s = service;
    (void)connection;
    (void)code;
    if (!c)
        return;
    pthread_mutex_lock(&s->mutex);
    for (struct call **at = &s->parked; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    pthread_mutex_unlock(&s->mutex);
    free(c->url);
    free(c->body);
    json_decref(c->json);
    free(c);
    *con = NULL;
}
