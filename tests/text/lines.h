/* SPDX-License-Identifier: Apache-2.0 */
/* Reads JSONL goldens. */
#ifndef TESTS_TEXT_LINES_H
#define TESTS_TEXT_LINES_H

#include <jansson.h>

/* The lines of FOLDER/NAME as a list, owned by the caller. A missing file ends the test. */
json_t *lines_read(const char *folder, const char *name);

#endif
