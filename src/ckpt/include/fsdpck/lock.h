/* SPDX-License-Identifier: Apache-2.0 */
/* A folder with one owner at a time: two runs that write to the same one would mix what they write. */
#ifndef FSDPCK_LOCK_H
#define FSDPCK_LOCK_H

#include <fsdpck/source.h>

#ifdef __cplusplus
extern "C" {
#endif

struct fsdpck_folder_lock;

/* Makes and locks folder/.fsdpck-lock, which says whose it is: host, boot, process. Processes forked from the caller share it: the lock ends
 * with the last of them. A file that a killed owner left is taken over. FSDPCK_ERR_BUSY names the holder; or, with a hint, the maker of a file that nobody
 * here holds, where it cannot be proved dead (another host, a file system without locks). what: the word for the holder in that message, as "run". */
FSDPCK_API int fsdpck_folder_lock(const char *folder, const char *what, const struct fsdpck_options *opt, struct fsdpck_folder_lock **out,
                                  struct fsdpck_error *err);
/* Whether the file still stands where it was made: else the folder was removed, renamed or replaced. */
FSDPCK_API bool fsdpck_folder_is_locked(const struct fsdpck_folder_lock *lock);
FSDPCK_API void fsdpck_folder_unlock(struct fsdpck_folder_lock *lock); /* removes the file; NULL does nothing */

#ifdef __cplusplus
}
#endif
#endif
