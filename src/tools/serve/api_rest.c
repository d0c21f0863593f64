/* SPDX-License-Identifier: Apache-2.0 */
/* Runs and their checkpoints, as the state folder has them. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "serve/call.h"

/* ---- Facts as the SDK wants them */

static json_t *iso_time(json_int_t seconds)
{
    char text[40];
    const time_t t = (time_t)seconds;
    struct tm utc;
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&t, &utc));
    return json_string(text);
}

static json_t *checkpoint_of(const char *run, const json_t *facts)
{
    static const char *const types[STORE_NKINDS] = { "training", "sampler", "external" };
    const json_int_t kind = json_integer_value(json_object_get(facts, "kind"));
    const char *name = json_string_value(json_object_get(facts, "name"));
    const json_t *expires = json_object_get(facts, "expires_at");
    struct store_place p;
    char id[300];
    if (!store_parse_parts(run, store_kind_name((enum store_kind)kind), name, &p))
        return NULL;
    snprintf(id, sizeof id, "%s/%.255s", store_kind_name(p.kind), name);
    char *uri = store_uri(&p);
    json_t *o = json_pack("{s:s, s:s, s:o, s:s?, s:O, s:b}", "checkpoint_id", id, "checkpoint_type", types[kind],
                          "time", iso_time(json_integer_value(json_object_get(facts, "time"))), "tinker_path", uri,
                          "size_bytes", json_object_get(facts, "size_bytes"), "public", 0);
    free(uri);
    if (o && json_is_integer(expires))
        json_object_set_new(o, "expires_at", iso_time(json_integer_value(expires)));
    return o;
}

static json_t *checkpoints_of(struct service *s, const char *run)
{
    json_t *all = store_checkpoints(&s->store, run), *list = json_array(), *one;
    size_t i;
    json_array_foreach (all, i, one)
        json_array_append_new(list, checkpoint_of(run, one));
    json_decref(all);
    return list;
}

/* The newest of a type; borrowed; NULL: there is none. */
static json_t *newest(const json_t *list, const char *type)
{
    json_t *best = NULL, *one;
    size_t i;
    json_array_foreach ((json_t *)list, i, one)
        if (strcmp(json_string_value(json_object_get(one, "checkpoint_type")), type) == 0 &&
            (!best || strcmp(json_string_value(json_object_get(one, "time")),
                             json_string_value(json_object_get(best, "time"))) >= 0))
            best = one;
    return best;
}

/* Of a folder that somebody put there, adapter_config.json tells the rank. */
static json_int_t rank_of(const struct service *s, const json_t *facts, const json_t *list)
{
    const json_t *rank = json_object_get(facts, "lora_rank"), *first = json_array_get(list, 0);
    const char *uri = json_string_value(json_object_get(first, "tinker_path"));
    struct store_place p;
    if (json_is_integer(rank))
        return json_integer_value(rank);
    json_t *config = uri && store_parse(uri, &p) ? store_adapter_config(&s->store, &p) : NULL;
    const json_int_t r = json_integer_value(json_object_get(config, "r"));
    json_decref(config);
    return r;
}

static void add_metadata(json_t *o, const json_t *facts)
{
    json_t *metadata = json_object_get(facts, "user_metadata"), *texts, *value;
    const char *key;
    if (!json_is_object(metadata))
        return;
    texts = json_object();
    json_object_foreach (metadata, key, value)
        if (json_is_string(value))
            json_object_set(texts, key, value);
    json_object_set_new(o, "user_metadata", texts);
}

static json_int_t last_request(struct service *s, const char *run, const json_t *facts)
{
    const struct model *m = model_find(s, run);
    return m ? (json_int_t)m->last_request : json_integer_value(json_object_get(facts, "last_request_time"));
}

/* NULL: there is no such run. */
static json_t *run_of(struct service *s, const char *run)
{
    json_t *facts = store_run(&s->store, run);
    if (!facts)
        return NULL;
    json_t *list = checkpoints_of(s, run);
    const char *base = json_string_value(json_object_get(facts, "base_model"));
    json_t *o =
        json_pack("{s:s, s:s, s:s, s:b, s:I, s:o, s:b}", "training_run_id", run, "base_model", base ? base : s->name,
                  "model_owner", "local", "is_lora", 1, "lora_rank", rank_of(s, facts, list), "last_request_time",
                  iso_time(last_request(s, run, facts)), "corrupted", 0);
    if (o && newest(list, "training"))
        json_object_set(o, "last_checkpoint", newest(list, "training"));
    if (o && newest(list, "sampler"))
        json_object_set(o, "last_sampler_checkpoint", newest(list, "sampler"));
    if (o)
        add_metadata(o, facts);
    json_decref(list);
    json_decref(facts);
    return o;
}

/* ---- Lists */

static json_t *cursor(int64_t limit, int64_t offset, size_t total)
{
    return json_pack("{s:I, s:I, s:I}", "offset", (json_int_t)offset, "limit", (json_int_t)limit, "total_count",
                     (json_int_t)total);
}

struct dated_run {
    const char *name; /* borrowed */
    json_int_t last;
};

