/* SPDX-License-Identifier: Apache-2.0 */
#include "board/board.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "board/events.h"
#include "board/hparams.h"

struct board {
    struct events events;
};

/* Fields of TensorBoard's messages. */
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2, VALUE_IMAGE = 4, VALUE_TENSOR = 8, VALUE_METADATA = 9 };
enum { METADATA_PLUGIN = 1, METADATA_CLASS = 4, PLUGIN_NAME = 1, PLUGIN_CONTENT = 2, CLASS_TENSOR = 2 };
enum { TENSOR_DTYPE = 1, TENSOR_SHAPE = 2, TENSOR_STRING = 8, SHAPE_DIM = 2, DIM_SIZE = 1 };
enum { DTYPE_FLOAT = 1, DTYPE_STRING = 7, SESSION_STATUS = 1, SESSION_START = 1 };
enum { LAYOUT_CATEGORY = 2, CATEGORY_TITLE = 1, CATEGORY_CHART = 2, CHART_TITLE = 1, CHART_LINES = 2, LINES_TAG = 1 };
enum { IMAGE_HEIGHT = 1, IMAGE_WIDTH = 2, IMAGE_CHANNELS = 3, IMAGE_FILE = 4 };
enum { TAG_NBYTES = 256 };

/* Names of scalars, where people have charts for them under these. The others are kept in groups by their endings. */
static const char *const names[][2] = {
    { "loss", "train/loss" },         { "grad_norm", "train/grad_norm" },
    { "lr", "train/learning_rate" },  { "eval_loss", "eval/loss" },
    { "eval_tokens", "eval/tokens" }, { "tokens_per_second", "perf/tokens_per_second" },
    { "tokens", "train/tokens" },     { "supervised_tokens", "train/supervised_tokens" },
};

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

static void tag_of(const char *key, char tag[TAG_NBYTES])
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(key, names[i][0]) == 0) {
            snprintf(tag, TAG_NBYTES, "%s", names[i][1]);
            return;
        }
    }
    const char *group = strncmp(key, "rank_", 5) == 0 || ends_with(key, "_rank")         ? "ranks"
                        : ends_with(key, "_seconds")                                     ? "time"
                        : strcmp(key, "rss_bytes") == 0 || strcmp(key, "pss_bytes") == 0 ? "memory"
                        : ends_with(key, "_bytes")                                       ? "traffic"
                                                                                         : "train";
    snprintf(tag, TAG_NBYTES, "%s/%s", group, key);
}

static void put_scalar(struct proto *m, const char *tag, const json_t *value)
{
    if (!json_is_number(value) && !json_is_null(value))
        return;
    const size_t begun = proto_begin(m, SUMMARY_VALUE);
    proto_put_text(m, VALUE_TAG, tag);
    proto_put_float(m, VALUE_SIMPLE, json_is_null(value) ? NAN : (float)json_number_value(value));
    proto_end(m, begun);
}

static void put_list(struct proto *m, const char *tag, const json_t *list)
{
    char one[TAG_NBYTES + 24];
    for (size_t i = 0; i < json_array_size(list); i++) {
        snprintf(one, sizeof one, "%s/%zu", tag, i);
        put_scalar(m, one, json_array_get(list, i));
    }
}

int board_put_line(struct board *b, const json_t *line, struct fsdpck_error *err)
{
    char tag[TAG_NBYTES];
    const char *key;
    json_t *value;
    struct proto *m = events_begin(&b->events, (uint64_t)json_integer_value(json_object_get(line, "step")));
    const size_t summary = proto_begin(m, EVENT_SUMMARY);
    json_object_foreach ((json_t *)line, key, value) {
        tag_of(key, tag);
        if (json_is_array(value))
            put_list(m, tag, value);
        else if (strcmp(key, "step") != 0)
            put_scalar(m, tag, value);
    }
    proto_end(m, summary);
    return events_end(&b->events, err);
}

static void put_metadata(struct proto *m, const char *plugin, const struct proto *content)
{
    const size_t metadata = proto_begin(m, VALUE_METADATA), data = proto_begin(m, METADATA_PLUGIN);
    proto_put_text(m, PLUGIN_NAME, plugin);
    if (content)
        proto_put_bytes(m, PLUGIN_CONTENT, content->bytes, content->nbytes);
    proto_end(m, data);
    proto_put_varint(m, METADATA_CLASS, CLASS_TENSOR);
    proto_end(m, metadata);
}

