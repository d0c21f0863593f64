/* SPDX-License-Identifier: Apache-2.0 */
/* Small helpers around jansson for --json. NULL results (no memory) are safe to pass on: jansson's "_new" functions
 * refuse NULL, and json_out_print() says so. */
#ifndef TOOLS_JSON_OUT_H
#define TOOLS_JSON_OUT_H

#include <fsdpck/tensor.h>
#include <jansson.h>

json_t *json_out_text(const char *s); /* null for NULL; bytes that are no UTF-8 as \xNN */
json_t *json_out_u64(uint64_t value);
json_t *json_out_double(double value); /* "NaN", "Infinity", "-Infinity" as strings: JSON has no such numbers */
json_t *json_out_u64s(const uint64_t *values, size_t count);
json_t *json_out_mesh(const struct fsdpck_mesh *mesh); /* [{"name":"shard","size":8}] */
/* Adds value (owned by it from now on) to object; false where there is no memory. */
bool json_out_put(json_t *object, const char *key, json_t *value);
bool json_out_append(json_t *array, json_t *value);

/* Writes it on stdout, in one line without its end. No text in it can steer a terminal: control characters are \uNNNN.
 * false: no memory. */
bool json_out_write(const json_t *value);
/* On stderr, an error is a line. With --json, it is an object on stdout as well, once: {"error": …, "exit_code": …}. */
void json_out_errors(bool on);
/* err: NULL for usage errors, which have only a message. Does nothing without --json, or once a result has begun. */
void json_out_error(const char *message, const struct fsdpck_error *err, int exit_code);

/* Prints one line on stdout and releases object. complete: whether everything got into it. Returns `done`, or
 * EXIT_SYSTEM. */
int json_out_print(json_t *object, bool complete, int done);

#endif