static int later_first(const void *x, const void *y)
{
    const struct dated_run *a = x, *b = y;
    return a->last != b->last ? (a->last < b->last ? 1 : -1) : strcmp(a->name, b->name);
}

/* The names of runs, those used last first; borrowed from names. NULL: out of memory. */
static struct dated_run *sort_runs(struct service *s, const json_t *names)
{
    const size_t n = json_array_size(names);
    struct dated_run *runs = calloc(n + 1, sizeof *runs);
    for (size_t i = 0; i < n && runs; i++) {
        runs[i].name = json_string_value(json_array_get(names, i));
        json_t *facts = store_run(&s->store, runs[i].name);
        runs[i].last = last_request(s, runs[i].name, facts);
        json_decref(facts);
    }
    if (runs)
        qsort(runs, n, sizeof *runs, later_first);
    return runs;
}

static struct MHD_Response *list_runs(struct call *c, unsigned *status)
{
    const int64_t limit = call_query(c, "limit", 20), offset = call_query(c, "offset", 0);
    json_t *names = store_runs(&c->service->store), *list = json_array();
    const size_t n = json_array_size(names);
    struct dated_run *runs = sort_runs(c->service, names);
    for (size_t i = (size_t)offset; runs && i < n && i < (size_t)(offset + limit); i++)
        json_array_append_new(list, run_of(c->service, runs[i].name));
    free(runs);
    json_decref(names);
    return call_json(json_pack("{s:o, s:o}", "training_runs", list, "cursor", cursor(limit, offset, n)), status);
}

static struct MHD_Response *refuse_run(const char *run, unsigned *status)
{
    return call_refuse(status, MHD_HTTP_NOT_FOUND, "there is no run '%.200s'", run);
}

static struct MHD_Response *show_run(struct call *c, unsigned *status)
{
    json_t *run = run_of(c->service, c->parts[0]);
    return run ? call_json(run, status) : refuse_run(c->parts[0], status);
}

static struct MHD_Response *list_of_run(struct call *c, unsigned *status)
{
    json_t *facts = store_run(&c->service->store, c->parts[0]);
    if (!facts)
        return refuse_run(c->parts[0], status);
    json_decref(facts);
    return call_json(json_pack("{s:o}", "checkpoints", checkpoints_of(c->service, c->parts[0])), status);
}

static struct MHD_Response *list_all(struct call *c, unsigned *status)
{
    const int64_t limit = call_query(c, "limit", 100), offset = call_query(c, "offset", 0);
    json_t *names = store_runs(&c->service->store), *all = json_array(), *part = json_array(), *name;
    size_t i;
    json_array_foreach (names, i, name) {
        json_t *list = checkpoints_of(c->service, json_string_value(name));
        json_array_extend(all, list);
        json_decref(list);
    }
    const size_t n = json_array_size(all);
    for (i = (size_t)offset; i < n && i < (size_t)(offset + limit); i++)
        json_array_append(part, json_array_get(all, i));
    json_decref(all);
    json_decref(names);
    return call_json(json_pack("{s:o, s:o}", "checkpoints", part, "cursor", cursor(limit, offset, n)), status);
}

/* ---- One checkpoint */

/* From the parts RUN, KIND, NAME of a path. */
static bool find_place(struct call *c, struct store_place *p, unsigned *status, struct MHD_Response **refusal)
{
    if (store_parse_parts(c->parts[0], c->parts[1], c->parts[2], p) && store_has(&c->service->store, p))
        return true;
    *refusal = call_refuse(status, MHD_HTTP_NOT_FOUND, "run '%.200s' has no checkpoint '%.40s/%.200s'", c->parts[0],
                           c->parts[1], c->parts[2]);
    return false;
}

static struct MHD_Response *remove_one(struct call *c, unsigned *status)
{
    struct store_place p;
    struct MHD_Response *refusal = NULL;
    struct fsdpck_error err = { 0 };
    if (!find_place(c, &p, status, &refusal))
        return refusal;
    int rc = store_remove(&c->service->store, &p, &err);
    if (!rc)
        rc = store_set_expiry(&c->service->store, &p, 0, &err);
    return rc ? call_error(status, &err) : call_nothing(status);
}

static struct MHD_Response *set_ttl(struct call *c, unsigned *status)
{
    struct store_place p;
    struct MHD_Response *refusal = NULL;
    struct fsdpck_error err = { 0 };
    int64_t ttl;
    if (!find_place(c, &p, status, &refusal))
        return refusal;
    if (!call_ttl(c->json, &ttl))
        return call_refuse(status, MHD_HTTP_BAD_REQUEST, "ttl_seconds: 3600 to 315576000 are wanted");
    const time_t expires = ttl ? time(NULL) + (time_t)ttl : 0;
    return store_set_expiry(&c->service->store, &p, expires, &err) ? call_error(status, &err) : call_nothing(status);
}

