/* SPDX-License-Identifier: Apache-2.0 */
#include "report/report_out.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/json_out.h"
#include "common/page_out.h"

/* In all curves of a report; a point takes some 30 bytes. */
enum { ALL_POINTS = 45000, MOST_POINTS = 2000, LEAST_POINTS = 8 };

static size_t points_of_curve(const struct report_run *runs, size_t nruns)
{
    size_t ncurves = 1;
    for (size_t i = 0; i < nruns; i++)
        ncurves += runs[i].history.ncurves;
    const size_t n = ALL_POINTS / ncurves;
    return n > MOST_POINTS ? MOST_POINTS : n < LEAST_POINTS ? LEAST_POINTS : n;
}

bool report_out_page(FILE *f, const struct report_run *runs, size_t nruns)
{
    static const unsigned char *const scripts[] = { page_charts_js, page_report_js, NULL };
    json_t *o = json_object(), *list = json_array();
    bool ok = true;
    for (size_t i = 0; i < nruns; i++)
        ok = ok && json_out_append(list, report_json_run(&runs[i], points_of_curve(runs, nruns)));
    ok &= json_out_put(o, "runs", list);
    return page_out(f, "Training report", o, scripts) && ok;
}

/* ---- CSV */

/* Names in quotes, quotes doubled. A sign that a spreadsheet takes for a formula's gets an apostrophe before it. */
static void put_csv_text(FILE *f, const char *text)
{
    putc('"', f);
    if (*text && strchr("=+-@\t\r", *text))
        putc('\'', f);
    for (; *text; text++) {
        if (*text == '"')
            putc('"', f);
        putc(*text, f);
    }
    putc('"', f);
}

/* The names of all curves, each once; they are borrowed. */
static const char **column_names(const struct report_run *runs, size_t nruns, size_t *count)
{
    size_t most = 1;
    for (size_t i = 0; i < nruns; i++)
        most += runs[i].history.ncurves;
    const char **names = calloc(most, sizeof *names);
    *count = 0;
    for (size_t i = 0; i < nruns && names; i++) {
        for (size_t k = 0; k < runs[i].history.ncurves; k++) {
            const char *name = runs[i].history.curves[k].name;
            size_t at = 0;
            while (at < *count && strcmp(names[at], name) != 0)
                at++;
            if (at == *count)
                names[(*count)++] = name;
        }
    }
    return names;
}

static const struct train_curve *find_curve(const struct train_history *h, const char *name)
{
    for (size_t i = 0; i < h->ncurves; i++)
        if (strcmp(h->curves[i].name, name) == 0)
            return &h->curves[i];
    return NULL;
}

/* at: for each column, the index of the curve's next value. */
static void put_lines(FILE *f, const struct report_run *run, const struct train_curve *const *columns, size_t ncolumns,
                      size_t *at)
{
    const struct train_history *h = &run->history;
    for (size_t i = 0; i < h->nsteps; i++) {
        put_csv_text(f, run->name);
        fprintf(f, ",%llu", (unsigned long long)h->steps[i]);
        for (size_t k = 0; k < ncolumns; k++) {
            const struct train_curve *c = columns[k];
            putc(',', f);
            if (!c || at[k] >= c->count || c->steps[at[k]] != h->steps[i])
                continue;
            const double value = c->values[at[k]++];
            if (isnan(value))
                fputs("NaN", f);
            else
                fprintf(f, "%.17g", value);
        }
        fputs("\n", f);
    }
}

bool report_out_csv(FILE *f, const struct report_run *runs, size_t nruns)
{
    size_t n;
    const char **names = column_names(runs, nruns, &n);
    const struct train_curve **columns = calloc(n + 1, sizeof *columns);
    size_t *at = calloc(n + 1, sizeof *at);
    const bool ok = names && columns && at;
    if (ok)
        fputs(REPORT_CSV_HEAD, f);
    for (size_t k = 0; k < n && ok; k++) {
        putc(',', f);
        put_csv_text(f, names[k]);
    }
    if (ok)
        putc('\n', f);
    for (size_t i = 0; i < nruns && ok; i++) {
        memset(at, 0, (n + 1) * sizeof *at);
        for (size_t k = 0; k < n; k++)
            columns[k] = find_curve(&runs[i].history, names[k]);
        put_lines(f, &runs[i], columns, n, at);
    }
    free(names);
    free(columns);
    free(at);
    return ok;
}
