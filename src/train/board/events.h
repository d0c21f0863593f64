/* SPDX-License-Identifier: Apache-2.0 */
/* Event files, as TensorBoard reads them: records with checksums, each of which holds one Event message. It knows
 * nothing of what the events say. */
#ifndef TRAIN_EVENTS_H
#define TRAIN_EVENTS_H

#include <fsdpck/error.h>

#include "board/proto.h"

/* Fields of Event that callers fill themselves. */
enum { EVENT_SUMMARY = 5, EVENT_SESSION_LOG = 7 };

struct events {
    int fd;
    char path[4096];
    struct proto message;
};

/* Starts a new file in the folder, which counts after all event files there. On failure *out is closed. */
int events_open(const char *folder, struct events *out, struct fsdpck_error *err);
void events_close(struct events *e);

/* Begins an event; the caller puts its fields into the message. */
struct proto *events_begin(struct events *e, uint64_t step);
/* Appends the event to the file, in one write. */
int events_end(struct events *e, struct fsdpck_error *err);

/* Cuts this program's event files in the folder before their first event of a step beyond `step`. *cut: there was one.
 */
int events_forget(const char *folder, uint64_t step, bool *cut, struct fsdpck_error *err);

#endif
