/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes the bytes between the payloads of a file, which have one hash, in file order. A window that is done before its
 * turn stores its gaps for the thread whose turn comes first, or waits if too much is stored. Windows start in order,
 * so a window waits only for running windows. */
#include "format/verify_bytes_impl.h"

#include <stdlib.h>
#include <string.h>

#include "base/pool.h"
#include "base/stop.h"
#include "engine/file_read.h"

#define DEFERRED_MAX_NBYTES (1u << 20) /* limit for gaps that wait for their turn */

struct deferred_gaps { /* gaps of a window that was done before its turn */
    struct deferred_gaps *next;
    uint32_t turn;
    uint64_t nbytes;
    uint8_t bytes[];
};

static int hash_long_gap(const struct verify_job *w, struct fsdpck_error *err)
{
    const struct fsdpck_source *src = w->rd->v->src;
    int rc = 0;
    for (uint64_t at = w->spans->begin; !rc && at < w->spans->end; at += FSDPCK_VERIFY_WINDOW_NBYTES) {
        uint64_t left = w->spans->end - at, n = left < FSDPCK_VERIFY_WINDOW_NBYTES ? left : FSDPCK_VERIFY_WINDOW_NBYTES;
        uint8_t *data;
        if (fsdpck_stop_asked(src->opt.stop))
            return fsdpck_error_set(err, FSDPCK_ERR_STOPPED, NULL, "stopped");
        rc = fsdpck_file_read(w->rd->v->src, w->rank, at, n, w->w->buffer, &data, err);
        if (!rc)
            fsdpck_hasher_add(w->rd->envelopes[w->rank].hasher, data, n);
    }
    return rc;
}

/* Copies the gaps to `out`, or adds them to a hash; either may be NULL, and with both NULL it only measures. Returns
 * their size. */
static uint64_t take_gaps(const struct verify_job *w, const uint8_t *data, uint8_t *out, struct fsdpck_hasher *h)
{
    uint64_t begin = verify_job_position(w, w->spans), done = 0;
    for (size_t i = 0; i < w->nspans; i++) {
        uint64_t n = verify_job_entry(w, &w->spans[i]) ? 0 : w->spans[i].end - w->spans[i].begin;
        if (n && out)
            memcpy(out + done, data + (w->spans[i].begin - begin), n);
        if (n && h)
            fsdpck_hasher_add(h, data + (w->spans[i].begin - begin), n);
        done += n;
    }
    return done;
}

/* Called with the lock held. Stores the gaps for their turn. data NULL: only the turn. False: no room. */
static bool defer_gaps(const struct verify_job *w, const uint8_t *data)
{
    struct verify_envelope *env = &w->rd->envelopes[w->rank];
    uint64_t n = data ? take_gaps(w, data, NULL, NULL) : 0;
    struct deferred_gaps *l =
        w->rd->deferred_nbytes + n + sizeof *l > DEFERRED_MAX_NBYTES ? NULL : malloc(sizeof *l + n);
    if (!l)
        return false;
    *l = (struct deferred_gaps){ .next = env->deferred, .turn = w->turn, .nbytes = n };
    if (data)
        take_gaps(w, data, l->bytes, NULL);
    env->deferred = l;
    w->rd->deferred_nbytes += sizeof *l + n;
    return true;
}

/* Called with the lock held: hashes the deferred gaps of the windows that follow. */
static void hash_deferred(struct verify_reader *rd, struct verify_envelope *env)
{
    for (struct deferred_gaps **p = &env->deferred; *p;) {
        struct deferred_gaps *l = *p;
        if (l->turn != env->turn) {
            p = &l->next;
            continue;
        }
        *p = l->next;
        fsdpck_hasher_add(env->hasher, l->bytes, l->nbytes);
        rd->deferred_nbytes -= sizeof *l + l->nbytes;
        free(l);
        env->turn++;
        p = &env->deferred; /* the next one may be earlier in the list */
    }
}

/* Called with the lock held. */
static int wait_for_turn(const struct verify_job *w, struct fsdpck_error *err)
{
    struct verify_reader *rd = w->rd;
    int rc = 0;
    rd->nwaiting++;
    while (!rc && rd->envelopes[w->rank].turn != w->turn) {
        if (fsdpck_stop_asked(rd->v->src->opt.stop))
            rc = fsdpck_error_set(err, FSDPCK_ERR_STOPPED, NULL, "stopped");
        else
            fsdpck_pool_wait_a_little(&rd->turned, &rd->lock);
    }
    rd->nwaiting--;
    return rc;
}

/* *mine: whether it is the window's turn; if not, its gaps were deferred. data NULL: no gaps to defer. */
static int ask_for_turn(const struct verify_job *w, const uint8_t *data, bool *mine, struct fsdpck_error *err)
{
    struct verify_envelope *env = &w->rd->envelopes[w->rank];
    int rc = 0;
    pthread_mutex_lock(&w->rd->lock);
    *mine = env->turn == w->turn;
    if (!*mine && (verify_job_is_long_gap(w) || !defer_gaps(w, data))) {
        rc = wait_for_turn(w, err);
        *mine = !rc;
    }
    pthread_mutex_unlock(&w->rd->lock);
    return rc;
}

static void end_envelope(const struct verify_job *w, struct verify_envelope *env)
{
    struct fsdpck_hash128 got;
    fsdpck_hasher_finish(env->hasher, &got);
    if (!env->unread && !fsdpck_hash_equal(&got, &w->t->envelope))
        fsdpck_verifier_report_file(w->rd->v, w->rank, 0, NULL,
                                    "bytes around the payloads (zip envelopes, padding) do not match their hash");
}

static void end_turn(const struct verify_job *w)
{
    struct verify_reader *rd = w->rd;
    struct verify_envelope *env = &rd->envelopes[w->rank];
    pthread_mutex_lock(&rd->lock);
    env->turn++;
    hash_deferred(rd, env);
    bool last = env->turn == env->nturns;
    if (rd->nwaiting)
        pthread_cond_broadcast(&rd->turned);
    pthread_mutex_unlock(&rd->lock);
    if (last)
        end_envelope(w, env);
}

static void mark_unread(const struct verify_job *w)
{
    pthread_mutex_lock(&w->rd->lock);
    w->rd->envelopes[w->rank].unread = true;
    pthread_mutex_unlock(&w->rd->lock);
}

int fsdpck_verify_envelope_add(const struct verify_job *w, const uint8_t *data, int code, struct fsdpck_error *err)
{
    bool mine;
    if (code != 0)
        mark_unread(w);
    int rc = ask_for_turn(w, code == 0 ? data : NULL, &mine, err);
    if (rc || !mine)
        return rc ? rc : code;
    if (code == 0 && verify_job_is_long_gap(w))
        code = hash_long_gap(w, err);
    else if (code == 0)
        take_gaps(w, data, NULL, w->rd->envelopes[w->rank].hasher);
    if (code != 0)
        mark_unread(w);
    end_turn(w);
    return code;
}

void fsdpck_verify_envelope_free(struct verify_envelope *env)
{
    for (struct deferred_gaps *l = env->deferred, *next; l; l = next) { /* left after an error */
        next = l->next;
        free(l);
    }
    fsdpck_hasher_free(env->hasher);
}
