/* SPDX-License-Identifier: Apache-2.0 */
#include "serve/admit.h"

#include <stdlib.h>

struct MHD_Response *admit_again(const struct numbers *n, int64_t number, uint64_t hash, unsigned *status)
{
    const struct numbered *before = number < 0 ? NULL : numbers_find(n, (uint64_t)number);
    if (number < 0)
        return call_refuse(status, MHD_HTTP_BAD_REQUEST, "the request has no number");
    if (!before)
        return NULL;
    if (before->hash != hash)
        return call_refuse(status, MHD_HTTP_BAD_REQUEST, "request %lld was another one before", (long long)number);
    if (!before->future)
        return call_refuse(status, MHD_HTTP_BAD_REQUEST, "request %lld was refused before", (long long)number);
    return call_future(before->future, status);
}

struct model *admit_model(struct call *c, const char *id, int64_t seq, unsigned *status, struct MHD_Response **answer)
{
    enum { FAR = 1000000 };
    struct model *m = id ? model_find(c->service, id) : NULL;
    if (!m) {
        *answer = call_refuse(status, MHD_HTTP_NOT_FOUND, "there is no model '%.100s'; its session may have ended",
                              id ? id : "");
        return NULL;
    }
    m->session->seen = service_now();
    if (seq < 1 || (uint64_t)seq > m->next_seq + FAR)
        *answer = call_refuse(status, MHD_HTTP_BAD_REQUEST, "seq_id %lld; request %llu is next", (long long)seq,
                              (unsigned long long)m->next_seq);
    else
        *answer = admit_again(&m->seen, seq, call_hash(c), status);
    return *answer ? NULL : m;
}

/* An entry of its own in the order, that does nothing. */
struct MHD_Response *admit_refuse(struct call *c, struct model *m, int64_t seq, struct MHD_Response *refusal)
{
    struct request *r = request_new(c->service, SERVE_OPTIMIZE, m->adapter, NULL);
    numbers_add(&m->seen, (struct numbered){ .number = (uint64_t)seq, .hash = call_hash(c) });
    if (!r)
        return refusal; /* out of memory: later requests wait until the session ends */
    r->seq = (uint64_t)seq;
    r->refused = true;
    request_submit_in_order(m, r);
    return refusal;
}

struct MHD_Response *admit_submit(struct call *c, struct model *m, int64_t seq, struct request *r, unsigned *status)
{
    struct future *f = r ? future_new(c->service) : NULL;
    const struct numbered one = { .number = (uint64_t)seq, .hash = call_hash(c), .future = f };
    if (!f || !numbers_add(&m->seen, one)) {
        request_free(r);
        return admit_refuse(c, m, seq, call_refuse(status, MHD_HTTP_BAD_REQUEST, "out of memory"));
    }
    r->future = f;
    r->seq = (uint64_t)seq;
    m->last_request = time(NULL);
    struct MHD_Response *answer = call_future(f, status);
    request_submit_in_order(m, r);
    return answer;
}