static struct MHD_Response *weights_info(struct call *c, unsigned *status)
{
    struct service *s = c->service;
    const char *uri = call_text(c, "tinker_path");
    struct store_place p;
    if (!uri || !store_parse(uri, &p) || !store_has(&s->store, &p))
        return call_refuse(status, MHD_HTTP_NOT_FOUND, "there is no checkpoint '%.400s'", uri ? uri : "");
    json_t *facts = store_run(&s->store, p.run), *config = store_adapter_config(&s->store, &p);
    const char *base = json_string_value(json_object_get(facts, "base_model"));
    json_t *o = json_pack("{s:s, s:b, s:I}", "base_model", base ? base : s->name, "is_lora", 1, "lora_rank",
                          json_integer_value(json_object_get(config, "r")));
    static const char *const trains[] = { "train_attn", "train_mlp", "train_unembed" };
    for (size_t i = 0; o && i < sizeof trains / sizeof trains[0]; i++)
        if (json_is_boolean(json_object_get(facts, trains[i])))
            json_object_set(o, trains[i], json_object_get(facts, trains[i]));
    json_decref(facts);
    json_decref(config);
    return call_json(o, status);
}

/* ---- Exports: files whose addresses are secrets of this process, because they are fetched without the key */

static const char *const exported[] = { "adapter_config.json", "adapter_model.safetensors" };

static void secret_of(const struct service *s, const struct store_place *p, const char *file, char out[40])
{
    char text[1200];
    const int n = snprintf(text, sizeof text, "%s/%s/%s", p->run, p->name, file);
    const XXH128_hash_t hash = XXH3_128bits_withSecret(text, (size_t)n, s->secret, sizeof s->secret);
    snprintf(out, 40, "%016llx%016llx", (unsigned long long)hash.high64, (unsigned long long)hash.low64);
}

static struct MHD_Response *show_urls(struct call *c, unsigned *status)
{
    const struct service *s = c->service;
    const char *host = MHD_lookup_connection_value(c->connection, MHD_HEADER_KIND, "Host");
    struct store_place p;
    char url[2000], secret[40];
    if (!store_parse_parts(c->parts[0], store_kind_name(STORE_EXTERNAL), c->parts[1], &p) || !store_has(&s->store, &p))
        return call_refuse(status, MHD_HTTP_NOT_FOUND, "run '%.200s' has no export '%.200s'", c->parts[0], c->parts[1]);
    json_t *urls = json_object();
    for (size_t i = 0; i < sizeof exported / sizeof exported[0]; i++) {
        secret_of(s, &p, exported[i], secret);
        snprintf(url, sizeof url, "http://%s/api/v1/exports/%s/%s/%s?secret=%s", host ? host : s->address, p.run,
                 p.name, exported[i], secret);
        json_object_set_new(urls, exported[i], json_string(url));
    }
    return call_json(json_pack("{s:o, s:o}", "urls", urls, "expires", iso_time((json_int_t)time(NULL) + 86400)),
                     status);
}

static struct MHD_Response *send_file(struct call *c, unsigned *status)
{
    const struct service *s = c->service;
    const char *given = MHD_lookup_connection_value(c->connection, MHD_GET_ARGUMENT_KIND, "secret");
    struct store_place p;
    char path[STORE_PATH], file[STORE_PATH + 300], secret[40];
    struct stat st;
    const bool known = strcmp(c->parts[2], exported[0]) == 0 || strcmp(c->parts[2], exported[1]) == 0;
    if (!known || !store_parse_parts(c->parts[0], store_kind_name(STORE_EXTERNAL), c->parts[1], &p) ||
        !store_path(&s->store, &p, path))
        return call_refuse(status, MHD_HTTP_NOT_FOUND, "there is no such export");
    secret_of(s, &p, c->parts[2], secret);
    if (!given || strcmp(given, secret) != 0)
        return call_refuse(status, MHD_HTTP_FORBIDDEN, "this is not the address of an export");
    snprintf(file, sizeof file, "%s/%s", path, c->parts[2]);
    const int fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st)) {
        if (fd >= 0)
            close(fd);
        return call_refuse(status, MHD_HTTP_NOT_FOUND, "there is no such export");
    }
    return MHD_create_response_from_fd64((uint64_t)st.st_size, fd);
}

const struct route routes_rest[] = {
    { .method = "GET", .path = "/api/v1/training_runs", .handle = list_runs },
    { .method = "GET", .path = "/api/v1/training_runs/*", .handle = show_run },
    { .method = "GET", .path = "/api/v1/training_runs/*/checkpoints", .handle = list_of_run },
    { .method = "GET", .path = "/api/v1/checkpoints", .handle = list_all },
    { .method = "DELETE", .path = "/api/v1/training_runs/*/checkpoints/*/*", .handle = remove_one },
    { .method = "PUT", .path = "/api/v1/training_runs/*/checkpoints/*/*/ttl", .handle = set_ttl },
    { .method = "GET",
      .path = "/api/v1/training_runs/*/checkpoints/external_weights/*/external_weights_urls",
      .handle = show_urls },
    { .method = "GET", .path = "/api/v1/exports/*/*/*", .handle = send_file, .open = true },
    { .method = "POST", .path = "/api/v1/weights_info", .handle = weights_info },
    { .path = NULL },
};
