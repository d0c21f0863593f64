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

/* root: an existing directory, absolute; what is in it counts as safe. Aborts when memory is out: this is test code. */
struct faulty *faulty_new(const char *root);
void faulty_free(struct faulty *f);
const struct fsdpck_io *faulty_io(struct faulty *f);

/* Operations so far. Counted: everything that may change or fail; not counted: close, stat, lock_probe, now, random. */
unsigned faulty_nops(const struct faulty *f);
/* Operation n (from 0) and all later ones fail with EIO, and do nothing, as if the process had been killed before n. */
void faulty_kill_at(struct faulty *f, unsigned n);
/* Operation n alone fails with this errno, and does nothing. EINTR hits only transfers; a lock is never hit. 0: it is a
 * short transfer. */
void faulty_fail_at(struct faulty *f, unsigned n, int sys_errno);
bool faulty_hit(const struct faulty *f); /* the chosen operation came, and was failed */

/* Lies. Up to 8 of each. */
void faulty_other_device(struct faulty *f,
                         const char *path); /* stat of this path gives a device of its own: a mount point */
void faulty_redirect(struct faulty *f, const char *from, const char *to); /* open of `from` opens `to` */
void faulty_no_exchange(struct faulty *f);                                /* exchange is -EINVAL */
void faulty_no_rename_new(struct faulty *f);                              /* rename_new is -EINVAL */
void faulty_fail_rename(struct faulty *f, const char *to,
                        int sys_errno);                   /* rename, rename_new, exchange to this path */
void faulty_read_only(struct faulty *f, const char *dir); /* creating an entry directly in it is -EACCES */
void faulty_no_locks(struct faulty *f);                   /* lock and lock_probe are -ENOLCK */

/* The record: a list of events (changes and fsyncs), in order. */
size_t faulty_nevents(const struct faulty *f);
size_t faulty_nfsyncs(const struct faulty *f);
enum { FAULTY_ALL = -1 }; /* no seed: nothing is lost, as after kill -9 */
/* Builds in `to` (made; must not exist) what is there when the power goes after the first `nevents` events. seed
 * chooses what of the unsafe happened. ignored: an fsync (from 0) that is taken as not made, or -1. Returns a digest of
 * names and contents: different crashes often leave the same. to NULL: nothing is built. */
uint64_t faulty_after_crash(const struct faulty *f, size_t nevents, int seed, int ignored, const char *to);
/* "rename a b" and so on, for messages. */
const char *faulty_event_text(const struct faulty *f, size_t event, char *buf, size_t nbytes);

#endif
