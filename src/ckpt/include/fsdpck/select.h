/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors of a source go out, under which names: what --include, --exclude, --rename, --alias, --select and --dtype ask for. */
#ifndef FSDPCK_SELECT_H
#define FSDPCK_SELECT_H

#include <fsdpck/source.h>

#ifdef __cplusplus
extern "C" {
#endif

struct fsdpck_pair {
    const char *key, *value;
};

/* Zero-initialise: everything, as it is. Globs match whole names ('*' any run of characters, dots too; '?' one; [a-z] sets). Each of them, and each FROM, OLD
 * and tree, must match something: FSDPCK_ERR_USAGE otherwise, with the nearest name in the hint. */
struct fsdpck_select {
    const char *const *include; /* (ninclude) at least one must match, where there are any */
    size_t ninclude;
    const char *const *exclude; /* (nexclude) none may match */
    size_t nexclude;
    const struct fsdpck_pair *rename; /* (nrename) prefix FROM=TO, after include and exclude; the first that fits */
    size_t nrename;
    const struct fsdpck_pair *alias; /* (nalias) NEW=OLD: list a stored tensor under a second name (names after renaming) */
    size_t nalias;
    const char *tree; /* keep only this top-level tree ("model", or deeper: "app.model") and drop its prefix; NULL: see each verb */
    bool cast;        /* floating-point tensors (float64 … bfloat16) become `dtype` */
    enum fsdpck_dtype dtype;
};

/* fnmatch-like: '*' any run of bytes, '?' one character, [a-z] [!a-z] sets, '\' quotes. Linear in practice, never exponential. */
FSDPCK_API bool fsdpck_glob_match(const char *glob, const char *name);
/* Edits between the pattern and the name; a '*' matches anything at no cost. Only the first 255 bytes of each count. */
FSDPCK_API unsigned fsdpck_glob_distance(const char *glob, const char *name);
/* Each glob must match the name of a tensor or item: else FSDPCK_ERR_USAGE, which names `option`, the glob and the nearest tensor. */
FSDPCK_API int fsdpck_globs_check(const struct fsdpck_source *src, const char *option, const char *const *globs, size_t nglobs, struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