/* A tensor of one string: a vector of one element, or a scalar. */
static void put_string(struct proto *m, bool vector, const void *bytes, size_t nbytes)
{
    const size_t tensor = proto_begin(m, VALUE_TENSOR);
    proto_put_varint(m, TENSOR_DTYPE, DTYPE_STRING);
    const size_t shape = proto_begin(m, TENSOR_SHAPE);
    if (vector) {
        const size_t dim = proto_begin(m, SHAPE_DIM);
        proto_put_varint(m, DIM_SIZE, 1);
        proto_end(m, dim);
    }
    proto_end(m, shape);
    proto_put_bytes(m, TENSOR_STRING, bytes, nbytes);
    proto_end(m, tensor);
}

/* A float tensor of no elements: TensorBoard drops hparams without a tensor. */
static void put_nothing(struct proto *m)
{
    const size_t tensor = proto_begin(m, VALUE_TENSOR);
    proto_put_varint(m, TENSOR_DTYPE, DTYPE_FLOAT);
    const size_t shape = proto_begin(m, TENSOR_SHAPE), dim = proto_begin(m, SHAPE_DIM);
    proto_put_varint(m, DIM_SIZE, 0);
    proto_end(m, dim);
    proto_end(m, shape);
    proto_end(m, tensor);
}

/* ---- texts */

/* TensorBoard renders Markdown. A fence that is longer than any row of backticks in the text keeps it as it is. */
static size_t fence_of(const char *text, size_t nbytes)
{
    size_t longest = 2, row = 0;
    for (size_t i = 0; i < nbytes; i++) {
        row = text[i] == '`' ? row + 1 : 0;
        longest = row > longest ? row : longest;
    }
    return longest + 1;
}

int board_put_sample(struct board *b, uint64_t step, size_t number, const char *text, size_t nbytes,
                     struct fsdpck_error *err)
{
    const size_t fence = fence_of(text, nbytes), whole = 2 * fence + nbytes + 2;
    char tag[40], *shown = malloc(whole);
    if (!shown)
        return fsdpck_error_nomem(err, whole);
    memset(shown, '`', whole);
    shown[fence] = shown[fence + 1 + nbytes] = '\n';
    memcpy(shown + fence + 1, text, nbytes);
    snprintf(tag, sizeof tag, "samples/%zu", number);
    struct proto *m = events_begin(&b->events, step);
    const size_t summary = proto_begin(m, EVENT_SUMMARY), value = proto_begin(m, SUMMARY_VALUE);
    proto_put_text(m, VALUE_TAG, tag);
    put_string(m, true, shown, whole);
    put_metadata(m, "text", NULL);
    proto_end(m, value);
    proto_end(m, summary);
    free(shown);
    return events_end(&b->events, err);
}

/* ---- pictures */

/* A number in the header of a PNG file, whose bytes are the highest first. */
static uint32_t number_at(const unsigned char *png, size_t at)
{
    return (uint32_t)png[at] << 24 | (uint32_t)png[at + 1] << 16 | (uint32_t)png[at + 2] << 8 | png[at + 3];
}

int board_put_picture(struct board *b, uint64_t step, size_t number, const void *png, size_t nbytes,
                      struct fsdpck_error *err)
{
    enum { WIDTH_AT = 16, HEIGHT_AT = 20, HEADER = 24 };
    char tag[40];
    if (nbytes < HEADER)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL, "a picture of %zu bytes is no PNG file", nbytes);
    snprintf(tag, sizeof tag, "samples/%zu", number);
    struct proto *m = events_begin(&b->events, step);
    const size_t summary = proto_begin(m, EVENT_SUMMARY), value = proto_begin(m, SUMMARY_VALUE);
    proto_put_text(m, VALUE_TAG, tag);
    const size_t image = proto_begin(m, VALUE_IMAGE);
    proto_put_varint(m, IMAGE_HEIGHT, number_at(png, HEIGHT_AT));
    proto_put_varint(m, IMAGE_WIDTH, number_at(png, WIDTH_AT));
    proto_put_varint(m, IMAGE_CHANNELS, 3);
    proto_put_bytes(m, IMAGE_FILE, png, nbytes);
    proto_end(m, image);
    proto_end(m, value);
    proto_end(m, summary);
    return events_end(&b->events, err);
}

