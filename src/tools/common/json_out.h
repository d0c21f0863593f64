/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers around jansson for --json. A NULL result (out of memory) may be passed on: jansson's "_new" functions refuse
 * NULL, and json_out_print() reports it. */
#ifndef TOOLS_JSON_OUT_H
#define TOOLS_JSON_OUT_H

#include <fsdpck/tensor.h>
#include <jansson.h>

json_t *json_out_text(const char *s); /* null for NULL; bytes that are not UTF-8 become \xNN */
json_t *json_out_u64(uint64_t value);
json_t *json_out_double(double value); /* "NaN", "Infinity" and "-Infinity" are strings, as JSON has no such numbers */
json_t *json_out_u64s(const uint64_t *values, size_t count);
json_t *json_out_mesh(const struct fsdpck_mesh *mesh); /* [{"name":"shard","size":8}] */
/* Adds value to object, which owns it from then on. Returns false if out of memory. */
bool json_out_put(json_t *object, const char *key, json_t *value);
bool json_out_append(json_t *array, json_t *value);

/* Writes value on stdout as one line, without a newline. Control characters become \uNNNN, so that no text can steer a
 * terminal. Returns false if out of memory. */
bool json_out_write(const json_t *value);
/* Switches --json mode for errors. An error is a line on stderr; with --json it is also one object on stdout: {"error":
 * …, "exit_code": …}. */
void json_out_errors(bool on);
/* Prints an error as JSON. err: NULL for usage errors, which have only a message. Does nothing without --json, or after
 * a result has begun. */
void json_out_error(const char *message, const struct fsdpck_error *err, int exit_code);

/* Prints object as one line on stdout and releases it. complete: false if a part could not be added. Returns `done`, or
 * EXIT_SYSTEM. */
int json_out_print(json_t *object, bool complete, int done);

#endif
