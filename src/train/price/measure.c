/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the rates of this machine. Time is processor time, which hardly changes when other programs run: that of one
 * thread for what is computed in caches, where each processor adds as much, and that of all threads together for what
 * passes through memory, which they share. */
#include <fsdpck/source.h>
#include <kernels/memory.h>
#include <string.h>
#include <time.h>

#include "price/disk.h"
#include "price/links.h"
#include "price/paper.h"
#include "price/probe.h"

/* Each probe takes so long, and is called at least and at most so often. Of one thread's calls the fastest counts: the
 * first ones choose a way to compute. */
static const double probe_seconds = 0.012;
enum { LEAST_CALLS = 6, MOST_CALLS = 200 };

/* Assumed where nothing says better: 10 Gbit/s, 50 µs, and 1 GB/s. */
static const double unknown_network = 1.25e9, unknown_messages = 2e4, unknown_disk = 1e9;

static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds of a call in one thread. */
static double seconds_alone(struct prober *p, probe_fn *probe)
{
    const clockid_t clock = CLOCK_THREAD_CPUTIME_ID;
    const double started = now(clock);
    double best = 1e9, begun = started;
    p->busy += rates_busy();
    p->nbusy++;
    for (int i = 0; i < MOST_CALLS && (i < LEAST_CALLS || begun - started < probe_seconds); i++) {
        p->at = 0;
        begun = now(clock);
        probe(p);
        const double took = now(clock) - begun;
        best = took < best ? took : best;
    }
    return best > 1e-9 ? best : 1e-9;
}

/* The same for all threads at once. The clock of a process is only right over several calls. */
static double seconds_together(struct prober *p, probe_fn *probe)
{
    const clockid_t clock = CLOCK_PROCESS_CPUTIME_ID;
    double started = 0;
    for (int i = 0; i <= LEAST_CALLS; i++) {
        p->at = 0;
        probe(p);
        started = i ? started : now(clock); /* the first call touches the memory */
    }
    return (now(clock) - started) / LEAST_CALLS / p->nthreads;
}

static struct work work_of(struct prober p, probe_fn *probe)
{
    struct paper paper;
    paper_open(p.device, &paper);
    p.device = &paper.device;
    p.at = 0;
    probe(&p);
    paper_close(&paper);
    return paper.work;
}

/* Two lengths of documents give two rates: pairs of tokens and tokens. If they make no sense, all the time goes to the
 * pairs. */
static void measure_attention(struct prober *p, enum rates_typed kind, enum rates_typed rows, double *rate)
{
    double seconds[2], pairs[2], nbytes = 0;
    for (int i = 0; i < 2; i++) {
        p->variant = i == 1;
        seconds[i] = seconds_alone(p, probe_typed[kind]);
        const struct work work = work_of(*p, probe_typed[kind]);
        pairs[i] = work.typed[p->dtype][kind];
        nbytes = work.typed[p->dtype][rows];
    }
    const double each = (seconds[0] - seconds[1]) / (pairs[0] - pairs[1]), rest = seconds[0] - each * pairs[0];
    const bool sound = each > 0 && rest > 0;
    rate[kind] = sound ? 1 / each : pairs[0] / seconds[0];
    rate[rows] = sound ? nbytes / rest : 1e18;
}

static void measure_typed(struct prober *p, struct rates *out)
{
    double *rate = out->typed[p->dtype];
    for (int kind = 0; kind < RATES_NTYPED; kind++) {
        if (kind == RATES_ATTENTION || kind == RATES_ATTENTION_GRAD)
            measure_attention(p, (enum rates_typed)kind, (enum rates_typed)(kind + 1), rate);
        else if (probe_typed[kind])
            rate[kind] = work_of(*p, probe_typed[kind]).typed[p->dtype][kind] / seconds_alone(p, probe_typed[kind]);
    }
    for (int kind = 0; kind < RATES_NTYPED; kind++)
        rate[kind] *= out->cores;
}

static void measure_plain(struct prober *p, enum rates_plain kind, probe_fn *probe,
                          double (*seconds)(struct prober *p, probe_fn *probe), struct rates *out)
{
    const double amount = work_of(*p, probe).plain[kind];
    out->plain[kind] = amount / seconds(p, probe);
}

static void measure_disk(const char *folder, struct rates *out)
{
    const double rate = folder ? disk_rate(folder) : 0;
    out->plain[RATES_DISK] = rate > 0 ? rate : unknown_disk;
}

static void measure_memory(struct prober *p, struct rates *out)
{
    measure_plain(p, RATES_MEMORY, probe_memory, seconds_alone, out);
    measure_plain(p, RATES_CALLS, probe_calls, seconds_alone, out);
    const double shared = links_shared(), network = links_network(), messages = links_messages();
    out->plain[RATES_LINK] = shared > 0 ? shared : out->plain[RATES_MEMORY] / 2; /* a copy reads and writes */
    out->plain[RATES_NETWORK] = network > 0 ? network : unknown_network;
    out->plain[RATES_HOPS] = messages > 0 ? messages : unknown_messages;
}

/* Opens a stream with so many threads and measures there. */
static int measure_with(unsigned nthreads, char *arena, struct rates *out, char *message)
{
    struct prober p = { .device = kern_device_find("cpu", message), .arena = arena, .nthreads = nthreads };
    struct kern_pool *pool = nthreads > 1 ? kern_pool_new(nthreads) : NULL;
    int status = p.device->stream_new(0, pool, &p.stream, message);
    if (status == KERN_OK && nthreads == 1) {
        measure_memory(&p, out);
        for (int dtype = KERN_F32; dtype <= KERN_BF16; dtype++) {
            p.dtype = (enum kern_dtype)dtype;
            measure_typed(&p, out);
        }
        out->busy = p.busy / p.nbusy;
    }
    if (status == KERN_OK && nthreads == out->cores) {
        measure_plain(&p, RATES_ADAMW, probe_adamw, seconds_together, out);
        measure_plain(&p, RATES_SQUARES, probe_squares, seconds_together, out);
    }
    if (status == KERN_OK)
        status = p.device->stream_sync(p.stream, message);
    p.device->stream_free(p.stream);
    kern_pool_free(pool);
    return status;
}

int rates_measure(const char *folder, struct rates *out, struct fsdpck_error *err)
{
    const struct kern_device *device;
    struct kern_buffer arena = { 0 };
    struct rates rates = { .cores = fsdpck_processors() };
    char message[KERN_MESSAGE_BYTES];
    rates_describe_machine(rates.machine);
    measure_disk(folder, &rates);
    device = kern_device_find("cpu", message);
    int status =
        device->memory->alloc((struct kern_location){ .huge_pages = true }, PROBE_ARENA_NBYTES, &arena, message);
    if (status == KERN_OK) {
        memset(arena.data, 0x3f, PROBE_ARENA_NBYTES); /* 0.75 in either type */
        status = measure_with(1, arena.data, &rates, message);
    }
    if (status == KERN_OK && rates.cores > 1)
        status = measure_with(rates.cores, arena.data, &rates, message);
    device->memory->free(&arena);
    if (status != KERN_OK)
        return fsdpck_error_set(err, FSDPCK_ERR_NOMEM, NULL, "the rates of this machine cannot be measured: %s",
                                message);
    *out = rates;
    return 0;
}
