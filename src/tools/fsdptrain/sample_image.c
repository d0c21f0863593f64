/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures go to PNG files. With several pictures, each name gets a number. One alone may go to standard output. */
#include "sample_image.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/json_out.h"
#include "common/out_file.h"
#include "common/stop.h"

struct pictures {
    const struct sample_image_args *args;
    const json_t *prompts;
    struct report *report;
    size_t count; /* of all prompts */
    json_t *made;
};

static bool to_output(const struct pictures *p)
{
    return strcmp(p->args->out, "-") == 0;
}

static bool put_png(FILE *f, const void *ctx)
{
    return image_put_png(f, ctx);
}

/* "a.png", or "a-3.png" if there are several. */
static int name_of(const struct pictures *p, size_t number, char path[PATH_MAX], struct fsdpck_error *err)
{
    const char *out = p->args->out, *dot = strrchr(out, '.');
    const int stem = (int)(dot - out);
    const int n = p->count > 1 ? snprintf(path, PATH_MAX, "%.*s-%zu%s", stem, out, number, dot)
                               : snprintf(path, PATH_MAX, "%s", out);
    return n < PATH_MAX ? 0 : fsdpck_error_set(err, FSDPCK_ERR_USAGE, out, "the path is too long");
}

static int list_made(struct pictures *p, const struct image *image, const char *path, struct fsdpck_error *err)
{
    json_t *one = json_object();
    bool ok = json_out_put(one, "path", json_out_text(path));
    ok &= json_out_put(one, "prompt", json_incref(json_array_get(p->prompts, image->prompt)));
    ok &= json_out_put(one, "seed", json_out_u64((uint64_t)p->args->seed + image->number));
    ok &= json_out_put(one, "width", json_out_u64((uint64_t)image->width));
    ok &= json_out_put(one, "height", json_out_u64((uint64_t)image->height));
    return json_out_append(p->made, one) && ok ? 0 : fsdpck_error_nomem(err, 256);
}

static struct out_file file_of(const char *path, const struct image *image)
{
    static const char *const heads[] = { "\x89PNG", NULL };
    return (struct out_file){ path, "picture", "--out", heads, put_png, image };
}

static int check_folder(const char *out, struct fsdpck_error *err)
{
    const char *slash = strrchr(out, '/');
    char folder[PATH_MAX] = ".";
    if (slash)
        snprintf(folder, sizeof folder, "%.*s", slash == out ? 1 : (int)(slash - out), out);
    return access(folder, W_OK | X_OK) == 0 ? 0 : fsdpck_error_sys(err, errno, folder, "write");
}

static int check_files(const struct pictures *p, struct fsdpck_error *err)
{
    char path[PATH_MAX];
    int rc = 0;
    if (to_output(p))
        return 0;
    for (size_t i = 0; i < p->count && !rc; i++) {
        rc = name_of(p, i, path, err);
        const struct out_file file = file_of(path, NULL);
        if (!rc)
            rc = out_file_check(&file, err);
    }
    return rc ? rc : check_folder(p->args->out, err);
}

static int write_output(const struct image *image, struct fsdpck_error *err)
{
    return image_put_png(stdout, image) && fflush(stdout) == 0 ? 0 : fsdpck_error_sys(err, errno, "-", "write");
}

static int made(void *ctx, const struct image *image, struct fsdpck_error *err)
{
    struct pictures *p = ctx;
    const size_t each = p->args->samples;
    char path[PATH_MAX];
    if (to_output(p))
        return write_output(image, err);
    int rc = name_of(p, image->prompt * each + image->number, path, err);
    const struct out_file file = file_of(path, image);
    if (!rc)
        rc = out_file_write(&file, err);
    if (rc)
        return rc;
    report_clear(p->report);
    if (!p->args->json)
        printf("%s\n", path);
    return list_made(p, image, path, err);
}

