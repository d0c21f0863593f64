/* SPDX-License-Identifier: Apache-2.0 */
/* An I/O table for tests, in front of the POSIX one. It counts operations, fails or stops at a chosen one, and records
 * all changes below one directory, from which it derives what a power loss could leave there.
 *
 * The model of power loss. Bytes of a file are safe if the file was fsynced after they were written; others may be
 * present, missing, partly written, or zero. A name (created, removed, renamed, exchanged) is safe if its directory was
 * fsynced afterwards. Any other change of a name may or may not have happened, in any combination that the file system
 * could have reached. A single rename or exchange is atomic. An fsync of a file does not make its name safe. Several
 * threads may use the table; the other functions require that they have ended. */
#ifndef TESTS_FAULTY_IO_H
#define TESTS_FAULTY_IO_H

#include <fsdpck/io.h>

struct faulty;

/* root: an existing directory, absolute; its contents count as safe. Aborts if out of memory. */
struct faulty *faulty_new(const char *root);
void faulty_free(struct faulty *f);
const struct fsdpck_io *faulty_io(struct faulty *f);

/* Number of operations so far. Counts everything that may change something or fail; not close, stat, lock_probe, now
 * and random. */
unsigned faulty_nops(const struct faulty *f);
/* Operation n (from 0) and all later ones fail with EIO and do nothing, as if the process had been killed before n. */
void faulty_kill_at(struct faulty *f, unsigned n);
/* Only operation n fails, with this errno, and does nothing. EINTR applies to transfers only; a lock never fails. 0: a
 * short transfer. */
void faulty_fail_at(struct faulty *f, unsigned n, int sys_errno);
bool faulty_hit(const struct faulty *f); /* the chosen operation was reached and failed */

/* Simulated properties of the file system. Up to 8 of each. */
void faulty_other_device(struct faulty *f,
                         const char *path); /* stat of this path reports another device: a mount point */
void faulty_redirect(struct faulty *f, const char *from, const char *to); /* open of `from` opens `to` */
void faulty_no_exchange(struct faulty *f);                                /* exchange fails with -EINVAL */
void faulty_no_rename_new(struct faulty *f);                              /* rename_new fails with -EINVAL */
void faulty_fail_rename(struct faulty *f, const char *to,
                        int sys_errno);                   /* of rename, rename_new and exchange to this path */
void faulty_read_only(struct faulty *f, const char *dir); /* creating an entry directly in it fails with -EACCES */
void faulty_no_locks(struct faulty *f);                   /* lock and lock_probe fail with -ENOLCK */

/* The record: a list of events (changes and fsyncs), in order. */
size_t faulty_nevents(const struct faulty *f);
size_t faulty_nfsyncs(const struct faulty *f);
enum { FAULTY_ALL = -1 }; /* instead of a seed: nothing is lost, as after kill -9 */
/* Builds in `to` (created; must not exist) the tree after a power loss that follows the first `nevents` events. seed
 * chooses which unsafe changes happened. ignored: number of an fsync (from 0) to leave out, or -1. Returns a digest of
 * names and contents, because different crashes often leave the same. to NULL: builds nothing. */
uint64_t faulty_after_crash(const struct faulty *f, size_t nevents, int seed, int ignored, const char *to);
/* Formats an event for messages: "rename a b" and so on. */
const char *faulty_event_text(const struct faulty *f, size_t event, char *buf, size_t nbytes);

#endif
