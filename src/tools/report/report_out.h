/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a report: a page, or a table for other programs. */
#ifndef FSDPTRAIN_REPORT_OUT_H
#define FSDPTRAIN_REPORT_OUT_H

#include <stdio.h>

#include "report/report_json.h"

/* How a table begins. */
#define REPORT_CSV_HEAD "run,step"

/* One HTML file that needs nothing else. Returns false if out of memory; the caller checks f. */
bool report_out_page(FILE *f, const struct report_run *runs, size_t nruns);
/* A line for each step, a column for each curve of any run. A value that was not finite is "NaN", one that the step
 * lacks is empty. Returns false if out of memory; the caller checks f. */
bool report_out_csv(FILE *f, const struct report_run *runs, size_t nruns);

#endif
