/* SPDX-License-Identifier: Apache-2.0 */
/* Picture files to pixels, and into their buckets, against the goldens of Pillow, ai-toolkit and diffusers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <fsdpck/source.h>

#include "pictures/bucket.h"
#include "pictures/pixels.h"

static void must(int rc, const struct fsdpck_error *err)
{
    char line[2048];
    if (rc)
        fail_msg("%s", fsdpck_error_format(err, line, sizeof line));
}

static const char *path_of(const char *environment, const char *folder, const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s/%s", getenv(environment), folder, name);
    return path;
}

/* At resolution 64, as ai-toolkit has it. */
static struct bucket of_resolution(const struct pixels *p)
{
    return bucket_of(p->height, p->width, 64, 16);
}

/* With diffusers' "48,32;32,48". */
static struct bucket of_two(const struct pixels *p)
{
    static const struct bucket_size sizes[] = { { 48, 32 }, { 32, 48 } };
    return bucket_nearest(p->height, p->width, sizes, 2);
}

static void fit(const char *name, struct bucket (*of)(const struct pixels *p), enum pixels_filter filter,
                struct pixels *out)
{
    struct fsdpck_error err = { 0 };
    struct picture_notes notes;
    struct pixels p;
    int64_t height, width;
    const char *path = path_of("FSDPCK_FIXTURES", "pictures", name);
    must(picture_size(path, &height, &width, &err), &err);
    must(picture_read(path, &p, &notes, &err), &err);
    assert_int_equal(p.height, height);
    assert_int_equal(p.width, width);
    assert_false(notes.alpha || notes.profile);
    const struct bucket b = of(&p);
    must(pixels_resize(&p, b.scaled_height, b.scaled_width, filter, out, &err), &err);
    pixels_crop(out, b.top, b.left, b.height, b.width);
    pixels_free(&p);
}

/* Decoders of JPEG may differ by 1. */
static void check_fitted(const char *golden, struct bucket (*of)(const struct pixels *p), enum pixels_filter filter)
{
    struct fsdpck_error err = { 0 };
    struct fsdpck_source *src;
    must(fsdpck_source_open(path_of("FSDPTRAIN_GOLDENS", "flux2", golden), NULL, NULL, &src, &err), &err);
    for (size_t i = 0; i < fsdpck_source_ntensors(src); i++) {
        const struct fsdpck_tensor *t = fsdpck_source_tensor(src, i);
        const int most = strstr(t->name, ".jpg") ? 1 : 0;
        struct pixels p;
        fit(t->name, of, filter, &p);
        assert_int_equal(p.height, t->shape[0]);
        assert_int_equal(p.width, t->shape[1]);
        uint8_t *want = malloc((size_t)(p.height * p.width * 3));
        const struct fsdpck_read read = { .tensor = t, .dst = want };
        must(fsdpck_source_read(src, &read, 1, &err), &err);
        for (int64_t k = 0; k < p.height * p.width * 3; k++)
            if (abs(p.rgb[k] - want[k]) > most)
                fail_msg("%s: value %lld is %d, and not %d", t->name, (long long)k, p.rgb[k], want[k]);
        free(want);
        pixels_free(&p);
    }
    assert_int_equal(fsdpck_source_ntensors(src), 4);
    fsdpck_source_close(src);
}

static void test_fitted(void **state)
{
    (void)state;
    check_fitted("images.safetensors", of_resolution, PIXELS_BICUBIC);
    check_fitted("images_diffusers.safetensors", of_two, PIXELS_BILINEAR);
}

static int64_t of(const json_t *row, const char *key, int i)
{
    const json_t *value = json_object_get(row, key);
    return json_integer_value(i < 0 ? value : json_array_get(value, (size_t)i));
}

static void test_buckets(void **state)
{
    json_t *all = json_load_file(path_of("FSDPTRAIN_GOLDENS", "flux2", "schedule.json"), 0, NULL), *row;
    size_t i;
    (void)state;
    json_array_foreach (json_object_get(all, "buckets_ai_toolkit"), i, row) {
        const struct bucket b =
            bucket_of(of(row, "height", -1), of(row, "width", -1), of(row, "resolution", -1), of(row, "divisor", -1));
        assert_int_equal(b.width, of(row, "bucket", 0));
        assert_int_equal(b.height, of(row, "bucket", 1));
        assert_int_equal(b.scaled_width, of(row, "scale_to", 0));
        assert_int_equal(b.scaled_height, of(row, "scale_to", 1));
        assert_int_equal(b.left, of(row, "crop_at", 0));
        assert_int_equal(b.top, of(row, "crop_at", 1));
    }
    assert_true(i > 30);
    json_decref(all);
}

