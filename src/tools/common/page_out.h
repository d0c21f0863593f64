/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a page: one HTML file that needs nothing else and reaches no network. */
#ifndef TOOLS_PAGE_OUT_H
#define TOOLS_PAGE_OUT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* How a page of these programs begins; no other file does. */
#define PAGE_HEAD "<!DOCTYPE html>\n<!-- made by fsdpck -->\n"

/* The files of src/tools/page, each with a zero after it. */
extern const unsigned char page_base_css[], page_base_js[], page_charts_js[], page_report_js[], page_picture_js[];

/* data: what the scripts show; it is released. scripts: run after page_base_js, in order, up to NULL. Returns false if
 * out of memory; the caller checks f. */
bool page_out(FILE *f, const char *title, json_t *data, const unsigned char *const *scripts);

#endif
