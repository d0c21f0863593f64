/* SPDX-License-Identifier: Apache-2.0 */
#include "captured_stderr.h"

#include <stdio.h>
#include <sys/mman.h>
#include <train/train.h>
#include <unistd.h>

#include "common/options.h"
#include "common/stop.h"

struct captured_stderr capture_stderr(const struct launch *launch)
{
    struct captured_stderr h = { -1, -1 };
    fflush(stderr);
    if (launch_joins(launch))
        h = (struct captured_stderr){ dup(STDERR_FILENO), memfd_create("words", MFD_CLOEXEC) };
    if (h.out >= 0 && h.words >= 0)
        dup2(h.words, STDERR_FILENO);
    return h;
}

void print_captured(const struct captured_stderr *h, const struct launch *launch, int status)
{
    const struct train_options opt = { .launched_rank = launch->rank,
                                       .launched_nranks = launch->nranks,
                                       .dies_of_sigterm = launch_dies_of_sigterm(launch),
                                       .stop = &stop_signal };
    struct fsdpck_error err = { .code = FSDPCK_ERR_USAGE };
    char words[4096];
    fflush(stderr);
    if (h->out >= 0 && h->words >= 0) {
        ssize_t n = pread(h->words, words, sizeof words, 0);
        dup2(h->out, STDERR_FILENO);
        if (n > 0 && (status == OPTIONS_OK || train_reports_error(&opt, &err)))
            fwrite(words, 1, (size_t)n, stderr);
    }
    if (h->out >= 0)
        close(h->out);
    if (h->words >= 0)
        close(h->words);
}
