/* SPDX-License-Identifier: Apache-2.0 */
#include "ui/sql.h"

#include <pthread.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json_out.h"

enum { SCHEMA = 1 };

struct sql {
    sqlite3 *db;
    pthread_mutex_t mutex;
    char path[4096];
    char failure[300]; /* first failure of this transaction; "": none */
};

static const char schema[] =
    "CREATE TABLE jobs (id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, name TEXT NOT NULL,"
    " config TEXT NOT NULL, ranks INTEGER NOT NULL, devices TEXT NOT NULL, output_dir TEXT NOT NULL,"
    " cwd TEXT NOT NULL, state TEXT NOT NULL, position REAL NOT NULL, pid INTEGER, ticks INTEGER, boot TEXT,"
    " created REAL NOT NULL, started REAL, ended REAL, exit_code INTEGER, reason TEXT NOT NULL DEFAULT '') STRICT;"
    "CREATE INDEX jobs_by_state ON jobs (state, position);"
    "CREATE INDEX jobs_by_output ON jobs (output_dir);"
    /* The primary key makes overlapping jobs impossible. */
    "CREATE TABLE held (device TEXT PRIMARY KEY, job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE) STRICT;"
    "PRAGMA user_version = 1;";

static void fail(struct sql *s)
{
    if (!*s->failure)
        snprintf(s->failure, sizeof s->failure, "%s", sqlite3_errmsg(s->db));
}

static void execute(struct sql *s, const char *text)
{
    if (!*s->failure && sqlite3_exec(s->db, text, NULL, NULL, NULL) != SQLITE_OK)
        fail(s);
}

/* ---- values and rows */

static sqlite3_stmt *prepare(struct sql *s, const char *statement, const char *kinds, va_list values)
{
    sqlite3_stmt *p = NULL;
    if (*s->failure)
        return NULL;
    int rc = sqlite3_prepare_v2(s->db, statement, -1, &p, NULL);
    for (int i = 0; kinds[i] && rc == SQLITE_OK; i++) {
        if (kinds[i] == 'i')
            rc = sqlite3_bind_int64(p, i + 1, va_arg(values, int64_t));
        else if (kinds[i] == 'd')
            rc = sqlite3_bind_double(p, i + 1, va_arg(values, double));
        else
            rc = sqlite3_bind_text(p, i + 1, va_arg(values, const char *), -1, SQLITE_TRANSIENT);
    }
    if (rc == SQLITE_OK)
        return p;
    fail(s);
    sqlite3_finalize(p);
    return NULL;
}

static json_t *column_json(sqlite3_stmt *p, int i)
{
    switch (sqlite3_column_type(p, i)) {
    case SQLITE_INTEGER: return json_integer(sqlite3_column_int64(p, i));
    case SQLITE_FLOAT: return json_real(sqlite3_column_double(p, i));
    case SQLITE_TEXT: return json_out_text((const char *)sqlite3_column_text(p, i));
    default: return json_null();
    }
}

static json_t *row_json(sqlite3_stmt *p)
{
    json_t *row = json_object();
    bool ok = row;
    for (int i = 0; i < sqlite3_column_count(p) && ok; i++)
        ok = json_out_put(row, sqlite3_column_name(p, i), column_json(p, i));
    if (ok)
        return row;
    json_decref(row);
    return NULL;
}

json_t *sql_rows(struct sql *s, const char *statement, const char *kinds, ...)
{
    va_list values;
    va_start(values, kinds);
    sqlite3_stmt *p = prepare(s, statement, kinds, values);
    va_end(values);
    json_t *rows = json_array();
    int rc = p ? sqlite3_step(p) : SQLITE_DONE;
    for (; rc == SQLITE_ROW && rows; rc = sqlite3_step(p)) {
        if (!json_out_append(rows, row_json(p))) {
            json_decref(rows);
            rows = NULL;
        }
    }
    if (rc != SQLITE_DONE && rc != SQLITE_ROW)
        fail(s);
    sqlite3_finalize(p);
    return rows;
}

int64_t sql_run(struct sql *s, const char *statement, const char *kinds, ...)
{
    va_list values;
    va_start(values, kinds);
    sqlite3_stmt *p = prepare(s, statement, kinds, values);
    va_end(values);
    if (!p)
        return 0;
    const int rc = sqlite3_step(p);
    if (rc != SQLITE_DONE && rc != SQLITE_ROW)
        fail(s);
    sqlite3_finalize(p);
    return *s->failure ? 0 : sqlite3_changes(s->db);
}

int64_t sql_last_id(struct sql *s)
{
    return sqlite3_last_insert_rowid(s->db);
}

/* ---- transactions */

/* IMMEDIATE takes the write lock now; a later upgrade from reading could fail. */
void sql_begin(struct sql *s)
{
    pthread_mutex_lock(&s->mutex);
    *s->failure = '\0';
    execute(s, "BEGIN IMMEDIATE");
}

static void roll_back(struct sql *s)
{
    if (!sqlite3_get_autocommit(s->db))
        sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
}

int sql_end(struct sql *s, struct fsdpck_error *err)
{
    execute(s, "COMMIT");
    roll_back(s);
    const int rc = *s->failure ? fsdpck_error_set(err, FSDPCK_ERR_IO, s->path, "%s", s->failure) : 0;
    pthread_mutex_unlock(&s->mutex);
    return rc;
}

void sql_abandon(struct sql *s)
{
    roll_back(s);
    pthread_mutex_unlock(&s->mutex);
}

/* ---- opening */

static bool has_wal(struct sql *s)
{
    json_t *rows = sql_rows(s, "PRAGMA journal_mode = WAL", "");
    const char *mode = json_string_value(json_object_get(json_array_get(rows, 0), "journal_mode"));
    const bool wal = mode && strcmp(mode, "wal") == 0;
    json_decref(rows);
    return wal;
}

static int bring_up(struct sql *s, struct fsdpck_error *err)
{
    if (!has_wal(s)) {
        fsdpck_error_set(err, FSDPCK_ERR_IO, s->path, "%s",
                         *s->failure ? s->failure : "this file system cannot hold the queue (no write-ahead log)");
        fsdpck_error_hint(err, "--state DIR names a folder on a local disk");
        return err->code;
    }
    execute(s, "PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON;");
    sql_begin(s);
    json_t *rows = sql_rows(s, "PRAGMA user_version", "");
    const int64_t found = json_integer_value(json_object_get(json_array_get(rows, 0), "user_version"));
    json_decref(rows);
    if (found == 0)
        execute(s, schema);
    const int rc = sql_end(s, err);
    if (!rc && found > SCHEMA)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, s->path, "a newer fsdptrain made this queue (schema %lld)",
                                (long long)found);
    return rc;
}

int sql_open(const char *path, struct sql **out, struct fsdpck_error *err)
{
    struct sql *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s)
        return fsdpck_error_nomem(err, sizeof *s);
    pthread_mutex_init(&s->mutex, NULL);
    snprintf(s->path, sizeof s->path, "%s", path);
    int rc = 0;
    if (sqlite3_open_v2(path, &s->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL) != SQLITE_OK)
        rc = fsdpck_error_set(err, FSDPCK_ERR_IO, path, "%s", s->db ? sqlite3_errmsg(s->db) : "out of memory");
    if (!rc)
        sqlite3_busy_timeout(s->db, 5000);
    if (!rc)
        rc = bring_up(s, err);
    if (rc)
        sql_close(s);
    else
        *out = s;
    return rc;
}

void sql_close(struct sql *s)
{
    if (!s)
        return;
    sqlite3_close(s->db);
    pthread_mutex_destroy(&s->mutex);
    free(s);
}
