/* SPDX-License-Identifier: Apache-2.0 */
/* What log.report_to names: event files of TensorBoard. If they cannot be written, a note says so once, and the
 * training continues. */
#ifndef TRAIN_TRACKER_H
#define TRAIN_TRACKER_H

#include <jansson.h>

#include "rank/rank.h"

struct tracker;

/* For rank 0, after the state is loaded. *out: NULL if the config asks for nothing, or the file cannot be created. */
int tracker_open(const struct rank *r, struct tracker **out, struct fsdpck_error *err);
/* NULL does nothing, here and below. */
void tracker_close(struct tracker *t, bool failed);

void tracker_line(struct tracker *t, const json_t *line);
void tracker_sample(struct tracker *t, size_t i, const char *prompt, size_t nprompt, const char *text, size_t ntext);
/* path: of a PNG file. */
void tracker_picture(struct tracker *t, size_t i, const char *path);

#endif
