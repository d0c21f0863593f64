/* SPDX-License-Identifier: Apache-2.0 */
/* Results of requests. A call for one that is not there yet is held, because the SDK asks again at once. */
#include <stdlib.h>
#include <string.h>

#include "serve/call.h"

enum { HOLD_SECONDS = 20, METADATA_NBYTES = 1 << 20 };

static struct MHD_Response *answer_done(struct call *c, struct future *f, unsigned *status)
{
    if (!f->body)
        return call_refuse(status, MHD_HTTP_GONE, "the result was fetched long ago, and is not kept");
    if (!f->failed && !f->fetched && f->nbytes > METADATA_NBYTES && call_bool(c->json, "allow_metadata_only", false)) {
        f->fetched = service_now();
        return call_json(
            json_pack("{s:s, s:I}", "status", "complete_metadata", "response_payload_size", (json_int_t)f->nbytes),
            status);
    }
    f->fetched = service_now();
    if (f->failed)
        return call_json(json_pack("{s:s, s:s}", "error", f->body, "category", f->users_fault ? "user" : "server"),
                         status);
    return call_bytes(c, f->body, f->nbytes, f->protobuf ? "application/x-protobuf" : "application/json");
}

static struct MHD_Response *retrieve(struct call *c, unsigned *status)
{
    const char *id = call_text(c, "request_id");
    struct future *f = id ? future_find(c->service, id) : NULL;
    if (!f)
        return call_refuse(status, MHD_HTTP_NOT_FOUND, "there is no request '%.100s'; its session may have ended",
                           id ? id : "");
    if (f->done)
        return answer_done(c, f, status);
    if (c->until && service_now() >= c->until)
        return call_json(
            json_pack("{s:s, s:s, s:s}", "type", "try_again", "request_id", f->id, "queue_state", "active"), status);
    c->until = c->until ? c->until : service_now() + HOLD_SECONDS;
    c->awaits = f;
    return NULL;
}

const struct route routes_futures[] = {
    { .method = "POST", .path = "/api/v1/retrieve_future", .handle = retrieve },
    { .path = NULL },
};
