/* SPDX-License-Identifier: Apache-2.0 */
/* SQLite with rows as JSON. Every value is bound and none is part of a statement's text. */
#ifndef UI_SQL_H
#define UI_SQL_H

#include <fsdpck/error.h>
#include <jansson.h>

struct sql;

/* Opens or makes the database, and brings it to the newest schema. Refused where the file system cannot share memory
 * between processes (NFS, Lustre), or if a newer program made it. */
int sql_open(const char *path, struct sql **out, struct fsdpck_error *err);
void sql_close(struct sql *s); /* NULL does nothing */

/* Between the two, the calling thread has the database for itself, and what it changes is one transaction. They do not
 * nest. sql_end(): a failure since sql_begin(), of the commit too, undoes all and is returned. */
void sql_begin(struct sql *s);
int sql_end(struct sql *s, struct fsdpck_error *err);
/* Undoes all since sql_begin(). */
void sql_abandon(struct sql *s);

/* kinds: a letter for each value: i (int64_t), d (double), s (const char *; NULL is null). After a failure the
 * functions do nothing until sql_end(). */
/* The rows as an array of objects with the columns' names, owned by the caller; empty after a failure, NULL: out of
 * memory. */
json_t *sql_rows(struct sql *s, const char *statement, const char *kinds, ...);
/* The number of rows that were changed. */
int64_t sql_run(struct sql *s, const char *statement, const char *kinds, ...);
int64_t sql_last_id(struct sql *s); /* of the last row that was inserted */

#endif
