/* SPDX-License-Identifier: Apache-2.0 */
/* A folder for a data test, its files, and a config that reads them. */
#ifndef TESTS_TEXT_DATA_CASE_H
#define TESTS_TEXT_DATA_CASE_H

#include "data/data_impl.h"

enum { NVOCAB = 1007, PATH = 512 };

#define CHAT \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"yes\"},{\"role\":" \
    "\"user\",\"content\":\"so\"},{\"role\":\"assistant\",\"content\":\"no\"}]}\n"
#define COMPLETION "{\"prompt\":\"two \",\"completion\":\"three\"}\n"
#define TEXT       "{\"text\":\"plain\"}\n"
#define IDS        "{\"input_ids\":[5,6,7],\"labels\":[-100,6,7]}\n"

extern char notes[4000]; /* notes of data_open since the test began */

/* cmocka fixtures: each test gets a new folder. */
int setup(void **state);
int teardown(void **state);
/* Writes a file of the folder and returns its path, which is borrowed for the next seven calls. */
const char *write_bytes(const char *name, const void *bytes, size_t nbytes);
const char *write_text(const char *name, const char *text);
/* A config with the tokenizer and template of the qwen2 golden, and output_dir in the folder. Valid until the next
 * call. */
struct train_config config_of(const struct train_data_file *files, size_t nfiles);
/* Opens the data; a failure ends the test. */
struct data *open_data(const struct train_config *config);

#endif
