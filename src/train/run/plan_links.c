/* SPDX-License-Identifier: Apache-2.0 */
/* The rates of links are those of a rank where each rank has a device, and else those of a host, which its ranks
 * share. */
#include "run/plan_links.h"

#include <math.h>

#include "comm/chain_rule.h"

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* Messages that follow each other through `hosts` hosts. */
static double hops_seconds(const struct rates *rates, double hosts)
{
    return hosts > 1 ? (hosts - 1) / rates->plain[RATES_HOPS] : 0;
}

/* Of so many consecutive ranks, those that are on one host. */
static double local_of(const struct job *job, double nranks)
{
    return job->nlocal && job->nlocal < nranks ? job->nlocal : nranks;
}

static double hosts_of(const struct job *job, double nranks)
{
    return ceil(nranks / local_of(job, nranks));
}

/* Bytes move within hosts and between them at the same time; each byte enters a host once. */
static double device_gather(const struct job *job, const struct rates *rates, double nbytes, double within)
{
    const double hosts = hosts_of(job, within), inside = nbytes * (within - 1) / within / rates->plain[RATES_LINK],
                 between = nbytes * (hosts - 1) / within / rates->plain[RATES_NETWORK];
    return larger(inside, between) + hops_seconds(rates, hosts);
}

struct transfer links_gather(const struct job *job, const struct rates *rates, double nbytes, uint32_t within)
{
    if (nbytes <= 0 || job_hosts_hold_all(job))
        return (struct transfer){ 0 };
    if (!rates->cores)
        return (struct transfer){ .link = device_gather(job, rates, nbytes, within) };
    const double hosts = hosts_of(job, within), copies = local_of(job, job->nranks) / job_nsharing(job),
                 entering = nbytes * (hosts - 1) / hosts * copies;
    return (struct transfer){ .busy = nbytes / job_nsharing(job) / rates->plain[RATES_LINK], /* its own rows too */
                              .link = entering / rates->plain[RATES_NETWORK] + hops_seconds(rates, hosts) };
}

/* Adding up what a rank owns, or what comes through it. The first part is not added. */
static double fold_seconds(const struct job *job, const struct rates *rates, double nelem, double npackets,
                           double element)
{
    const double own = nelem / job->nranks, rounded = element < 4 ? 6 * nelem : 0,
                 nbytes = own * (npackets * (element + 8) - 4) + rounded;
    return nbytes / rates->plain[RATES_MEMORY];
}

/* Devices send each contribution to its owner. */
static double device_exchange(const struct job *job, const struct rates *rates, double nelem, double npackets,
                              double element)
{
    const double nranks = job->nranks, local = local_of(job, nranks), each = nelem / nranks * element * npackets,
                 inside = each * (local - 1) / nranks / rates->plain[RATES_LINK],
                 between = each * (nranks - local) / nranks / rates->plain[RATES_NETWORK];
    return larger(inside, between) + hops_seconds(rates, hosts_of(job, nranks));
}

/* What enters a host: a sum from the host before and, of those that end elsewhere, the sums of its own elements; or the
 * contributions of other hosts. */
static double host_exchange(const struct job *job, const struct rates *rates, double nelem, double npackets,
                            double element)
{
    const double nsharing = job_nsharing(job), hosts = hosts_of(job, npackets), all = hosts_of(job, job->nranks),
                 contributions = npackets - nsharing, rate = rates->plain[RATES_NETWORK];
    if (hosts < 2)
        return 0;
    if (!chain_pays((uint64_t)hosts, (uint64_t)contributions, (size_t)element))
        return nelem / all * contributions * element / rate + hops_seconds(rates, hosts);
    const double piece = nelem < CHAIN_PIECE ? nelem : CHAIN_PIECE;
    return 4 * nelem * (1 + 1 / all) / rate + (hosts - 1) * 4 * piece / rate + hops_seconds(rates, hosts);
}

struct transfer links_exchange(const struct job *job, const struct rates *rates, double nelem, double npackets)
{
    if (nelem <= 0)
        return (struct transfer){ 0 };
    const double element = (double)job_reduce_nbytes(job) / (double)job->layout.ntrained; /* on average */
    const double folded = fold_seconds(job, rates, nelem, npackets, element);
    if (!rates->cores)
        return (struct transfer){ .link = device_exchange(job, rates, nelem, npackets, element) + folded };
    return (struct transfer){ .busy = folded, .link = host_exchange(job, rates, nelem, npackets, element) };
}

/* They are copied there and back. */
double links_tokens(const struct rates *rates, double nbytes)
{
    return 2 * nbytes / rates->plain[RATES_LINK];
}

double links_spread(const struct job *job, const struct rates *rates, double nbytes)
{
    if (hosts_of(job, job->nranks) < 2)
        return nbytes / rates->plain[RATES_LINK];
    return nbytes * (rates->cores ? job_nsharing(job) : 1) / rates->plain[RATES_NETWORK];
}

double links_disk(const struct job *job, const struct rates *rates, double nbytes)
{
    return nbytes * local_of(job, job->nranks) / rates->plain[RATES_DISK];
}
