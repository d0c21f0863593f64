/* SPDX-License-Identifier: Apache-2.0 */
#include "run/tracker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "board/board.h"
#include "text/file.h"

#define MOST_PICTURE ((size_t)1 << 28)

struct tracker {
    const struct rank *r;
    struct board *board; /* NULL: it could not be written */
};

/* Notes the first failure and stops writing. */
static void give_up(struct tracker *t, int rc, const struct fsdpck_error *why)
{
    char line[2400], text[2048];
    if (!rc)
        return;
    snprintf(line, sizeof line, "log.report_to: nothing more is written for TensorBoard: %s",
             fsdpck_error_format(why, text, sizeof text));
    rank_note(t->r, line);
    board_close(t->board);
    t->board = NULL;
}

int tracker_open(const struct rank *r, struct tracker **out, struct fsdpck_error *err)
{
    const struct train_config *c = r->job->config;
    struct fsdpck_error why = { 0 };
    *out = NULL;
    if (!(c->log.report_to & 1u << TRAIN_REPORT_TENSORBOARD))
        return 0;
    struct tracker *t = calloc(1, sizeof *t);
    if (!t)
        return fsdpck_error_nomem(err, sizeof *t);
    t->r = r;
    give_up(t, board_open(c->output_dir, r->step, c->root, &t->board, &why), &why);
    *out = t;
    return 0;
}

void tracker_close(struct tracker *t, bool failed)
{
    struct fsdpck_error why = { 0 };
    if (t && t->board) {
        const bool finished = t->r->step >= t->r->job->nsteps;
        const enum board_end how = failed ? BOARD_FAILED : finished ? BOARD_FINISHED : BOARD_STOPPED;
        give_up(t, board_put_end(t->board, t->r->step, how, &why), &why);
        board_close(t->board);
    }
    free(t);
}

void tracker_line(struct tracker *t, const json_t *line)
{
    struct fsdpck_error why = { 0 };
    if (t && t->board)
        give_up(t, board_put_line(t->board, line, &why), &why);
}

void tracker_sample(struct tracker *t, size_t i, const char *prompt, size_t nprompt, const char *text, size_t ntext)
{
    struct fsdpck_error why = { 0 };
    char *both;
    if (!t || !t->board)
        return;
    both = malloc(nprompt + ntext + 2);
    int rc = both ? 0 : fsdpck_error_nomem(&why, nprompt + ntext);
    if (both) {
        memcpy(both, prompt, nprompt);
        memcpy(both + nprompt, "\n\n", 2);
        memcpy(both + nprompt + 2, text, ntext);
        rc = board_put_sample(t->board, t->r->step, i, both, nprompt + 2 + ntext, &why);
    }
    free(both);
    give_up(t, rc, &why);
}

void tracker_picture(struct tracker *t, size_t i, const char *path)
{
    struct fsdpck_error why = { 0 };
    char *png;
    size_t nbytes;
    if (!t || !t->board)
        return;
    int rc = text_file_read(path, MOST_PICTURE, &png, &nbytes, &why);
    if (!rc)
        rc = board_put_picture(t->board, t->r->step, i, png, nbytes, &why);
    free(png);
    give_up(t, rc, &why);
}