/* ---- what is said once in a start */

static int put_hparams(struct board *b, uint64_t step, const char *tag, const struct proto *content,
                       struct fsdpck_error *err)
{
    if (content->failed)
        return fsdpck_error_nomem(err, content->nbytes);
    struct proto *m = events_begin(&b->events, step);
    const size_t summary = proto_begin(m, EVENT_SUMMARY), value = proto_begin(m, SUMMARY_VALUE);
    proto_put_text(m, VALUE_TAG, tag);
    put_nothing(m);
    put_metadata(m, "hparams", content);
    proto_end(m, value);
    proto_end(m, summary);
    return events_end(&b->events, err);
}

/* Charts of several curves: title, and a regular expression of their tags. */
static const char *const charts[][2] = {
    { "loss", "^(train|eval)/loss$" },
    { "seconds of a step", "^time/" },
    { "computation of each rank", "^ranks/rank_busy_seconds/" },
    { "memory", "^memory/" },
};

static int put_layout(struct board *b, struct fsdpck_error *err)
{
    struct proto layout = { 0 };
    const size_t category = proto_begin(&layout, LAYOUT_CATEGORY);
    proto_put_text(&layout, CATEGORY_TITLE, "training");
    for (size_t i = 0; i < sizeof charts / sizeof charts[0]; i++) {
        const size_t chart = proto_begin(&layout, CATEGORY_CHART);
        proto_put_text(&layout, CHART_TITLE, charts[i][0]);
        const size_t lines = proto_begin(&layout, CHART_LINES);
        proto_put_text(&layout, LINES_TAG, charts[i][1]);
        proto_end(&layout, lines);
        proto_end(&layout, chart);
    }
    proto_end(&layout, category);
    struct proto *m = events_begin(&b->events, 0);
    const size_t summary = proto_begin(m, EVENT_SUMMARY), value = proto_begin(m, SUMMARY_VALUE);
    proto_put_text(m, VALUE_TAG, "custom_scalars__config__");
    put_string(m, false, layout.bytes, layout.nbytes);
    put_metadata(m, "custom_scalars", NULL);
    proto_end(m, value);
    proto_end(m, summary);
    m->failed |= layout.failed;
    proto_free(&layout);
    return events_end(&b->events, err);
}

/* Readers that have seen later steps drop them on this event. */
static int put_restart(struct board *b, uint64_t step, struct fsdpck_error *err)
{
    struct proto *m = events_begin(&b->events, step + 1);
    const size_t log = proto_begin(m, EVENT_SESSION_LOG);
    proto_put_varint(m, SESSION_STATUS, SESSION_START);
    proto_end(m, log);
    return events_end(&b->events, err);
}

int board_open(const char *folder, uint64_t step, const json_t *config, struct board **out, struct fsdpck_error *err)
{
    struct board *b = calloc(1, sizeof *b);
    struct proto content = { 0 };
    bool again;
    *out = NULL;
    if (!b)
        return fsdpck_error_nomem(err, sizeof *b);
    b->events.fd = -1;
    int rc = events_forget(folder, step, &again, err);
    if (!rc)
        rc = events_open(folder, &b->events, err);
    if (!rc && (again || step))
        rc = put_restart(b, step, err);
    if (!rc)
        rc = put_layout(b, err);
    hparams_start(&content, config, folder, (double)time(NULL));
    if (!rc)
        rc = put_hparams(b, 0, HPARAMS_START_TAG, &content, err);
    proto_free(&content);
    if (rc)
        board_close(b);
    else
        *out = b;
    return rc;
}

int board_put_end(struct board *b, uint64_t step, enum board_end how, struct fsdpck_error *err)
{
    struct proto content = { 0 };
    hparams_end(&content, how, (double)time(NULL));
    int rc = put_hparams(b, step, HPARAMS_END_TAG, &content, err);
    proto_free(&content);
    return rc;
}

void board_close(struct board *b)
{
    if (b)
        events_close(&b->events);
    free(b);
}
