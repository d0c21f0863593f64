/* SPDX-License-Identifier: Apache-2.0 */
#include "hosts_command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool hosts_put(struct strings *words, const char *word)
{
    return strings_add(words, word, strlen(word));
}

static bool put_all(struct strings *words, const char *const *all)
{
    bool ok = true;
    for (size_t i = 0; all[i] && ok; i++)
        ok = hosts_put(words, all[i]);
    return ok;
}

bool hosts_put_number(struct strings *words, const char *option, uint32_t n)
{
    char text[16];
    snprintf(text, sizeof text, "%u", n);
    return hosts_put(words, option) && hosts_put(words, text);
}

/* "node1:8,node2:8", or only the names. */
static bool put_hosts(struct strings *words, const struct hosts_list *hosts, bool numbers)
{
    char *text = NULL;
    size_t nbytes = 0;
    FILE *f = open_memstream(&text, &nbytes);
    const char *comma = "";
    for (size_t i = 0; i < hosts->count && f; i++) {
        const struct host *h = &hosts->at[i];
        if (!h->answers)
            continue;
        fprintf(f, "%s%s", comma, h->name);
        if (numbers)
            fprintf(f, ":%u", h->nranks);
        comma = ",";
    }
    const bool ok = f && fclose(f) == 0 && hosts_put(words, text);
    free(text);
    return ok;
}

static bool put_mpirun(struct strings *words, const struct hosts_list *hosts)
{
    const char *const head[] = { "mpirun", "--bind-to", "none", "--map-by", "slot", "--host", NULL };
    return put_all(words, head) && put_hosts(words, hosts, true) && hosts_put_number(words, "-n", hosts_nranks(hosts));
}

static bool put_srun(struct strings *words, const struct hosts_list *hosts)
{
    const char *const head[] = { "srun", "--mpi=pmix", "--kill-on-bad-exit=1", "--overlap", "-w", NULL };
    return put_all(words, head) && put_hosts(words, hosts, false) &&
           hosts_put_number(words, "-N", hosts_nanswers(hosts)) && hosts_put_number(words, "-n", hosts_nranks(hosts)) &&
           hosts_put_number(words, "--ntasks-per-node", hosts->at[0].nranks);
}

static const struct hosts_starter starters[] = {
    { .word = "mpirun",
      .ask = { "ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "HOST", "true" },
      .put = put_mpirun },
    { .word = "srun",
      .ask = { "srun", "-N1", "-n1", "--overlap", "-w", "HOST", "true" },
      .put = put_srun,
      .same_ranks = true },
};

const struct hosts_starter *hosts_starter_of(bool slurm)
{
    return &starters[slurm];
}

void hosts_limit_silence(double patience_seconds)
{
    static const int most = 30000; /* the kernel takes 32767 seconds */
    char text[16];
    snprintf(text, sizeof text, "%d", patience_seconds < most ? (int)patience_seconds + 1 : most);
    setenv("OMPI_MCA_oob_tcp_keepalive_time", text, 0);
    setenv("OMPI_MCA_oob_tcp_keepalive_intvl", "5", 0);
    setenv("OMPI_MCA_oob_tcp_keepalive_probes", "3", 0);
}
