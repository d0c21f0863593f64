/* SPDX-License-Identifier: Apache-2.0 */
/* SIGINT, SIGTERM and SIGHUP: the first asks the work to stop and clean up; the second ends the process at once. */
#ifndef TOOLS_STOP_H
#define TOOLS_STOP_H

/* Number of the signal received, or 0; fsdpck_options.stop points at it. */
extern volatile int stop_signal;

/* Call once, before any thread starts. A signal that was ignored at start (nohup, background jobs) stays ignored.
 * SIGPIPE is ignored, so that a closed pipe gives EPIPE; SIGXFSZ too, so that a file size limit gives EFBIG. tool: the
 * name in the line that SIGINT prints. */
void stop_install(const char *tool);

/* Number of SIGUSR2 received. */
extern volatile int save_signals;

/* Makes SIGUSR1 request a stop, and SIGUSR2 a save. */
void stop_on_user_signal(void);

/* For a process of a launcher, which may send the same signal several times and ends it by SIGKILL: a second signal
 * does not end it. */
void stop_on_repeated_signals(void);

#endif
