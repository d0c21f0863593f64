/* SPDX-License-Identifier: Apache-2.0 */
/* The record behind faulty_io.c: the changes and fsyncs below a directory, and what a power loss may leave of them. */
#ifndef TESTS_POWER_LOSS_H
#define TESTS_POWER_LOSS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct power_log;

struct power_log *power_log_new(const char *root); /* loads the initial tree */
void power_log_free(struct power_log *log);

/* Call them after the operation succeeded. Paths outside the root are ignored. */
void power_log_open(struct power_log *log, int fd, const char *path, bool created);
void power_log_close(struct power_log *log, int fd);
void power_log_write(struct power_log *log, int fd, const void *data, size_t nbytes, uint64_t offset);
void power_log_truncate(struct power_log *log, int fd, uint64_t nbytes);
void power_log_fsync(struct power_log *log, int fd);
void power_log_mkdir(struct power_log *log, const char *path);
void power_log_rename(struct power_log *log, const char *from, const char *to);
void power_log_exchange(struct power_log *log, const char *a, const char *b);
void power_log_remove(struct power_log *log, const char *path);

size_t power_log_nevents(const struct power_log *log);
size_t power_log_nfsyncs(const struct power_log *log);
uint64_t power_log_replay(const struct power_log *log, size_t nevents, int seed, int ignored, const char *to);
const char *power_log_text(const struct power_log *log, size_t event, char *buf, size_t nbytes);

#endif