/* diffusers' ladder, and the size of it that a picture gets. */
static void test_ladder(void **state)
{
    json_t *all = json_load_file(path_of("FSDPTRAIN_GOLDENS", "flux2", "schedule.json"), 0, NULL), *row;
    size_t i;
    (void)state;
    json_array_foreach (json_object_get(all, "buckets_diffusers"), i, row) {
        const int64_t height = of(row, "height", -1), width = of(row, "width", -1);
        const json_t *ladder = json_object_get(row, "ladder_wh");
        struct bucket_size sizes[BUCKET_LADDER];
        const size_t n = bucket_ladder(height, width, of(row, "resolution", -1), 16, sizes);
        assert_int_equal(n, json_array_size(ladder));
        for (size_t k = 0; k < n; k++) {
            const json_t *want = json_array_get(ladder, k);
            assert_int_equal(sizes[k].width, json_integer_value(json_array_get(want, 0)));
            assert_int_equal(sizes[k].height, json_integer_value(json_array_get(want, 1)));
        }
        const struct bucket b = bucket_nearest(height, width, sizes, n);
        assert_int_equal(b.width, of(row, "bucket", 0));
        assert_int_equal(b.height, of(row, "bucket", 1));
    }
    assert_true(i > 10);
    json_decref(all);
}

/* A picture of six pixels turned all ways, and back by the inverse. */
static void test_turned(void **state)
{
    static const int inverse[] = { 1, 2, 3, 4, 5, 8, 7, 6 };
    (void)state;
    for (int orientation = 1; orientation <= 8; orientation++) {
        struct fsdpck_error err = { 0 };
        struct pixels p;
        must(pixels_new(2, 3, NULL, &p, &err), &err);
        for (int i = 0; i < 18; i++)
            p.rgb[i] = (uint8_t)i;
        must(pixels_turn(&p, orientation, NULL, &err), &err);
        assert_int_equal(p.width, orientation > 4 ? 2 : 3);
        must(pixels_turn(&p, inverse[orientation - 1], NULL, &err), &err);
        for (int i = 0; i < 18; i++)
            assert_int_equal(p.rgb[i], i);
        pixels_free(&p);
    }
}

/* Any byte of a file flipped, and any end: an error or a picture, and nothing read beyond the file. */
static void test_damaged(void **state)
{
    static const char *const names[] = { "gray.png", "turned.jpg", "wide.png", "tall.jpg" };
    (void)state;
    for (int n = 0; n < 4; n++) {
        FILE *f = fopen(path_of("FSDPCK_FIXTURES", "pictures", names[n]), "rb");
        static uint8_t data[1 << 14];
        const size_t nbytes = fread(data, 1, sizeof data, f);
        char path[] = "/tmp/fsdptrain-XXXXXX";
        const int fd = mkstemp(path);
        fclose(f);
        for (size_t i = 0; i < 2 * nbytes; i += i < 64 ? 1 : 97) {
            const size_t end = i < nbytes ? nbytes : i - nbytes;
            struct fsdpck_error err = { 0 };
            struct picture_notes notes;
            struct pixels p = { 0 };
            data[i % nbytes] ^= i < nbytes ? 0x5a : 0;
            assert_int_equal(ftruncate(fd, 0), 0);
            assert_int_equal(pwrite(fd, data, end, 0), end);
            if (picture_read(path, &p, &notes, &err) == 0)
                pixels_free(&p);
            else
                assert_true(err.message[0] != '\0' && !p.rgb);
            data[i % nbytes] ^= i < nbytes ? 0x5a : 0;
        }
        close(fd);
        unlink(path);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_fitted), cmocka_unit_test(test_buckets),
                                        cmocka_unit_test(test_ladder), cmocka_unit_test(test_turned),
                                        cmocka_unit_test(test_damaged) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
