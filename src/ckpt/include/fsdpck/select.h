/* SPDX-License-Identifier: Apache-2.0 */
/* Selects and renames the tensors of a source: --include, --exclude, --rename, --alias, --select and --dtype. */
#ifndef FSDPCK_SELECT_H
#define FSDPCK_SELECT_H

#include <fsdpck/source.h>

#ifdef __cplusplus
extern "C" {
#endif

struct fsdpck_pair {
    const char *key, *value;
};

/* All zero selects everything unchanged. Globs match whole names ('*' any run of characters, dots too; '?' one; [a-z]
 * sets). Every glob, FROM, OLD and tree must match something; otherwise FSDPCK_ERR_USAGE, with the nearest name in the
 * hint. */
struct fsdpck_select {
    const char *const *include; /* (ninclude) if there are any, at least one must match the name */
    size_t ninclude;
    const char *const *exclude; /* (nexclude) none may match the name */
    size_t nexclude;
    const struct fsdpck_pair
        *rename; /* (nrename) after include and exclude. "*FROM"=TO replaces FROM wherever it stands, each of them in
                    order; then FROM=TO replaces a prefix, the first that matches */
    size_t nrename;
    const struct fsdpck_pair
        *alias; /* (nalias) NEW=OLD: list a stored tensor under a second name (names after renaming) */
    size_t nalias;
    const char *tree; /* select only this top-level tree ("model", or deeper: "app.model") and remove its prefix; NULL:
                         see each verb */
    bool cast;        /* cast floating-point tensors (float64 … bfloat16) to `dtype` */
    enum fsdpck_dtype dtype;
};

/* Matches like fnmatch: '*' any run of bytes, '?' one character, [a-z] [!a-z] sets, '\' quotes. Linear in practice,
 * never exponential. */
FSDPCK_API bool fsdpck_glob_match(const char *glob, const char *name);
/* Returns the edit distance between the pattern and the name; a '*' matches anything at no cost. Compares the first 255
 * bytes of each. */
FSDPCK_API unsigned fsdpck_glob_distance(const char *glob, const char *name);
/* Checks that each glob matches the name of a tensor or item. Otherwise FSDPCK_ERR_USAGE names `option`, the glob and
 * the nearest tensor. */
FSDPCK_API int fsdpck_globs_check(const struct fsdpck_source *src, const char *option, const char *const *globs,
                                  size_t nglobs, struct fsdpck_error *err);

#ifdef __cplusplus
}
#endif
#endif
