/* SPDX-License-Identifier: Apache-2.0 */
/* Turns stop signals into a flag that the library polls. The handler must only set it and announce the stop. */
#include "common/stop.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const int signals[] = { SIGINT, SIGTERM, SIGHUP };

volatile int stop_signal, save_signals;

/* The handler writes it at once on Ctrl-C, as the work may take a while to stop. */
static char announcement[128];

static void announce(void)
{
    int kept = errno;
    ssize_t n = write(STDERR_FILENO, announcement, strlen(announcement));
    (void)n; /* a failed announcement cannot be reported */
    errno = kept;
}

static bool repeats;

static void on_signal(int number)
{
    /* the next signal, whichever it is, has its default action */
    struct sigaction standard = { .sa_handler = SIG_DFL };
    for (size_t i = 0; i < sizeof signals / sizeof signals[0] && !repeats; i++)
        sigaction(signals[i], &standard, NULL);
    __atomic_store_n(&stop_signal, number, __ATOMIC_RELAXED); /* worker threads read it */
    if (number == SIGINT && !repeats)
        announce();
}

void stop_install(const char *tool)
{
    snprintf(announcement, sizeof announcement, "%s%s: stopping; a second Ctrl-C ends it at once\n",
             isatty(STDERR_FILENO) ? "\n" : "", tool);
    struct sigaction stop = { .sa_handler = on_signal, .sa_flags = SA_RESTART }, old;
    struct sigaction ignore = { .sa_handler = SIG_IGN };
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        if (sigaction(signals[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(signals[i], &stop, NULL);
    }
    sigaction(SIGPIPE, &ignore, NULL);
    sigaction(SIGXFSZ, &ignore, NULL);
}

void stop_on_repeated_signals(void)
{
    repeats = true;
}

static void on_save(int number)
{
    (void)number;
    __atomic_fetch_add(&save_signals, 1, __ATOMIC_RELAXED);
}

void stop_on_user_signal(void)
{
    struct sigaction save = { .sa_handler = on_save, .sa_flags = SA_RESTART };
    sigaction(SIGUSR2, &save, NULL);
    struct sigaction stop = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    sigaction(SIGUSR1, &stop, NULL);
}
