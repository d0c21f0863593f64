/* SPDX-License-Identifier: Apache-2.0 */
/* Data sets: uploads, and their rows as the model sees them. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <train/image.h>
#include <unistd.h>

#include "common/json_out.h"
#include "common/model_path.h"
#include "ui/child.h"
#include "ui/http.h"

enum { MOST_ROWS = 50, ROWS_NBYTES = 32 << 20, ROWS_SECONDS = 60, NAME_NBYTES = 100 };

/* ---- rows */

static const char *text_of(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

/* True for a pipeline that makes pictures. A path is taken from where the programs are started. */
static bool is_pipeline(const struct request *r, const char *model)
{
    char typed[PATH_MAX], path[PATH_MAX];
    struct fsdpck_error ignored = { 0 };
    const int n = snprintf(typed, sizeof typed, "%s/%s", r->ui->cwd, model);
    if (*model != '/' && n > 0 && n < PATH_MAX && image_is_pipeline(typed))
        return true;
    return model_path_resolve(model, path, sizeof path, &ignored) == 0 && image_is_pipeline(path);
}

/* Answers with what `fsdptrain tokenize` prints. */
static struct MHD_Response *tokenize(const struct request *r, const char *const *argv, unsigned *status)
{
    char *out = NULL, *said = NULL;
    struct fsdpck_error err = { 0 };
    const int code = child_ask(argv, r->ui->cwd, ROWS_NBYTES, ROWS_SECONDS, &out, &said, &err);
    const char *why = said && strncmp(said, "fsdptrain: ", 11) == 0 ? said + 11 : said ? said : "";
    struct MHD_Response *answer = code < 0 ? http_error(status, &err)
                                  : code   ? http_refuse(status, MHD_HTTP_BAD_REQUEST, "%s", why)
                                           : http_json(json_loads(out, JSON_ALLOW_NUL, NULL), status);
    free(out);
    free(said);
    return answer;
}

static struct MHD_Response *show_pictures(const struct request *r, const char *model, const char *file,
                                          unsigned *status)
{
    char resolution[24];
    const json_int_t side = json_integer_value(json_object_get(r->json, "resolution"));
    snprintf(resolution, sizeof resolution, "%lld", (long long)(side > 0 ? side : IMAGE_DEFAULT_RESOLUTION));
    const char *argv[] = { r->ui->program, "tokenize", model, file, "--json", "--resolution", resolution, NULL };
    return tokenize(r, argv, status);
}

/* { "model": …, "file": …, "from": 1, "count": 20, "loss_on": "assistant" }, or of a pipeline { "model": …, "file": …,
 * "resolution": 512 }: as `fsdptrain tokenize --json` has them. */
static struct MHD_Response *show_rows(struct request *r, unsigned *status)
{
    char first[24], count[24];
    const char *model = text_of(r->json, "model"), *file = text_of(r->json, "file"),
               *loss = text_of(r->json, "loss_on");
    const json_int_t from = json_integer_value(json_object_get(r->json, "from"));
    const json_int_t n = json_integer_value(json_object_get(r->json, "count"));
    if (!*model || *model == '-' || !*file || *file == '-')
        return http_refuse(status, MHD_HTTP_BAD_REQUEST, "model and file are wanted, as paths");
    if (is_pipeline(r, model))
        return show_pictures(r, model, file, status);
    snprintf(first, sizeof first, "%lld", (long long)(from > 1 ? from : 1));
    snprintf(count, sizeof count, "%lld", (long long)(n < 1 || n > MOST_ROWS ? MOST_ROWS : n));
    const char *argv[] = { r->ui->program,
                           "tokenize",
                           model,
                           file,
                           "--chat",
                           "--json",
                           "--from-line",
                           first,
                           "--lines",
                           count,
                           "--loss-on",
                           *loss ? loss : "assistant",
                           NULL };
    return tokenize(r, argv, status);
}

/* ---- uploads */

/* Accepts a file name, not a path; it must begin with a letter or a digit. */
static bool is_name(const char *name)
{
    const size_t n = strlen(name);
    return n && n <= NAME_NBYTES && isalnum((unsigned char)name[0]) &&
           strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == n;
}

/* Returns the number of the first line that is not JSON, with the reason; 0 if every line is. */
static uint64_t first_bad_line(const char *path, uint64_t *nlines, char why[JSON_ERROR_TEXT_LENGTH])
{
    char *line = NULL;
    size_t room = 0;
    uint64_t number = 0, bad = 0;
    json_error_t error;
    FILE *f = fopen(path, "re");
    ssize_t n;
    *nlines = 0;
    while (f && !bad && (n = getline(&line, &room, f)) >= 0) {
        number++;
        if (strspn(line, " \t\r\n") == (size_t)n)
            continue;
        json_t *parsed = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, &error);
        if (parsed)
            ++*nlines;
        else
            bad = number;
        json_decref(parsed);
    }
    snprintf(why, JSON_ERROR_TEXT_LENGTH, "%s", bad ? error.text : "");
    free(line);
    if (f)
        fclose(f);
    return bad;
}

