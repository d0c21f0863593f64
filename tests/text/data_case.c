/* SPDX-License-Identifier: Apache-2.0 */
/* Fixtures of the data tests. */
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "data_case.h"

static char folder[PATH];
char notes[4000];

static const char *in_folder(const char *name)
{
    static char paths[8][PATH + 100];
    static int turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

const char *write_bytes(const char *name, const void *bytes, size_t nbytes)
{
    const char *path = in_folder(name);
    FILE *f = fopen(path, "wbe");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, nbytes, f), nbytes);
    assert_int_equal(fclose(f), 0);
    return path;
}

const char *write_text(const char *name, const char *text)
{
    return write_bytes(name, text, strlen(text));
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

int setup(void **state)
{
    (void)state;
    notes[0] = '\0';
    snprintf(folder, sizeof folder, "%s/fsdpck-data-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

int teardown(void **state)
{
    (void)state;
    return nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void note(void *ctx, const char *line)
{
    (void)ctx;
    strncat(notes, line, sizeof notes - strlen(notes) - 2);
    strcat(notes, "\n");
}

struct train_config config_of(const struct train_data_file *files, size_t nfiles)
{
    static char out[PATH + 8], model[PATH];
    snprintf(out, sizeof out, "%s/out/run", folder);
    snprintf(model, sizeof model, "%s/qwen2", getenv("FSDPCK_TEXT_GOLDENS"));
    return (struct train_config){
        .model = model,
        .output_dir = out,
        .seed = 7,
        .data = { .train = files[0].path,
                  .files = files,
                  .nfiles = nfiles,
                  .loss_on = CHAT_LOSS_ASSISTANT,
                  .on_bad_line = TRAIN_BAD_LINE_STOP,
                  .too_long = TRAIN_TOO_LONG_CUT,
                  .seq_len = 128,
                  .packing = true },
        .train = { .micro_batch_size = 1, .global_batch_size = 1, .max_steps = 1 },
    };
}

struct data *open_data(const struct train_config *config)
{
    const struct fsdpck_options opt = { .note = note };
    struct fsdpck_error err = { 0 };
    struct data *d;
    if (data_open(config, NVOCAB, &opt, &d, &err))
        fail_msg("%s", err.message);
    return d;
}
