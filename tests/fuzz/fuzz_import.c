/* SPDX-License-Identifier: Apache-2.0 */
/* A configuration of another trainer, in YAML, JSON or TOML. Properties: a refusal has a message and leaves nothing;
 * otherwise what is taken over is accepted by the config's own reader, and every key of the top level is accounted for.
 */
#include <jansson.h>
#include <string.h>
#include <sys/mman.h>
#include <train/config.h>
#include <train/import.h>
#include <unistd.h>

#include "import/read.h"
#include "fuzz.h"

static bool is_named(const json_t *report, const char *list, const char *key)
{
    const json_t *line;
    size_t i, n = strlen(key) > 140 ? 140 : strlen(key); /* lines cut what is longer */
    json_array_foreach (json_object_get(report, list), i, line) {
        const char *text = json_string_value(line);
        if (strncmp(text, key, n) == 0 && (strlen(text) == n || strchr(" :.", text[n]) || n == 140))
            return true;
    }
    return false;
}

static void check_named(const uint8_t *data, size_t nbytes, const json_t *report)
{
    struct fsdpck_error err = { 0 };
    enum import_syntax syntax;
    json_t *root, *value;
    const char *key;
    FUZZ_CHECK(import_parse("", (const char *)data, nbytes, &root, &syntax, &err) == 0);
    json_object_foreach (root, key, value)
        FUZZ_CHECK(is_named(report, "taken", key) || is_named(report, "unneeded", key) ||
                   is_named(report, "notes", key));
    json_decref(root);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    struct fsdpck_error err = { 0 };
    struct train_import im;
    struct train_config config;
    char path[64];
    const char *paths[] = { path };
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    FUZZ_CHECK(fd >= 0 && write(fd, data, nbytes) == (ssize_t)nbytes);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int rc = train_import_read(paths, 1, 2, &im, &err);
    close(fd);
    FUZZ_CHECK(rc == err.code);
    if (rc) {
        FUZZ_CHECK(err.message[0] && !im.config && !im.files);
        return 0;
    }
    check_named(data, nbytes, json_array_get(im.files, 0));
    json_object_set_new(im.config, "model", json_string("m"));
    json_t *section = json_object_get(im.config, "data");
    if (!json_is_object(section))
        json_object_set_new(im.config, "data", section = json_object());
    json_object_set_new(section, "train", json_string("d"));
    json_t *train = json_object_get(im.config, "train");
    if (json_object_get(train, "micro_batch_size") && !json_object_get(train, "global_batch_size"))
        json_object_del(train, "micro_batch_size"); /* the only rule of two keys that a file of others can break */
    rc = train_config_take("fuzz", json_deep_copy(im.config), &config, &err);
    if (rc)
        fprintf(stderr, "%s\n", err.message);
    FUZZ_CHECK(rc == 0);
    train_config_free(&config);
    train_import_free(&im);
    return 0;
}
