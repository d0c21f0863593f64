/* Links between the guarded devices of ranks of one host: what NCCL would do, through memory that the ranks share. Messages between two ranks arrive in the order
 * in which they were sent; everything between begin and end is one operation, which runs late as all that is on a stream. Another rank may wait for it where this
 * one waits for nothing: what has lain there for a while is pushed. What NCCL may lock up by ends the program with a word: operations of a rank that could be under
 * way at once (from two threads, by two links, on two streams), and operations that two ranks start in different orders. */
#include "guarded.h"
#include "late.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum { MAX_RANKS = 16, BOX_NBYTES = 1 << 15, NAP_NS = 20000, PUSH_NS = 10000000 };

/* What a rank sends, and its peer has to wait for. */
struct letter {
    uint64_t turn;   /* operations of the link before */
    bool gathers;    /* a part of an all-gather */
    size_t nbytes;   /* of the whole letter */
};

/* From one rank to another: full while sent is one more than taken. */
struct box {
    _Atomic uint64_t sent, taken;
    struct letter letter;
    size_t nbytes;
    char data[BOX_NBYTES];
};

struct op {
    bool sends;
    uint32_t peer;
    char *data;
    struct letter letter;
    size_t done;
};

/* What this process knows of its ranks: a rank's operations are kept in order by the one link and the one stream that they are put on, and by nothing else. */
static struct {
    _Atomic(struct kern_link *) link;
    _Atomic(struct kern_stream *) stream;
} ranks[MAX_RANKS];

struct kern_link {
    uint32_t rank, nranks;
    struct box *boxes; /* (nranks, nranks): from, to */
    struct op *ops;    /* (nops) of the group that is open */
    size_t nops, capacity;
    uint64_t turn;     /* operations begun */
    bool gathers;      /* of what is added now */
    _Atomic bool busy; /* between begin and end */
    char name[64];
    bool (*broken)(void *ctx);
    void *ctx;
    _Atomic bool aborted, closing;
    pthread_t pusher;
};

/* What end puts on a stream. */
struct group {
    struct kern_link *link;
    struct op *ops;
    size_t nops;
};

static int make_id(unsigned char *id, char *message)
{
    (void)message;
    return getrandom(id, KERN_LINK_ID_BYTES, 0) == KERN_LINK_ID_BYTES ? KERN_OK : KERN_ERR_SYSTEM;
}

/* Pushes what has moved by nothing else since it last looked. */
static void *push(void *arg)
{
    struct kern_link *l = arg;
    const struct timespec nap = { 0, PUSH_NS };
    for (uint64_t before = 0; !atomic_load(&l->closing); nanosleep(&nap, NULL)) {
        struct kern_stream *s = atomic_load(&ranks[l->rank].stream);
        const uint64_t done = s ? late_done(s) : 0;
        if (s && done == before)
            late_run(s);
        before = done;
    }
    return NULL;
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
    if (rank >= MAX_RANKS || atomic_exchange(&ranks[rank].link, l))
        guarded_die("a rank has two links", "their operations can be under way at once");
    atomic_store(&ranks[rank].stream, NULL);
    if (pthread_create(&l->pusher, NULL, push, l))
        guarded_die("no thread", "link");
    *out = l;
    return KERN_OK;
}

static void link_close(struct kern_link *l)
{
    if (!l)
        return;
    struct kern_stream *s = atomic_load(&ranks[l->rank].stream);
    atomic_store(&l->closing, true);
    pthread_join(l->pusher, NULL);
    if (s)
        late_run(s);
    atomic_store(&ranks[l->rank].link, NULL);
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
    if (atomic_exchange(&l->busy, true))
        guarded_die("two threads", "their operations are under way at once");
    l->turn++;
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
    l->ops[l->nops++] = (struct op){ .sends = sends, .peer = peer, .data = (char *)data, .letter = { l->turn, l->gathers, nbytes } };
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
    l->gathers = true;
    for (uint32_t r = 0; r < l->nranks; r++) {
        send(l, s, src, nbytes, r);
        receive(l, s, (char *)dst + r * nbytes, nbytes, r);
    }
    l->gathers = false;
}

static void must_match(const struct kern_link *l, const struct op *op, const struct letter *sent)
{
    static const char *const kinds[] = { "a message", "a gather" };
    const struct letter *wanted = &op->letter;
    char line[200];
    if (sent->turn == wanted->turn && sent->gathers == wanted->gathers && sent->nbytes == wanted->nbytes)
        return;
    snprintf(line, sizeof line, "rank %u's operation %llu has %s of %zu bytes, and rank %u's %llu %s of %zu", op->peer, (unsigned long long)sent->turn,
             kinds[sent->gathers], sent->nbytes, l->rank, (unsigned long long)wanted->turn, kinds[wanted->gathers], wanted->nbytes);
    guarded_die("ranks start operations in different orders", line);
}

/* As much as the box takes, or holds. Whether anything moved. */
static bool move(struct kern_link *l, struct op *op)
{
    struct box *b = &l->boxes[op->sends ? l->rank * l->nranks + op->peer : op->peer * l->nranks + l->rank];
    uint64_t sent = atomic_load(&b->sent), taken = atomic_load(&b->taken);
    if (op->sends ? sent != taken : sent == taken)
        return false;
    if (!op->sends)
        must_match(l, op, &b->letter);
    guarded_enter();
    if (op->sends) {
        b->letter = op->letter;
        b->nbytes = op->letter.nbytes - op->done < BOX_NBYTES ? op->letter.nbytes - op->done : BOX_NBYTES;
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
static bool pass(struct group *g, bool *left)
{
    bool moved = false, busy[2][MAX_RANKS] = { { false } };
    *left = false;
    for (size_t i = 0; i < g->nops; i++) {
        struct op *op = &g->ops[i];
        if (op->done == op->letter.nbytes)
            continue;
        *left = true;
        if (!busy[op->sends][op->peer])
            moved |= move(g->link, op);
        busy[op->sends][op->peer] = true;
    }
    return moved;
}

static void run_group(struct kern_stream *inner, void *args)
{
    const struct timespec nap = { 0, NAP_NS };
    struct group *g = args;
    bool left = true;
    (void)inner;
    while (left && !atomic_load(&g->link->aborted)) {
        if (!pass(g, &left) && left) {
            nanosleep(&nap, NULL);
            if (g->link->broken(g->link->ctx))
                link_abort(g->link);
        }
    }
}

static void end(struct kern_link *l, struct kern_stream *s)
{
    const struct group group = { .link = l, .nops = l->nops };
    void *ops;
    struct kern_stream *before = atomic_exchange(&ranks[l->rank].stream, s);
    if (before && before != s)
        guarded_die("a rank uses two streams", "its operations on them can be under way at once");
    struct group *g = late_copy(&group, sizeof group, l->ops, l->nops * sizeof *l->ops, &ops);
    g->ops = ops;
    late_put_waiting(s, run_group, g);
    atomic_store(&l->busy, false);
}

const struct kern_links guarded_links = { .name = "shared memory", .shares = true, .make_id = make_id, .open = link_open, .close = link_close, .abort = link_abort,
                                          .status = link_status, .begin = begin, .all_gather = all_gather, .send = send, .receive = receive, .end = end };
