/* SPDX-License-Identifier: Apache-2.0 */
#include "image/pipeline.h"

#include <train/image.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "text/file.h"

bool image_is_pipeline(const char *folder)
{
    char path[PIPELINE_PATH];
    return snprintf(path, sizeof path, "%s/model_index.json", folder) < (int)sizeof path && access(path, F_OK) == 0;
}

int pipeline_part(const struct pipeline *p, const char *part, char path[PIPELINE_PATH], struct fsdpck_error *err)
{
    if (snprintf(path, PIPELINE_PATH, "%s/%s", p->folder, part) >= PIPELINE_PATH)
        return fsdpck_error_set(err, FSDPCK_ERR_LIMIT, NULL, "a path of more than %d bytes", PIPELINE_PATH - 1);
    return 0;
}

int pipeline_json(const struct pipeline *p, const char *part, const char *name, const char *class_name,
                  struct model_reader *out, struct fsdpck_error *err)
{
    char file[300];
    *out = (struct model_reader){ .err = err };
    snprintf(file, sizeof file, "%s%s%s", part, *part ? "/" : "", name);
    int rc = pipeline_part(p, file, out->path, err);
    if (!rc)
        rc = text_file_json(out->path, &out->root, err);
    const char *is = json_string_value(json_object_get(out->root, "_class_name"));
    if (!rc && class_name && (!is || strcmp(is, class_name) != 0))
        rc = fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, out->path,
                              "_class_name \"%.60s\" is not supported here; %s is", is ? is : "", class_name);
    return out->rc = rc;
}

/* A part of another class would be computed as if it were the known one. */
static int check_part(const struct model_reader *r, const char *part, const char *class_name)
{
    const char *is = json_string_value(json_array_get(json_object_get(r->root, part), 1));
    if (is && strcmp(is, class_name) == 0)
        return 0;
    return fsdpck_error_set(r->err, FSDPCK_ERR_UNSUPPORTED, r->path, "part '%s' is \"%.60s\"; %s is supported", part,
                            is ? is : "", class_name);
}

int pipeline_read(const char *folder, struct pipeline *out, struct fsdpck_error *err)
{
    static const char *const parts[][2] = { { "transformer", "Flux2Transformer2DModel" },
                                            { "vae", "AutoencoderKLFlux2" },
                                            { "text_encoder", "Qwen3ForCausalLM" },
                                            { "scheduler", "FlowMatchEulerDiscreteScheduler" } };
    struct model_reader r;
    *out = (struct pipeline){ 0 };
    int rc = snprintf(out->folder, sizeof out->folder, "%s", folder) < (int)sizeof out->folder
                 ? 0
                 : fsdpck_error_set(err, FSDPCK_ERR_LIMIT, NULL, "a path of more than %d bytes", PIPELINE_PATH - 1);
    if (rc)
        return rc;
    rc = pipeline_json(out, "", "model_index.json", "Flux2KleinPipeline", &r, err);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && !rc; i++)
        rc = check_part(&r, parts[i][0], parts[i][1]);
    if (!rc) {
        out->distilled = model_get_bool(&r, "is_distilled", false);
        rc = r.rc;
    }
    json_decref(r.root);
    return rc;
}
