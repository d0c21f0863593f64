/* Links between the guarded devices of ranks of one host: what NCCL would do, through memory that the ranks share, in line. Messages between two ranks arrive in
 * the order in which they were sent; everything between begin and end goes on at once, so that no order of ranks locks up. */
#include "links.h"

#include <fcntl.h>
#include <kernels/memory.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum { MAX_RANKS = 16, BOX_NBYTES = 1 << 15, NAP_NS = 20000 };

/* From one rank to another: full while sent is one more than taken. */
struct box {
    _Atomic uint64_t sent, taken;
    size_t nbytes;
    char data[BOX_NBYTES];
};

struct op {
    bool sends;
    uint32_t peer;
    char *data;
    size_t nbytes, done;
};

struct kern_link {
    uint32_t rank, nranks;
    struct box *boxes; /* (nranks, nranks): from, to */
    struct op *ops;    /* (nops) of the group */
    size_t nops, capacity;
    char name[64];
    bool (*broken)(void *ctx);
    void *ctx;
    _Atomic bool aborted;
};

static int make_id(unsigned char *id, char *message)
{
    (void)message;
    return getrandom(id, KERN_LINK_ID_BYTES, 0) == KERN_LINK_ID_BYTES ? KERN_OK : KERN_ERR_SYSTEM;
}

static int link_open(const unsigned char *id, uint32_t rank, uint32_t nranks, int index, bool (*broken)(void *ctx), void *ctx, struct kern_link **out, char *message)
{
    const size_t nbytes = (size_t)nranks * nranks * sizeof(struct box);
    struct kern_link *l = calloc(1, sizeof *l);
    uint64_t word;
    (void)index;
    memcpy(&word, id, sizeof word);
    *l = (struct kern_link){ .rank = rank, .nranks = nranks, .broken = broken, .ctx = ctx };
    snprintf(l->name, sizeof l->name, "/fsdptrain-links-%016llx", (unsigned long long)word);
    int fd = shm_open(l->name, O_RDWR | O_CREAT, 0600);
    void *p = fd >= 0 && ftruncate(fd, (off_t)nbytes) == 0 ? mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    close(fd);
    if (p == MAP_FAILED) {
        snprintf(message, KERN_MESSAGE_BYTES, "no shared memory");
        free(l);
        return KERN_ERR_SYSTEM;
    }
    l->boxes = p;
    *out = l;
    return KERN_OK;
}

static void link_close(struct kern_link *l)
{
    if (!l)
        return;
    shm_unlink(l->name); /* the first one does it; the others have it mapped, or are gone */
    munmap(l->boxes, (size_t)l->nranks * l->nranks * sizeof *l->boxes);
    free(l->ops);
    free(l);
}

static void link_abort(struct kern_link *l)
{
    atomic_store(&l->aborted, true);
}

static int link_status(struct kern_link *l, char *message)
{
    if (!atomic_load(&l->aborted))
        return KERN_OK;
    snprintf(message, KERN_MESSAGE_BYTES, "the link was ended");
    return KERN_ERR_LIBRARY;
}

static void begin(struct kern_link *l)
{
    l->nops = 0;
}

static void add(struct kern_link *l, bool sends, const void *data, size_t nbytes, uint32_t peer)
{
    if (l->nops == l->capacity) {
        l->capacity = 2 * l->capacity + 64;
        l->ops = reallocarray(l->ops, l->capacity, sizeof *l->ops);
        if (!l->ops)
            abort();
    }
    l->ops[l->nops++] = (struct op){ .sends = sends, .peer = peer, .data = (char *)data, .nbytes = nbytes };
}

static void send(struct kern_link *l, struct kern_stream *s, const void *data, size_t nbytes, uint32_t to)
{
    (void)s;
    guarded_must_own("send", data);
    add(l, true, data, nbytes, to);
}

static void receive(struct kern_link *l, struct kern_stream *s, void *data, size_t nbytes, uint32_t from)
{
    (void)s;
    guarded_must_own("receive", data);
    add(l, false, data, nbytes, from);
}

static void all_gather(struct kern_link *l, struct kern_stream *s, void *dst, const void *src, size_t nbytes)
{
    if (nbytes > 0)
        guarded_must_own("all_gather", (char *)dst + nbytes * l->nranks - 1);
    for (uint32_t r = 0; r < l->nranks; r++) {
        send(l, s, src, nbytes, r);
        receive(l, s, (char *)dst + r * nbytes, nbytes, r);
    }
}

/* As much as the box takes, or holds. Whether anything moved. */
static bool move(struct kern_link *l, struct op *op)
{
    struct box *b = &l->boxes[op->sends ? l->rank * l->nranks + op->peer : op->peer * l->nranks + l->rank];
    uint64_t sent = atomic_load(&b->sent), taken = atomic_load(&b->taken);
    if (op->sends ? sent != taken : sent == taken)
        return false;
    guarded_enter();
    if (op->sends) {
        b->nbytes = op->nbytes - op->done < BOX_NBYTES ? op->nbytes - op->done : BOX_NBYTES;
        memcpy(b->data, op->data + op->done, b->nbytes);
    } else {
        memcpy(op->data + op->done, b->data, b->nbytes);
    }
    op->done += b->nbytes;
    guarded_leave();
    atomic_fetch_add(op->sends ? &b->sent : &b->taken, 1);
    return true;
}

/* Of the operations of one kind with one peer the first goes on. */
static bool pass(struct kern_link *l, bool *left)
{
    bool moved = false, busy[2][MAX_RANKS] = { { false } };
    *left = false;
    for (size_t i = 0; i < l->nops; i++) {
        struct op *op = &l->ops[i];
        if (op->done == op->nbytes)
            continue;
        *left = true;
        if (!busy[op->sends][op->peer])
            moved |= move(l, op);
        busy[op->sends][op->peer] = true;
    }
    return moved;
}

static void end(struct kern_link *l, struct kern_stream *s)
{
    const struct timespec nap = { 0, NAP_NS };
    bool left = true;
    (void)s;
    while (left && !atomic_load(&l->aborted)) {
        if (!pass(l, &left) && left) {
            nanosleep(&nap, NULL);
            if (l->broken(l->ctx))
                link_abort(l);
        }
    }
}

const struct kern_links guarded_links = { .name = "shared memory", .shares = true, .make_id = make_id, .open = link_open, .close = link_close, .abort = link_abort,
                                          .status = link_status, .begin = begin, .all_gather = all_gather, .send = send, .receive = receive, .end = end };
