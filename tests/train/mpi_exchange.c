/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of tests/train/hosts.py: gradients that the ranks of several hosts exchange, against what each rank can
 * compute alone, bit for bit, and the bytes that entered each host against a formula. Hosts are ranks with a host name
 * of their own.
 *
 * usage: mpirun … mpi_exchange NELEM fp32|bf16 none|flip|cut HOSTS…
 *
 * HOSTS: the number of ranks of each host. flip, cut: the first sum that travels has a wrong bit, or is too short. */
#include <fsdpck/error.h>
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm_mpi.h"

enum { MAX_HOSTS = 8, NSLICES = 3, SKIP = 77, CHAIN_TAG = 3 };

struct hosts_wanted {
    uint32_t n, sizes[MAX_HOSTS], first[MAX_HOSTS + 1];
};

static const char *damage = "none";

/* Takes the place of MPI's own, as its profiling interface allows. */
int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request)
{
    if (tag == CHAIN_TAG && strcmp(damage, "none") != 0) {
        if (strcmp(damage, "flip") == 0)
            ((char *)(uintptr_t)data)[count / 2] ^= 1;
        else
            count -= 8;
        damage = "none";
    }
    return PMPI_Isend(data, count, type, to, tag, comm, request);
}

static uint32_t host_of(const struct hosts_wanted *h, uint32_t rank)
{
    uint32_t host = 0;
    while (rank >= h->first[host + 1])
        host++;
    return host;
}

static float gradient(uint32_t rank, int64_t i, uint32_t turn)
{
    const uint32_t mixed = (uint32_t)i * 2654435761u + rank * 40503u + turn * 977u;
    return ((float)(mixed % 20011u) - 10007.0f) / (float)(1u << (mixed >> 29));
}

/* The contribution as its owner receives it. */
static float sent(enum fsdpck_dtype reduce, float exact)
{
    uint8_t rounded[4];
    float back;
    fsdpck_dtype_cast(FSDPCK_FLOAT32, &exact, reduce, rounded, 1);
    fsdpck_dtype_cast(reduce, rounded, FSDPCK_FLOAT32, &back, 1);
    return back;
}

/* Slices of uneven sizes, one behind the other; the outputs of a rank likewise. */
static size_t make_slices(struct comm_slice *slices, int64_t nelem, uint32_t nranks, float *into)
{
    const int64_t sizes[NSLICES] = { nelem, 5, nelem / 3 + 1 };
    int64_t at = 0;
    size_t own = 0;
    for (int i = 0; i < NSLICES; i++) {
        const int64_t chunk = (sizes[i] + nranks - 1) / nranks;
        slices[i] =
            (struct comm_slice){ .at = at, .nelem = sizes[i], .chunk = chunk, .into = into ? into + own : NULL };
        at += sizes[i];
        own += (size_t)chunk;
    }
    return own;
}

/* Bytes that enter the hosts in an exchange, if what is cheaper is chosen for each owner. */
static uint64_t formula(const struct hosts_wanted *h, const struct comm_slice *slices, uint32_t nranks,
                        uint32_t ncontributions, bool first, size_t element_nbytes)
{
    uint64_t sum = 0;
    const uint32_t last = host_of(h, ncontributions - 1);
    for (uint32_t owner = 0; owner < nranks; owner++) {
        const uint32_t host = host_of(h, owner);
        uint64_t nelem = 0, away = 0, hops = last + (host != last) + (!first && host != 0);
        for (int i = 0; i < NSLICES; i++) {
            int64_t begin, n = comm_slice_part(&slices[i], owner, &begin);
            nelem += n > 0 ? (uint64_t)n : 0;
        }
        for (uint32_t q = 0; q < ncontributions; q++)
            away += host_of(h, q) != host;
        sum += nelem * (hops * 4 < away * element_nbytes ? hops * 4 : away * element_nbytes);
    }
    return sum;
}

