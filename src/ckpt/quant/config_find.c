/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the config.json that describes a source's quantized weights. */
#include "quant/config_find.h"

#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"

#define CONFIG_MAX_NBYTES (16u << 20)

static int read_config(const struct fsdpck_source *src, const char *path, struct fsdpck_quant_config *out,
                       struct fsdpck_error *err)
{
    char *text = NULL;
    uint64_t n;
    int rc = fsdpck_read_file(src->io, path, CONFIG_MAX_NBYTES, &text, &n, err);
    if (!rc)
        rc = fsdpck_quant_config_read(path, text, n, out, err);
    free(text);
    return rc;
}

static const char *const config_names[] = { "config.json", "hf_quant_config.json" }; /* the second is modelopt's */
enum { NCONFIGS = sizeof config_names / sizeof *config_names };

static int read_assets(const struct fsdpck_source *src, struct fsdpck_quant_config *out, struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t k = 0; k < NCONFIGS; k++)
        for (size_t i = 0; i < src->assets.count && !rc && !out->present; i++)
            if (strcmp(source_assets(src)[i].pub.path, config_names[k]) == 0)
                rc = read_config(src, source_assets(src)[i].from, out, err);
    return rc;
}

static int read_folder(const struct fsdpck_source *src, const char *folder, struct fsdpck_quant_config *out,
                       struct fsdpck_error *err)
{
    int rc = 0;
    for (size_t k = 0; k < NCONFIGS && !rc && !out->present; k++) {
        char *path = fsdpck_path_join(folder, config_names[k], err);
        if (!path)
            return FSDPCK_ERR_NOMEM;
        if (fsdpck_is_file(src->io, path))
            rc = read_config(src, path, out, err);
        free(path);
    }
    return rc;
}

int fsdpck_quant_config_find(const struct fsdpck_source *src, const char *folder, struct fsdpck_quant_config *out,
                             struct fsdpck_error *err)
{
    *out = (struct fsdpck_quant_config){ 0 };
    int rc = read_assets(src, out, err);
    return rc || out->present || !folder ? rc : read_folder(src, folder, out, err);
}
