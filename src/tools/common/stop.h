/* SPDX-License-Identifier: Apache-2.0 */
/* SIGINT, SIGTERM and SIGHUP: the first asks the work to stop and clean up, the second ends the process at once. */
#ifndef TOOLS_STOP_H
#define TOOLS_STOP_H

/* The number of the signal that came, or 0: what fsdpck_options.stop points at. */
extern volatile int stop_signal;

/* Call once, before any thread. A signal that was ignored at start (nohup, background jobs) stays so. SIGPIPE is
 * ignored: a reader that went away shows as EPIPE; SIGXFSZ too: a limit on the size of files shows as EFBIG. tool: the
 * name in the line that SIGINT prints. */
void stop_install(const char *tool);

/* How often SIGUSR2 came. */
extern volatile int save_signals;

/* SIGUSR1 asks for a stop as well, SIGUSR2 for a save. */
void stop_on_user_signal(void);

#endif