/* Exchanges twice, the second time on top of the first. Returns the number of wrong elements. */
static int64_t exchange(struct comm *c, const struct hosts_wanted *h, int64_t nelem, uint32_t ncontributions,
                        uint64_t *entered, uint64_t *expected, struct fsdpck_error *err)
{
    struct comm_slice slices[NSLICES];
    float *into = calloc(make_slices(slices, nelem, c->nranks, NULL) + 1, sizeof *into);
    int64_t wrong = into ? 0 : 1;
    const uint64_t before = comm_from_hosts_nbytes(c);
    if (!into)
        return wrong;
    make_slices(slices, nelem, c->nranks, into);
    for (uint32_t turn = 0; turn < 2; turn++) {
        for (int64_t i = 0; i < 2 * nelem + 6; i++)
            c->contribution[i] = gradient(c->rank, i, turn);
        if (c->ops->exchange(c, slices, NSLICES, ncontributions, turn == 0, err))
            return -1;
        *expected += formula(h, slices, c->nranks, ncontributions, turn == 0, fsdpck_dtype_info(c->reduce)->nbytes);
    }
    *entered += comm_from_hosts_nbytes(c) - before;
    for (int i = 0; i < NSLICES; i++) {
        int64_t begin, n = comm_slice_part(&slices[i], c->rank, &begin);
        for (int64_t j = 0; j < n; j++) {
            float want = 0;
            for (uint32_t q = 0; q < 2 * ncontributions; q++) {
                float part =
                    sent(c->reduce, gradient(q % ncontributions, slices[i].at + begin + j, q / ncontributions));
                want = q == 0 ? part : want + part;
            }
            wrong += memcmp(&want, &slices[i].into[j], sizeof want) != 0;
        }
    }
    free(into);
    return wrong;
}

/* All numbers of contributions. */
static int try_all(struct comm *c, const struct hosts_wanted *h, int64_t nelem, struct fsdpck_error *err)
{
    uint64_t entered = 0, expected = 0;
    for (uint32_t n = 1; n <= c->nranks; n++) {
        int64_t wrong = exchange(c, h, nelem, n, &entered, &expected, err);
        if (wrong < 0)
            return -1;
        if (wrong) {
            printf("rank %u: %lld wrong elements of %u contributions\n", c->rank, (long long)wrong, n);
            return 1;
        }
    }
    if (c->ops->sum_u64(c, &entered, 1, err))
        return -1;
    if (c->rank == 0)
        printf("entered %llu expected %llu\n", (unsigned long long)entered, (unsigned long long)expected);
    return 0;
}

static int set_host(const struct hosts_wanted *h, uint32_t rank)
{
    char name[32];
    snprintf(name, sizeof name, "host%u", host_of(h, rank));
    if (unshare(CLONE_NEWUTS) == 0 && sethostname(name, strlen(name)) == 0)
        return 0;
    perror("a host name of its own");
    return SKIP;
}

int main(int argc, char **argv)
{
    struct hosts_wanted h = { 0 };
    struct fsdpck_error err = { 0 };
    struct job_status *status = NULL;
    struct comm *comm = NULL;
    damage = argc > 3 ? argv[3] : damage;
    for (int i = 4; i < argc && h.n < MAX_HOSTS; i++, h.n++) {
        h.sizes[h.n] = (uint32_t)atoi(argv[i]);
        h.first[h.n + 1] = h.first[h.n] + h.sizes[h.n];
    }
    const char *number = getenv("OMPI_COMM_WORLD_RANK");
    if (h.n == 0 || !number)
        return 2;
    const uint32_t nranks = h.first[h.n], rank = (uint32_t)atoi(number);
    const int64_t nelem = atoll(argv[1]);
    const struct comm_sizes sizes = { .value_nbytes = 4096,
                                      .grad_nelem = 2 * nelem + 6,
                                      .reduce = strcmp(argv[2], "bf16") == 0 ? FSDPCK_BFLOAT16 : FSDPCK_FLOAT32,
                                      .copies = true,
                                      .ranks_of_copy = nranks,
                                      .most_within = nranks };
    if (set_host(&h, rank))
        return SKIP;
    int rc = job_status_new(rank, 1, nranks, 20, &status, &err);
    if (!rc)
        rc = comm_mpi_join(status, rank, nranks, &comm, &err);
    if (!rc)
        rc = comm_mpi_share_memory(comm, sizes, &err);
    if (!rc)
        rc = try_all(comm, &h, nelem, &err);
    if (err.code && err.code != FSDPCK_ERR_PEER)
        fprintf(stderr, "%s\n", err.message);
    if (err.code) {
        job_status_fail(status, &err);
        comm_mpi_abandon(comm);
        _exit(4);
    }
    comm->ops->free(comm);
    return rc ? 1 : 0;
}
