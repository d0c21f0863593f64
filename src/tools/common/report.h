/* SPDX-License-Identifier: Apache-2.0 */
/* A verb's output on stderr: progress, notes, errors. */
#ifndef TOOLS_REPORT_H
#define TOOLS_REPORT_H

#include <fsdpck/source.h>

#include "common/options.h"

/* The options of every verb. */
struct common_args {
    bool json, quiet, memory_given;
    uint32_t threads;
    uint64_t memory_nbytes;
};

#define COMMON_NOPTIONS 4
extern const struct option common_options[COMMON_NOPTIONS];
#define COMMON_GROUP(args) \
    { \
        "Common options", common_options, COMMON_NOPTIONS, (args) \
    }

/* Zero-initialise, then call report_start(). Must outlive the fsdpck_options that point at it. */
struct report {
    bool quiet, terminal; /* terminal: stderr is a terminal, so a bar may be drawn */
    bool memory_given;    /* --memory */
    unsigned bar_width;   /* columns of the bar on the screen; 0: none */
    int64_t started_ns, drawn_ns;
};

/* Fills *opt from the common options, and with callbacks that draw on stderr. */
void report_start(struct report *r, const struct common_args *args, struct fsdpck_options *opt);
/* Columns that report_draw() can fill. */
unsigned report_columns(void);
/* Draws a line of plain ASCII over the bar or the previous such line. A narrow terminal cuts it before a comma or
 * colon. */
void report_draw(struct report *r, const char *line);
/* Redraws the bar if enough time has passed. report: a struct report. */
void report_progress(void *report, uint64_t done_nbytes, uint64_t total_nbytes);
/* Callback for the libraries' notes; report: a struct report. */
void report_note(void *report, const char *line);
/* Erases the bar. Call it before printing anything else on stderr, and at the end. */
void report_clear(struct report *r);
/* Prints the error and its hint; returns its exit code. */
int report_error(struct report *r, const struct fsdpck_error *err);

#endif