/* ?name=: name of the file in DIR/data. An existing file is never replaced. */
static struct MHD_Response *upload(struct request *r, unsigned *status)
{
    char folder[PATH_MAX], path[PATH_MAX], why[JSON_ERROR_TEXT_LENGTH];
    uint64_t nlines;
    const char *name = http_query_text(r, "name");
    if (!name || !is_name(name))
        return http_refuse(status, MHD_HTTP_BAD_REQUEST, "name: letters, digits, '.', '_' and '-' are wanted");
    const uint64_t bad = first_bad_line(r->sink_path, &nlines, why);
    if (bad)
        return http_refuse(status, MHD_HTTP_BAD_REQUEST, "line %llu is no JSON: %s", (unsigned long long)bad, why);
    if (!nlines)
        return http_refuse(status, MHD_HTTP_BAD_REQUEST, "the file has no lines");
    snprintf(folder, sizeof folder, "%.3900s/data", r->ui->dir);
    snprintf(path, sizeof path, "%.3990s/%.100s", folder, name);
    if ((mkdir(folder, 0777) && errno != EEXIST) || fsync(r->sink) || fchmod(r->sink, 0644))
        return http_refuse(status, MHD_HTTP_INSUFFICIENT_STORAGE, "%s: %s", folder, strerror(errno));
    if (renameat2(AT_FDCWD, r->sink_path, AT_FDCWD, path, RENAME_NOREPLACE) == 0) {
        *status = MHD_HTTP_CREATED;
        return http_json(json_pack("{s:s, s:I}", "file", path, "lines", (json_int_t)nlines), status);
    }
    return http_refuse(status, errno == EEXIST ? MHD_HTTP_CONFLICT : MHD_HTTP_INSUFFICIENT_STORAGE, "%s: %s", path,
                       errno == EEXIST ? "there is a file of this name" : strerror(errno));
}

static int is_visible(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

static struct MHD_Response *list_data(struct request *r, unsigned *status)
{
    char folder[PATH_MAX], path[PATH_MAX];
    struct dirent **list = NULL;
    struct stat st;
    json_t *files = json_array();
    snprintf(folder, sizeof folder, "%.3900s/data", r->ui->dir);
    const int n = scandir(folder, &list, is_visible, alphasort);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%.3900s/%.190s", folder, list[i]->d_name);
        if (stat(path, &st) == 0 && S_ISREG(st.st_mode))
            json_out_append(files,
                            json_pack("{s:o, s:I}", "file", json_out_text(path), "bytes", (json_int_t)st.st_size));
        free(list[i]);
    }
    free(list);
    return http_json(json_pack("{s:o}", "files", files), status);
}

const struct route routes_data[] = {
    { .method = "POST", .path = "/api/rows", .handle = show_rows },
    { .method = "GET", .path = "/api/data", .handle = list_data },
    { .method = "POST", .path = "/api/data", .handle = upload, .files = true },
    { .path = NULL },
};
