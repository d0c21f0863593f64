/* SPDX-License-Identifier: Apache-2.0 */
/* Locks a folder for one owner at a time, so that two runs cannot mix their files in it. */
#ifndef FSDPCK_LOCK_H
#define FSDPCK_LOCK_H

#include <fsdpck/source.h>

#ifdef __cplusplus
extern "C" {
#endif

struct fsdpck_folder_lock;

/* Creates and locks folder/.fsdpck-lock, which names its owner: host, boot, process. Processes forked from the caller
 * share the lock; it ends with the last of them. A lock file left by a killed owner is taken over. FSDPCK_ERR_BUSY
 * names the holder. If nobody on this host holds the lock but its owner cannot be proved dead (another host, a file
 * system without locks), FSDPCK_ERR_BUSY names that owner and has a hint. what: the holder's noun in the message, such
 * as "run". */
FSDPCK_API int fsdpck_folder_lock(const char *folder, const char *what, const struct fsdpck_options *opt,
                                  struct fsdpck_folder_lock **out, struct fsdpck_error *err);
/* Returns false if the lock file is no longer at its path: the folder was removed, renamed or replaced. */
FSDPCK_API bool fsdpck_folder_is_locked(const struct fsdpck_folder_lock *lock);
FSDPCK_API void fsdpck_folder_unlock(struct fsdpck_folder_lock *lock); /* removes the file; NULL does nothing */

#ifdef __cplusplus
}
#endif
#endif
