/* SPDX-License-Identifier: Apache-2.0 */
/* The state folder: STATE/RUN/run.json, and STATE/RUN/weights/NAME, sampler_weights/NAME and external_weights/NAME:
 * checkpoints of fsdpck, or PEFT folders. The service keeps no other list of them: after a kill it
 * finds them there. */
#ifndef SERVE_STORE_H
#define SERVE_STORE_H

#include <fsdpck/lock.h>
#include <jansson.h>
#include <linux/limits.h>
#include <time.h>

enum { STORE_PATH = PATH_MAX };

struct store {
    char dir[STORE_PATH];
    struct fsdpck_folder_lock *lock;
};

enum store_kind { STORE_WEIGHTS, STORE_SAMPLER, STORE_EXTERNAL, STORE_NKINDS };

/* A place of tinker://RUN/KIND/NAME. */
struct store_place {
    char run[NAME_MAX + 1], name[NAME_MAX + 1];
    enum store_kind kind;
};

/* dir: NULL for the user's state folder. Locks it. */
int store_open(struct store *s, const char *dir, struct fsdpck_error *err);
void store_close(struct store *s);

const char *store_kind_name(enum store_kind kind); /* "weights" */
bool store_is_name(const char *name);              /* a plain name of a folder */
/* "tinker://RUN/weights/NAME", or its last parts; false: it is no such path. */
bool store_parse(const char *uri, struct store_place *out);
bool store_parse_parts(const char *run, const char *kind, const char *name, struct store_place *out);
char *store_uri(const struct store_place *p); /* owned */
bool store_path(const struct store *s, const struct store_place *p, char out[STORE_PATH]);
/* Makes the folder that a place is in. */
int store_make_room(const struct store *s, const struct store_place *p, struct fsdpck_error *err);
bool store_has(const struct store *s, const struct store_place *p);
/* Bytes of its files. */
json_int_t store_nbytes(const struct store *s, const struct store_place *p);
/* At once for readers, then from the disk. */
int store_remove(const struct store *s, const struct store_place *p, struct fsdpck_error *err);
/* A folder for a file on its way, which is cleared at the start. */
bool store_temporary(const struct store *s, const char *name, char out[STORE_PATH]);
/* Moves a folder from there. */
int store_take_over(const struct store *s, const char *from, const struct store_place *p, struct fsdpck_error *err);

/* Names of runs, and facts of one: NULL: there is none. Owned. */
json_t *store_runs(const struct store *s);
json_t *store_run(const struct store *s, const char *run);
int store_write_run(const struct store *s, const char *run, json_t *facts, struct fsdpck_error *err);
/* Places of a run: a list of objects with kind, name, time, size_bytes and, if it has one, expires_at (seconds). */
json_t *store_checkpoints(const struct store *s, const char *run);
/* expires 0: never. */
int store_set_expiry(const struct store *s, const struct store_place *p, time_t expires, struct fsdpck_error *err);
/* Removes what has expired. */
void store_sweep(const struct store *s, time_t now);
/* The adapter_config.json of a place; owned; NULL: it has none. */
json_t *store_adapter_config(const struct store *s, const struct store_place *p);

#endif
