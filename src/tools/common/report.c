/* SPDX-License-Identifier: Apache-2.0 */
/* Draws the progress bar and prints notes and errors on stderr. It must not know which verb runs. */
#include "common/report.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "common/command.h"
#include "common/json_out.h"
#include "common/stop.h"
#include "common/text.h"

const struct option common_options[COMMON_NOPTIONS] = {
    { .name = "json",
      .type = OPTION_FLAG,
      .offset = offsetof(struct common_args, json),
      .help = "print the result as one JSON object" },
    { .name = "quiet",
      .letter = 'q',
      .type = OPTION_FLAG,
      .offset = offsetof(struct common_args, quiet),
      .help = "print no progress and no notes; the result is still printed" },
    { .name = "threads",
      .type = OPTION_COUNT,
      .offset = offsetof(struct common_args, threads),
      .value = "T",
      .help = "number of threads",
      .computed = "the processors that this process may use" },
    { .name = "memory",
      .type = OPTION_MEMORY,
      .offset = offsetof(struct common_args, memory_nbytes),
      .value = "SIZE",
      .help = "budget for buffers, whatever the model's size",
      .usual = "256MiB",
      .given = offsetof(struct common_args, memory_given) },
};

static const int64_t redraw_ns = 100000000; /* redraw at most ten times a second */

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static unsigned terminal_width(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/* Leaves the last column free: some terminals wrap when it is written. */
unsigned report_columns(void)
{
    return terminal_width() - 1;
}

/* "  42% [########            ] 113.0 MB of 269.1 MB, 656 MB/s, 0:01 left" */
static void format_bar(char *buf, size_t nbytes, uint64_t done, uint64_t total, double seconds, unsigned columns)
{
    enum { CELLS = 20 };
    char a[TEXT_NBYTES], b[TEXT_NBYTES], rate[TEXT_NBYTES], eta[TEXT_NBYTES] = "?";
    double part = total ? (double)done / (double)total : 1;
    unsigned filled = part < 1 ? (unsigned)(part * CELLS) : CELLS;
    if (done)
        text_clock(seconds * (1 - part) / part, eta);
    int n = snprintf(buf, nbytes, "%3u%% ", (unsigned)(part * 100));
    if (columns >= 80)
        n += snprintf(buf + n, nbytes - (size_t)n, "[%.*s%.*s] ", (int)filled, "####################",
                      (int)(CELLS - filled), "                    ");
    snprintf(buf + n, nbytes - (size_t)n, "%s of %s, %s, %s left", text_bytes(done, a), text_bytes(total, b),
             text_rate(done, seconds, rate), eta);
}

void report_progress(void *report, uint64_t done_nbytes, uint64_t total_nbytes)
{
    struct report *r = report;
    int64_t now = now_ns();
    if (r->quiet || !r->terminal || now - r->drawn_ns < redraw_ns)
        return;
    char line[200];
    format_bar(line, sizeof line, done_nbytes, total_nbytes, (double)(now - r->started_ns) * 1e-9, terminal_width());
    report_draw(r, line);
    r->drawn_ns = now;
}

/* A line that does not fit is cut before a comma or colon, so that numbers stay whole. */
static bool may_cut(const char *at)
{
    return *at == ',' || (at[0] == ':' && at[1] == ' ');
}

/* Number of bytes of line to draw. */
static unsigned fitting(const char *line, unsigned columns)
{
    unsigned length = (unsigned)strnlen(line, columns), cut = length;
    if (line[length] == '\0')
        return length;
    while (cut > 0 && !may_cut(line + cut))
        cut--;
    return cut > 0 ? cut : length;
}

void report_draw(struct report *r, const char *line)
{
    unsigned length = fitting(line, report_columns());
    fprintf(stderr, "\r%.*s%*s", (int)length, line, r->bar_width > length ? (int)(r->bar_width - length) : 0, "");
    fflush(stderr);
    r->bar_width = length;
}

void report_note(void *report, const char *line)
{
    struct report *r = report;
    if (r->quiet)
        return;
    report_clear(r);
    fprintf(stderr, "%s: note: ", tool_name);
    text_print(stderr, line);
    fputc('\n', stderr);
}

void report_start(struct report *r, const struct common_args *args, struct fsdpck_options *opt)
{
    r->quiet = args->quiet;
    r->memory_given = args->memory_given;
    r->terminal = isatty(STDERR_FILENO);
    r->started_ns = r->drawn_ns = now_ns();
    *opt = (struct fsdpck_options){ .nthreads = args->threads,
                                    .memory_nbytes = args->memory_nbytes,
                                    .progress = report_progress,
                                    .note = report_note,
                                    .ctx = r,
                                    .stop = &stop_signal };
}

void report_clear(struct report *r)
{
    if (r->bar_width) {
        fprintf(stderr, "\r%*s\r", (int)r->bar_width, "");
        fflush(stderr);
    }
    r->bar_width = 0;
}

int report_error(struct report *r, const struct fsdpck_error *err)
{
    char line[2048];
    report_clear(r);
    if (err->code == FSDPCK_ERR_STOPPED && stop_signal) {
        fprintf(stderr, "%s: stopped: %s\n", tool_name, strsignal(stop_signal));
        json_out_error("stopped", NULL, 128 + stop_signal);
        return 128 + stop_signal;
    }
    fprintf(stderr, "%s: %s\n", tool_name, fsdpck_error_format(err, line, sizeof line));
    if (err->code == FSDPCK_ERR_NOMEM && r->memory_given)
        fprintf(stderr, "hint: the buffers are those of --memory: less may do\n");
    if (*err->hint) {
        fputs("hint: ", stderr);
        text_print(stderr, err->hint);
        fputc('\n', stderr);
    }
    json_out_error(line, err, fsdpck_error_exit_code(err->code));
    return fsdpck_error_exit_code(err->code);
}