static void progress(void *ctx, enum image_phase phase, uint64_t done, uint64_t total)
{
    static const char *const words[] = {
        [IMAGE_READS_TEXT] = "texts", [IMAGE_STEPS] = "steps", [IMAGE_DECODES] = "decoded"
    };
    const struct pictures *p = ctx;
    char line[100];
    snprintf(line, sizeof line, "%s: %llu of %llu", words[phase], (unsigned long long)done, (unsigned long long)total);
    if (p->report->terminal && !p->args->quiet)
        report_draw(p->report, line);
}

static bool is_stopped(void *ctx)
{
    (void)ctx;
    return stop_signal != 0;
}

/* "1024x768": width and height, as people write them. */
static int read_size(const char *text, int64_t *width, int64_t *height, struct fsdpck_error *err)
{
    unsigned w = 0, h = 0;
    int n = 0;
    if (text && (sscanf(text, "%5ux%5u%n", &w, &h, &n) != 2 || text[n] || w % IMAGE_UNIT || h % IMAGE_UNIT || !w ||
                 !h || w > IMAGE_MOST || h > IMAGE_MOST))
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                "--size '%.40s': WIDTHxHEIGHT is wanted, both multiples of %d, up to %d", text,
                                IMAGE_UNIT, IMAGE_MOST);
    *width = w;
    *height = h;
    return 0;
}

static int check_out(const struct pictures *p, struct fsdpck_error *err)
{
    const char *out = p->args->out, *dot = out ? strrchr(out, '.') : NULL;
    if (out && to_output(p))
        return p->count == 1 && !p->args->json
                   ? 0
                   : fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "--out -: for one picture, without --json");
    if (dot && strcmp(dot, ".png") == 0 && dot > out && dot[-1] != '/')
        return 0;
    return out ? fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "--out '%.200s': the name of a .png file is wanted", out)
               : fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                  "--out FILE.png is wanted, or --out - for standard output");
}

/* *texts: (count) borrowed from prompts. */
static int list_texts(const json_t *prompts, const char ***texts, struct fsdpck_error *err)
{
    const size_t n = json_array_size(prompts);
    *texts = calloc(n + 1, sizeof **texts);
    for (size_t i = 0; *texts && i < n; i++)
        if (!((*texts)[i] = json_string_value(json_array_get(prompts, i))))
            return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "prompt %zu is no text", i + 1);
    return *texts ? 0 : fsdpck_error_nomem(err, n * sizeof **texts);
}

int sample_image_run(const struct sample_image_args *args, const char *pipeline, const struct sampler_options *opt,
                     const json_t *prompts, struct report *report)
{
    struct fsdpck_error err = { 0 };
    const char **texts = NULL;
    struct pictures p = { args, prompts, report, json_array_size(prompts) * args->samples, json_array() };
    struct image_request r = { .nprompts = json_array_size(prompts),
                               .negative = args->negative,
                               .nstep = args->steps,
                               .guidance = args->guidance,
                               .max_tokens = args->max_tokens,
                               .seed = (uint64_t)args->seed,
                               .count = args->samples };
    const struct image_calls calls = { made, progress, is_stopped, &p };
    int rc = check_out(&p, &err);
    if (!rc)
        rc = check_files(&p, &err);
    if (!rc)
        rc = read_size(args->size, &r.width, &r.height, &err);
    if (!rc)
        rc = list_texts(prompts, &texts, &err);
    r.prompts = texts;
    if (!rc)
        rc = image_sample(pipeline, opt, &r, &calls, &err);
    report_clear(report);
    free(texts);
    int status = rc ? (stop_signal ? 128 + stop_signal : report_error(report, &err)) : EXIT_DONE;
    if (!rc && args->json) {
        json_t *all = json_object();
        status = json_out_print(all, json_out_put(all, "pictures", json_incref(p.made)), EXIT_DONE);
    }
    json_decref(p.made);
    return status;
}
