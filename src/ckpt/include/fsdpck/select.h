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

/* Zero-initialise: everything, as it is. Globs match whole names ('*' any run of characters, dots too; '?' one; [a-z] sets). */
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

#ifdef __cplusplus
}
#endif
#endif
