/* SPDX-License-Identifier: Apache-2.0 */
/* Serves the embedded files of the page. They hold no data and need no token. */
#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "ui/http.h"
#include "ui/page.h"

struct file {
    const char *path, *type;
    const unsigned char *bytes;
};

static const struct file files[] = {
    { "/", "text/html; charset=utf-8", page_ui_html },
    { "/base.css", "text/css; charset=utf-8", page_base_css },
    { "/ui.css", "text/css; charset=utf-8", page_ui_css },
    { "/base.js", "text/javascript; charset=utf-8", page_base_js },
    { "/charts.js", "text/javascript; charset=utf-8", page_charts_js },
    { "/server.js", "text/javascript; charset=utf-8", page_ui_server_js },
    { "/tenants.js", "text/javascript; charset=utf-8", page_ui_tenants_js },
    { "/try.js", "text/javascript; charset=utf-8", page_ui_try_js },
    { "/jobs.js", "text/javascript; charset=utf-8", page_ui_jobs_js },
    { "/job.js", "text/javascript; charset=utf-8", page_ui_job_js },
    { "/form.js", "text/javascript; charset=utf-8", page_ui_form_js },
    { "/data.js", "text/javascript; charset=utf-8", page_ui_data_js },
    { "/start.js", "text/javascript; charset=utf-8", page_ui_start_js },
};

static const char policy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

static struct MHD_Response *send_static(struct request *r, unsigned *status)
{
    char tag[32];
    const struct file *f = files;
    while (strcmp(f->path, r->route->path) != 0)
        f++;
    const size_t n = strlen((const char *)f->bytes);
    snprintf(tag, sizeof tag, "\"%016llx\"", (unsigned long long)XXH3_64bits(f->bytes, n));
    const char *has = MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, "If-None-Match");
    const bool same = has && strcmp(has, tag) == 0;
    struct MHD_Response *answer =
        MHD_create_response_from_buffer(same ? 0 : n, (void *)f->bytes, MHD_RESPMEM_PERSISTENT);
    if (same)
        *status = MHD_HTTP_NOT_MODIFIED;
    MHD_add_response_header(answer, "Content-Type", f->type);
    MHD_add_response_header(answer, "ETag", tag);
    MHD_add_response_header(answer, "Cache-Control", "no-cache");
    MHD_add_response_header(answer, "Content-Security-Policy", policy);
    return answer;
}

#define FILE_ROUTE(p) \
    { \
        .method = "GET", .path = p, .handle = send_static, .open = true \
    }

const struct route routes_static[] = {
    FILE_ROUTE("/"),          FILE_ROUTE("/base.css"),  FILE_ROUTE("/ui.css"),   FILE_ROUTE("/base.js"),
    FILE_ROUTE("/charts.js"), FILE_ROUTE("/server.js"), FILE_ROUTE("/jobs.js"),  FILE_ROUTE("/job.js"),
    FILE_ROUTE("/form.js"),   FILE_ROUTE("/data.js"),   FILE_ROUTE("/start.js"), FILE_ROUTE("/tenants.js"),
    FILE_ROUTE("/try.js"),    { .path = NULL },
};
