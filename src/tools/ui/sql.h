/* SPDX-License-Identifier: Apache-2.0 */
/* SQLite, with rows as JSON. Values are always bound, never part of the statement's text. */
#ifndef UI_SQL_H
#define UI_SQL_H

#include <fsdpck/error.h>
#include <jansson.h>

struct sql;

/* Opens or creates the database. Refuses file systems without a write-ahead log (NFS, Lustre), and a newer schema. */
int sql_open(const char *path, struct sql **out, struct fsdpck_error *err);
void sql_close(struct sql *s); /* NULL does nothing */

/* One transaction, exclusive to the calling thread; transactions do not nest. sql_end() commits, or rolls back and
 * returns the first failure since sql_begin(). */
void sql_begin(struct sql *s);
int sql_end(struct sql *s, struct fsdpck_error *err);
/* Rolls back and ends the transaction. */
void sql_abandon(struct sql *s);

/* kinds: one letter per value: i (int64_t), d (double), s (const char *; NULL is null). After a failure these functions
 * do nothing until sql_end(). */
/* Returns the rows as an array of objects with the names of the columns; the caller owns it. Empty after a failure;
 * NULL: out of memory. */
json_t *sql_rows(struct sql *s, const char *statement, const char *kinds, ...);
/* Returns the number of changed rows. */
int64_t sql_run(struct sql *s, const char *statement, const char *kinds, ...);
int64_t sql_last_id(struct sql *s); /* of the last inserted row */

#endif
