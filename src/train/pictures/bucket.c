/* SPDX-License-Identifier: Apache-2.0 */
#include "pictures/bucket.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

static int64_t distance(int64_t a, double b)
{
    return (int64_t)fabs((double)a - b);
}

/* Of the sizes around the wanted one the nearest in pixels, of equals the first; smaller before larger. */
static void choose(double rows, double cols, double target, int64_t most, int64_t divisor, struct bucket *b)
{
    const int64_t h[] = { (int64_t)floor(rows) * divisor, (int64_t)ceil(rows) * divisor },
                  w[] = { (int64_t)floor(cols) * divisor, (int64_t)ceil(cols) * divisor };
    bool found = false;
    for (int i = 0; i < 4; i++) {
        const int64_t height = h[i % 2], width = w[i / 2];
        if (height < 1 || width < 1 || height * width > most)
            continue;
        if (!found || distance(height * width, target) < distance(b->height * b->width, target)) {
            b->height = height;
            b->width = width;
        }
        found = true;
    }
    if (!found) {
        b->height = h[0] > divisor ? h[0] : divisor;
        b->width = w[0] > divisor ? w[0] : divisor;
    }
}

struct bucket bucket_of(int64_t height, int64_t width, int64_t resolution, int64_t divisor)
{
    const int64_t most = resolution * resolution, has = height * width;
    const double target = (double)(has < most ? has : most), scale = sqrt(target / (double)has);
    struct bucket b = { 0 };
    choose((double)height * scale / (double)divisor, (double)width * scale / (double)divisor, target, most, divisor,
           &b);
    const double across = (double)b.width / (double)width, down = (double)b.height / (double)height,
                 cover = across > down ? across : down;
    b.scaled_width = (int64_t)ceil((double)width * cover);
    b.scaled_height = (int64_t)ceil((double)height * cover);
    b.top = (b.scaled_height - b.height) / 2;
    b.left = (b.scaled_width - b.width) / 2;
    return b;
}

size_t bucket_ladder(int64_t height, int64_t width, int64_t resolution, int64_t divisor,
                     struct bucket_size out[BUCKET_LADDER])
{
    static const struct {
        double width, height;
    } ratios[BUCKET_LADDER] = { { 1, 1 }, { 4, 5 },  { 5, 4 },  { 2, 3 }, { 3, 2 }, { 3, 4 },
                                { 4, 3 }, { 9, 16 }, { 16, 9 }, { 1, 2 }, { 2, 1 } };
    const double has = rint(sqrt((double)height * (double)width)),
                 side = has < (double)resolution ? has : (double)resolution, d = (double)divisor;
    size_t n = 0;
    for (size_t i = 0; i < BUCKET_LADDER; i++) {
        const double aspect = ratios[i].width / ratios[i].height, h = sqrt(side * side / aspect), rows = rint(h / d),
                     cols = rint(h * aspect / d);
        const struct bucket_size one = { (rows < 1 ? 1 : (int64_t)rows) * divisor,
                                         (cols < 1 ? 1 : (int64_t)cols) * divisor };
        size_t k = 0;
        while (k < n && (out[k].height != one.height || out[k].width != one.width))
            k++;
        out[k] = one;
        n += k == n;
    }
    return n;
}

/* Half of what is cut, rounded as torchvision's center_crop rounds: half to even. */
static int64_t middle(int64_t has, int64_t keeps)
{
    return (int64_t)rint((double)(has - keeps) / 2);
}

struct bucket bucket_nearest(int64_t height, int64_t width, const struct bucket_size *sizes, size_t n)
{
    struct bucket b = { 0 };
    int64_t least = INT64_MAX;
    for (size_t i = 0; i < n; i++) {
        const int64_t away = llabs(height * sizes[i].width - width * sizes[i].height);
        if (away <= least) {
            least = away;
            b.height = sizes[i].height;
            b.width = sizes[i].width;
        }
    }
    const double down = (double)b.height / (double)height, across = (double)b.width / (double)width,
                 cover = down > across ? down : across;
    b.scaled_height = (int64_t)rint((double)height * cover);
    b.scaled_width = (int64_t)rint((double)width * cover);
    b.top = middle(b.scaled_height, b.height);
    b.left = middle(b.scaled_width, b.width);
    return b;
}
