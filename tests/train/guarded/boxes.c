/* SPDX-License-Identifier: Apache-2.0 */
/* See boxes.h. */
#include "boxes.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BOX_NBYTES = 1 << 15 };

/* Channel from one rank to another; full while sent is one more than taken. */
struct box {
    _Atomic uint64_t sent, taken;
    struct letter letter;
    size_t nbytes;
    char data[BOX_NBYTES];
};

bool boxes_open(struct boxes *b, const unsigned char *id, uint32_t rank, uint32_t nranks)
{
    const size_t nbytes = (size_t)nranks * nranks * sizeof(struct box);
    uint64_t word;
    memcpy(&word, id, sizeof word);
    b->rank = rank;
    b->nranks = nranks;
    /* Some containers have no /dev/shm, which shm_open() would need. */
    snprintf(b->name, sizeof b->name, "%s/fsdptrain-links-%016llx",
             access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp", (unsigned long long)word);
    int fd = open(b->name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *p = fd >= 0 && ftruncate(fd, (off_t)nbytes) == 0
                  ? mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                  : MAP_FAILED;
    close(fd);
    b->boxes = p == MAP_FAILED ? NULL : p;
    return b->boxes != NULL;
}

void boxes_shut(const struct boxes *b)
{
    unlink(b->name); /* the first rank unlinks it; the others have it mapped, or are gone */
}

void boxes_close(struct boxes *b)
{
    boxes_shut(b);
    munmap(b->boxes, (size_t)b->nranks * b->nranks * sizeof *b->boxes);
    b->boxes = NULL;
}

static void must_match(const struct boxes *b, const struct post *post, const struct letter *sent)
{
    static const char *const kinds[] = { "a message", "a gather" };
    const struct letter *wanted = &post->letter;
    char line[200];
    if (sent->turn == wanted->turn && sent->gathers == wanted->gathers && sent->nbytes == wanted->nbytes)
        return;
    snprintf(line, sizeof line, "rank %u's operation %llu has %s of %zu bytes, and rank %u's %llu %s of %zu",
             post->peer, (unsigned long long)sent->turn, kinds[sent->gathers], sent->nbytes, b->rank,
             (unsigned long long)wanted->turn, kinds[wanted->gathers], wanted->nbytes);
    b->die("ranks start operations in different orders", line);
}

static void copy_piece(const struct boxes *b, struct box *box, struct post *post)
{
    if (b->enter)
        b->enter();
    if (post->sends) {
        box->letter = post->letter;
        box->nbytes = post->letter.nbytes - post->done < BOX_NBYTES ? post->letter.nbytes - post->done : BOX_NBYTES;
        memcpy(box->data, post->data + post->done, box->nbytes);
    } else {
        memcpy(post->data + post->done, box->data, box->nbytes);
    }
    post->done += box->nbytes;
    if (b->leave)
        b->leave();
}

/* Moves as much as the box accepts or contains. Returns true if anything moved. */
static bool move(const struct boxes *b, struct post *post)
{
    struct box *box = &b->boxes[post->sends ? b->rank * b->nranks + post->peer : post->peer * b->nranks + b->rank];
    uint64_t sent = atomic_load(&box->sent), taken = atomic_load(&box->taken);
    if (post->sends ? sent != taken : sent == taken)
        return false;
    if (!post->sends)
        must_match(b, post, &box->letter);
    copy_piece(b, box, post);
    atomic_fetch_add(post->sends ? &box->sent : &box->taken, 1);
    return true;
}

bool boxes_pass(const struct boxes *b, struct post *posts, size_t nposts, bool *left)
{
    bool moved = false, busy[2][BOXES_MAX_RANKS] = { { false } };
    *left = false;
    for (size_t i = 0; i < nposts; i++) {
        struct post *post = &posts[i];
        if (post->done == post->letter.nbytes)
            continue;
        *left = true;
        if (!busy[post->sends][post->peer])
            moved |= move(b, post);
        busy[post->sends][post->peer] = true;
    }
    return moved;
}

void posts_add(struct posts *p, const struct post *post)
{
    if (p->n == p->capacity) {
        p->capacity = 2 * p->capacity + 64;
        p->list = reallocarray(p->list, p->capacity, sizeof *p->list);
        if (!p->list)
            abort();
    }
    p->list[p->n++] = *post;
}
