/* SPDX-License-Identifier: Apache-2.0 */
/* Reads JSONL goldens. */
#ifndef TESTS_TEXT_LINES_H
#define TESTS_TEXT_LINES_H

#include <jansson.h>

/* The lines of FOLDER/NAME as a list; the caller owns it. Ends the test where the file is not there. */
json_t *lines_read(const char *folder, const char *name);

#endif
